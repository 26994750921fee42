//! Who chose each setting of a run, and what it came to.
//!
//! Owns: the list of settings with the name of each in a report, on the command line and in the environment, and the record
//! of who chose it (default, then profile, environment, flag; a later one wins). The program turns flags and variables into
//! calls of [`LoadConfiguration`] and names the origin with [`LoadConfiguration::chosen_by`]; this crate reads neither, and
//! uses their names in messages only.

use coldpress_memory::Bytes;

use crate::configuration::{ChoiceOrigin, LoadConfiguration, PackUse, Residency};
use crate::disk_tuning::Basis;
use crate::error::EngineError;
use crate::plan::PlanReport;

/// A value and who chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Who chose it.
    pub origin: ChoiceOrigin,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $key:ident: $name:literal, $flag:literal, $variable:literal;)*) => {
        /// A setting that a user can give.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SettingKey {
            $($(#[$doc])* $key,)*
        }

        impl SettingKey {
            /// Every setting, in the order of a report.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$key),*];

            const NAMES: [[&'static str; 3]; Self::ALL.len()] = [$([$name, $flag, $variable]),*];
        }
    };
}

settings! {
    /// Bound on the memory of the whole process.
    Budget: "budget", "--budget", "COLDPRESS_BUDGET";
    /// Who holds the bytes of the routed experts.
    Residency: "residency", "--residency", "COLDPRESS_RESIDENCY";
    /// Whether experts may leave memory.
    Press: "press", "--press", "COLDPRESS_PRESS";
    /// Bound on the bytes of experts in memory.
    ResidentCap: "resident cap", "--max-resident", "COLDPRESS_MAX_RESIDENT";
    /// How mapped experts are given back.
    ForceMode: "force mode", "--force-mode", "COLDPRESS_FORCE_MODE";
    /// Which record gives way.
    Policy: "policy", "--policy", "COLDPRESS_POLICY";
    /// Whether experts are read before a router asks.
    Prefetch: "prefetch", "--prefetch", "COLDPRESS_PREFETCH";
    /// How reads are issued.
    Reader: "reader", "--reader", "COLDPRESS_READER";
    /// Parallel reads of one record of a pack.
    Split: "split", "--split", "COLDPRESS_SPLIT";
    /// When a model's pack is written.
    Prestack: "prestack", "--prestack", "COLDPRESS_PRESTACK";
    /// Where packs lie.
    PrestackFolder: "prestack folder", "--prestack-dir", "COLDPRESS_PRESTACK_CACHE_DIR";
    /// Exactly this pack.
    Pack: "pack", "--pack", "COLDPRESS_PACK";
    /// Whether the cache starts with what earlier runs used.
    Hotlist: "hotlist", "--hotlist", "COLDPRESS_HOTLIST";
    /// Whether a disk is measured at the first load from it.
    DiskProbe: "disk probe", "--disk-probe", "COLDPRESS_DISK_PROBE";
    /// What routed experts are held as.
    Experts: "experts", "--experts", "COLDPRESS_EXPERTS";
    /// Positions of the KV cache.
    Context: "context", "--ctx", "COLDPRESS_CTX";
    /// Tokens of a prompt that pass each layer together.
    Chunk: "chunk", "--chunk", "COLDPRESS_CHUNK";
    /// Precision of the KV cache.
    Kv: "kv", "--kv", "COLDPRESS_KV";
    /// Experts that a token uses in each layer.
    ExpertsPerToken: "experts per token", "--experts-per-token", "COLDPRESS_EXPERTS_PER_TOKEN";
    /// How far experts in memory are preferred.
    CacheBias: "cache bias", "--cache-bias", "COLDPRESS_CACHE_BIAS";
    /// Threads that compute.
    Threads: "threads", "--threads", "COLDPRESS_THREADS";
    /// Instruction set.
    Isa: "isa", "--isa", "COLDPRESS_ISA";
    /// Whether the most used experts are kept beyond the places of `mapped`.
    RouterAdvice: "router advice", "--router-advice", "COLDPRESS_ROUTER_ADVICE";
    /// How many bytes of them.
    RouterAdviceCap: "router advice cap", "--router-advice-cap", "COLDPRESS_ROUTER_ADVICE_CAP";
    /// Whether uses and hits of every expert are counted.
    RouteTelemetry: "route telemetry", "--route-telemetry", "COLDPRESS_ROUTE_TELEMETRY";
    /// Whether a load that needs more memory than can be had now is refused.
    MemoryGate: "memory gate", "--memory-gate", "COLDPRESS_MEMORY_GATE";
    /// The low-RAM profile.
    LowRam: "low ram", "--low-ram", "COLDPRESS_LOW_RAM";
    /// Time without a request after which memory is given back.
    IdleAfter: "idle after", "--idle-after", "COLDPRESS_IDLE_AFTER";
    /// What is given back then.
    IdleRelease: "idle release", "--idle-release", "COLDPRESS_IDLE_RELEASE";
    /// What chat templates are told about thinking.
    Thinking: "thinking", "--thinking", "COLDPRESS_THINKING";
    /// Rules that split text before byte-pair encoding.
    PreTokenizer: "pre-tokenizer", "--pre-tokenizer", "COLDPRESS_PRE_TOKENIZER";
}

impl SettingKey {
    /// Its name in reports and messages.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize][0]
    }

    /// Its flag of the program.
    pub fn flag(self) -> &'static str {
        Self::NAMES[self as usize][1]
    }

    /// Its environment variable of the program.
    pub fn variable(self) -> &'static str {
        Self::NAMES[self as usize][2]
    }
}

