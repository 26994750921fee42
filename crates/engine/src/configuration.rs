//! What a caller decides before a model is loaded.
//!
//! Plain data with defaults that suit a machine where nothing is known. The program turns flags and environment into
//! this; the library reads neither. Who chose what is kept beside it (`settings`), the eviction machinery is in `press`.

use std::path::PathBuf;
use std::time::Duration;

use coldpress_experts::{PolicyKind, ReadAheadMode, ReaderChoice, SPLIT_MAX};
use coldpress_kernels::Isa;
use coldpress_memory::sys::ReleaseMode;
use coldpress_memory::{Bytes, SizeSpec};
use coldpress_model::KvType;
use coldpress_workers::THREADS_MAX;

use crate::error::EngineError;
use crate::expert_types::ExpertType;
use crate::keeper::IdleRelease;
use crate::press::{MemoryGate, Press, ResidentCap, Thinking};
use crate::service::Serving;
use crate::settings::{Origins, SettingKey};

/// Who holds the bytes of the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// `resident` when everything fits the budget, else `streamed`.
    #[default]
    Auto,
    /// All experts are loaded once; refused when they do not fit.
    Resident,
    /// Experts are read on demand into a fixed set of slots, past the page cache.
    Streamed,
    /// As `Streamed`, but through the page cache, which keeps what it likes beside the budget.
    Paged,
    /// Experts are used in place in the mapped pack; those that lose their place are given back to the system.
    Mapped,
}

impl Residency {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("resident", Self::Resident),
        ("streamed", Self::Streamed),
        ("paged", Self::Paged),
        ("mapped", Self::Mapped),
    ];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("auto", |&(name, _)| name)
    }
}

/// How `mapped` gives experts back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ForceMode {
    /// Marked as cold and taken out of the process; the page cache keeps them until memory is short.
    #[default]
    Soft,
    /// Dropped from the page cache at once.
    Force,
}

impl ForceMode {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 2] = [("soft", Self::Soft), ("force", Self::Force)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("soft", |&(name, _)| name)
    }

    pub(crate) fn release(self) -> ReleaseMode {
        match self {
            Self::Soft => ReleaseMode::Soft,
            Self::Force => ReleaseMode::Force,
        }
    }
}

/// Whether experts are read before a router has asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefetch {
    /// While it makes decoding faster, which is measured again and again.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Prefetch {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("auto", |&(name, _)| name)
    }

    pub(crate) fn mode(self) -> ReadAheadMode {
        match self {
            Self::Auto => ReadAheadMode::Auto,
            Self::On => ReadAheadMode::On,
            Self::Off => ReadAheadMode::Off,
        }
    }
}

/// How expert reads are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReaderKind {
    /// What was measured for the disk; without a measurement io_uring where the system allows it, else a pool of threads with
    /// positioned reads.
    #[default]
    Auto,
    /// io_uring; refused where the system does not allow it.
    Uring,
    /// A pool of threads with positioned reads.
    Pread,
}

impl ReaderKind {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("uring", Self::Uring), ("pread", Self::Pread)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("auto", |&(name, _)| name)
    }

    pub(crate) fn choice(self) -> ReaderChoice {
        match self {
            Self::Auto => ReaderChoice::Auto,
            Self::Uring => ReaderChoice::Uring,
            Self::Pread => ReaderChoice::Pread,
        }
    }
}

/// Names of the eviction policies; the first one is the default.
pub const POLICIES: [&str; PolicyKind::ALL.len()] = {
    let mut names = [""; PolicyKind::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = PolicyKind::ALL[index].0;
        index += 1;
    }
    names
};

/// Who chose a setting; a later one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChoiceOrigin {
    /// Nobody.
    #[default]
    Default,
    /// What `tune` found for the model, or the low-RAM profile; the two choose different settings.
    Profile,
    /// An environment variable.
    Environment,
    /// The caller, or a flag of the program.
    Flag,
}

impl ChoiceOrigin {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Profile => "profile",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}

/// Where a pack file of the model's experts may come from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum PackUse {
    /// Read experts from the model file.
    #[default]
    Never,
    /// Use the model's pack in this folder if there is one.
    IfPresent(PathBuf),
    /// Use the model's pack in this folder, writing it first if it is absent.
    BuildIfAbsent(PathBuf),
    /// Use the model's pack in this folder if it is complete. If it is not, fill it while experts stream from the model file,
    /// and read from it what it has already.
    Fill(PathBuf),
    /// Use exactly this pack file.
    File(PathBuf),
}

