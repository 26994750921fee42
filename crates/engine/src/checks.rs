//! The checks of `doctor`: what of this machine helps or hinders a run, each with a fix.
//!
//! [`judge`] is pure: facts in, one verdict per check out, so a test can describe any machine. [`diagnose`] brings the facts of
//! this one. Measured bounds come from `machine.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use coldpress_memory::sys::{self, DirectIo};
use coldpress_memory::{Bytes, MachineFacts, StorageFacts, StorageKind, SystemFacts, storage_facts};

use crate::configuration::LoadConfiguration;
use crate::error::EngineError;
use crate::forecast::{ForecastRequest, forecast};
use crate::generate::Silent;
use crate::machine::{MachineReport, ReaderReport, examine};

/// No model that is worth a run fits less.
const MEMORY_MIN: Bytes = Bytes(64 << 20);
/// Files that the program itself has open, and parts of a split model.
const OPEN_FILES_MIN: u64 = 32;
/// Parts of the largest split models with room to spare.
const OPEN_FILES_ENOUGH: u64 = 256;
/// Free part of a disk below which packs are not filled and file systems slow down.
const FREE_SHARE_MIN: f64 = 0.10;
/// Read-ahead beyond this reads more than it helps where experts come through the page cache.
const READ_AHEAD_MAX: Bytes = Bytes(1 << 20);
/// Waiting for memory that users notice, in per cent of the time.
const PRESSURE_MAX: f64 = 5.0;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, could be better or matters only sometimes.
    Hint,
    /// Works, but slowly or not for long.
    Warn,
    /// Runs will fail.
    Block,
}

impl Verdict {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Hint => "hint",
            Self::Warn => "warn",
            Self::Block => "BLOCK",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; absent where nothing has to be done.
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    fn with(name: &'static str, verdict: Verdict, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Systems that differ in what there is to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Linux.
    Linux,
    /// macOS.
    MacOs,
}

/// Where models or packs lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder.
    pub folder: PathBuf,
    /// What it lies on.
    pub storage: StorageFacts,
    /// Bytes that this user may write there.
    pub free: Option<Bytes>,
    /// Size of the file system.
    pub size: Option<Bytes>,
    /// How reads pass the page cache; `None` where no file could be tried.
    pub direct: Option<DirectIo>,
}

/// Whether a model runs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelCheck {
    /// It does: in a sentence.
    Runs(String),
    /// The file is not complete: what is missing.
    Incomplete(String),
    /// It does not: the reason.
    Refused(String),
}

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct CheckInput {
    /// The system.
    pub platform: Platform,
    /// Memory and its limits.
    pub memory: MachineFacts,
    /// Swap and limits of the process.
    pub system: SystemFacts,
    /// The instruction set of a run.
    pub isa: &'static str,
    /// Whether it was chosen by the user, and so is no finding.
    pub isa_forced: bool,
    /// How experts are read.
    pub reader: ReaderReport,
    /// Where models or packs lie.
    pub place: Place,
    /// The model that was named.
    pub model: Option<ModelCheck>,
}

/// What `doctor` tells.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Diagnosis {
    /// What the machine offers, with measurements.
    #[serde(flatten)]
    pub machine: MachineReport,
    /// What was checked.
    pub checks: Vec<Check>,
    /// The worst of them.
    pub verdict: Verdict,
}

impl Diagnosis {
    /// The verdict in a sentence.
    pub fn conclusion(&self) -> String {
        let names = |verdict: Verdict| {
            let of = self.checks.iter().filter(|check| check.verdict == verdict);
            of.map(|check| check.name).collect::<Vec<_>>().join(", ")
        };
        match self.verdict {
            Verdict::Block => format!("blocked by: {}", names(Verdict::Block)),
            Verdict::Warn => format!("runs, but look at: {}", names(Verdict::Warn)),
            Verdict::Ok | Verdict::Hint => "ready".to_owned(),
        }
    }
}

