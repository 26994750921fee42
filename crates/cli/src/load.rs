//! From flags and environment to a loaded model, with progress.

use std::path::Path;

use coldpress::{BudgetSpec, ChoiceOrigin, LoadConfiguration, LoadObserver, LoadStage, Runtime, SizeSpec};

use crate::arguments::{CommonArguments, LoadArguments, SamplingArguments};
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{interrupt, output};

/// The configuration that flags and environment ask for.
pub fn configuration(arguments: &LoadArguments, environment: &Environment) -> LoadConfiguration {
    let mut configuration = common(&arguments.common, environment);
    if let Some(budget) = arguments.budget.and_then(|budget| size(budget, &arguments.common.model)) {
        configuration = configuration.budget(budget);
    }
    if let Some(residency) = arguments.residency {
        configuration = configuration.residency(residency);
    }
    if let Some(context) = arguments.ctx {
        configuration = configuration.context(context);
    }
    configuration
}

/// What a budget means for a model; `None` for a share of a model that cannot be opened, which the load or plan that
/// follows says better.
pub fn size(budget: BudgetSpec, model: &Path) -> Option<SizeSpec> {
    match budget {
        BudgetSpec::Size(size) => Some(size),
        BudgetSpec::PercentOfModel(_) => {
            coldpress::model_file_bytes(model).ok().map(|bytes| budget.for_model(bytes))
        }
    }
}

/// The part of a configuration that is the same for a series of measurements.
pub fn common(arguments: &CommonArguments, environment: &Environment) -> LoadConfiguration {
    let mut configuration = LoadConfiguration::default().pack(environment.pack_use(arguments.pack.as_ref()));
    if let Some(isa) = environment.isa {
        configuration = configuration.isa(isa);
    }
    if let Some(fraction) = arguments.cold_fraction {
        configuration = configuration.cold_fraction(fraction);
    }
    if let Some(chunk) = arguments.chunk {
        configuration = configuration.chunk_tokens(chunk);
    }
    if let Some(threads) = arguments.threads {
        configuration = configuration.threads(threads);
    }
    match (&arguments.policy, &environment.policy) {
        (Some(policy), _) => configuration = configuration.policy(policy, ChoiceOrigin::Flag),
        (None, Some(policy)) => configuration = configuration.policy(policy, ChoiceOrigin::Environment),
        (None, None) => {}
    }
    if let Some(folder) = &environment.pack_folder {
        configuration = configuration.profiles(folder.clone());
    }
    if let Some(name) = &arguments.pre_tokenizer {
        configuration = configuration.pre_tokenizer(name);
    }
    match (arguments.prefetch, environment.prefetch) {
        (Some(prefetch), _) => configuration = configuration.prefetch(prefetch, ChoiceOrigin::Flag),
        (None, Some(prefetch)) => configuration = configuration.prefetch(prefetch, ChoiceOrigin::Environment),
        (None, None) => {}
    }
    if let Some(reader) = arguments.reader {
        configuration = configuration.reader(reader);
    }
    if let Some(mode) = arguments.force_mode.or(environment.force_mode) {
        configuration = configuration.force_mode(mode);
    }
    if let Some(folder) = &environment.disk_probe {
        configuration = configuration.disk_probe(folder.clone());
    }
    if let Some(kv) = arguments.kv {
        configuration = configuration.kv_type(kv);
    }
    configuration
}

/// The configuration of a command that talks: it starts with what earlier runs used.
pub fn conversation(arguments: &LoadArguments, environment: &Environment) -> LoadConfiguration {
    let configuration = configuration(arguments, environment);
    match &environment.hotlist_folder {
        Some(folder) => configuration.hotlists(folder.clone()),
        None => configuration,
    }
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
