//! From flags and environment to a loaded model, with progress.

use std::path::Path;

use coldpress::{LoadConfiguration, LoadObserver, LoadStage, Runtime};

use crate::arguments::{LoadArguments, SamplingArguments};
use crate::effects::Use;
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::status::Publication;
use crate::{effects, interrupt, output};

/// The configuration that flags and environment ask for, for a command; flags that it does not use are noted.
pub fn configuration(arguments: &LoadArguments, environment: &Environment, used: Use) -> LoadConfiguration {
    let choices = environment.choices(&arguments.flags);
    effects::tell(&effects::notes(&arguments.flags, &choices, used));
    choices.configuration(&arguments.model, used.talks())
}

/// Remembers what a conversation used. A folder that cannot be written spoils no answer.
pub fn remember(runtime: &Runtime) {
    if let Err(error) = runtime.save_hotlist() {
        output::line(&format!("note: {error}"));
    }
}

/// Sampling settings; `temperature` is the command's default. What has no effect at the temperature is noted.
pub fn sampling(arguments: &SamplingArguments, temperature: f32) -> coldpress::Sampling {
    let temperature = arguments.temperature.unwrap_or(temperature);
    effects::tell(&effects::sampling_notes(arguments, temperature));
    coldpress::Sampling {
        temperature,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
        repetition_penalty: arguments.repetition_penalty,
        seed: arguments.seed,
        ..coldpress::Sampling::default()
    }
}

/// Loads the model for a command; prints notes and, on a terminal, progress. Others see the state of this program from the
/// beginning of the load until the publication is dropped, which is to be before the runtime is.
///
/// # Errors
/// As [`Runtime::load`].
pub fn load(
    model: &Path,
    configuration: &LoadConfiguration,
    command: &str,
    environment: &Environment,
) -> anyhow::Result<(Runtime, Publication)> {
    let publication = Publication::begin(command, model, environment);
    let runtime = Runtime::load(model, configuration, &mut Bars::published(&publication))?;
    publication.follow(&runtime);
    Ok((runtime, publication))
}

/// Shows each stage of long work as its own bar, and to others where it is published.
#[derive(Default)]
pub struct Bars<'a> {
    current: Option<(LoadStage, Progress)>,
    publication: Option<&'a Publication>,
}

impl<'a> Bars<'a> {
    /// Bars of work whose state others see.
    pub fn published(publication: &'a Publication) -> Self {
        Self { current: None, publication: Some(publication) }
    }
}

impl LoadObserver for Bars<'_> {
    fn progress(&mut self, stage: LoadStage, done: u64, total: u64) {
        if let Some(publication) = self.publication {
            publication.progress(stage, done, total);
        }
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
