//! `coldpress tune`: measures how a model is read, cached and prefetched best under a budget and remembers it.

use anyhow::Result;
use coldpress::{GenerateOptions, Prefetch, Runtime, Sampling, TuneReport};

use crate::arguments::TuneArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::run::Screen;
use crate::{Ended, Usage, bench, load, output, settings, simulate, trace};

/// Tokens of the program's own text.
const PROMPT_TOKENS: usize = 400;
/// Greedy text of small models goes in circles, and so would their routing.
const TEMPERATURE: f32 = 0.7;

/// Runs the command.
///
/// # Errors
/// No cache folder is known, all experts fit, loading or generating failed, or the profile cannot be written.
pub fn tune(arguments: &TuneArguments, environment: &Environment) -> Result<Ended> {
    let Some(folder) = environment.choices(&arguments.load.flags).pack_folder else {
        let reason = "no cache folder is known (HOME is not set): say where with --prestack-dir";
        return Err(Usage(anyhow::anyhow!(reason)).into());
    };
    let configuration =
        load::configuration(&arguments.load, environment, Use::Tune).recording(Runtime::TRACE_BYTES);
    let (mut runtime, _state) =
        load::load(&arguments.load.model, &configuration, Use::Tune.name(), environment)?;
    let mut prompts = Vec::new();
    for path in &arguments.prompt_file {
        let text = trace::read(path, runtime.prompt_bytes_max())?;
        prompts.push(runtime.encode(&text, false)?);
    }
    if prompts.is_empty() {
        let context = runtime.status().plan.plan.context as usize;
        prompts.push(bench::text::ids(&runtime, PROMPT_TOKENS.min(context / 2).max(1))?);
    }
    let options = GenerateOptions {
        max_tokens: arguments.gen_tokens,
        sampling: Sampling { temperature: TEMPERATURE, ..Sampling::default() },
        ignore_eos: true,
        continuation: true,
    };
    let mut screen = Screen::new(false);
    let report = runtime.tune(&prompts, &options, &folder, &mut screen)?;
    screen.end()?;
    let Some(report) = report else { return Ok(Ended::Interrupted) };
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    Ok(Ended::Done)
}

fn describe(report: &TuneReport) -> String {
    let profile = &report.profile;
    format!(
        "{}\n{}\npolicy {}: {:.1}% hits with {} slots, the default {:.1}%, the optimum {:.1}%\n{}\nremembered in {}\n",
        simulate::describe(&report.simulation),
        settings::reading(&report.reading, report.reading.reader),
        profile.policy,
        100.0 * profile.hit_rate,
        profile.slots,
        100.0 * profile.default_hit_rate,
        100.0 * profile.belady_hit_rate,
        prefetch(report),
        report.path.display()
    )
}

/// What reading ahead was found to do.
fn prefetch(report: &TuneReport) -> String {
    let trial = &report.prefetch;
    let [off, on] = trial.medians();
    let why = match report.profile.prefetch {
        Prefetch::Auto => "no clear difference",
        Prefetch::On | Prefetch::Off => "faster than every stretch of the other",
    };
    format!(
        "prefetch {}: {off:.1} tok/s without, {on:.1} with, middle of {} stretches of {} tokens each ({why})",
        report.profile.prefetch.name(),
        trial.off.len(),
        trial.tokens
    )
}
