//! What `bench` says: one JSON object with every run, or tables with the medians and the run in the middle.
//!
//! The figures of both come from `summary.rs` and `limit.rs`.

use coldpress::{Bytes, Residency};
use serde_json::{Value, json};

use super::measure::{Part, Stretch};
use super::prediction;
use super::summary::{Spread, Summaries, Summary};
use super::{Bench, Measured, Measurement};
use crate::output::{self, milliseconds, phases_ms};
use crate::settings;

/// Wall time that no phase claims; negative when phases claim more than there was.
fn residue_ms(part: &Part) -> f64 {
    milliseconds(part.wall) - milliseconds(part.phases.sum())
}

/// The phases in three: together they are their sum.
fn time_ms(part: &Part) -> Value {
    let phases = &part.phases;
    let computing = phases.sum() - phases.disk_wait - phases.host;
    json!({
        "disk_wait": milliseconds(phases.disk_wait),
        "compute": milliseconds(computing),
        "host": milliseconds(phases.host),
    })
}

fn per_token(part: &Part) -> Value {
    let tokens = part.tokens.max(1) as f64;
    json!({
        "hits": part.experts.hits as f64 / tokens,
        "misses": part.experts.misses as f64 / tokens,
        "bytes_read": part.experts.bytes_read as f64 / tokens,
        "device_bytes_read": part.device_bytes_per_token(),
        "prefetched_bytes": part.experts.prefetched_bytes as f64 / tokens,
        "prefetch_used_bytes": part.experts.prefetch_used_bytes as f64 / tokens,
        "rows": part.experts.rows.hit_rate().map(|rate| json!({
            "asked": part.experts.rows.asked as f64 / tokens,
            "read": part.experts.rows.misses as f64 / tokens,
            "hit_rate": rate,
            "latency": part.experts.rows.latency,
        })),
    })
}

fn thirds(part: &Part) -> Option<Value> {
    let of = |third: &Stretch| json!({ "tokens": third.tokens, "wall_ms": milliseconds(third.wall), "tokens_per_second": third.rate() });
    part.thirds
        .as_ref()
        .map(|[first, middle, last]| json!({ "first": of(first), "middle": of(middle), "last": of(last) }))
}

/// What a single part has to tell.
fn raw(part: &Part) -> Value {
    json!({
        "tokens": part.tokens,
        "tokens_per_second": part.rate(),
        "wall_ms": milliseconds(part.wall),
        "phases_ms": phases_ms(&part.phases),
        "phases_sum_ms": milliseconds(part.phases.sum()),
        "residue_ms": residue_ms(part),
        "time_ms": time_ms(part),
        "thirds": thirds(part),
        "hit_rate": part.hit_rate(),
        "experts_per_token": per_token(part),
        "experts": part.experts,
    })
}

fn summary(summary: &Summary<'_>) -> Value {
    let mut value = raw(summary.part);
    let rate = &summary.rate;
    value["tokens_per_second"] = json!({ "median": rate.median, "min": rate.min, "max": rate.max });
    value["cold"] = json!(summary.cold);
    value["runs"] = json!(summary.runs);
    value["median_run"] = json!(summary.middle);
    value["limit"] = summary.limit.value();
    if summary.name == "prefill" {
        value["ttft_ms"] = json!(milliseconds(summary.part.wall));
    }
    value
}

