//! `coldpress status`: what the running programs of this user hold in memory, and why.
//!
//! Commands that load a model, and `pack`, write their state to a small file of their own about once a second, in `$XDG_RUNTIME_DIR/coldpress` or, where
//! there is none, `run` in the cache folder. Nothing listens and nothing waits: whoever asks reads files. A file is removed when
//! its program ends, or by the next `status` when the program was killed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use coldpress::{Bytes, LoadStage, Runtime, RuntimeHandle, process_exists};
use serde_json::{Value, json};

use crate::arguments::StatusArguments;
use crate::environment::Environment;
use crate::{Ended, Usage, output};

/// Time between two states.
const PERIOD: Duration = Duration::from_secs(1);
/// A state is a few kilobytes.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// A program that has not written for so long does not run as it should.
const SILENCE_S: u64 = 5;
/// Events shown of each program.
const EVENTS_SHOWN: usize = 5;

/// Keeps the state of this program where others find it, until it is dropped. Where the folder cannot be written there is no
/// state, which spoils no answer.
pub struct Publication {
    /// Dropped to stop; a message publishes at once.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    work: Arc<Mutex<Work>>,
}

/// What the program does.
enum Work {
    /// It has begun, or does a long piece of work before it can answer: `done` of `total` bytes.
    Loading { stage: Option<LoadStage>, done: u64, total: u64 },
    /// It answers, or waits for a question.
    Ready { fixed: Value, handle: Box<RuntimeHandle> },
}

impl Publication {
    /// Begins for the command called `command`, which loads or packs `model`.
    pub fn begin(command: &str, model: &Path, environment: &Environment) -> Self {
        let work = Arc::new(Mutex::new(Work::Loading { stage: None, done: 0, total: 0 }));
        let Some(folder) = environment.status_folders().into_iter().next() else {
            return Self { wake: None, thread: None, work };
        };
        let program = json!({
            "pid": std::process::id(),
            "command": command,
            "model": model.file_name().map(|name| name.to_string_lossy()),
            "started_unix_s": unix_seconds(),
        });
        let (wake, woken) = mpsc::channel();
        let theirs = Arc::clone(&work);
        let publish = move || {
            let path = folder.join(format!("{}.json", std::process::id()));
            loop {
                // A full disk or a folder that was removed: the next second may be better.
                let _ = write_state(&folder, &path, &state_of(&program, &theirs));
                if woken.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
            let _ = fs::remove_file(path);
        };
        let builder = std::thread::Builder::new().name("coldpress-status".to_owned()).stack_size(256 << 10);
        Self { wake: Some(wake), thread: builder.spawn(publish).ok(), work }
    }

    /// Shows how far a stage of the load is.
    pub fn progress(&self, stage: LoadStage, done: u64, total: u64) {
        *lock(&self.work) = Work::Loading { stage: Some(stage), done, total };
    }

    /// Shows the state of `runtime` from now on.
    pub fn follow(&self, runtime: &Runtime) {
        let status = runtime.status();
        let fixed = json!({
            "residency": status.plan.residency,
            "policy": status.policy,
            "lossy": status.plan.lossy,
            "reader": status.reader,
            "experts_total": status.plan.plan.records_total,
            "press": status.press,
        });
        *lock(&self.work) = Work::Ready { fixed, handle: Box::new(runtime.handle()) };
        if let Some(wake) = &self.wake {
            // Without its thread nothing is published.
            let _ = wake.send(());
        }
    }
}

/// What is guarded is replaced as a whole, so a panic elsewhere spoils nothing.
fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of this moment.
fn state_of(program: &Value, work: &Mutex<Work>) -> Value {
    let mut state = program.clone();
    state["updated_unix_s"] = json!(unix_seconds());
    match &*lock(work) {
        Work::Loading { stage, done, total } => {
            let percent = 100.0 * *done as f64 / (*total).max(1) as f64;
            state["loading"] = json!({
                "stage": stage.map(stage_words),
                "percent": (percent * 10.0).round() / 10.0,
                "done_bytes": done,
                "total_bytes": total,
            });
        }
        Work::Ready { fixed, handle } => {
            for (name, value) in fixed.as_object().into_iter().flatten() {
                state[name] = value.clone();
            }
            state["now"] = serde_json::to_value(handle.status()).unwrap_or_default();
        }
    }
    state
}

fn stage_words(stage: LoadStage) -> &'static str {
    match stage {
        LoadStage::Pack => "writing the pack",
        LoadStage::Verify => "checking the pack",
        LoadStage::Convert => "writing the model file",
        LoadStage::Dense => "reading dense weights",
        LoadStage::Experts => "reading experts",
        LoadStage::DiskFile => "writing a file to measure the disk",
        LoadStage::Disk => "measuring the disk",
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing that could panic.
            let _ = thread.join();
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Writes the state beside its place and renames it: a reader sees a whole state or none.
fn write_state(folder: &Path, path: &Path, state: &Value) -> Result<()> {
    if !folder.is_dir() {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    serde_json::to_writer(&file, state)?;
    file.flush()?;
    Ok(fs::rename(temporary, path)?)
}

/// Runs the command.
///
/// # Errors
/// The folder exists and cannot be read, or standard output failed.
pub fn status(arguments: &StatusArguments, environment: &Environment) -> Result<Ended> {
    let folders = environment.status_folders();
    if folders.is_empty() {
        let reason = "no folder for states is known: neither XDG_RUNTIME_DIR nor HOME is set";
        return Err(Usage(anyhow::anyhow!(reason)).into());
    }
    let mut states = Vec::new();
    for folder in &folders {
        states.extend(states_in(folder)?);
    }
    if arguments.json {
        output::json(&json!({ "programs": states }))?;
    } else if states.is_empty() {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        output::text(&format!("no program of coldpress is running (looked in {})\n", folders.join(" and ")))?;
    } else {
        let texts: Vec<String> = states.iter().map(describe).collect();
        output::text(&texts.join("\n"))?;
    }
    Ok(Ended::Done)
}

/// The states of all programs that run, by number. Those of others are removed.
fn states_in(folder: &Path) -> Result<Vec<Value>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(number) = number_of(&path) else { continue };
        if !process_exists(number) {
            let _ = fs::remove_file(&path);
            continue;
        }
        // A state that is being written is not there yet.
        let is_whole = path.extension().is_some_and(|extension| extension == "json");
        let readable = is_whole
            && fs::metadata(&path).is_ok_and(|facts| facts.is_file() && facts.len() <= STATE_BYTES_MAX);
        let state = readable.then(|| fs::read(&path).ok()).flatten();
        // A file that is none of ours says nothing.
        if let Some(state) = state.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()) {
            found.push((number, state));
        }
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, state)| state).collect())
}

