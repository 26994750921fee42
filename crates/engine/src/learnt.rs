//! What is remembered about a model from earlier runs: a profile that `tune` wrote (eviction policy and reading ahead), and a
//! hotlist that warms the next start.
//!
//! Both lie in a folder that the caller names, under the model's fingerprint. A file that cannot be used is ignored with a
//! note. Neither changes an answer.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coldpress_experts::{Fingerprint, Hotlist, PolicyKind};
use coldpress_formats::ModelFile;
use coldpress_model::ModelSpec;

use crate::configuration::{ChoiceOrigin, LoadConfiguration, Prefetch};
use crate::error::EngineError;
use crate::files::replace;
use crate::runtime::{LoadObserver, Runtime};
use crate::settings::SettingKey;

const PROFILE_EXTENSION: &str = "profile.json";
const HOTLIST_EXTENSION: &str = "hotlist";
const PROFILE_VERSION: u32 = 2;
/// A profile is a few hundred bytes.
const PROFILE_BYTES_MAX: u64 = 64 << 10;
/// A start is not delayed longer than this, and the layer that is being read.
const WARM_TIME_MAX: Duration = Duration::from_secs(2);

/// What `tune` found best for a model.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// Version of this structure.
    pub version: u32,
    /// The model.
    pub fingerprint: String,
    /// The best eviction policy, split included.
    pub policy: String,
    /// Whether to read ahead; `auto` where neither way was clearly faster.
    pub prefetch: Prefetch,
    /// Slots both were chosen for.
    pub slots: usize,
    /// The policy's share of hits on the recorded text, 0 to 1.
    pub hit_rate: f64,
    /// That of the default policy.
    pub default_hit_rate: f64,
    /// That of the optimum that knows the future.
    pub belady_hit_rate: f64,
}

/// Whether a run reads ahead, and who chose that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PrefetchChoice {
    /// The setting.
    pub setting: Prefetch,
    /// Who chose it.
    pub origin: ChoiceOrigin,
}

/// The eviction policy of a run and whether it reads ahead, and who chose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PolicyChoice {
    /// The policy's name.
    pub name: &'static str,
    /// Who chose it.
    pub origin: ChoiceOrigin,
    /// Whether records are read before they are asked for, which takes slots that the policy gives up.
    pub prefetch: PrefetchChoice,
}

impl PolicyChoice {
    /// Flag before environment before profile before default, for each of the two by itself.
    pub(crate) fn of(
        configuration: &LoadConfiguration,
        file: &ModelFile,
        spec: &ModelSpec,
        notes: &mut Vec<String>,
    ) -> Result<Self, EngineError> {
        let policy = configuration.policy.as_deref().and_then(PolicyKind::parse);
        let policy = policy.map(|kind| (kind, configuration.origin(SettingKey::Policy)));
        let prefetch = configuration.prefetch;
        let prefetch = prefetch.map(|setting| (setting, configuration.origin(SettingKey::Prefetch)));
        let asked = (policy, prefetch);
        let learnt = match asked {
            (Some(_), Some(_)) => None,
            _ => learnt_profile(configuration, file, spec, notes)?,
        };
        let (kind, origin) = asked
            .0
            .or(learnt.map(|(kind, _)| (kind, ChoiceOrigin::Profile)))
            .unwrap_or((PolicyKind::DEFAULT, ChoiceOrigin::Default));
        let (setting, prefetch_origin) = asked
            .1
            .or(learnt.map(|(_, prefetch)| (prefetch, ChoiceOrigin::Profile)))
            .unwrap_or((Prefetch::Auto, ChoiceOrigin::Default));
        Ok(Self { name: kind.name(), origin, prefetch: PrefetchChoice { setting, origin: prefetch_origin } })
    }
}

/// What the model's profile says, if there is one that can be used.
fn learnt_profile(
    configuration: &LoadConfiguration,
    file: &ModelFile,
    spec: &ModelSpec,
    notes: &mut Vec<String>,
) -> Result<Option<(PolicyKind, Prefetch)>, EngineError> {
    let Some(folder) = &configuration.profiles else { return Ok(None) };
    // Without any profile there is no reason to read for a fingerprint.
    if spec.experts.is_empty() || !has_profiles(folder) {
        return Ok(None);
    }
    let fingerprint = Fingerprint::of(file.files(), &spec.experts)?;
    let path = place(folder, &fingerprint, PROFILE_EXTENSION);
    if !path.exists() {
        return Ok(None);
    }
    match read_profile(&path, &fingerprint) {
        Ok(learnt) => Ok(Some(learnt)),
        Err(reason) => {
            notes.push(format!("the profile {} is not used: {reason}", path.display()));
            Ok(None)
        }
    }
}

