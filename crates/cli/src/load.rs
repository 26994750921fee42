//! From flags and environment to a loaded model, with progress.

use std::path::Path;

use coldpress::{LoadConfiguration, LoadObserver, LoadStage, Runtime};

use crate::arguments::{LoadArguments, SamplingArguments};
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{interrupt, output};

/// The configuration that flags and environment ask for.
pub fn configuration(arguments: &LoadArguments, environment: &Environment) -> LoadConfiguration {
    environment.choices(&arguments.flags).configuration(&arguments.model, false)
}

/// The configuration of a command that talks: it starts with what earlier runs used.
pub fn conversation(arguments: &LoadArguments, environment: &Environment) -> LoadConfiguration {
    environment.choices(&arguments.flags).configuration(&arguments.model, true)
}

/// Remembers what a conversation used. A folder that cannot be written spoils no answer.
pub fn remember(runtime: &Runtime) {
    if let Err(error) = runtime.save_hotlist() {
        output::line(&format!("note: {error}"));
    }
}

/// Sampling settings; `temperature` is the command's default.
pub fn sampling(arguments: &SamplingArguments, temperature: f32) -> coldpress::Sampling {
    coldpress::Sampling {
        temperature: arguments.temperature.unwrap_or(temperature),
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
        repetition_penalty: arguments.repetition_penalty,
        seed: arguments.seed,
    }
}

/// Loads the model; prints notes and, on a terminal, progress.
///
/// # Errors
/// As [`Runtime::load`].
pub fn load(model: &Path, configuration: &LoadConfiguration) -> anyhow::Result<Runtime> {
    Ok(Runtime::load(model, configuration, &mut Bars::default())?)
}

/// Shows each stage of long work as its own bar.
#[derive(Default)]
pub struct Bars {
    current: Option<(LoadStage, Progress)>,
}

impl LoadObserver for Bars {
    fn progress(&mut self, stage: LoadStage, done: u64, total: u64) {
        if self.current.as_ref().is_none_or(|&(current, _)| current != stage) {
            self.current = Some((stage, Progress::new(stage.name(), Unit::Bytes)));
        }
        if let Some((_, bar)) = &mut self.current {
            bar.update(done, total);
        }
        if done == total {
            self.current = None;
        }
    }

    fn note(&mut self, text: &str) {
        self.current = None;
        output::line(&format!("note: {text}"));
    }

    fn should_stop(&mut self) -> bool {
        interrupt::asked()
    }
}
