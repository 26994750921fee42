//! How experts are read from a disk: measured once per disk and size of read, then remembered.
//!
//! The choice never changes a result, only its speed. A measurement takes about half a second at a start and
//! up to four seconds when `tune` asks for it, reads past the page cache or not at all, and uses memory that the plan has for expert slots. It is kept as one small file per device and size class;
//! a file that is damaged, of another version or of another disk is as good as none.
//! Read next: `coldpress_experts::reader::probe`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coldpress_experts::reader::open_reader;
use coldpress_experts::reader::probe::{ProbeWork, probe, probe_memory};
use coldpress_experts::{
    ExpertError, FileAccess, Geometry, PackFile, READ_AHEAD_DEFAULT, ReadFile, ReaderChoice, SPLIT_MAX,
};
use coldpress_formats::ModelFile;
use coldpress_memory::sys::{DeviceFacts, device_facts};
use coldpress_memory::{Ledger, Purpose};
use serde::{Deserialize, Serialize};

use crate::configuration::{LoadConfiguration, ReaderKind, Residency};
use crate::plan::{Prepared, read_ahead};
use crate::runtime::LoadObserver;

/// Version of the remembered measurements.
const VERSION: u32 = 1;
/// A remembered measurement is a few hundred bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// Most memory of a measurement.
const MEMORY_MAX: usize = 64 << 20;
/// Files shorter than this say little about their disk.
const FILE_MIN: u64 = 256 << 20;
/// Depths tried, in reads.
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// A costlier way must be faster by this factor to be taken.
const WORTH: f64 = 1.1;

/// How long a disk is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// No new measurement is begun after this time.
    time_max: Duration,
    /// One measurement.
    step: Duration,
}

/// At a start, which waits for it.
const AT_START: Effort = Effort { time_max: Duration::from_millis(450), step: Duration::from_millis(15) };
/// When somebody asked for it: steps that outlast the bursts of a shared disk.
const ASKED_FOR: Effort = Effort { time_max: Duration::from_secs(4), step: Duration::from_millis(200) };

/// Where a way of reading comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Measured at this start.
    Measured,
    /// Measured at an earlier start.
    Cached,
    /// Nothing was measured.
    Default,
    /// The caller named the reader.
    Forced,
}

impl Basis {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Cached => "cached",
            Self::Default => "default",
            Self::Forced => "forced",
        }
    }
}

/// How reads go with the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageCacheUse {
    /// Past it, where the system allows that.
    Direct,
    /// Through it; the pages are given back after each read.
    Dropped,
    /// Through it; the pages stay.
    Kept,
}

impl PageCacheUse {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Dropped => "buffered, pages dropped",
            Self::Kept => "through the page cache",
        }
    }

    pub(crate) fn file_access(self) -> FileAccess {
        match self {
            Self::Direct => FileAccess::Direct,
            Self::Dropped => FileAccess::Dropped,
            Self::Kept => FileAccess::Cached,
        }
    }
}

/// How experts are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// `auto` (io_uring where possible), `uring`, `pread` or `mapping`.
    pub reader: &'static str,
    /// Reads in flight; `None` for the default number of records.
    pub depth: Option<usize>,
    /// Parallel reads of one record of a pack.
    pub split: usize,
    /// How reads go with the page cache.
    pub access: PageCacheUse,
    /// Where this comes from.
    pub basis: Basis,
}

impl Reading {
    /// The way without any measurement.
    fn default_for(configuration: &LoadConfiguration, residency: Residency) -> Self {
        let forced = configuration.reader != ReaderKind::Auto;
        Self {
            reader: match residency {
                Residency::Mapped => "mapping",
                _ => configuration.reader.name(),
            },
            depth: None,
            split: configuration.split.unwrap_or(1),
            access: match residency {
                Residency::Paged | Residency::Mapped => PageCacheUse::Kept,
                _ => PageCacheUse::Direct,
            },
            basis: if forced && residency != Residency::Mapped { Basis::Forced } else { Basis::Default },
        }
    }