fn place(folder: &Path, fingerprint: &Fingerprint, extension: &str) -> PathBuf {
    folder.join(format!("{fingerprint}.{extension}"))
}

fn has_profiles(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(PROFILE_EXTENSION))
}

fn read_profile(path: &Path, fingerprint: &Fingerprint) -> Result<(PolicyKind, Prefetch), String> {
    /// What every version has, so that another one is called that and not malformed.
    #[derive(serde::Deserialize)]
    struct Version {
        version: u64,
    }
    if !path.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(PROFILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    let Version { version } = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if version != u64::from(PROFILE_VERSION) {
        let reason = format!("it is of version {version}, this program writes {PROFILE_VERSION}");
        return Err(format!("{reason}: run `coldpress tune` again"));
    }
    let profile: Profile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if profile.fingerprint != fingerprint.to_string() {
        return Err("it is of another model".to_owned());
    }
    // The name comes from a file and goes to a terminal.
    let named = || profile.policy.escape_debug().take(40).collect::<String>();
    let kind = PolicyKind::parse(&profile.policy).ok_or_else(|| format!("'{}' is not a policy", named()))?;
    Ok((kind, profile.prefetch))
}

/// The profile of a model, where there is one that can be used.
pub(crate) fn recall(
    configuration: &LoadConfiguration,
    file: &ModelFile,
    spec: &ModelSpec,
) -> Option<Profile> {
    let folder = configuration.profiles.as_ref().filter(|folder| has_profiles(folder))?;
    let fingerprint = Fingerprint::of(file.files(), &spec.experts).ok()?;
    let path = place(folder, &fingerprint, PROFILE_EXTENSION);
    read_profile(&path, &fingerprint).ok()?;
    let mut text = String::new();
    std::fs::File::open(&path).ok()?.take(PROFILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Writes the profile of a model and returns where.
pub(crate) fn write_profile(
    folder: &Path,
    fingerprint: &Fingerprint,
    profile: &Profile,
) -> Result<PathBuf, EngineError> {
    let path = place(folder, fingerprint, PROFILE_EXTENSION);
    let bad = |reason: String| EngineError::BadOutput { path: path.clone(), reason };
    let text = serde_json::to_string_pretty(profile).map_err(|error| bad(error.to_string()))?;
    write(folder, &path, text.as_bytes()).map_err(|error| bad(format!("cannot be written: {error}")))?;
    Ok(path)
}

/// A profile of this version.
pub(crate) fn profile(
    fingerprint: &Fingerprint,
    policy: PolicyKind,
    prefetch: Prefetch,
    slots: usize,
    [hit_rate, default_hit_rate, belady_hit_rate]: [f64; 3],
) -> Profile {
    Profile {
        version: PROFILE_VERSION,
        fingerprint: fingerprint.to_string(),
        policy: policy.name().to_owned(),
        prefetch,
        slots,
        hit_rate,
        default_hit_rate,
        belady_hit_rate,
    }
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    replace(path, |file| file.write_all(bytes))
}

impl Runtime {
    /// Reads the model's hotlist, if there is one, into free slots.
    pub(crate) fn warm(&mut self, observer: &mut dyn LoadObserver) {
        let Some(folder) = self.configuration.wanted_hotlists().cloned() else { return };
        let Ok(fingerprint) = self.fingerprint() else { return };
        let path = place(&folder, &fingerprint, HOTLIST_EXTENSION);
        let Some(store) = self.experts.as_mut().filter(|_| path.is_file()) else { return };
        let hotlist = match Hotlist::read(&path, &fingerprint, store.geometry()) {
            Ok(hotlist) => hotlist,
            Err(reason) => {
                observer.note(&format!("the hotlist {} is not used: {reason}", path.display()));
                return;
            }
        };
        let started = Instant::now();
        let go_on = || started.elapsed() < WARM_TIME_MAX && !observer.should_stop();
        if let Err(error) = self.workers.enter(|team| store.warm(team, &hotlist, go_on)) {
            observer.note(&format!("the cache starts cold: {error}"));
        }
        self.earlier_hotlist = hotlist;
    }

    /// Remembers which experts were used, where [`LoadConfiguration::hotlists`] names a folder and experts are streamed.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save_hotlist(&self) -> Result<(), EngineError> {
        let hotlist = self.with_store(|store| store.hotlist(&self.earlier_hotlist));
        let (Some(folder), Some(hotlist)) = (self.configuration.wanted_hotlists(), hotlist) else {
            return Ok(());
        };
        let fingerprint = self.fingerprint()?;
        let path = place(folder, &fingerprint, HOTLIST_EXTENSION);
        let bytes = hotlist.to_bytes(&fingerprint);
        write(folder, &path, &bytes)
            .map_err(|error| EngineError::BadOutput { path, reason: format!("cannot be written: {error}") })
    }
}
