//! `coldpress pull`: a model from a hub into the hub's own cache.
//!
//! Owns what the variables of Hugging Face mean here; they mean what they mean to `huggingface_hub`, so that both use one cache and one token.
//! The path of the model is all that goes to standard output, for `coldpress run "$(coldpress pull ...)"`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use coldpress::Bytes;
use coldpress_hub::{FileState, HubError, ModelName, Observer, PullReport, Settings};

use crate::progress::{Progress, Unit};
use crate::{Ended, Usage, interrupt, output};

/// Pause between two updates of the bar.
const REDRAW: Duration = Duration::from_millis(100);

/// Arguments of `pull`.
#[derive(Debug, Args)]
pub struct PullArguments {
    /// Repository, and which of its models where it holds several: ORGANISATION/NAME or ORGANISATION/NAME:Q4_K_M
    #[arg(value_name = "REPO[:QUANT]")]
    pub model: ModelName,
    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    pub revision: String,
    /// Folder of the cache [default: HF_HUB_CACHE, or the folder hub below HF_HOME]
    #[arg(long, value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// Show what would be fetched, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object instead of the path
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// The variables mean nothing, the model cannot be had, the cache cannot be written, or standard output failed.
pub fn pull(arguments: &PullArguments) -> Result<Ended> {
    let settings = settings(arguments, |name| std::env::var_os(name))?;
    let started = Instant::now();
    let mut watch = Watch { bar: Progress::new("download", Unit::Bytes), drawn: started };
    let act = if arguments.dry_run { coldpress_hub::plan } else { coldpress_hub::pull };
    let report = act(&arguments.model, &arguments.revision, &settings, &mut watch);
    drop(watch);
    if let Err(stopped @ HubError::Stopped) = &report {
        output::line(&format!("coldpress: {stopped}"));
        return Ok(Ended::Interrupted);
    }
    let report = report?;
    if arguments.json {
        let mut object = serde_json::to_value(&report)?;
        object["dry_run"] = arguments.dry_run.into();
        output::json(&object)?;
    } else if arguments.dry_run {
        output::text(&describe_plan(&report, &settings.cache))?;
    } else {
        output::line(&describe(&report, started.elapsed()));
        output::text(&format!("{}\n", report.path.display()))?;
    }
    Ok(Ended::Done)
}

/// Shows a pull on a terminal.
struct Watch {
    bar: Progress,
    drawn: Instant,
}

impl Observer for Watch {
    fn progress(&mut self, done: u64, total: u64) {
        if done == total || self.drawn.elapsed() >= REDRAW {
            self.bar.update(done, total);
            self.drawn = Instant::now();
        }
    }

    fn note(&mut self, text: &str) {
        self.bar.above(|| output::line(&format!("note: {text}")));
    }