/// The words by which a setting was given, where a caller has several for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenAs {
    /// The flag, with dashes.
    pub flag: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The value as it was written.
    pub value: String,
}

/// Who chose each setting, and by which words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origins {
    by: [ChoiceOrigin; SettingKey::ALL.len()],
    given: Vec<(SettingKey, GivenAs)>,
}

impl Default for Origins {
    fn default() -> Self {
        Self { by: [ChoiceOrigin::Default; SettingKey::ALL.len()], given: Vec::new() }
    }
}

impl Origins {
    pub(crate) fn of(&self, key: SettingKey) -> ChoiceOrigin {
        self.by[key as usize]
    }

    fn given(&self, key: SettingKey) -> Option<&GivenAs> {
        self.given.iter().find(|(given, _)| *given == key).map(|(_, words)| words)
    }
}

impl LoadConfiguration {
    /// Says who chose a setting. The methods that set one name the caller ([`ChoiceOrigin::Flag`]); a program that passes on
    /// what others chose says so after them.
    #[must_use]
    pub fn chosen_by(mut self, key: SettingKey, origin: ChoiceOrigin) -> Self {
        self.origins.by[key as usize] = origin;
        self.origins.given.retain(|(given, _)| *given != key);
        self
    }

    /// Says by which words a setting was given, after [`Self::chosen_by`]; messages and reports then name them.
    #[must_use]
    pub fn given_as(mut self, key: SettingKey, words: GivenAs) -> Self {
        self.origins.given.retain(|(given, _)| *given != key);
        self.origins.given.push((key, words));
        self
    }

    /// The flag and the variable for a setting: those that were used, else its own.
    pub(crate) fn words_for(&self, key: SettingKey) -> (&'static str, &'static str) {
        self.origins.given(key).map_or((key.flag(), key.variable()), |words| (words.flag, words.variable))
    }

    /// How to give `value` for a setting where it was given already.
    pub(crate) fn instead(&self, key: SettingKey, value: impl std::fmt::Display) -> String {
        let (flag, variable) = self.words_for(key);
        match self.origins.of(key) {
            ChoiceOrigin::Environment => format!("{variable}={value}"),
            _ => format!("{flag} {value}"),
        }
    }

    /// An error about the value of a setting, with how the value was given.
    pub(crate) fn blame(&self, key: SettingKey, error: EngineError) -> EngineError {
        match error {
            EngineError::BadOption(text) => EngineError::BadOption(format!("{text} ({})", self.given(key))),
            other => other,
        }
    }

    /// A setting as it was given: `flag --ctx 512`, `environment COLDPRESS_CTX=512`, or who else chose it.
    pub(crate) fn given(&self, key: SettingKey) -> String {
        let (flag, variable) = self.words_for(key);
        let value = self.origins.given(key).map(|words| words.value.as_str());
        let with = |sign: &str| value.map_or(String::new(), |value| format!("{sign}{value}"));
        match self.origins.of(key) {
            ChoiceOrigin::Flag => format!("flag {flag}{}", with(" ")),
            ChoiceOrigin::Environment => format!("environment {variable}{}", with("=")),
            origin @ (ChoiceOrigin::Default | ChoiceOrigin::Profile) => origin.name().to_owned(),
        }
    }

    /// Who chose a setting.
    pub fn origin(&self, key: SettingKey) -> ChoiceOrigin {
        if self.low_ram_chooses(key) { ChoiceOrigin::Profile } else { self.origins.of(key) }
    }
}

/// A setting as a run uses it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EffectiveSetting {
    /// The setting.
    pub name: &'static str,
    /// What it came to, in words.
    pub value: String,
    /// Who chose it.
    pub origin: ChoiceOrigin,
    /// The flag that chooses another value; of several the one that was used.
    pub flag: &'static str,
    /// The environment variable that does; of several the one that was used.
    pub variable: &'static str,
}

/// Every setting of a planned run.
pub(crate) fn effective(configuration: &LoadConfiguration, report: &PlanReport) -> Vec<EffectiveSetting> {
    let row = |key: SettingKey| EffectiveSetting {
        name: key.name(),
        value: value(key, configuration, report),
        origin: match key {
            SettingKey::Policy => report.policy.origin,
            SettingKey::Prefetch => report.policy.prefetch.origin,
            _ => configuration.origin(key),
        },
        flag: configuration.words_for(key).0,
        variable: configuration.words_for(key).1,
    };
    SettingKey::ALL.into_iter().map(row).collect()
}