/// The number in a file name that [`Publication`] would give.
fn number_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let number: u32 = name.split_once('.')?.0.parse().ok()?;
    let ours = ["json", "tmp"].into_iter().any(|extension| name == format!("{number}.{extension}"));
    ours.then_some(number)
}

/// Text from a file, fit for a terminal.
fn plain(text: &str) -> String {
    output::printable(text, '?')
}

/// A state in words.
fn describe(state: &Value) -> String {
    let number = |pointer: &str| state.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let word = |pointer: &str| plain(state.pointer(pointer).and_then(Value::as_str).unwrap_or("?"));
    let bytes = |pointer: &str| match number(pointer) {
        u64::MAX => "unlimited".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    let silent_s = unix_seconds().saturating_sub(number("/updated_unix_s"));
    let loading = state.get("loading");
    let doing = match (loading, state.pointer("/now/computing"), state.pointer("/now/released")) {
        (Some(loading), ..) => stage(loading),
        (_, Some(Value::Bool(true)), _) => "computing".to_owned(),
        (_, _, Some(Value::String(released))) => format!("idle, gave back {}", plain(released)),
        _ => "waiting".to_owned(),
    };
    let doing = match silent_s {
        0..=SILENCE_S => doing,
        _ => format!(
            "no sign of life for {silent_s} s: stopped, or killed and its number is another program's"
        ),
    };
    let program = format!("{} {} {}  {doing}", number("/pid"), word("/command"), word("/model"));
    if loading.is_some() {
        return format!("{program}\n");
    }
    let lossy = state.pointer("/lossy").and_then(Value::as_array).into_iter().flatten();
    let lossy: Vec<String> = lossy.filter_map(Value::as_str).map(plain).collect();
    let mut lines = vec![format!("{program}, {}{}", word("/residency"), output::lossy(&lossy))];
    let mut row = |name: &str, text: String| lines.push(format!("  {name:<9}{text}"));
    row(
        "budget",
        format!(
            "{}, {} held, {} at most",
            bytes("/now/ledger/budget"),
            bytes("/now/ledger/used"),
            bytes("/now/ledger/peak")
        ),
    );
    let shares = state.pointer("/now/ledger/used_for").and_then(Value::as_array).into_iter().flatten();
    let share = |share: &Value| {
        let held = share.get(1)?.as_u64()?;
        Some(format!("{} {}", plain(share.get(0)?.as_str()?).replace('_', " "), Bytes(held)))
    };
    row("ledger", shares.filter_map(share).collect::<Vec<_>>().join(", "));
    row(
        "process",
        format!(
            "{} anonymous, {} resident",
            bytes("/now/memory/process/anon"),
            bytes("/now/memory/process/rss")
        ),
    );
    if number("/experts_total") > 0 {
        let (hits, misses) = (number("/now/experts/hits"), number("/now/experts/misses"));
        let rate = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
        row(
            "experts",
            format!(
                "{} of {} in memory ({}), {rate:.1} % of {} asked for were there, {} read",
                number("/now/experts/resident"),
                number("/experts_total"),
                bytes("/now/experts/resident_bytes"),
                hits + misses,
                bytes("/now/experts/bytes_read")
            ),
        );
        if let Some(rows) = state.pointer("/now/experts/rows") {
            row("rows", row_figures(rows));
        }
        row("press", press(state));
    }
    row("pressure", pressure(state));
    lines.push(String::new());
    lines.join("\n")
}

/// What was looked up in tables on disk.
fn row_figures(rows: &Value) -> String {
    let number = |name: &str| rows.get(name).and_then(Value::as_u64).unwrap_or(0);
    let distinct = number("hits") + number("misses");
    let rate = 100.0 * number("hits") as f64 / distinct.max(1) as f64;
    let (p50, p99) = (number("p50_us"), number("p99_us"));
    format!(
        "{distinct} looked up, {rate:.1} % of them were there, reads of {p50} us (p50) and {p99} us (p99)"
    )
}

/// What a program does that is not ready yet.
fn stage(loading: &Value) -> String {
    let percent = loading.get("percent").and_then(Value::as_f64).unwrap_or(0.0);
    match loading.get("stage").and_then(Value::as_str) {
        Some(stage) => format!("loading: {}, {percent:.0} %", plain(stage)),
        None => "loading: reading headers".to_owned(),
    }
}

fn press(state: &Value) -> String {
    let enabled = state.pointer("/press/enabled").and_then(Value::as_bool);
    let cold = state.pointer("/press/cold_fraction").and_then(Value::as_f64);
    let enabled = match enabled {
        Some(true) => "experts may leave memory",
        Some(false) => "nothing is evicted",
        None => "?",
    };
    cold.map_or(enabled.to_owned(), |cold| format!("{enabled}, {:.0} % only on disk", cold * 100.0))
}

/// The last changes of what slots may hold.
fn pressure(state: &Value) -> String {
    let events = state.pointer("/now/pressure/events").and_then(Value::as_array);
    let events: &[Value] = events.map_or(&[], Vec::as_slice);
    if events.is_empty() {
        return "none so far".to_owned();
    }
    let last = &events[events.len().saturating_sub(EVENTS_SHOWN)..];
    let text = |event: &Value| {
        let number = |name: &str| event.get(name).and_then(Value::as_u64).unwrap_or(0);
        let cause = plain(event.get("cause").and_then(Value::as_str).unwrap_or("?")).replace('_', " ");
        let (from, to) = (Bytes(number("from")), Bytes(number("to")));
        format!("{cause} after {:.1} s: slots {from} -> {to}", number("at_ms") as f64 / 1e3)
    };
    last.iter().map(text).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(stage: Option<LoadStage>, done: u64, total: u64) -> Value {
        let program = json!({ "pid": 7, "command": "run", "model": "m.gguf" });
        state_of(&program, &Mutex::new(Work::Loading { stage, done, total }))
    }

    #[test]
    fn a_program_that_loads_says_what_and_how_far() {
        let begun = loading(None, 0, 0);
        assert_eq!(describe(&begun), "7 run m.gguf  loading: reading headers\n");
        let dense = loading(Some(LoadStage::Dense), 412, 1000);
        assert_eq!(describe(&dense), "7 run m.gguf  loading: reading dense weights, 41 %\n");
        assert_eq!(dense["loading"]["percent"], 41.2);
        assert_eq!(dense["loading"]["total_bytes"], 1000);
        assert!(dense.get("now").is_none());
    }
}
