//! `coldpress bench`: prefill and decode of a fixed English text, measured per configuration and depth.
//!
//! Configurations (budgets times residencies) run one after the other: load, all depths, all runs, drop. All of them are
//! planned first, so that one that does not fit is refused before the first is measured. A depth above 0 is filled once and
//! each run returns to it; at depth 0 each run starts with an empty session. Every run has the same tokens, so runs differ
//! by the machine and by what the expert cache holds: the first one after a load is the cold one.
//! Nothing is drawn while a run is measured. Next: `measure.rs`, `report.rs`, `text.rs`.

mod measure;
mod report;
pub mod text;

use std::time::{Duration, Instant};

use anyhow::Result;
use coldpress::{LoadConfiguration, ModelSummary, Status};
use serde_json::json;

use self::measure::{Part, Run, Sizes};
use crate::arguments::BenchArguments;
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{Ended, Usage, load, output};

/// What was measured at one depth.
pub struct Measurement {
    /// Tokens in the KV cache before the prompt.
    pub depth: usize,
    /// How they came there; `None` at depth 0.
    pub fill: Option<Part>,
    /// At least one.
    pub runs: Vec<Run>,
}

/// Everything measured with one configuration.
struct Measured {
    status: Status,
    load_time: Duration,
    measurements: Vec<Measurement>,
}

/// Runs the command.
///
/// # Errors
/// The model's context is too short, a configuration does not fit, loading or generating failed, or standard output did.
pub fn bench(arguments: &BenchArguments, environment: &Environment) -> Result<Ended> {
    let (configurations, model) = plan_all(arguments, environment)?;
    let mut all = Vec::new();
    for (index, configuration) in configurations.iter().enumerate() {
        let title = format!("bench {}/{}", index + 1, configurations.len());
        match measure(arguments, configuration, &title)? {
            Some(measured) => all.push(measured),
            None => return Ok(Ended::Interrupted),
        }
    }
    let rerun = rerun(std::env::args().skip(1), environment);
    if arguments.json {
        output::json(&object(arguments, &model, &all, &rerun))?;
    } else {
        output::text(&describe(arguments, &model, &all, &rerun))?;
    }
    Ok(Ended::Done)
}

/// Every configuration, each of which fits; and the model.
fn plan_all(
    arguments: &BenchArguments,
    environment: &Environment,
) -> Result<(Vec<LoadConfiguration>, ModelSummary)> {
    let deepest = arguments.depths.iter().copied().max().unwrap_or(0);
    let (prompt, generated) = (arguments.prompt_tokens, arguments.gen_tokens);
    let needed = deepest.saturating_add(prompt).saturating_add(generated);
    // The plan itself would rather say that the budget is too small; a model that cannot go so far is no matter of budget.
    let base = load::common(&arguments.common, environment);
    let trained = coldpress::model_summary(&arguments.common.model)?.trained_context;
    if needed > trained {
        let reason = format!(
            "a depth of {deepest}, {prompt} prompt tokens and {generated} generated ones need a context of {needed}; \
             the model has {trained}: use less of --depths, --prompt-tokens or --gen-tokens"
        );
        return Err(Usage(anyhow::anyhow!(reason)).into());
    }
    let base = base.context(u32::try_from(needed).unwrap_or(u32::MAX));
    let budgets: Vec<Option<_>> = some_or_default(&arguments.budget);
    let residencies: Vec<Option<_>> = some_or_default(&arguments.residency);
    let mut configurations = Vec::new();
    let mut model = None;
    for budget in budgets {
        for &residency in &residencies {
            let mut configuration = base.clone();
            if let Some(budget) = budget {
                configuration = configuration.budget(budget);
            }
            if let Some(residency) = residency {
                configuration = configuration.residency(residency);
            }
            model = Some(coldpress::plan(&arguments.common.model, &configuration)?.model);
            configurations.push(configuration);
        }
    }
    Ok((configurations, model.expect("there is at least one configuration")))
}

/// The values, or one "not given".
fn some_or_default<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

/// Loads and measures one configuration; `None` if the user stopped it.
fn measure(
    arguments: &BenchArguments,
    configuration: &LoadConfiguration,
    title: &str,
) -> Result<Option<Measured>> {
    let started = Instant::now();
    let mut runtime = load::load(&arguments.common.model, configuration)?;
    let load_time = started.elapsed();
    let sizes = Sizes { prompt: arguments.prompt_tokens, generated: arguments.gen_tokens };
    let deepest = arguments.depths.iter().copied().max().unwrap_or(0);
    let ids = text::ids(&runtime, deepest + sizes.prompt)?;
    let mut session = runtime.session()?;
    let total = arguments.depths.len().saturating_mul(arguments.repeat) as u64;
    let mut progress = Progress::new(title, Unit::Runs);
    let mut measurements = Vec::new();
    for &depth in &arguments.depths {
        let fill = match depth {
            0 => None,
            _ => match measure::fill(&mut runtime, &mut session, &ids, depth)? {
                Some(part) => Some(part),
                None => return Ok(None),
            },
        };
        let mut measurement = Measurement { depth, fill, runs: Vec::new() };
        for run in 0..arguments.repeat {
            progress.update((measurements.len() * arguments.repeat + run) as u64, total);
            match measure::run(&mut runtime, &mut session, &ids, depth, sizes)? {
                Some(run) => measurement.runs.push(run),
                None => return Ok(None),
            }
        }
        measurements.push(measurement);
    }
    Ok(Some(Measured { status: runtime.status(), load_time, measurements }))
}

fn object(
    arguments: &BenchArguments,
    model: &ModelSummary,
    all: &[Measured],
    rerun: &str,
) -> serde_json::Value {
    let configurations = all
        .iter()
        .map(|measured| report::configuration(&measured.status, measured.load_time, &measured.measurements));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model,
        "prompt_tokens": arguments.prompt_tokens,
        "gen_tokens": arguments.gen_tokens,
        "depths": arguments.depths,
        "repeat": arguments.repeat,
        "rerun": rerun,
        "configurations": configurations.collect::<Vec<_>>(),
    })
}

fn describe(arguments: &BenchArguments, model: &ModelSummary, all: &[Measured], rerun: &str) -> String {
    let mut text = format!(
        "{} ({}): {} prompt tokens, {} generated, {} runs of each\n",
        model.name.as_deref().unwrap_or("unnamed model"),
        model.family,
        arguments.prompt_tokens,
        arguments.gen_tokens,
        arguments.repeat
    );
    for measured in all {
        text.push('\n');
        text.push_str(&report::tables(&measured.status, measured.load_time, &measured.measurements));
    }
    text.push_str(&format!("\nagain: {rerun}\n"));
    text
}

/// The command that was typed, for a shell.
fn rerun(arguments: impl Iterator<Item = String>, environment: &Environment) -> String {
    let isa = environment.isa.map(|isa| format!("COLDPRESS_ISA={}", isa.name()));
    let words = isa.into_iter().chain(["coldpress".to_owned()]).chain(arguments.map(|word| quoted(&word)));
    words.collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./,%=:+@".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("models/demo.gguf"), "models/demo.gguf");
        assert_eq!(quoted("my model"), "'my model'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