    /// What a plan can say: the remembered measurement if there is one.
    pub(crate) fn planned(
        configuration: &LoadConfiguration,
        residency: Residency,
        file: &ModelFile,
        pack: Option<&PackFile>,
        geometry: Option<&Geometry>,
    ) -> Self {
        let default = Self::default_for(configuration, residency);
        let Some(geometry) = geometry else { return default };
        match Subject::find(configuration, residency, file, pack, geometry) {
            Some(subject) => {
                subject.recall().map_or(default, |tuned| tuned.reading(configuration, Basis::Cached))
            }
            None => default,
        }
    }

    /// The reader of the store; io_uring falls back where it has come to be refused.
    pub(crate) fn choice(&self, asked: ReaderKind) -> ReaderChoice {
        match (asked, self.reader) {
            (ReaderKind::Auto, "pread") => ReaderChoice::Pread,
            (asked, _) => asked.choice(),
        }
    }

    /// Records in flight at the same time: twice the depth at which the disk is at its rate, so that it has work while
    /// records are being checked.
    pub(crate) fn records_in_flight(&self, packed: bool, slots: u64) -> usize {
        let bound = read_ahead(slots);
        let Some(depth) = self.depth else { return bound };
        let reads_per_record = if packed { self.split } else { 3 };
        // Without a pack the read ring was planned for the default number of records.
        let most = if packed { 2 * READ_AHEAD_DEFAULT } else { READ_AHEAD_DEFAULT };
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        (2 * depth).div_ceil(reads_per_record).clamp(2, most).min(slots).max(1)
    }
}

/// Bytes per second of the remembered measurement for a model, where there is one.
pub(crate) fn remembered_rate(
    configuration: &LoadConfiguration,
    residency: Residency,
    file: &ModelFile,
    pack: Option<&PackFile>,
    geometry: &Geometry,
) -> Option<f64> {
    let tuned = Subject::find(configuration, residency, file, pack, geometry)?.recall()?;
    Some(tuned.bytes_per_second).filter(|rate| rate.is_finite() && *rate > 0.0)
}

/// What a measurement is about.
struct Subject {
    folder: PathBuf,
    path: PathBuf,
    device: DeviceFacts,
    /// Bytes of one read.
    read_bytes: usize,
    packed: bool,
}

impl Subject {
    /// `None` where nothing is to be measured or remembered.
    fn find(
        configuration: &LoadConfiguration,
        residency: Residency,
        file: &ModelFile,
        pack: Option<&PackFile>,
        geometry: &Geometry,
    ) -> Option<Self> {
        let measurable = matches!(residency, Residency::Auto | Residency::Resident | Residency::Streamed);
        if !measurable || configuration.reader != ReaderKind::Auto {
            return None;
        }
        let folder = configuration.disk_probe.clone()?;
        let record = geometry.record_bytes_max();
        let (path, read_bytes) = match pack {
            Some(pack) => (pack.file().path().to_owned(), record),
            None => (file.files().iter().max_by_key(|file| file.len)?.path.clone(), record / 3),
        };
        let device = device_facts(&path).ok().filter(|device| !device.is_memory)?;
        let read_bytes = read_bytes.next_multiple_of(BLOCK);
        Some(Self { folder, path, device, read_bytes, packed: pack.is_some() })
    }

    /// Of a model that is being loaded.
    fn of(prepared: &Prepared, configuration: &LoadConfiguration) -> Option<Self> {
        let geometry = Geometry::new(&prepared.spec.experts).ok()?;
        let (file, pack) = (&prepared.file, prepared.pack.as_ref());
        Self::find(configuration, prepared.report.residency, file, pack, &geometry)
    }

    /// Reads up to a power of two in bytes share a measurement.
    fn class(&self) -> u32 {
        self.read_bytes.next_power_of_two().ilog2()
    }

    fn file(&self) -> PathBuf {
        let kind = if self.packed { "pack" } else { "model" };
        self.folder.join(format!("disk-{:x}-{}-{kind}.json", self.device.device, self.class()))
    }

    fn recall(&self) -> Option<Tuned> {
        let mut text = String::new();
        // Nothing but a regular file is opened: opening a pipe would wait for a writer.
        let place = Some(self.file()).filter(|place| place.is_file())?;
        std::fs::File::open(place).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let tuned: Tuned = serde_json::from_str(&text).ok()?;
        let valid = tuned.version == VERSION
            && tuned.device == self.device.device
            && tuned.file_system == self.device.file_system
            && tuned.file_system_bytes == self.device.bytes.0
            && tuned.size_class == self.class()
            && (1..=DEPTHS[DEPTHS.len() - 1] * SPLIT_MAX).contains(&tuned.depth)
            && (1..=SPLIT_MAX).contains(&tuned.split)
            && tuned.access != PageCacheUse::Kept;
        valid.then_some(tuned)
    }