fn value(key: SettingKey, configuration: &LoadConfiguration, report: &PlanReport) -> String {
    let on = |on: bool| if on { "on" } else { "off" }.to_owned();
    let path =
        |path: Option<&std::path::Path>| path.map_or("none".to_owned(), |path| path.display().to_string());
    let bytes = |bytes: Bytes| if bytes == Bytes::MAX { "unlimited".to_owned() } else { bytes.to_string() };
    match key {
        SettingKey::Budget => bytes(report.plan.budget),
        SettingKey::Residency => match configuration.residency {
            Residency::Auto => format!("auto: {}", report.residency.name()),
            asked => asked.name().to_owned(),
        },
        SettingKey::Press => configuration.press.to_string(),
        SettingKey::ResidentCap => configuration.resident_cap.to_string(),
        SettingKey::ForceMode => configuration.force_mode.name().to_owned(),
        SettingKey::Policy => report.policy.name.to_owned(),
        SettingKey::Prefetch => report.policy.prefetch.setting.name().to_owned(),
        SettingKey::Reader => match report.reading.basis {
            Basis::Measured | Basis::Cached => format!("auto: {}, as measured", report.reading.reader),
            Basis::Default | Basis::Forced => report.reading.reader.to_owned(),
        },
        SettingKey::Split => report.reading.split.to_string(),
        SettingKey::Prestack => match configuration.pack {
            PackUse::BuildIfAbsent(_) => "on",
            PackUse::Fill(_) => "lazy",
            PackUse::Never | PackUse::IfPresent(_) | PackUse::File(_) => "off",
        }
        .to_owned(),
        SettingKey::PrestackFolder => path(configuration.pack.folder()),
        SettingKey::Pack => path(report.pack.as_deref()),
        SettingKey::Hotlist => on(configuration.wanted_hotlists().is_some()),
        SettingKey::DiskProbe => on(configuration.disk_probe.is_some()),
        SettingKey::Experts => configuration.experts.name().to_owned(),
        SettingKey::Context => report.plan.context.to_string(),
        SettingKey::Chunk => report.plan.chunk_tokens.to_string(),
        SettingKey::Kv => report.kv_type.to_owned(),
        SettingKey::ExpertsPerToken => match configuration.experts_per_token {
            Some(experts) => experts.to_string(),
            None => report.model.experts_per_token.to_string(),
        },
        SettingKey::CacheBias if configuration.cache_bias > 0.0 => configuration.cache_bias.to_string(),
        SettingKey::CacheBias => "off".to_owned(),
        SettingKey::Threads => report.threads.to_string(),
        SettingKey::Isa => report.isa.to_owned(),
        SettingKey::RouterAdvice => on(configuration.router_advice),
        SettingKey::RouterAdviceCap => match (configuration.router_advice, report.residency) {
            (false, _) => "unused".to_owned(),
            (true, Residency::Mapped) => report.advice_bytes.to_string(),
            (true, _) => "unused, for mapped only".to_owned(),
        },
        SettingKey::RouteTelemetry => match report.telemetry_bytes {
            Bytes::ZERO => on(configuration.route_telemetry),
            held => format!("on, {held}"),
        },
        SettingKey::MemoryGate => configuration.memory_gate.name().to_owned(),
        SettingKey::LowRam => on(configuration.low_ram),
        SettingKey::IdleAfter => {
            configuration.idle_after.map_or("never".to_owned(), |after| format!("{} s", after.as_secs_f64()))
        }
        SettingKey::IdleRelease => configuration.idle_release.name().to_owned(),
        SettingKey::Thinking => configuration.wanted_thinking().name().to_owned(),
        SettingKey::PreTokenizer => {
            configuration.pre_tokenizer.clone().unwrap_or_else(|| "that of the file".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_named_by_the_words_that_were_used() {
        let words = GivenAs {
            flag: "--cold-fraction",
            variable: "COLDPRESS_COLD_FRACTION",
            value: "0.50".to_owned(),
        };
        let given = |origin| {
            LoadConfiguration::default()
                .cold_fraction(0.5)
                .chosen_by(SettingKey::Press, origin)
                .given_as(SettingKey::Press, words.clone())
        };
        let (flag, variable) = (given(ChoiceOrigin::Flag), given(ChoiceOrigin::Environment));
        assert_eq!(flag.given(SettingKey::Press), "flag --cold-fraction 0.50");
        assert_eq!(variable.given(SettingKey::Press), "environment COLDPRESS_COLD_FRACTION=0.50");
        assert_eq!(flag.instead(SettingKey::Press, 0.1), "--cold-fraction 0.1");
        assert_eq!(variable.instead(SettingKey::Press, 0.1), "COLDPRESS_COLD_FRACTION=0.1");
        let again = flag.cold_fraction(0.25);
        assert_eq!(again.given(SettingKey::Press), "flag --press", "other words were not said");
    }

    #[test]
    fn every_setting_has_names_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for key in SettingKey::ALL {
            for name in SettingKey::NAMES[key as usize] {
                assert!(!name.is_empty() && seen.insert(name), "{name} names two settings");
            }
            assert!(key.flag().starts_with("--") && key.variable().starts_with("COLDPRESS_"), "{key:?}");
        }
    }
}
