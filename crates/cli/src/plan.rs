//! `coldpress plan`: what a run would hold in memory. No weights are read.

use anyhow::Result;
use coldpress::{Bytes, PlanReport, Reading};

use crate::arguments::PlanArguments;
use crate::environment::Environment;
use crate::{Ended, load, output};

/// Runs the command.
///
/// # Errors
/// The file is bad, the budget cannot work, or standard output failed.
pub fn plan(arguments: &PlanArguments, environment: &Environment) -> Result<Ended> {
    let configuration = load::configuration(&arguments.load, environment);
    let report = coldpress::plan(&arguments.load.common.model, &configuration)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    Ok(Ended::Done)
}

/// The plan as text.
fn describe(report: &PlanReport) -> String {
    let PlanReport { model, plan, .. } = report;
    let mut text = format!(
        "{} ({}), {} layers, {}\n",
        model.name.as_deref().unwrap_or("unnamed model"),
        model.family,
        model.layers,
        experts(report)
    );
    let budget = if plan.budget == Bytes::MAX { "unlimited".to_owned() } else { plan.budget.to_string() };
    text.push_str(&format!(
        "budget {budget} of {} usable, {} threads, {}\n\n",
        report.usable, report.threads, report.isa
    ));
    let slots = format!("{} of {} experts at a time", plan.slot_count, plan.records_total);
    let context = format!("{} tokens, {}", plan.context, report.kv_type);
    let chunk = format!("{} prompt tokens at a time", plan.chunk_tokens);
    let ring = match report.pack_staging {
        Bytes::ZERO => "reads in flight".to_owned(),
        staging => {
            format!("reads in flight, {:.1} MiB for experts on their way into the pack", staging.as_mib())
        }
    };
    let rows = [
        ("fixed", plan.fixed, "program, tokenizer, threads"),
        ("dense", plan.dense, "weights that every token uses"),
        ("kv", plan.kv, context.as_str()),
        ("scratch", plan.scratch, chunk.as_str()),
        ("read ring", plan.read_ring, ring.as_str()),
        ("slots", plan.slots, slots.as_str()),
        ("total", plan.total(), ""),
    ];
    for (name, bytes, remark) in rows {
        text.push_str(format!("  {name:<10} {:>10.1} MiB  {remark}", bytes.as_mib()).trim_end());
        text.push('\n');
    }
    text.push_str(&format!("\nresidency {}: {}\n", report.residency.name(), report.reason));
    if let Some(pack) = &report.pack {
        text.push_str(&format!("experts from the pack {}\n", pack.display()));
    }
    if plan.records_total > 0 {
        text.push_str(&format!("{}\n", reading(&report.reading)));
        text.push_str(&format!("policy {} ({})\n", report.policy.name, report.policy.origin.name()));
    }
    for note in &plan.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    for note in &report.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// How experts are read, in one line.
fn reading(reading: &Reading) -> String {
    let depth = reading.depth.map_or_else(String::new, |depth| format!(", {depth} reads in flight"));
    let split =
        if reading.split > 1 { format!(", {} reads per expert", reading.split) } else { String::new() };
    let (reader, access) = (reading.reader, reading.access.name());
    format!("reader {reader}{depth}{split}, {access} ({})", reading.basis.name())
}

fn experts(report: &PlanReport) -> String {
    let model = &report.model;
    if model.moe_layers == 0 {
        return format!("dense, {} of weights", model.tensor_bytes);
    }
    format!(
        "{} MoE layers of {} experts, {} per token, {} of {} are routed experts",
        model.moe_layers, model.experts, model.experts_per_token, model.expert_bytes, model.tensor_bytes
    )
}