    fn should_stop(&mut self) -> bool {
        interrupt::asked()
    }
}

fn files(report: &PullReport) -> String {
    let count = report.files.len();
    format!("{count} {}, {}", if count == 1 { "file" } else { "files" }, report.bytes)
}

fn describe(report: &PullReport, elapsed: Duration) -> String {
    let PullReport { repo, commit, missing_bytes, .. } = report;
    let fetched = if *missing_bytes == Bytes::ZERO {
        "all of it was there".to_owned()
    } else {
        let rate = missing_bytes.0 as f64 / 1e6 / elapsed.as_secs_f64().max(1e-3);
        format!("{missing_bytes} fetched in {:.1} s ({rate:.1} MB/s)", elapsed.as_secs_f64())
    };
    format!("{repo} at {}: {}, {fetched}", short(commit), files(report))
}

fn describe_plan(report: &PullReport, cache: &Path) -> String {
    let PullReport { repo, revision, commit, missing_bytes, free_bytes, .. } = report;
    let mut text = format!("{repo} {revision}, commit {}\n\n", short(commit));
    for file in &report.files {
        let state = match file.state {
            FileState::Present => "there".to_owned(),
            FileState::Partial => format!("{} there", file.present_bytes),
            FileState::Absent => "fetch".to_owned(),
        };
        text.push_str(&format!("  {:>10}  {state:<16}  {}\n", file.bytes.to_string(), file.path));
    }
    let free =
        free_bytes.map_or_else(String::new, |free| format!(", {free} are free in {}", cache.display()));
    text.push_str(&format!("\n{}; {missing_bytes} would be fetched{free}\n", files(report)));
    if free_bytes.is_some_and(|free| free < *missing_bytes) {
        text.push_str("that does not fit: choose another disk with --cache-dir\n");
    }
    text.push_str(&format!("{}\n", report.path.display()));
    text
}

fn short(commit: &str) -> &str {
    commit.get(..8).unwrap_or(commit)
}

/// What the arguments and the variables come to.
fn settings(arguments: &PullArguments, variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings> {
    let set = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let home = set(&["HOME"]).map(PathBuf::from);
    let folder = |names: &[&str]| set(names).map(|path| expanded(PathBuf::from(path), home.as_deref()));
    let cache_home = folder(&["XDG_CACHE_HOME"]).or_else(|| home.as_ref().map(|home| home.join(".cache")));
    let hugging_face = folder(&["HF_HOME"]).or_else(|| cache_home.map(|cache| cache.join("huggingface")));
    let cache = arguments.cache_dir.clone();
    let cache = cache.or_else(|| folder(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]));
    let cache = cache.or_else(|| hugging_face.as_ref().map(|folder| folder.join("hub")));
    let cache = cache.ok_or_else(|| {
        Usage(anyhow!("no cache folder is known (HOME is not set): say where with --cache-dir"))
    })?;
    let mut settings =
        Settings::new(std::path::absolute(&cache).context("the folder of the cache is no path")?);
    if let Some(endpoint) = set(&["HF_ENDPOINT"]) {
        settings.endpoint = endpoint.to_string_lossy().into_owned();
    }
    let truth = |names: &[&str]| set(names).is_some_and(|value| is_true(&value.to_string_lossy()));
    settings.offline = truth(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
    settings.certificates = folder(&["SSL_CERT_FILE"]);
    if !settings.offline && !truth(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]) {
        let named =
            set(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).map(|token| token.to_string_lossy().into_owned());
        let file = folder(&["HF_TOKEN_PATH"]).or_else(|| hugging_face.map(|folder| folder.join("token")));
        let stored = || file.map_or(Ok(None), |file| token_in(&file));
        let token = if named.is_some() { named } else { stored()? };
        settings.token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    }
    Ok(settings)
}

fn token_in(file: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(token) => Ok(Some(token)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read the token in {}", file.display())),
    }
}

/// `~/x` as a shell would take it.
fn expanded(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        let arguments = PullArguments {
            model: "o/n".parse().expect("a name"),
            revision: "main".to_owned(),
            cache_dir: None,
            dry_run: false,
            json: false,
        };
        settings(&arguments, |name| {
            variables.iter().find(|&&(known, _)| known == name).map(|&(_, value)| value.into())
        })
    }

    #[test]
    fn the_cache_is_where_the_most_specific_variable_says() {
        let mut variables = vec![("HOME", "/h")];
        for (variable, folder) in [
            (("PATH", "/bin"), "/h/.cache/huggingface/hub"),
            (("XDG_CACHE_HOME", "/x"), "/x/huggingface/hub"),
            (("HF_HOME", "~/hf"), "/h/hf/hub"),
            (("HUGGINGFACE_HUB_CACHE", "/old"), "/old"),
            (("HF_HUB_CACHE", "/c"), "/c"),
        ] {
            variables.push(variable);
            assert_eq!(read(&variables).expect("settings").cache, Path::new(folder), "{variable:?}");
        }
        assert!(read(&[]).is_err_and(|error| error.downcast_ref::<Usage>().is_some()));
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_unless_forbidden() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("token"), "hf_file\n").expect("a file");
        let home = ("HF_HOME", folder.path().to_str().expect("a UTF-8 path"));
        let token = |more: &[(&str, &str)]| read(&[&[home][..], more].concat()).expect("settings").token;
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_TOKEN", " hf_variable ")]).as_deref(), Some("hf_variable"));
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_HUB_OFFLINE", "true")]), None);
        assert_eq!(read(&[("HF_HOME", "/nowhere")]).expect("settings").token, None);
    }

    #[test]
    fn the_endpoint_is_the_public_hub_unless_named() {
        let endpoint = |variables: &[(&str, &str)]| read(variables).expect("settings").endpoint;
        assert_eq!(endpoint(&[("HOME", "/h"), ("HF_ENDPOINT", "")]), coldpress_hub::PUBLIC_ENDPOINT);
        assert_eq!(
            endpoint(&[("HOME", "/h"), ("HF_ENDPOINT", "https://mirror.example")]),
            "https://mirror.example"
        );
    }
}