/// Examines this machine and the place `path`: a model, which is then planned with `configuration`, or a folder.
///
/// # Errors
/// `path` does not exist, the machine cannot run the instruction set, or tells nothing about its memory.
pub fn diagnose(path: &Path, configuration: &LoadConfiguration) -> Result<Diagnosis, EngineError> {
    let found = fs::metadata(path)
        .map_err(|error| EngineError::BadOption(format!("cannot look at {}: {error}", path.display())))?;
    if !(found.is_file() || found.is_dir()) {
        let reason = format!("{} is neither a file nor a folder; give a model or a folder", path.display());
        return Err(EngineError::BadOption(reason));
    }
    let has_models = found.is_dir() && holds_models(path);
    let model = (found.is_file() || has_models).then(|| check_model(path, configuration));
    let machine = examine(configuration.isa)?;
    let place = look_at(path, found.is_dir()).map_err(|error| {
        EngineError::BadOption(format!("cannot look at the disk of {}: {error}", path.display()))
    })?;
    let checks = judge(&CheckInput {
        platform: if cfg!(target_os = "macos") { Platform::MacOs } else { Platform::Linux },
        memory: machine.memory,
        system: SystemFacts::detect(),
        isa: machine.isa,
        isa_forced: configuration.isa.is_some(),
        reader: machine.reader.clone(),
        place,
        model,
    });
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    Ok(Diagnosis { machine, checks, verdict })
}

fn holds_models(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.ends_with(".gguf") || name.ends_with(".safetensors")
    })
}

fn check_model(path: &Path, configuration: &LoadConfiguration) -> ModelCheck {
    let request = ForecastRequest { measure: false, ..ForecastRequest::default() };
    match forecast(path, configuration, &request, &mut Silent) {
        Ok(forecast) if forecast.missing > Bytes::ZERO => {
            ModelCheck::Incomplete(format!("{} of it are not there yet", forecast.missing))
        }
        Ok(forecast) => {
            let report = &forecast.report;
            let budget = if report.plan.budget == Bytes::MAX {
                "no bound".to_owned()
            } else {
                report.plan.budget.to_string()
            };
            ModelCheck::Runs(format!("{} within {budget}: {}", report.residency.name(), report.reason))
        }
        Err(error) => ModelCheck::Refused(error.to_string().replace('\n', "; ")),
    }
}

fn look_at(path: &Path, is_folder: bool) -> std::io::Result<Place> {
    let parent = || path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if is_folder { path } else { parent() };
    let direct = if is_folder { try_direct(folder) } else { sys::open_direct(path).ok().map(|(_, io)| io) };
    Ok(Place {
        folder: fs::canonicalize(folder)?,
        storage: storage_facts(path)?,
        free: sys::free_disk_space(path).ok(),
        size: sys::disk_size(path).ok(),
        direct,
    })
}

/// Whether a small file in `folder` can be read past the page cache; it is removed again.
fn try_direct(folder: &Path) -> Option<DirectIo> {
    let path = folder.join(format!(".coldpress-doctor-{}", std::process::id()));
    let mut options = fs::File::options();
    options.write(true).create_new(true);
    let written =
        options.open(&path).and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 16 << 10]));
    let direct = written.ok().and_then(|()| sys::open_direct(&path).ok());
    let _ = fs::remove_file(&path);
    direct.map(|(_, io)| io)
}

/// One verdict per check.
pub fn judge(input: &CheckInput) -> Vec<Check> {
    let mut checks = vec![
        memory(input),
        control_group(input),
        address_space(input),
        swap(input),
        locked_memory(input),
        open_files(input),
        disk(input),
        space(input),
        direct_reads(input),
        reader(input),
        instruction_set(input),
    ];
    checks.extend(pressure(input));
    checks.extend(overcommit(input));
    checks.extend(memory_nodes(input));
    checks.extend(read_ahead(input));
    checks.extend(indexers(input));
    checks.extend(model(input));
    checks
}

fn memory(input: &CheckInput) -> Check {
    let MachineFacts { physical, available, usable, .. } = input.memory;
    let found = format!("{usable} usable of {physical} installed, {available} available now");
    if usable < MEMORY_MIN {
        let fix = format!("give this process at least {MEMORY_MIN}: see the limits below");
        return Check::with("memory", Verdict::Block, found, fix);
    }
    if available < usable.percent(20.0) {
        let fix = "end other programs, or name a --budget that fits what is available";
        return Check::with("memory", Verdict::Warn, found, fix);
    }
    Check::ok("memory", found)
}

fn control_group(input: &CheckInput) -> Check {
    let Some(limit) = input.memory.cgroup_limit else { return Check::ok("control group", "no memory limit") };
    let used = input.memory.cgroup_current.map_or(String::new(), |used| format!(", {used} used"));
    let found = format!("limit {limit}{used}; budgets in per cent refer to it");
    if limit.0 < input.memory.physical.0 / 4 {
        let fix =
            "raise memory.max of the group (docker run --memory, systemd MemoryMax=) if that is not meant";
        return Check::with("control group", Verdict::Hint, found, fix);
    }
    Check::ok("control group", found)
}

