//! `coldpress simulate`: what every cache policy would have done with recorded routing. Next: `svg.rs`.

mod svg;

use anyhow::Result;
use coldpress::{PolicyKind, ReplayCounts, RoutingTrace, Simulation};

use crate::arguments::SimulateArguments;
use crate::{Ended, output};

/// Name of the optimum in tables.
const OPTIMUM: &str = "belady (knows the future)";

/// Runs the command.
///
/// # Errors
/// The file is no good trace, the drawing cannot be written, or standard output failed.
pub fn simulate(arguments: &SimulateArguments) -> Result<Ended> {
    let trace = RoutingTrace::read(&arguments.trace)?;
    let kinds: Vec<PolicyKind> = if arguments.policy.is_empty() {
        PolicyKind::ALL.iter().map(|(_, kind)| *kind).collect()
    } else {
        arguments.policy.iter().filter_map(|name| PolicyKind::parse(name)).collect()
    };
    let simulation = coldpress::simulate(&trace, &arguments.capacity.0, &kinds);
    if let Some(path) = &arguments.svg {
        svg::write(&simulation, path)?;
    }
    if arguments.json {
        output::json(&simulation)?;
    } else {
        output::text(&describe(&simulation))?;
    }
    Ok(Ended::Done)
}

/// The tables.
pub fn describe(simulation: &Simulation) -> String {
    let mut text = format!(
        "{} layers, {} experts in all, {} per token and layer; {} tokens in {} passes, {} of them of one token\n",
        simulation.layers,
        simulation.records,
        simulation.experts_per_token,
        simulation.tokens,
        simulation.passes,
        simulation.decode_passes
    );
    text.push_str(&table(simulation, "hit rate of all requests", ReplayCounts::hit_rate));
    if (1..simulation.passes).contains(&simulation.decode_passes) {
        text.push_str(&table(simulation, "hit rate of decode alone", ReplayCounts::decode_hit_rate));
    }
    text
}

fn table(simulation: &Simulation, title: &str, rate: impl Fn(&ReplayCounts) -> f64) -> String {
    let mut text = format!("\n{title:<26}");
    for slots in &simulation.slots {
        text.push_str(&format!("{:>8.1}%", 100.0 * *slots as f64 / simulation.records as f64));
    }
    text.push_str(&format!("\n{:<26}", "slots"));
    for slots in &simulation.slots {
        text.push_str(&format!("{slots:>9}"));
    }
    text.push('\n');
    let optimum = (OPTIMUM, &simulation.belady);
    for (name, counts) in
        simulation.policies.iter().map(|curve| (curve.policy, &curve.counts)).chain([optimum])
    {
        text.push_str(&format!("{name:<26}"));
        for counts in counts {
            text.push_str(&format!("{:>8.1}%", 100.0 * rate(counts)));
        }
        text.push('\n');
    }
    text
}