impl PackUse {
    /// The folder of packs, where one was named.
    pub fn folder(&self) -> Option<&std::path::Path> {
        match self {
            Self::IfPresent(folder) | Self::BuildIfAbsent(folder) | Self::Fill(folder) => Some(folder),
            Self::Never | Self::File(_) => None,
        }
    }

    pub(crate) fn builds(&self) -> bool {
        matches!(self, Self::BuildIfAbsent(_))
    }
}

/// Everything that can be chosen when loading a model.
///
/// ```
/// use coldpress::{LoadConfiguration, Residency};
/// let configuration = LoadConfiguration::default()
///     .budget("6GiB".parse().expect("a size"))
///     .residency(Residency::Streamed);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LoadConfiguration {
    pub(crate) budget: Option<SizeSpec>,
    pub(crate) residency: Residency,
    pub(crate) press: Press,
    pub(crate) resident_cap: ResidentCap,
    pub(crate) context: Option<u32>,
    pub(crate) kv_positions: u32,
    pub(crate) chunk_tokens: Option<u32>,
    pub(crate) threads: Option<usize>,
    pub(crate) kv_type: KvType,
    pub(crate) exact_kv: Option<KvType>,
    pub(crate) experts_per_token: Option<u32>,
    pub(crate) cache_bias: f32,
    pub(crate) experts: ExpertType,
    pub(crate) isa: Option<Isa>,
    pub(crate) reader: ReaderKind,
    pub(crate) prefetch: Option<Prefetch>,
    pub(crate) pack: PackUse,
    pub(crate) policy: Option<String>,
    pub(crate) profiles: Option<PathBuf>,
    pub(crate) hotlists: Option<PathBuf>,
    pub(crate) pre_tokenizer: Option<String>,
    pub(crate) slots: Option<u64>,
    pub(crate) force_mode: ForceMode,
    pub(crate) split: Option<usize>,
    pub(crate) disk_probe: Option<PathBuf>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) idle_release: IdleRelease,
    pub(crate) router_advice: bool,
    pub(crate) router_advice_cap: Option<Bytes>,
    pub(crate) route_telemetry: bool,
    pub(crate) memory_gate: MemoryGate,
    pub(crate) low_ram: bool,
    pub(crate) thinking: Thinking,
    pub(crate) origins: Origins,
    pub(crate) recording: Bytes,
    pub(crate) serving: Option<Serving>,
}

impl LoadConfiguration {
    /// Bound on the memory of the whole process. Default: 70 % of usable memory.
    #[must_use]
    pub fn budget(mut self, budget: SizeSpec) -> Self {
        self.budget = Some(budget);
        self.chosen_by(SettingKey::Budget, ChoiceOrigin::Flag)
    }

    /// Residency mode. Default: `auto`.
    #[must_use]
    pub fn residency(mut self, residency: Residency) -> Self {
        self.residency = residency;
        self.chosen_by(SettingKey::Residency, ChoiceOrigin::Flag)
    }

    /// Share of the routed-expert bytes, 0 to 1, that may live only on disk: [`Press::Enabled`]. Default: what the budget
    /// asks for.
    #[must_use]
    pub fn cold_fraction(self, fraction: f64) -> Self {
        self.press(Press::Enabled { cold_fraction: fraction })
    }