    /// A measurement that cannot be kept is made again at the next start; that is no error.
    fn remember(&self, tuned: &Tuned) {
        let Ok(text) = serde_json::to_vec(tuned) else { return };
        let place = self.file();
        let partial = place.with_extension(format!("{}.part", std::process::id()));
        let _ = std::fs::create_dir_all(&self.folder);
        if std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, &place)).is_err() {
            let _ = std::fs::remove_file(&partial);
        }
    }
}

/// A measurement as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Tuned {
    version: u32,
    device: u64,
    file_system: u64,
    file_system_bytes: u64,
    size_class: u32,
    uring: bool,
    depth: usize,
    split: usize,
    access: PageCacheUse,
    bytes_per_second: f64,
}

impl Tuned {
    fn reading(&self, configuration: &LoadConfiguration, basis: Basis) -> Reading {
        Reading {
            reader: if self.uring { "uring" } else { "pread" },
            depth: Some(self.depth),
            split: configuration.split.unwrap_or(self.split),
            access: self.access,
            basis,
        }
    }
}

/// Measures the disk of a model that is being loaded, if that is wanted and was not done before. What goes wrong with it
/// costs speed at most: the default stays.
pub(crate) fn tune(
    prepared: &mut Prepared,
    configuration: &LoadConfiguration,
    ledger: &Ledger,
    observer: &mut dyn LoadObserver,
) {
    if prepared.report.reading.basis != Basis::Default || observer.should_stop() {
        return;
    }
    let Some(subject) = Subject::of(prepared, configuration) else { return };
    // A pack that was written just now may lie on a disk that is known.
    match subject.recall() {
        Some(tuned) => prepared.report.reading = tuned.reading(configuration, Basis::Cached),
        None => measure_and_remember(&subject, prepared, configuration, ledger, AT_START),
    }
}

/// Measures the disk of a model whatever is known of it, for seconds instead of half of one, and keeps the result for later
/// starts. Where nothing may be measured or kept, and where the measurement fails, what was known stays.
pub(crate) fn tune_again(prepared: &mut Prepared, configuration: &LoadConfiguration, ledger: &Ledger) {
    if let Some(subject) = Subject::of(prepared, configuration) {
        measure_and_remember(&subject, prepared, configuration, ledger, ASKED_FOR);
    }
}

fn measure_and_remember(
    subject: &Subject,
    prepared: &mut Prepared,
    configuration: &LoadConfiguration,
    ledger: &Ledger,
    effort: Effort,
) {
    let memory_max = usize::try_from(prepared.report.plan.slots.0).unwrap_or(usize::MAX).min(MEMORY_MAX);
    if let Ok(Some(tuned)) = measure(subject, ledger, memory_max, effort) {
        subject.remember(&tuned);
        prepared.report.reading = tuned.reading(configuration, Basis::Measured);
    }
}

/// Blocks that reads start at and are made of.
pub(crate) const BLOCK: usize = 4096;

/// Offsets at which a record of `record_bytes` bytes lies within the first `file_bytes` bytes, in random order.
pub(crate) fn random_offsets(file_bytes: u64, record_bytes: usize, seed: u64) -> impl FnMut() -> u64 {
    let places = (file_bytes.saturating_sub(record_bytes as u64) / BLOCK as u64).max(1);
    let mut state = seed;
    move || {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % places * BLOCK as u64
    }
}

/// Seed that differs from run to run, so that no cache of a device has seen the offsets before.
pub(crate) fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// One way of reading, to be measured.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    uring: bool,
    depth: usize,
    split: usize,
    access: FileAccess,
}

struct Bench<'a> {
    subject: &'a Subject,
    ledger: &'a Ledger,
    direct: Arc<ReadFile>,
    dropped: Arc<ReadFile>,
    offsets: Box<dyn FnMut() -> u64>,
    started: Instant,
    effort: Effort,
}

