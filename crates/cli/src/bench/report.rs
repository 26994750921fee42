//! What `bench` says: medians with their spread, and the phases of the run in the middle.
//!
//! Rates are medians over the runs with the smallest and the largest. Phases and expert figures come from one run, the one
//! with the median wall time (the shorter of the two in the middle), because medians of parts do not add up to a whole.

use std::time::Duration;

use coldpress::{Bytes, Status};
use serde_json::{Value, json};

use super::Measurement;
use super::measure::{Part, Run};
use crate::output::{milliseconds, phases_ms};

/// Median, smallest and largest.
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Self { median, min: values[0], max: values[count - 1] }
    }
}

/// The index of the part with the median wall time.
fn middle(parts: &[Part]) -> usize {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&index| parts[index].wall);
    order[(parts.len() - 1) / 2]
}

/// Wall time that no phase claims; negative when phases claim more than there was.
fn residue_ms(part: &Part) -> f64 {
    milliseconds(part.wall) - milliseconds(part.phases.sum())
}

fn per_token(part: &Part) -> Value {
    let tokens = part.tokens.max(1) as f64;
    json!({
        "hits": part.experts.hits as f64 / tokens,
        "misses": part.experts.misses as f64 / tokens,
        "bytes_read": part.experts.bytes_read as f64 / tokens,
        "device_bytes_read": part.experts.device_bytes_read as f64 / tokens,
    })
}

fn raw(part: &Part) -> Value {
    json!({
        "tokens": part.tokens,
        "tokens_per_second": part.rate(),
        "wall_ms": milliseconds(part.wall),
        "phases_ms": phases_ms(&part.phases),
        "phases_sum_ms": milliseconds(part.phases.sum()),
        "residue_ms": residue_ms(part),
        "experts": part.experts,
    })
}

fn summary(parts: &[Part]) -> Value {
    let rate = Spread::of(parts.iter().map(Part::rate));
    let index = middle(parts);
    let part = &parts[index];
    json!({
        "tokens_per_second": { "median": rate.median, "min": rate.min, "max": rate.max },
        "median_run": index,
        "wall_ms": milliseconds(part.wall),
        "phases_ms": phases_ms(&part.phases),
        "phases_sum_ms": milliseconds(part.phases.sum()),
        "residue_ms": residue_ms(part),
        "experts_per_token": per_token(part),
    })
}

fn parts(runs: &[Run], of: fn(&Run) -> Part) -> Vec<Part> {
    runs.iter().map(of).collect()
}

/// One configuration: what it was loaded as and every measurement.
pub fn configuration(status: &Status, load_time: Duration, measurements: &[Measurement]) -> Value {
    let plan = &status.plan.plan;
    let depths = measurements.iter().map(|measurement| {
        json!({
            "depth": measurement.depth,
            "fill": measurement.fill.as_ref().map(raw),
            "prefill": summary(&parts(&measurement.runs, |run| run.prefill)),
            "decode": summary(&parts(&measurement.runs, |run| run.decode)),
            "runs": measurement.runs.iter().map(|run| {
                json!({ "prefill": raw(&run.prefill), "decode": raw(&run.decode) })
            }).collect::<Vec<_>>(),
        })
    });
    json!({
        "budget_bytes": plan.budget,
        "peak_bytes": status.peak,
        "residency": status.plan.residency,
        "policy": status.policy,
        "reader": status.reader,
        "pack": status.plan.pack,
        "threads": status.plan.threads,
        "isa": status.plan.isa,
        "kv_type": status.plan.kv_type,
        "context": plan.context,
        "chunk_tokens": plan.chunk_tokens,
        "slots": plan.slot_count,
        "records": plan.records_total,
        "load_ms": milliseconds(load_time),
        "depths": depths.collect::<Vec<_>>(),
    })
}

/// The same as [`configuration`], as two tables.
pub fn tables(status: &Status, load_time: Duration, measurements: &[Measurement]) -> String {
    let plan = &status.plan.plan;
    let budget = match plan.budget {
        Bytes::MAX => "unlimited budget".to_owned(),
        budget => format!("budget {budget}"),
    };
    let experts = if plan.records_total == 0 {
        String::new()
    } else {
        format!(", {} of {} experts in memory", plan.slot_count.min(plan.records_total), plan.records_total)
    };
    let mut text = format!(
        "{budget}, {}{experts}, {} threads, {}: peak {}, loaded in {:.1} s\n\n",
        status.plan.residency.name(),
        status.plan.threads,
        status.plan.isa,
        status.peak.rss,
        load_time.as_secs_f64()
    );
    let mut rates = format!(
        "  {:>6}  {:<8}{:>7}{:>10}{:>10}{:>10}{:>12}{:>13}{:>14}\n",
        "depth", "part", "tokens", "tok/s", "min", "max", "hits/token", "misses/token", "read/token"
    );
    let mut times = format!("  {:>6}  {:<8}", "depth", "part");
    for name in ["attention", "experts", "arrange", "dense", "head", "disk wait", "host", "sum", "wall"] {
        times.push_str(&format!("{name:>11}"));
    }
    times.push_str(&format!("{:>9}\n", "residue"));
    for measurement in measurements {
        let mut row = |name: &str, parts: &[Part]| {
            rates.push_str(&rate_row(measurement.depth, name, parts));
            times.push_str(&time_row(measurement.depth, name, &parts[middle(parts)]));
        };
        if let Some(fill) = &measurement.fill {
            row("fill", &[*fill]);
        }
        row("prefill", &parts(&measurement.runs, |run| run.prefill));
        row("decode", &parts(&measurement.runs, |run| run.decode));
    }
    text.push_str(&rates);
    text.push_str("\n  milliseconds of the median run\n");
    text.push_str(&times);
    text
}

fn rate_row(depth: usize, name: &str, parts: &[Part]) -> String {
    let rate = Spread::of(parts.iter().map(Part::rate));
    let part = &parts[middle(parts)];
    let tokens = part.tokens.max(1) as f64;
    format!(
        "  {depth:>6}  {name:<8}{:>7}{:>10.1}{:>10.1}{:>10.1}{:>12.1}{:>13.1}{:>14}\n",
        part.tokens,
        rate.median,
        rate.min,
        rate.max,
        part.experts.hits as f64 / tokens,
        part.experts.misses as f64 / tokens,
        Bytes((part.experts.bytes_read as f64 / tokens) as u64).to_string(),
    )
}

fn time_row(depth: usize, name: &str, part: &Part) -> String {
    let mut row = format!("  {depth:>6}  {name:<8}");
    let wall = milliseconds(part.wall);
    let figures = part.phases.named().into_iter().map(|(_, time)| milliseconds(time));
    for figure in figures.chain([milliseconds(part.phases.sum()), wall]) {
        row.push_str(&format!("{figure:>11.1}"));
    }
    row.push_str(&format!("{:>8.1}%\n", 100.0 * residue_ms(part) / wall.max(1e-3)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_of_its_values() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let odd = of(&[3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(of(&[7.0]).median, 7.0);
    }
}
