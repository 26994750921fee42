//! What is remembered about a model from earlier runs: a profile that `tune` wrote, and a hotlist that warms the next start.
//!
//! Both lie in a folder that the caller names, under the model's fingerprint. A file that cannot be used is ignored with a
//! note. Neither changes an answer.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coldpress_experts::{Fingerprint, Hotlist, PolicyKind};
use coldpress_formats::ModelFile;
use coldpress_model::ModelSpec;

use crate::configuration::{LoadConfiguration, PolicyOrigin};
use crate::error::EngineError;
use crate::files::replace;
use crate::runtime::{LoadObserver, Runtime};

const PROFILE_EXTENSION: &str = "profile.json";
const HOTLIST_EXTENSION: &str = "hotlist";
const PROFILE_VERSION: u32 = 1;
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
    /// Slots it was chosen for.
    pub slots: usize,
    /// Its share of hits on the recorded text, 0 to 1.
    pub hit_rate: f64,
    /// That of the default policy.
    pub default_hit_rate: f64,
    /// That of the optimum that knows the future.
    pub belady_hit_rate: f64,
}

/// The eviction policy of a run, and who chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PolicyChoice {
    /// The policy's name.
    pub name: &'static str,
    /// Who chose it.
    pub origin: PolicyOrigin,
}

impl PolicyChoice {
    /// Flag before environment before profile before default.
    pub(crate) fn of(
        configuration: &LoadConfiguration,
        file: &ModelFile,
        spec: &ModelSpec,
        notes: &mut Vec<String>,
    ) -> Result<Self, EngineError> {
        let asked = configuration.policy.as_deref().and_then(PolicyKind::parse);
        if let Some(kind) = asked {
            return Ok(Self { name: kind.name(), origin: configuration.policy_origin });
        }
        let default = Self { name: PolicyKind::DEFAULT.name(), origin: PolicyOrigin::Default };
        let Some(folder) = &configuration.profiles else { return Ok(default) };
        // Without any profile there is no reason to read for a fingerprint.
        if spec.experts.is_empty() || !has_profiles(folder) {
            return Ok(default);
        }
        let fingerprint = Fingerprint::of(file.files(), &spec.experts)?;
        let path = place(folder, &fingerprint, PROFILE_EXTENSION);
        if !path.exists() {
            return Ok(default);
        }
        match read_profile(&path, &fingerprint) {
            Ok(kind) => Ok(Self { name: kind.name(), origin: PolicyOrigin::Profile }),
            Err(reason) => {
                notes.push(format!("the profile {} is not used: {reason}", path.display()));
                Ok(default)
            }
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

fn read_profile(path: &Path, fingerprint: &Fingerprint) -> Result<PolicyKind, String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(PROFILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    let profile: Profile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if profile.version != PROFILE_VERSION || profile.fingerprint != fingerprint.to_string() {
        return Err("it is of another version or model".to_owned());
    }
    PolicyKind::parse(&profile.policy).ok_or_else(|| format!("'{}' is not a policy", profile.policy))
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
    slots: usize,
    [hit_rate, default_hit_rate, belady_hit_rate]: [f64; 3],
) -> Profile {
    Profile {
        version: PROFILE_VERSION,
        fingerprint: fingerprint.to_string(),
        policy: policy.name().to_owned(),
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
        let Some(folder) = self.configuration.hotlists.clone() else { return };
        let Ok(fingerprint) = self.fingerprint() else { return };
        let path = place(&folder, &fingerprint, HOTLIST_EXTENSION);
        let Some(store) = self.experts.as_mut().filter(|_| path.exists()) else { return };
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
        let (Some(folder), Some(store)) = (&self.configuration.hotlists, &self.experts) else {
            return Ok(());
        };
        let fingerprint = self.fingerprint()?;
        let path = place(folder, &fingerprint, HOTLIST_EXTENSION);
        let bytes = store.hotlist(&self.earlier_hotlist).to_bytes(&fingerprint);
        write(folder, &path, &bytes)
            .map_err(|error| EngineError::BadOutput { path, reason: format!("cannot be written: {error}") })
    }
}