fn pair(parts: &[Summary<'_>; 2]) -> Value {
    json!({ "prefill": summary(&parts[0]), "decode": summary(&parts[1]) })
}

/// One configuration: what it was loaded as and every measurement.
fn configuration(bench: &Bench, measured: &Measured) -> Value {
    let status = &measured.status;
    let plan = &status.plan.plan;
    let depths = measured.measurements.iter().map(|measurement| {
        let summaries = Summaries::of(bench, measured, measurement);
        let [prefill, decode] = summaries.main();
        json!({
            "depth": measurement.depth,
            "fill": measurement.fill.as_ref().map(raw),
            "prefill": summary(prefill),
            "decode": summary(decode),
            "cold": summaries.cold.as_ref().map(pair),
            "warm": summaries.warm.as_ref().map(pair),
            "runs": measurement.runs.iter().map(|run| json!({
                "cold": run.cold,
                "ttft_ms": milliseconds(run.prefill.wall),
                "prefill": raw(&run.prefill),
                "decode": raw(&run.decode),
            })).collect::<Vec<_>>(),
        })
    });
    json!({
        "budget_bytes": plan.budget,
        "peak_bytes": status.peak,
        "residency": status.plan.residency,
        "residency_asked": measured.asked,
        "same_tokens": measured.same_tokens,
        "policy": status.policy,
        "policy_origin": status.plan.policy.origin,
        "prefetch": settings::prefetch_value(status),
        "reader": status.reader,
        "reading": settings::reading_value(status),
        "pack": status.plan.pack,
        "threads": status.plan.threads,
        "isa": status.plan.isa,
        "kv_type": status.plan.kv_type,
        "lossy": status.plan.lossy,
        "context": plan.context,
        "chunk_tokens": plan.chunk_tokens,
        "slots": plan.slot_count,
        "records": plan.records_total,
        "load_ms": milliseconds(measured.load_time),
        "prediction": prediction::value(bench, measured),
        "depths": depths.collect::<Vec<_>>(),
    })
}

/// The whole bench.
pub fn object(bench: &Bench) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": bench.model,
        "processor": coldpress::processor_name(),
        "prompt_tokens": bench.sizes.prompt,
        "gen_tokens": bench.sizes.generated,
        "depths": bench.depths,
        "repeat": bench.repeat,
        "rerun": bench.rerun,
        "same_tokens": bench.same_tokens(),
        "limit": bench.limits.value(),
        "configurations": bench.all.iter().map(|measured| configuration(bench, measured)).collect::<Vec<_>>(),
    })
}

/// The same as [`object`], to read.
pub fn describe(bench: &Bench) -> String {
    let mut text = format!(
        "{} ({}): {} prompt tokens, {} generated, {} runs of each\n",
        bench.model_name(),
        bench.model.family,
        bench.sizes.prompt,
        bench.sizes.generated,
        bench.repeat
    );
    for measured in &bench.all {
        text.push('\n');
        text.push_str(&tables(bench, measured));
    }
    text.push('\n');
    for line in bench.limits.lines() {
        text.push_str(&format!("{line}\n"));
    }
    text.push_str(
        "limit: the longer of computing alone and reading what was missed, as if they overlapped completely\n",
    );
    text.push_str(match (bench.same_tokens(), bench.depends_on_memory()) {
        (true, _) => "tokens: the same in all runs of all configurations\n",
        (false, true) => {
            "tokens: not the same in all runs, because --cache-bias makes them depend on what is in memory\n"
        }
        (false, false) => "tokens: NOT the same in all runs; this is a bug, please report it\n",
    });
    text.push_str(&format!("again: {}\n", bench.rerun));
    text
}

/// What a configuration is, in a line.
pub fn heading(measured: &Measured) -> String {
    let status = &measured.status;
    let plan = &status.plan.plan;
    let experts = if plan.records_total == 0 {
        String::new()
    } else {
        format!(", {} of {} experts in memory", plan.slot_count.min(plan.records_total), plan.records_total)
    };
    format!(
        "{}, {}{experts}, {} threads, {}: peak {}, loaded in {:.1} s{}",
        measured.budget_name("budget "),
        status.plan.residency.name(),
        status.plan.threads,
        status.plan.isa,
        status.peak.rss,
        measured.load_time.as_secs_f64(),
        output::lossy(&status.plan.lossy)
    )
}

