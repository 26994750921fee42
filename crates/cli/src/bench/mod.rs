//! `coldpress bench`: prefill and decode of a fixed English text, measured per configuration and depth.
//!
//! Configurations (budgets times residencies) run one after the other: load, all depths, all runs, drop. All of them are
//! planned first, so that one that does not fit is refused before the first is measured. A depth above 0 is filled once and
//! each run returns to it; at depth 0 each run starts with an empty session. Every run has the same tokens, so runs differ
//! by the machine and by what the expert cache holds: the first one after a load is the cold one.
//! Nothing is drawn while a run is measured, and what the page draws of single tokens comes from further runs. Next: `measure.rs`, `limit.rs`, `summary.rs`, `report.rs`, `html/mod.rs`.

mod html;
mod limit;
mod measure;
mod prediction;
mod report;
mod summary;
pub mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use coldpress::{
    Bytes, LoadConfiguration, ModelSummary, Prediction, Residency, RoutingTrace, Runtime, Session, Status,
    TokenTimeline,
};

use self::limit::Limits;
use self::measure::{Part, Run, Sizes};
use crate::arguments::BenchArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{Ended, Usage, choices, effects, load, output};

/// What was measured at one depth.
struct Measurement {
    /// Tokens in the KV cache before the prompt.
    depth: usize,
    /// How they came there; `None` at depth 0.
    fill: Option<Part>,
    /// At least one.
    runs: Vec<Run>,
}

/// Everything measured with one configuration.
struct Measured {
    /// The residency that was asked for.
    asked: Residency,
    status: Status,
    load_time: Duration,
    measurements: Vec<Measurement>,
    /// Whether all runs gave the tokens that the first configuration gave at the same depth.
    same_tokens: bool,
    /// What `plan` predicted.
    prediction: Prediction,
    /// Which experts a further run chose, where that was asked for.
    routing: Option<RoutingTrace>,
    /// One token of a further run over time, where that was asked for.
    timeline: Option<TokenTimeline>,
}

/// Everything that a report tells.
struct Bench {
    model_path: PathBuf,
    model: ModelSummary,
    sizes: Sizes,
    depths: Vec<usize>,
    repeat: usize,
    rerun: String,
    limits: Limits,
    /// At least one.
    all: Vec<Measured>,
}

impl Bench {
    fn same_tokens(&self) -> bool {
        self.all.iter().all(|measured| measured.same_tokens)
    }

    /// Whether a setting makes answers depend on what is in memory.
    fn depends_on_memory(&self) -> bool {
        self.all.iter().any(|measured| measured.status.plan.depends_on_memory)
    }

    fn model_name(&self) -> &str {
        self.model.name.as_deref().unwrap_or("unnamed model")
    }
}

/// Runs the command.
///
/// # Errors
/// The model's context is too short, a configuration does not fit, the page's place is taken, loading or generating failed,
/// or standard output did.
pub fn bench(arguments: &BenchArguments, environment: &Environment) -> Result<Ended> {
    if let Some(path) = &arguments.html {
        html::check(path)?;
    }
    let (configurations, model) = plan_all(arguments, environment)?;
    let mut all: Vec<Measured> = Vec::new();
    // One timeline is enough too: where least fits in memory, the disk matters most.
    let smallest = (0..configurations.len())
        .filter(|&index| configurations[index].streams)
        .min_by_key(|&index| configurations[index].budget);
    for (index, Planned { asked, configuration, .. }) in configurations.iter().enumerate() {
        let title = format!("bench {}/{}", index + 1, configurations.len());
        // One heat map is enough: routing does not depend on the configuration.
        let page = arguments.html.is_some();
        let further = Further {
            routing: page && index + 1 == configurations.len() && model.moe_layers > 0,
            timeline: page && smallest == Some(index),
        };
        let Some(mut measured) = measure(arguments, configuration, &title, further, environment)? else {
            return Ok(Ended::Interrupted);
        };
        measured.asked = *asked;
        let reference = all.first().unwrap_or(&measured);
        measured.same_tokens = same_tokens(&reference.measurements, &measured.measurements);
        all.push(measured);
    }
    let model_path = arguments.model.clone();
    let limits = Limits::measure(&model_path, &all)?;
    let bench = Bench {
        model_path,
        model,
        sizes: Sizes { prompt: arguments.prompt_tokens, generated: arguments.gen_tokens },
        depths: arguments.depths.clone(),
        repeat: arguments.repeat,
        rerun: rerun(std::env::args().skip(1), environment),
        limits,
        all,
    };
    if let Some(path) = &arguments.html {
        html::write(&bench, path)?;
    }
    if arguments.json {
        output::json(&report::object(&bench))?;
    } else {
        output::text(&report::describe(&bench))?;
    }
    Ok(Ended::Done)
}

/// Whether every run has the tokens of the first reference run at its depth.
fn same_tokens(reference: &[Measurement], measurements: &[Measurement]) -> bool {
    reference.iter().zip(measurements).all(|(reference, measurement)| {
        measurement.runs.iter().all(|run| run.tokens == reference.runs[0].tokens)
    })
}

/// A configuration that fits.
struct Planned {
    /// The residency that was asked for.
    asked: Residency,
    configuration: LoadConfiguration,
    budget: Bytes,
    /// Whether experts are read while tokens are generated.
    streams: bool,
}