    /// Most tokens of one conversation. Default: 8,192, or what the model and the budget allow.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.context = Some(tokens);
        self.chosen_by(SettingKey::Context, ChoiceOrigin::Flag)
    }

    /// Positions that the KV cache has for all conversations together, rounded up to whole pages of
    /// [`PAGE_POSITIONS`](coldpress_model::PAGE_POSITIONS); never fewer than the context. Default: the context.
    #[must_use]
    pub fn kv_positions(mut self, positions: u32) -> Self {
        self.kv_positions = positions;
        self
    }

    /// Plans memory for a [`Service`](crate::service::Service): requests that wait, several that are computed at once, and keys and
    /// values for all of them.
    #[must_use]
    pub fn serving(mut self, serving: Serving) -> Self {
        self.kv_positions = serving.kv_positions.unwrap_or(self.kv_positions);
        self.serving = Some(serving);
        self
    }

    /// Tokens of a prompt that pass each layer together. Default: up to 4,096, as the context
    /// and the budget allow.
    #[must_use]
    pub fn chunk_tokens(mut self, tokens: u32) -> Self {
        self.chunk_tokens = Some(tokens);
        self.chosen_by(SettingKey::Chunk, ChoiceOrigin::Flag)
    }

    /// Threads that compute. Default: the processors this process may use.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self.chosen_by(SettingKey::Threads, ChoiceOrigin::Flag)
    }

    /// Precision of the KV cache. Default: f16. `Q8` and `Q4` are lossy, and are refused for families for which they were not measured.
    #[must_use]
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.kv_type = kv_type;
        self.chosen_by(SettingKey::Kv, ChoiceOrigin::Flag)
    }

    /// Experts that a token uses in each layer, fewer than the model was trained with. Lossy, unless it is as many. Default: as many as
    /// the model says.
    #[must_use]
    pub fn experts_per_token(mut self, experts: u32) -> Self {
        self.experts_per_token = Some(experts);
        self.chosen_by(SettingKey::ExpertsPerToken, ChoiceOrigin::Flag)
    }

    /// How far the tokens of answers prefer experts in memory, as a share of the distance between a router's best and worst score: 0
    /// to 1. Lossy above 0, and answers then depend on the budget. Default: 0.
    #[must_use]
    pub fn cache_bias(mut self, share: f32) -> Self {
        self.cache_bias = share;
        self.chosen_by(SettingKey::CacheBias, ChoiceOrigin::Flag)
    }

    /// What the routed experts are held as: their pack of that type is used. Lossy where it changes them. Default: as in the file.
    #[must_use]
    pub fn experts(mut self, experts: ExpertType) -> Self {
        self.experts = experts;
        self.chosen_by(SettingKey::Experts, ChoiceOrigin::Flag)
    }

    /// Instruction set. Default: the best one of this machine; all give the same bits.
    #[must_use]
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = Some(isa);
        self.chosen_by(SettingKey::Isa, ChoiceOrigin::Flag)
    }

    /// Whether experts are read before a router has asked for them, and who asked for it. Default: that of the model's
    /// profile, else `auto`.
    #[must_use]
    pub fn prefetch(mut self, prefetch: Prefetch, origin: ChoiceOrigin) -> Self {
        self.prefetch = Some(prefetch);
        self.chosen_by(SettingKey::Prefetch, origin)
    }

    /// How expert reads are issued. Default: `auto`.
    #[must_use]
    pub fn reader(mut self, reader: ReaderKind) -> Self {
        self.reader = reader;
        self.chosen_by(SettingKey::Reader, ChoiceOrigin::Flag)
    }

    /// Where a pack may come from. Default: `Never`.
    #[must_use]
    pub fn pack(mut self, pack: PackUse) -> Self {
        self.pack = pack;
        self.chosen_by(SettingKey::Prestack, ChoiceOrigin::Flag)
    }

    /// Eviction policy, one of [`POLICIES`], and who asked for it. Default: that of the model's profile, else the first one.
    #[must_use]
    pub fn policy(mut self, name: &str, origin: ChoiceOrigin) -> Self {
        self.policy = Some(name.to_owned());
        self.chosen_by(SettingKey::Policy, origin)
    }

    /// Folder with the profiles that [`crate::Runtime::tune`] wrote. Default: none is used.
    #[must_use]
    pub fn profiles(mut self, folder: PathBuf) -> Self {
        self.profiles = Some(folder);
        self
    }

    /// Folder for hotlists: one of this model warms the cache at the start, [`crate::Runtime::save_hotlist`] writes it. Default:
    /// none is read or written.
    #[must_use]
    pub fn hotlists(mut self, folder: PathBuf) -> Self {
        self.hotlists = Some(folder);
        self.chosen_by(SettingKey::Hotlist, ChoiceOrigin::Flag)
    }

    /// Rules that split text before byte-pair encoding, instead of those the file names (`tokenizer.ggml.pre`).
    #[must_use]
    pub fn pre_tokenizer(mut self, name: &str) -> Self {
        self.pre_tokenizer = Some(name.to_owned());
        self.chosen_by(SettingKey::PreTokenizer, ChoiceOrigin::Flag)
    }

    /// Exact number of expert slots, instead of as many as the budget holds. For measurements.
    #[must_use]
    pub fn slots(mut self, count: u64) -> Self {
        self.slots = Some(count);
        self
    }

    /// How `mapped` gives experts back. Default: `soft`.
    #[must_use]
    pub fn force_mode(mut self, mode: ForceMode) -> Self {
        self.force_mode = mode;
        self.chosen_by(SettingKey::ForceMode, ChoiceOrigin::Flag)
    }

    /// Parallel reads that a record of a pack is cut into. Default: what was measured for the disk, else 1.
    #[must_use]
    pub fn split(mut self, parts: usize) -> Self {
        self.split = Some(parts);
        self.chosen_by(SettingKey::Split, ChoiceOrigin::Flag)
    }

    /// Lets the first load from a disk measure, for about half a second, how it is read best, and keep the result in this
    /// folder. Default: nothing is measured.
    #[must_use]
    pub fn disk_probe(mut self, folder: PathBuf) -> Self {
        self.disk_probe = Some(folder);
        self.chosen_by(SettingKey::DiskProbe, ChoiceOrigin::Flag)
    }

    /// When what is given back.
    pub(crate) fn idle(&self) -> Option<(Duration, IdleRelease)> {
        self.idle_after.map(|after| (after, self.idle_release))
    }

    /// After how long without a request memory is given back; `None` for never, the default.
    #[must_use]
    pub fn idle_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.idle_after = after.into();
        self.chosen_by(SettingKey::IdleAfter, ChoiceOrigin::Flag)
    }

    /// What is given back then. Default: the routed experts.
    #[must_use]
    pub fn idle_release(mut self, release: IdleRelease) -> Self {
        self.idle_release = release;
        self.chosen_by(SettingKey::IdleRelease, ChoiceOrigin::Flag)
    }

    /// Memory to leave for recordings, as part of the plan's scratch: [`crate::Runtime::TRACE_BYTES`] for
    /// [`crate::Runtime::start_trace`], [`crate::Runtime::TIMELINE_BYTES`] for [`crate::Runtime::start_timeline`]. Default: none,
    /// and what records then gets what the budget has left over, if that is enough.
    #[must_use]
    pub fn recording(mut self, bytes: Bytes) -> Self {
        self.recording = bytes;
        self
    }

    /// The same without profiles, for a model file that has no fingerprint yet.
    pub(crate) fn without_profiles(mut self) -> Self {
        self.profiles = None;
        self
    }

    /// Checks what can be wrong without a model.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let (key, wrong) = match self {
            Self { policy: Some(name), .. } if !POLICIES.contains(&name.as_str()) => (
                SettingKey::Policy,
                format!("'{name}' is not an eviction policy; known: {}", POLICIES.join(", ")),
            ),
            Self { press: Press::Enabled { cold_fraction }, .. } if !(0.0..=1.0).contains(cold_fraction) => (
                SettingKey::Press,
                format!("the cold fraction is {cold_fraction}; it must be between 0 and 1"),
            ),
            Self { resident_cap: ResidentCap::Fraction(fraction), .. }
                if !(*fraction > 0.0 && *fraction <= 1.0) =>
            {
                (
                    SettingKey::ResidentCap,
                    format!(
                        "the resident cap is {fraction}; a fraction of the experts is above 0 and at most 1"
                    ),
                )
            }
            Self { threads: Some(threads), .. } if !(1..=THREADS_MAX).contains(threads) => {
                (SettingKey::Threads, format!("{threads} threads were asked for; 1 to {THREADS_MAX} work"))
            }
            Self { context: Some(0), .. } => {
                (SettingKey::Context, "the context is 0; the model needs at least 1 position".to_owned())
            }
            Self { chunk_tokens: Some(0), .. } => {
                (SettingKey::Chunk, "the chunk is 0; a chunk has at least 1 token".to_owned())
            }
            Self { split: Some(parts), .. } if !(1..=SPLIT_MAX).contains(parts) => (
                SettingKey::Split,
                format!("a record cannot be read in {parts} parts; 1 to {SPLIT_MAX} work"),
            ),
            Self { experts_per_token: Some(0), .. } => (
                SettingKey::ExpertsPerToken,
                "0 experts per token were asked for; at least 1 works".to_owned(),
            ),
            Self { cache_bias, .. } if !(0.0..=1.0).contains(cache_bias) => {
                (SettingKey::CacheBias, format!("the cache bias is {cache_bias}; it must be between 0 and 1"))
            }
            Self { slots: Some(0), .. } => {
                return Err(EngineError::BadOption("0 slots were asked for; an expert needs 1".to_owned()));
            }
            _ => return self.check_conflicts(None),
        };
        Err(self.blame(key, EngineError::BadOption(wrong)))
    }
}