fn address_space(input: &CheckInput) -> Check {
    match input.memory.address_space_limit {
        None => Check::ok("address space", "no limit"),
        Some(limit) if limit < input.memory.physical => {
            let found = format!("limit {limit} on address space or data");
            Check::with("address space", Verdict::Warn, found, "ulimit -v unlimited; ulimit -d unlimited")
        }
        Some(limit) => Check::ok("address space", format!("limit {limit}")),
    }
}

fn swap(input: &CheckInput) -> Check {
    let Some(swap) = input.system.swap else { return Check::ok("swap", "the system tells nothing") };
    if swap.total == Bytes::ZERO {
        return Check::ok("swap", "none: whoever takes too much memory is killed, not slowed down");
    }
    let found = format!("{} of {} in use", swap.used, swap.total);
    if swap.used > input.memory.physical.percent(10.0) {
        let fix = "memory is short already: end other programs or use a smaller --budget, or the cache may be swapped";
        return Check::with("swap", Verdict::Warn, found, fix);
    }
    Check::ok("swap", found)
}

fn locked_memory(input: &CheckInput) -> Check {
    match input.system.locked_memory_limit {
        None => Check::ok("locked memory", "no limit"),
        Some(limit) if limit < Bytes(64 << 10) => {
            let found =
                format!("limit {limit}; coldpress locks nothing, kernels before 5.12 charge io_uring to it");
            Check::with("locked memory", Verdict::Hint, found, "ulimit -l 64, or unlimited")
        }
        Some(limit) => {
            Check::ok("locked memory", format!("limit {limit}, which is enough: coldpress locks nothing"))
        }
    }
}

fn open_files(input: &CheckInput) -> Check {
    let fix = "ulimit -n 1024";
    match input.system.open_files_limit {
        None => Check::ok("open files", "no limit"),
        Some(limit) if limit < OPEN_FILES_MIN => {
            Check::with("open files", Verdict::Block, format!("limit {limit}"), fix)
        }
        Some(limit) if limit < OPEN_FILES_ENOUGH => Check::with(
            "open files",
            Verdict::Hint,
            format!("limit {limit}: little for models of many parts"),
            fix,
        ),
        Some(limit) => Check::ok("open files", format!("limit {limit}")),
    }
}

fn disk(input: &CheckInput) -> Check {
    let StorageFacts { file_system, device, kind, .. } = &input.place.storage;
    let device = device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
    let found = |what: &str| format!("{what}, {file_system}{device}, for {}", input.place.folder.display());
    let slow = "keep models and packs on a local solid-state disk";
    match kind {
        StorageKind::SolidState => Check::ok("disk", found("solid state")),
        StorageKind::Virtual => {
            Check::ok("disk", found("virtual; `coldpress disk` measures what is behind it"))
        }
        StorageKind::Unknown => Check::ok("disk", found("of unknown kind; `coldpress disk` measures it")),
        StorageKind::Rotating => {
            Check::with("disk", Verdict::Warn, found("with heads: a few tokens per minute"), slow)
        }
        StorageKind::Network => Check::with("disk", Verdict::Warn, found("of another machine"), slow),
        StorageKind::Memory => {
            let fix = "a model in memory takes it twice: keep models and packs on a disk";
            Check::with("disk", Verdict::Warn, found("files in memory"), fix)
        }
    }
}

fn space(input: &CheckInput) -> Check {
    let (Some(free), Some(size)) = (input.place.free, input.place.size) else {
        return Check::ok("space", "the system does not tell");
    };
    let found = format!("{free} free of {size}");
    if (free.0 as f64) < size.0 as f64 * FREE_SHARE_MIN {
        let fix = "free a tenth of the disk: below that packs are not filled; COLDPRESS_PRESTACK_CACHE_DIR names another one";
        return Check::with("space", Verdict::Warn, found, fix);
    }
    Check::ok("space", found)
}

fn direct_reads(input: &CheckInput) -> Check {
    match &input.place.direct {
        Some(DirectIo::Direct { align }) => {
            Check::ok("direct reads", format!("possible, blocks of {}", Bytes(u64::from(*align))))
        }
        Some(DirectIo::Buffered { reason }) => {
            let fix = "reads go through the page cache, which is given back after each; use ext4, xfs or APFS for full speed";
            Check::with("direct reads", Verdict::Warn, reason.clone(), fix)
        }
        None => {
            let found = format!("not tried: no file can be written in {}", input.place.folder.display());
            Check::with(
                "direct reads",
                Verdict::Hint,
                found,
                "name a model file, or a folder that can be written",
            )
        }
    }
}

