//! `coldpress plan`: what a run would hold in memory and how fast it would be, also for a model that is not all there and for
//! another machine. No weights are read, except at random places to measure the disk.

use anyhow::Result;
use coldpress::{
    Band, Bottleneck, Bytes, Forecast, ForecastRequest, Origin, PlanReport, Reading, Stage, TOKENS_PER_WORD,
    WhatIf,
};

use crate::arguments::PlanArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::load::Bars;
use crate::{Ended, load, output};

/// Runs the command.
///
/// # Errors
/// A header is bad, the budget cannot work, or standard output failed.
pub fn plan(arguments: &PlanArguments, environment: &Environment) -> Result<Ended> {
    // As `run` and `chat` would.
    let configuration = load::configuration(&arguments.load, environment, Use::Plan);
    let request = ForecastRequest {
        prompt_tokens: arguments.prompt_tokens as u64,
        answer_tokens: (arguments.answer_words as f64 * TOKENS_PER_WORD).ceil() as u64,
        what_if: WhatIf {
            memory: arguments.ram,
            disk_bytes_per_second: arguments.disk,
            memory_bytes_per_second: arguments.bandwidth,
        },
        measure: !arguments.no_probe,
    };
    let model = &arguments.load.model;
    let forecast = coldpress::forecast(model, &configuration, &request, &mut Bars::default())?;
    let context = forecast.report.plan.context;
    if u64::from(context) < request.prompt_tokens {
        output::line(&format!(
            "note: a prompt of {} tokens does not fit a context of {context} tokens: `run` refuses it, give --ctx",
            request.prompt_tokens
        ));
    }
    if arguments.json {
        output::json(&forecast)?;
    } else {
        output::text(&describe(&forecast, arguments.answer_words))?;
    }
    Ok(Ended::Done)
}