impl Bench<'_> {
    /// Bytes per second; `None` when time is up, or the page cache answered.
    fn rate(&mut self, way: Way) -> Result<Option<f64>, ExpertError> {
        if self.started.elapsed() > self.effort.time_max {
            return Ok(None);
        }
        let part = self.subject.read_bytes.div_ceil(way.split).next_multiple_of(BLOCK);
        let work = ProbeWork {
            record_bytes: part * way.split,
            parts: way.split,
            records: way.depth,
            time: self.effort.step,
        };
        let choice = if way.uring { ReaderChoice::Uring } else { ReaderChoice::Pread };
        let (mut reader, _) = open_reader(choice, way.depth * way.split)?;
        let mut memory = probe_memory(self.ledger, Purpose::ExpertSlots, work)?;
        let file = if way.access == FileAccess::Direct { &self.direct } else { &self.dropped };
        let probed = probe(reader.as_mut(), file, &mut memory, work, &mut self.offsets)?;
        Ok((probed.cached_bytes == 0).then(|| probed.rate()))
    }
}

/// Reader first, then depth, then split, then whether the page cache is worth its way. `None` when the file is too short.
fn measure(
    subject: &Subject,
    ledger: &Ledger,
    memory_max: usize,
    effort: Effort,
) -> Result<Option<Tuned>, ExpertError> {
    let direct = ReadFile::open(&subject.path)?;
    if direct.length() < FILE_MIN || memory_max < 2 * subject.read_bytes {
        return Ok(None);
    }
    let most = (memory_max / (subject.read_bytes + BLOCK * SPLIT_MAX)).max(1);
    let access = direct.access();
    let span = subject.read_bytes + BLOCK * SPLIT_MAX;
    let mut bench = Bench {
        subject,
        ledger,
        dropped: ReadFile::open_with(&subject.path, FileAccess::Dropped)?,
        offsets: Box::new(random_offsets(direct.length(), span, fresh_seed())),
        direct,
        started: Instant::now(),
        effort,
    };
    let mut best = Way { uring: false, depth: most.min(READ_AHEAD_DEFAULT), split: 1, access };
    let Some(mut rate) = bench.rate(best)? else { return Ok(None) };
    let with_uring = Way { uring: true, ..best };
    // The first measurement also wakes the device, so the thread pool gets a second one.
    if let Ok(Some(uring)) = bench.rate(with_uring) {
        rate = rate.max(bench.rate(best)?.unwrap_or(0.0));
        if uring * WORTH > rate {
            (best, rate) = (with_uring, uring);
        }
    }
    let mut by_depth: Vec<(usize, f64)> = vec![(best.depth, rate)];
    for depth in DEPTHS.into_iter().filter(|depth| *depth <= most && *depth != best.depth) {
        by_depth.extend(bench.rate(Way { depth, ..best })?.map(|rate| (depth, rate)));
    }
    let peak = by_depth.iter().fold(0.0_f64, |peak, &(_, rate)| peak.max(rate));
    by_depth.sort_unstable_by_key(|&(depth, _)| depth);
    (best.depth, rate) =
        by_depth.into_iter().find(|&(_, rate)| rate * WORTH >= peak).unwrap_or((best.depth, rate));
    // Splitting is for the few records that one layer misses, so it is judged with two in flight.
    if subject.packed {
        let few = Way { depth: 2.min(most), ..best };
        let whole = bench.rate(few)?.unwrap_or(f64::INFINITY);
        for split in [2, 4] {
            let parts = bench.rate(Way { split, ..few })?.unwrap_or(0.0);
            if parts > whole * WORTH && best.split == 1 {
                best.split = split;
            }
        }
    }
    if access == FileAccess::Direct {
        let buffered = bench.rate(Way { access: FileAccess::Dropped, ..best })?.unwrap_or(0.0);
        // The page cache costs memory traffic and pages that others could use: it must be clearly faster.
        if buffered > rate * WORTH * WORTH {
            best.access = FileAccess::Dropped;
        }
    }
    Ok(Some(Tuned {
        version: VERSION,
        device: subject.device.device,
        file_system: subject.device.file_system,
        file_system_bytes: subject.device.bytes.0,
        size_class: subject.class(),
        uring: best.uring,
        depth: best.depth * best.split,
        split: best.split,
        access: if best.access == FileAccess::Direct { PageCacheUse::Direct } else { PageCacheUse::Dropped },
        bytes_per_second: rate,
    }))
}