/// Every configuration and the model.
fn plan_all(arguments: &BenchArguments, environment: &Environment) -> Result<(Vec<Planned>, ModelSummary)> {
    let deepest = arguments.depths.iter().copied().max().unwrap_or(0);
    let (prompt, generated) = (arguments.prompt_tokens, arguments.gen_tokens);
    let needed = deepest.saturating_add(prompt).saturating_add(generated);
    // The plan itself would rather say that the budget is too small; a model that cannot go so far is no matter of budget.
    let choices = environment.choices(&arguments.flags.0);
    effects::tell(&effects::notes(&arguments.flags.0, &choices, Use::Bench));
    let base = choices.configuration(&arguments.model, false);
    let model = coldpress::model_summary(&arguments.model)?;
    let trained = model.trained_context;
    if needed > trained {
        let reason = format!(
            "a depth of {deepest}, {prompt} prompt tokens and {generated} generated ones need a context of {needed}; \
             the model has {trained}: use less of --depths, --prompt-tokens or --gen-tokens"
        );
        return Err(Usage(anyhow::anyhow!(reason)).into());
    }
    let mut base = base.context(u32::try_from(needed).unwrap_or(u32::MAX));
    if arguments.html.is_some() {
        base = base.recording(Bytes(Runtime::trace_bytes(&model, needed).0 + Runtime::TIMELINE_BYTES.0));
    }
    let budgets: Vec<Option<_>> = some_or_default(&arguments.budget);
    let residencies: Vec<Option<_>> = some_or_default(&arguments.residency);
    let mut configurations = Vec::new();
    let mut model = None;
    for budget in budgets {
        for &residency in &residencies {
            let mut configuration = base.clone();
            if let Some(budget) = budget.and_then(|budget| choices::size(budget, &arguments.model)) {
                configuration = configuration.budget(budget);
            }
            if let Some(residency) = residency {
                configuration = configuration.residency(residency);
            }
            let report = coldpress::plan(&arguments.model, &configuration)?;
            configurations.push(Planned {
                asked: residency.unwrap_or(choices.residency),
                configuration,
                budget: report.plan.budget,
                streams: report.plan.records_total > 0 && report.residency != Residency::Resident,
            });
            model = Some(report.model);
        }
    }
    Ok((configurations, model.expect("there is at least one configuration")))
}

/// The values, or one "not given".
fn some_or_default<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

/// What further runs are to record after the measurements.
#[derive(Clone, Copy)]
struct Further {
    routing: bool,
    timeline: bool,
}

/// Loads and measures one configuration, then records what is asked for; `None` if the user stopped it.
fn measure(
    arguments: &BenchArguments,
    configuration: &LoadConfiguration,
    title: &str,
    further: Further,
    environment: &Environment,
) -> Result<Option<Measured>> {
    let prediction = prediction::of(arguments, configuration)?;
    let started = Instant::now();
    let (mut runtime, _state) = load::load(&arguments.model, configuration, Use::Bench.name(), environment)?;
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
        for index in 0..arguments.repeat {
            progress.update((measurements.len() * arguments.repeat + index) as u64, total);
            match measure::run(&mut runtime, &mut session, &ids, depth, sizes)? {
                Some(mut run) => {
                    run.cold = measurements.is_empty() && measurement.fill.is_none() && index == 0;
                    measurement.runs.push(run);
                }
                None => return Ok(None),
            }
        }
        measurements.push(measurement);
    }
    let status = runtime.status();
    let Some((timeline, routing)) =
        further_runs(&mut runtime, &mut session, &ids, measurements.last(), sizes, further)?
    else {
        return Ok(None);
    };
    let asked = Residency::Auto;
    Ok(Some(Measured {
        asked,
        status,
        load_time,
        measurements,
        same_tokens: true,
        prediction,
        routing,
        timeline,
    }))
}

/// Time of a token of the run in the middle, of the warm runs where there are any.
fn typical_token(measurement: &Measurement) -> Duration {
    let warm = measurement.runs.iter().any(|run| !run.cold);
    let runs = measurement.runs.iter().filter(|run| run.cold != warm);
    let mut times: Vec<Duration> = runs
        .map(|run| run.decode.wall / u32::try_from(run.decode.tokens).unwrap_or(u32::MAX).max(1))
        .collect();
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Runs after the measurements, of which nothing is timed: the timeline of a token at the depth of `last`, which the session
/// still holds, and the routing of a whole text. `None` if the user stopped it.
fn further_runs(
    runtime: &mut Runtime,
    session: &mut Session,
    ids: &[u32],
    last: Option<&Measurement>,
    sizes: Sizes,
    further: Further,
) -> Result<Option<(Option<TokenTimeline>, Option<RoutingTrace>)>> {
    let (mut timeline, mut routing) = (None, None);
    if let Some(last) = last.filter(|_| further.timeline) {
        runtime.start_timeline(typical_token(last))?;
        if measure::run(runtime, session, ids, last.depth, sizes)?.is_none() {
            return Ok(None);
        }
        timeline = runtime.finish_timeline();
    }
    if further.routing {
        runtime.start_trace_of(session.context())?;
        if measure::run(runtime, session, ids, 0, sizes)?.is_none() {
            return Ok(None);
        }
        routing = runtime.finish_trace();
    }
    Ok(Some((timeline, routing)))
}

/// The command that was typed and the variables that count, for a shell.
fn rerun(arguments: impl Iterator<Item = String>, environment: &Environment) -> String {
    let variables = environment.variables.iter();
    let variables = variables.map(|given| format!("{}={}", given.row.variable(), quoted(&given.value)));
    let words = variables.chain(["coldpress".to_owned()]).chain(arguments.map(|word| quoted(&word)));
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