fn reader(input: &CheckInput) -> Check {
    let chosen = input.reader.chosen;
    if input.reader.io_uring || input.platform == Platform::MacOs {
        return Check::ok("reader", chosen);
    }
    let reason = input.reader.notice.as_deref().unwrap_or("this system has no io_uring");
    let fix = match input.system.io_uring_disabled {
        Some(1 | 2) => "sysctl -w kernel.io_uring_disabled=0",
        _ => {
            "allow io_uring in the container's seccomp profile, or use Linux 5.6 or later; threads read nearly as fast"
        }
    };
    Check::with("reader", Verdict::Hint, format!("{chosen}: {reason}"), fix)
}

fn instruction_set(input: &CheckInput) -> Check {
    if input.isa != "scalar" {
        return Check::ok("instruction set", input.isa);
    }
    if input.isa_forced {
        return Check::with("instruction set", Verdict::Hint, "scalar, as asked", "unset COLDPRESS_ISA");
    }
    let fix =
        "use a processor with AVX2 or NEON dot products, or pass its features through to the virtual machine";
    Check::with("instruction set", Verdict::Warn, "scalar only: twenty times slower", fix)
}

fn pressure(input: &CheckInput) -> Option<Check> {
    let percent = input.system.memory_pressure_percent?;
    let found = format!("programs waited for memory {percent:.1} % of the last ten seconds");
    if percent > PRESSURE_MAX {
        return Some(Check::with(
            "memory pressure",
            Verdict::Warn,
            found,
            "end other programs or use a smaller --budget",
        ));
    }
    Some(Check::ok("memory pressure", found))
}

fn overcommit(input: &CheckInput) -> Option<Check> {
    input.system.overcommit_refused.then(|| {
        let found = "vm.overcommit_memory is 2: memory is refused that other programs have only reserved";
        Check::with(
            "overcommit",
            Verdict::Warn,
            found,
            "sysctl -w vm.overcommit_memory=0, or a smaller --budget",
        )
    })
}

fn memory_nodes(input: &CheckInput) -> Option<Check> {
    let nodes = input.system.memory_nodes;
    (nodes > 1).then(|| {
        let found = format!("{nodes} nodes; weights are kept once, on whichever node reads them first");
        Check::with(
            "memory nodes",
            Verdict::Hint,
            found,
            "numactl --interleave=all coldpress ... where one node is too small",
        )
    })
}

fn read_ahead(input: &CheckInput) -> Option<Check> {
    let bytes = input.place.storage.read_ahead?;
    if bytes <= READ_AHEAD_MAX {
        return Some(Check::ok("read-ahead", bytes.to_string()));
    }
    let device = input.place.storage.device.as_deref().unwrap_or("DEVICE");
    let found = format!(
        "{bytes}; streamed reads pass it by, --residency paged and mapped and other engines read too much"
    );
    Some(Check::with("read-ahead", Verdict::Hint, found, format!("blockdev --setra 256 /dev/{device}")))
}

/// Backups and search indexes read large files again and again, and back packs up for nothing.
fn indexers(input: &CheckInput) -> Option<Check> {
    if input.platform != Platform::MacOs {
        return None;
    }
    let folder = input.place.folder.to_string_lossy();
    if folder.contains("/Library/Caches") {
        return Some(Check::ok("backup, index", "this folder is left out by Time Machine and Spotlight"));
    }
    let found = format!("Time Machine and Spotlight may read models and packs in {folder}");
    let fix = format!("tmutil addexclusion '{folder}'; a folder whose name ends in .noindex is not searched");
    Some(Check::with("backup, index", Verdict::Hint, found, fix))
}

fn model(input: &CheckInput) -> Option<Check> {
    let fix_budget = "see `coldpress plan` for the smallest budget and what saves memory";
    Some(match input.model.as_ref()? {
        ModelCheck::Runs(how) => Check::ok("model", how),
        ModelCheck::Incomplete(what) => {
            Check::with("model", Verdict::Block, what, "finish the download; `coldpress plan` works already")
        }
        ModelCheck::Refused(reason) => Check::with("model", Verdict::Block, reason, fix_budget),
    })
}