/// The forecast as text.
fn describe(forecast: &Forecast, words: usize) -> String {
    let mut text = shares(&forecast.report);
    text.push_str(&mode(forecast));
    text.push_str(&rooms(forecast));
    text.push_str(&speeds(forecast, words));
    text.push_str(&settings(&forecast.report));
    for note in &forecast.report.plan.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    for note in forecast.report.notes.iter().chain(&forecast.advice) {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// The model and the table of shares.
fn shares(report: &PlanReport) -> String {
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
    if !report.lossy.is_empty() {
        text.truncate(text.trim_end().len());
        text.push_str(&format!("{}\n\n", output::lossy(&report.lossy)));
    }
    let slots = format!("{} of {} experts at a time", plan.slot_count, plan.records_total);
    let mut context = if plan.kv_tokens == u64::from(plan.context) {
        format!("{} tokens, {}", plan.context, report.kv_type)
    } else {
        format!("{} tokens, room for {}, {}", plan.context, plan.kv_tokens, report.kv_type)
    };
    if report.states.slots > 0 {
        let each = report.states.bytes_each.as_mib();
        context.push_str(&format!(", {} recurrent states of {each:.1} MiB", report.states.slots));
    }
    let chunk = format!("{} prompt tokens at a time", plan.chunk_tokens);
    let ring = match (report.pack_staging, report.advice_bytes) {
        (Bytes::ZERO, Bytes::ZERO) => "reads in flight".to_owned(),
        (Bytes::ZERO, kept) => {
            format!("reads in flight, {:.1} MiB that router advice may keep", kept.as_mib())
        }
        (staging, _) => {
            format!("reads in flight, {:.1} MiB for experts on their way into the pack", staging.as_mib())
        }
    };
    let rows = [
        ("fixed", plan.fixed, "program, tokenizer, threads"),
        ("dense", plan.dense, "weights that every token uses"),
        ("kv", plan.kv, context.as_str()),
        ("scratch", plan.scratch, chunk.as_str()),
        ("read ring", plan.read_ring, ring.as_str()),
        ("row cache", plan.row_cache, "rows of tables that stay on disk"),
        ("slots", plan.slots, slots.as_str()),
        ("total", plan.total(), ""),
    ];
    let has_rows = plan.row_cache > Bytes::ZERO;
    for (name, bytes, remark) in rows.into_iter().filter(|row| has_rows || row.0 != "row cache") {
        text.push_str(format!("  {name:<10} {:>10.1} MiB  {remark}", bytes.as_mib()).trim_end());
        text.push('\n');
    }
    text
}

/// Every setting and who chose it.
fn settings(report: &PlanReport) -> String {
    let mut text = String::from("settings\n");
    for setting in &report.settings {
        text.push_str(&format!("  {:<18} {} ({})\n", setting.name, setting.value, setting.origin.name()));
    }
    text
}

/// The mode, why, and how experts are read.
fn mode(forecast: &Forecast) -> String {
    let report = &forecast.report;
    let mut text = format!("\nresidency {}: {}\n", report.residency.name(), report.reason);
    if let Some(pack) = &report.pack {
        text.push_str(&format!("experts from the pack {}\n", pack.display()));
    }
    if report.plan.records_total > 0 {
        text.push_str(&format!("{}\n", reading(&report.reading)));
        let policy = &report.policy;
        text.push_str(&format!("policy {} ({})\n", policy.name, policy.origin.name()));
        let prefetch = &policy.prefetch;
        text.push_str(&format!("prefetch {} ({})\n", prefetch.setting.name(), prefetch.origin.name()));
    }
    text
}

/// Other budgets, contexts and the disk.
fn rooms(forecast: &Forecast) -> String {
    let room = &forecast.room;
    let mut text = String::new();
    if forecast.report.plan.records_total > 0 {
        text.push_str(&format!(
            "budgets: {} is the smallest that works, from {} on everything stays in memory\n",
            above(room.smallest_budget),
            above(room.resident_budget)
        ));
    } else {
        text.push_str(&format!("budgets: {} is the smallest that works\n", above(room.smallest_budget)));
    }
    if let Some(context) = &room.context {
        text.push_str(&format!("context: {} tokens are best for this budget", context.best));
        if context.longest > context.best {
            text.push_str(&format!("; up to {} fit at the cost of experts in memory", context.longest));
        }
        text.push('\n');
    }
    let disk = |room: &coldpress::DiskRoom| {
        let [needed, free] = coldpress::apart([room.needed, room.free.unwrap_or(room.needed)]);
        let free = room.free.map_or("free space unknown".to_owned(), |_| format!("{free} free"));
        let verdict = if room.fits() { "" } else { ": too little" };
        format!("{needed} ({free} in {}){verdict}", room.folder.display())
    };
    if let Some(download) = &forecast.download {
        text.push_str(&format!("missing: {} of the model are still to come\n", disk(download)));
    }
    if let Some(space) = &forecast.pack_space {
        text.push_str(&format!("pack: `coldpress pack` would write {}\n", disk(space)));
    }
    text
}

/// A size rounded up to the next tenth of its unit, so that it works when it is typed in.
fn above(bytes: Bytes) -> String {
    let (unit, name) = if bytes.0 >= 10 << 30 { (1_u64 << 30, "GiB") } else { (1 << 20, "MiB") };
    format!("{}{name}", bytes.0.div_ceil(unit))
}

/// The prediction, in figures with their origin and in words.
fn speeds(forecast: &Forecast, words: usize) -> String {
    let prediction = &forecast.prediction;
    let (prefill, decode) = (&prediction.prefill, &prediction.decode);
    let mut text = String::from("\nexpected");
    if forecast.what_if.is_asked() {
        text.push_str(" on the machine that was described; what was not given is taken from here");
    }
    text.push_str(&format!(
        "\n  first token  {} s after a prompt of {} tokens, nothing in memory before ({})\n",
        band(prefill.seconds),
        prediction.prompt_tokens,
        bound(prefill)
    ));
    text.push_str(&format!(
        "  decode       {} tokens/s ({})\n",
        band(decode.tokens_per_second),
        bound(decode)
    ));
    if decode.read_bytes.high > 0.0 {
        text.push_str(&format!(
            "  read         {} to {} of experts per token\n",
            Bytes(decode.read_bytes.low as u64),
            Bytes(decode.read_bytes.high as u64)
        ));
    }
    text.push_str(&format!(
        "  in words     a {words}-word answer takes {} ({} to {}), the first word comes after {}\n",
        human(prediction.answer_seconds.about()),
        short(prediction.answer_seconds.low),
        short(prediction.answer_seconds.high),
        human(prefill.seconds.about())
    ));
    text.push_str("because\n");
    let rates = &prediction.rates;
    let mut rows = Vec::new();
    if decode.read_bytes.high > 0.0 {
        let hits = &prediction.hit_rate;
        let percent = format!("{:.0} to {:.0} %", 100.0 * hits.band.low, 100.0 * hits.band.high);
        rows.push(("hit rate", percent, hits.origin, hits.basis.as_str()));
        rows.push(("disk", per_second(rates.disk.band), rates.disk.origin, rates.disk.basis.as_str()));
        if decode.terms.iter().any(|term| term.name == "arranging") {
            let arrange = &rates.arrange;
            rows.push(("arranging", per_second(arrange.band), arrange.origin, arrange.basis.as_str()));
        }
    }
    rows.push(("memory", per_second(rates.memory.band), rates.memory.origin, rates.memory.basis.as_str()));
    let int8 = Band::new(rates.int8.band.low / 1e9, rates.int8.band.high / 1e9);
    rows.push(("int8", format!("{} GOP/s", band(int8)), rates.int8.origin, rates.int8.basis.as_str()));
    let per_word = format!("{TOKENS_PER_WORD} tokens each");
    rows.push(("words", per_word, Origin::Assumed, "English"));
    for (name, value, origin, basis) in rows {
        text.push_str(&format!("  {name:<12} {value}, {}: {basis}\n", origin.name()));
    }
    text
}

fn per_second(rate: Band) -> String {
    format!("{} GB/s", band(Band::new(rate.low / 1e9, rate.high / 1e9)))
}

/// Two figures with as many digits as they deserve, or one.
fn band(band: Band) -> String {
    let figure = |value: f64| match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    let (low, high) = (figure(band.low), figure(band.high));
    if low == high { low } else { format!("{low} to {high}") }
}

fn bound(stage: &Stage) -> &'static str {
    match stage.bottleneck {
        Bottleneck::Disk => "the disk decides",
        Bottleneck::Computing => "computing decides",
    }
}

/// A time as one says it.
fn human(seconds: f64) -> String {
    if seconds < 1.0 { "less than a second".to_owned() } else { format!("about {}", short(seconds)) }
}

fn short(seconds: f64) -> String {
    let plural = |count: f64, unit: &str| {
        let end = if count == 1.0 { "" } else { "s" };
        format!("{count:.0} {unit}{end}")
    };
    match seconds {
        seconds if seconds < 1.0 => "under 1 second".to_owned(),
        seconds if seconds < 20.0 => plural(seconds.round(), "second"),
        seconds if seconds < 90.0 => plural((seconds / 5.0).round() * 5.0, "second"),
        seconds if seconds < 5400.0 => plural((seconds / 60.0).round(), "minute"),
        seconds => plural((seconds / 3600.0).round(), "hour"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        let said = [0.3, 1.0, 7.4, 42.0, 89.0, 100.0, 3000.0, 7300.0].map(human);
        let wanted = [
            "less than a second",
            "about 1 second",
            "about 7 seconds",
            "about 40 seconds",
            "about 90 seconds",
            "about 2 minutes",
            "about 50 minutes",
            "about 2 hours",
        ];
        assert_eq!(said, wanted);
    }

    #[test]
    fn a_size_that_is_shown_works_when_it_is_typed_in() {
        for bytes in [1, 1 << 20, (1 << 20) + 1, 900 << 20, (12 << 30) + 5] {
            let shown: coldpress::SizeSpec = above(Bytes(bytes)).parse().expect("a size");
            assert!(shown.resolve(Bytes::MAX).0 >= bytes);
        }
    }
}