fn tables(bench: &Bench, measured: &Measured) -> String {
    let mut text = format!("{}\n", heading(measured));
    let settings = settings::describe(&measured.status);
    if !settings.is_empty() {
        text.push_str(&format!("{settings}\n"));
    }
    text.push('\n');
    let mut rates = format!(
        "  {:>6}  {:<8}{:<6}{:>7}{:>10}{:>10}{:>10}{:>10}{:>10}{:>7}{:>13}  {}\n",
        "depth",
        "part",
        "runs",
        "tokens",
        "tok/s",
        "min",
        "max",
        "first 1/3",
        "last 1/3",
        "hits",
        "read/token",
        "of limit"
    );
    let mut times = format!("  {:>6}  {:<8}{:<6}", "depth", "part", "runs");
    for name in ["attention", "experts", "arrange", "dense", "head", "disk wait", "host", "sum", "wall"] {
        times.push_str(&format!("{name:>11}"));
    }
    times.push_str(&format!("{:>9}\n", "residue"));
    for measurement in &measured.measurements {
        let summaries = Summaries::of(bench, measured, measurement);
        if let Some(fill) = &measurement.fill {
            let rate = Spread::of([fill.rate()].into_iter());
            rates.push_str(&rate_row(measurement.depth, "fill", "", fill, &rate, "-"));
            times.push_str(&time_row(measurement, "fill", "", fill));
        }
        for summary in summaries.all() {
            let (name, warmth) = (summary.name, warmth(summary.cold));
            rates.push_str(&rate_row(
                measurement.depth,
                name,
                warmth,
                summary.part,
                &summary.rate,
                &of_limit(summary),
            ));
            times.push_str(&time_row(measurement, name, warmth, summary.part));
        }
    }
    text.push_str(&rates);
    text.push_str(&prediction::line(bench, measured));
    text.push_str(
        "\n  milliseconds of the median run; the wall time of prefill is the time to the first token\n",
    );
    text.push_str(&times);
    text
}

/// `cold` or `warm`.
pub fn warmth(cold: bool) -> &'static str {
    if cold { "cold" } else { "warm" }
}

/// What was reached of the limit, and what bounds it.
pub fn of_limit(summary: &Summary<'_>) -> String {
    let bound = if summary.limit.reading().is_some() { summary.limit.bound().name() } else { "disk unknown" };
    format!("{:.0}% ({bound})", summary.limit.percent())
}

/// A hit rate, or that nothing was asked for.
pub fn hits(part: &Part) -> String {
    part.hit_rate().map_or("-".to_owned(), |rate| format!("{:.1}%", 100.0 * rate))
}

fn rate_row(depth: usize, name: &str, warmth: &str, part: &Part, rate: &Spread, of_limit: &str) -> String {
    let third =
        |index: usize| part.thirds.map_or("-".to_owned(), |thirds| format!("{:.1}", thirds[index].rate()));
    format!(
        "  {depth:>6}  {name:<8}{warmth:<6}{:>7}{:>10.1}{:>10.1}{:>10.1}{:>10}{:>10}{:>7}{:>13}  {of_limit}\n",
        part.tokens,
        rate.median,
        rate.min,
        rate.max,
        third(0),
        third(2),
        hits(part),
        Bytes(part.device_bytes_per_token() as u64).to_string(),
    )
}

fn time_row(measurement: &Measurement, name: &str, warmth: &str, part: &Part) -> String {
    let mut row = format!("  {:>6}  {name:<8}{warmth:<6}", measurement.depth);
    let wall = milliseconds(part.wall);
    let figures = part.phases.named().into_iter().map(|(_, time)| milliseconds(time));
    for figure in figures.chain([milliseconds(part.phases.sum()), wall]) {
        row.push_str(&format!("{figure:>11.1}"));
    }
    row.push_str(&format!("{:>8.1}%\n", 100.0 * residue_ms(part) / wall.max(1e-3)));
    row
}

impl Measured {
    /// The budget as people read it, `prefix` before a figure.
    pub fn budget_name(&self, prefix: &str) -> String {
        match self.status.plan.plan.budget {
            Bytes::MAX => "unlimited".to_owned(),
            budget => format!("{prefix}{budget}"),
        }
    }

    /// The residency that was asked for, and what `auto` became.
    pub fn residency_name(&self) -> String {
        match self.asked {
            Residency::Auto => format!("auto: {}", self.status.plan.residency.name()),
            asked => asked.name().to_owned(),
        }
    }
}
