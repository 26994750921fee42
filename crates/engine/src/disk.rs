//! What a disk delivers to cold, direct reads, and what that means for a model.
//!
//! Random reads of several sizes at several depths and one sequential pass, on an existing large file or on one that is
//! written for it and removed. A figure that may be a cache's is never given as one: files in memory, files with holes, pages
//! found in the page cache and rates that no disk has make a figure absent, with the reason.
//! Chooses no way of reading for a run; `disk_tuning` does.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coldpress_experts::reader::open_reader;
use coldpress_experts::reader::probe::{ProbeWork, Probed, probe, probe_memory};
use coldpress_experts::{ExpertError, Geometry, ReadFile, ReaderChoice};
use coldpress_memory::sys::{self, DeviceFacts, device_facts, free_disk_space};
use coldpress_memory::{Bytes, Ledger, MachineFacts, Purpose};
use coldpress_model::{ModelSpec, describe};

use crate::disk_tuning::{BLOCK, fresh_seed, random_offsets};
use crate::error::EngineError;
use crate::files::open_model;
use crate::runtime::{LoadObserver, LoadStage};

/// Depths of the table.
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Time of one figure.
const STEP: Duration = Duration::from_millis(350);
/// Time of the sequential figure.
const SEQUENTIAL: Duration = Duration::from_millis(800);
/// No figure is begun after this time, so that a slow disk does not keep anyone waiting.
const TIME_MAX: Duration = Duration::from_secs(14);
/// Expert size where no model is given.
const RECORD_DEFAULT: usize = 1 << 20;
/// Reads above this are cut, so that the deepest figure takes bounded memory.
const READ_BYTES_MAX: usize = 16 << 20;
/// Files shorter than this are not measured.
const FILE_MIN: u64 = 256 << 20;
/// Length of the file that is written, and the least that will do.
const WRITE_BYTES: [u64; 2] = [1 << 30, 64 << 20];
/// Time for writing it.
const WRITE_TIME: Duration = Duration::from_secs(4);
/// No disk is faster; what is comes from a cache.
const RATE_MAX: f64 = 60e9;
/// No disk answers a single read of 4 KiB sooner.
const LATENCY_MIN_US: f64 = 3.0;

/// Order of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// At random places.
    Random,
    /// One after another.
    Sequential,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DiskFigure {
    /// Order of reads.
    pub pattern: Pattern,
    /// Bytes of one read.
    pub read_bytes: usize,
    /// Reads in flight.
    pub depth: usize,
    /// Reads that ended.
    pub reads: usize,
    /// Absent when it would not be the disk's.
    pub bytes_per_second: Option<f64>,
    /// Median latency in microseconds; absent as above.
    pub latency_us_p50: Option<f64>,
    /// Latency that 99 of 100 reads stay within, in microseconds; absent as above.
    pub latency_us_p99: Option<f64>,
    /// Why the figures are absent.
    pub not_a_figure: Option<String>,
}

/// What the disk allows a model without any expert in memory.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Ceiling {
    /// Bytes of experts that a token uses.
    pub expert_bytes_per_token: Bytes,
    /// The best rate of random reads of an expert.
    pub bytes_per_second: f64,
    /// Tokens per second if every expert of every token is read. The hit rate of a run is not known here; with a share `h`
    /// of hits the ceiling is this divided by `1 − h`.
    pub tokens_per_second: f64,
}

/// What [`measure_disk`] found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DiskReport {
    /// The file that was read.
    pub file: PathBuf,
    /// Whether it was written for this and removed.
    pub temporary: bool,
    /// Its length.
    pub file_bytes: Bytes,
    /// What it lies on.
    pub device: DeviceFacts,
    /// Whether reads passed the page cache by.
    pub direct: bool,
    /// Why they did not.
    pub buffered_because: Option<String>,
    /// The reader.
    pub reader: &'static str,
    /// Bytes of an expert of the model, or the default.
    pub expert_bytes: Bytes,
    /// Whether `expert_bytes` is the model's.
    pub expert_bytes_of_model: bool,
    /// All figures, by size and depth.
    pub figures: Vec<DiskFigure>,
    /// Figures left out because time was up.
    pub left_out: usize,
    /// For a model whose reads could be measured.
    pub ceiling: Option<Ceiling>,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// Measures the disk below `target`: a model or another large file is read as it is; below a folder, or beside a small file, a
/// file is written, synced, read and removed.
///
/// # Errors
/// `target` does not exist, the disk has no room, a read or write fails, or the observer asks to stop.
pub fn measure_disk(target: &Path, observer: &mut dyn LoadObserver) -> Result<DiskReport, EngineError> {
    let started = Instant::now();
    let target = Target::find(target, observer)?;
    let device = device_facts(&target.place).map_err(|source| io_error("look at", &target.place, source))?;
    let (mut reader, _) = open_reader(ReaderChoice::Auto, DEPTHS[DEPTHS.len() - 1])?;
    let file = &target.file;
    let mut sizes = vec![BLOCK, 64 << 10, target.read_bytes(), 4 << 20];
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| *size as u64 * 2 <= file.length());
    let memory_max = MachineFacts::detect()?.available.0 / 4;
    let mut works = Vec::new();
    for &size in &sizes {
        let fits = |depth: &usize| (size * depth) as u64 <= memory_max;
        works.extend(DEPTHS.into_iter().filter(fits).map(|depth| (Pattern::Random, size, depth, STEP)));
    }
    works.extend(sizes.last().map(|&size| (Pattern::Sequential, size, 4, SEQUENTIAL)));
    let doubt = doubt_about(file, &device);
    let (mut figures, mut left_out) = (Vec::new(), 0);
    let total = works.len() as u64;
    for (pattern, read_bytes, depth, time) in works {
        observer.progress(LoadStage::Disk, figures.len() as u64, total);
        if observer.should_stop() {
            return Err(EngineError::Cancelled);
        }
        if let Some(doubt) = &doubt {
            figures.push(figure(pattern, read_bytes, depth, &Probed::default(), Some(doubt)));
            continue;
        }
        if started.elapsed() > TIME_MAX {
            left_out += 1;
            continue;
        }
        let work = ProbeWork { record_bytes: read_bytes, parts: 1, records: depth, time };
        let mut memory = probe_memory(&Ledger::unlimited(), Purpose::ReadRing, work)?;
        let mut offsets: Box<dyn FnMut() -> u64> = match pattern {
            Pattern::Random => Box::new(random_offsets(file.length(), read_bytes, fresh_seed())),
            Pattern::Sequential => Box::new(sequential_offsets(file.length(), read_bytes)),
        };
        let probed = probe(reader.as_mut(), file, &mut memory, work, &mut offsets)?;
        figures.push(figure(pattern, read_bytes, depth, &probed, None));
    }
    observer.progress(LoadStage::Disk, total, total);
    Ok(DiskReport {
        file: target.file.path().to_owned(),
        temporary: target.temporary,
        file_bytes: Bytes(file.length()),
        device,
        direct: file.io().is_direct(),
        buffered_because: match file.io() {
            sys::DirectIo::Direct { .. } => None,
            sys::DirectIo::Buffered { reason } => Some(reason.clone()),
        },
        reader: reader.name(),
        expert_bytes: Bytes(target.read_bytes() as u64),
        expert_bytes_of_model: target.model.is_some(),
        ceiling: target.model.as_ref().and_then(|model| ceiling(model, target.read_bytes(), &figures)),
        figures,
        left_out,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Depths of [`measure_random_reads`].
const SHORT_DEPTHS: [usize; 3] = [4, 16, 32];
/// Most memory of [`measure_random_reads`].
const SHORT_MEMORY_MAX: usize = 64 << 20;

/// What [`measure_random_reads`] found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RandomReads {
    /// The file that was read.
    pub file: PathBuf,
    /// Its length.
    pub file_bytes: Bytes,
    /// Whether it is so short that a cache of the device or of its host may hold all of it.
    pub short_file: bool,
    /// Whether reads passed the page cache by.
    pub direct: bool,
    /// One figure per depth.
    pub figures: Vec<DiskFigure>,
}

impl RandomReads {
    /// The best rate, unless no figure is the disk's.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.figures.iter().filter_map(|figure| figure.bytes_per_second).max_by(f64::total_cmp)
    }

    /// Why there is no rate.
    pub fn not_a_figure(&self) -> Option<&str> {
        self.figures.iter().find_map(|figure| figure.not_a_figure.as_deref())
    }
}

/// Measures random reads of `read_bytes` (at most 16 MiB and half the file) from a file as it is, at a few depths, for `time`
/// in all. Of a model the largest file is read. Nothing is written; takes up to 64 MiB of memory that no ledger knows, and no
/// more than `memory_max`: depths that would take more are left out, but for the smallest.
///
/// # Errors
/// `target` cannot be opened, a read fails, or the observer asks to stop.
pub fn measure_random_reads(
    target: &Path,
    read_bytes: usize,
    time: Duration,
    memory_max: Bytes,
    observer: &mut dyn LoadObserver,
) -> Result<RandomReads, EngineError> {
    let model = open_model(target).ok();
    let largest = model.as_ref().and_then(|model| model.files().iter().max_by_key(|file| file.len));
    let path = largest.map_or(target, |file| &file.path);
    let device = device_facts(path).map_err(|source| io_error("look at", path, source))?;
    let file = ReadFile::open(path)?;
    let half = usize::try_from(file.length() / 2).unwrap_or(usize::MAX) / BLOCK * BLOCK;
    let read_bytes = read_bytes.next_multiple_of(BLOCK).min(READ_BYTES_MAX).min(half).max(BLOCK);
    let doubt = match half {
        0 => Some("the file is too short".to_owned()),
        _ => doubt_about(&file, &device),
    };
    let (mut reader, _) = open_reader(ReaderChoice::Auto, SHORT_DEPTHS[SHORT_DEPTHS.len() - 1])?;
    let mut offsets = random_offsets(file.length(), read_bytes, fresh_seed());
    let mut figures = Vec::new();
    let memory_max = SHORT_MEMORY_MAX.min(usize::try_from(memory_max.0).unwrap_or(usize::MAX));
    for depth in
        SHORT_DEPTHS.into_iter().filter(|depth| *depth == SHORT_DEPTHS[0] || depth * read_bytes <= memory_max)
    {
        if observer.should_stop() {
            return Err(EngineError::Cancelled);
        }
        let time = time / SHORT_DEPTHS.len() as u32;
        let work = ProbeWork { record_bytes: read_bytes, parts: 1, records: depth, time };
        let probed = if doubt.is_some() {
            Probed::default()
        } else {
            let mut memory = probe_memory(&Ledger::unlimited(), Purpose::ReadRing, work)?;
            probe(reader.as_mut(), &file, &mut memory, work, &mut offsets)?
        };
        figures.push(figure(Pattern::Random, read_bytes, depth, &probed, doubt.as_deref()));
    }
    Ok(RandomReads {
        file: path.to_owned(),
        file_bytes: Bytes(file.length()),
        short_file: file.length() < FILE_MIN,
        direct: file.io().is_direct(),
        figures,
    })
}

/// What is known of a model for this purpose.
struct ModelReads {
    record_bytes_max: usize,
    bytes_per_token: u64,
}

impl ModelReads {
    fn of(spec: &ModelSpec) -> Option<Self> {
        if spec.experts.is_empty() {
            return None;
        }
        let geometry = Geometry::new(&spec.experts).ok()?;
        let record = |layer: usize| geometry.layer(layer).record_bytes as u64;
        let per_token = spec.experts_per_token() as u64;
        let bytes = |layer: usize| record(layer) * per_token.min(geometry.expert_count(layer) as u64);
        Some(Self {
            record_bytes_max: geometry.record_bytes_max(),
            bytes_per_token: (0..geometry.layer_count()).map(bytes).sum(),
        })
    }
}

/// The file to read.
struct Target {
    file: Arc<ReadFile>,
    /// Something that exists on the same device.
    place: PathBuf,
    temporary: bool,
    model: Option<ModelReads>,
}

impl Target {
    fn find(target: &Path, observer: &mut dyn LoadObserver) -> Result<Self, EngineError> {
        let facts = std::fs::metadata(target).map_err(|source| io_error("look at", target, source))?;
        let model = open_model(target).ok();
        let largest = model.as_ref().and_then(|model| model.files().iter().max_by_key(|file| file.len));
        let path = largest.map_or(target, |file| &file.path).to_owned();
        let model = match &model {
            Some(model) => ModelReads::of(&describe(model).map_err(EngineError::BadModel)?),
            None => None,
        };
        let length = std::fs::metadata(&path).map_or(0, |facts| facts.len());
        if path.is_file() && length >= FILE_MIN {
            return Ok(Self { file: ReadFile::open(&path)?, place: path, temporary: false, model });
        }
        let parent =
            || target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = if facts.is_dir() { target } else { parent() };
        Ok(Self { file: write_file(folder, observer)?, place: folder.to_owned(), temporary: true, model })
    }

    fn read_bytes(&self) -> usize {
        let record = self.model.as_ref().map_or(RECORD_DEFAULT, |model| model.record_bytes_max);
        record.clamp(BLOCK, READ_BYTES_MAX)
    }
}

/// Writes a file of bytes that nothing can compress. Its name is gone before it is read, so it goes away with its last user.
fn write_file(folder: &Path, observer: &mut dyn LoadObserver) -> Result<Arc<ReadFile>, EngineError> {
    let free = free_disk_space(folder).map_err(|source| io_error("look at", folder, source))?;
    let [most, least] = WRITE_BYTES;
    // What a file system in memory delivers is said without a figure, so the least will do.
    let most = if device_facts(folder).is_ok_and(|device| device.is_memory) { least } else { most };
    let wanted = most.min(free.0 / 4) / (1 << 20) * (1 << 20);
    if wanted < least {
        let reason = format!(
            "a file of at least {} would be written here to be read, and {free} are free, of which a quarter may be used: \
             name a folder on the same disk with more room, or a large file",
            Bytes(least)
        );
        return Err(EngineError::BadOutput { path: folder.to_owned(), reason });
    }
    let path = folder.join(format!(".coldpress-disk-{}", std::process::id()));
    let _remove = RemoveOnDrop(&path);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|source| io_error("create", &path, source))?;
    let started = Instant::now();
    let mut piece = vec![0_u8; 1 << 20];
    let mut words = random_offsets(u64::MAX, BLOCK, fresh_seed());
    let mut written = 0;
    while written < wanted && (written < least || started.elapsed() < WRITE_TIME) {
        if observer.should_stop() {
            return Err(EngineError::Cancelled);
        }
        piece
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&words().rotate_left(11).to_le_bytes()));
        file.write_all(&piece).map_err(|source| io_error("write", &path, source))?;
        written += piece.len() as u64;
        if written.is_multiple_of(64 << 20) {
            sync_and_drop(&file, written).map_err(|source| io_error("sync", &path, source))?;
        }
        observer.progress(LoadStage::DiskFile, written, wanted);
    }
    sync_and_drop(&file, written).map_err(|source| io_error("sync", &path, source))?;
    observer.progress(LoadStage::DiskFile, wanted, wanted);
    Ok(ReadFile::open(&path)?)
}

struct RemoveOnDrop<'a>(&'a Path);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn sync_and_drop(file: &File, bytes: u64) -> std::io::Result<()> {
    sys::sync_file(file)?;
    sys::drop_page_cache(file, 0..bytes)
}

fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> EngineError {
    EngineError::Expert(ExpertError::Io { action, path: path.to_owned(), offset: 0, source })
}

/// Records one after another, from the start again at the end.
fn sequential_offsets(file_bytes: u64, record_bytes: usize) -> impl FnMut() -> u64 {
    let places = file_bytes / record_bytes as u64;
    let mut next = 0;
    move || {
        next += 1;
        (next - 1) % places.max(1) * record_bytes as u64
    }
}

/// Why no figure of this file can be the disk's.
fn doubt_about(file: &ReadFile, device: &DeviceFacts) -> Option<String> {
    if device.is_memory {
        return Some("cached: the file system keeps its files in memory".to_owned());
    }
    let facts = file.file().metadata().ok()?;
    let on_disk = facts.blocks().saturating_mul(512);
    // File systems with compression are as doubtful as holes: fewer bytes are read than are counted.
    (on_disk < facts.len() / 10 * 9).then(|| {
        format!("the file takes {} of the disk for {} of length", Bytes(on_disk), Bytes(facts.len()))
    })
}

fn figure(
    pattern: Pattern,
    read_bytes: usize,
    depth: usize,
    probed: &Probed,
    doubt: Option<&str>,
) -> DiskFigure {
    let (rate, p50) = (probed.rate(), probed.latency_us(0.5));
    let impossible = rate > RATE_MAX || (depth == 1 && p50 < LATENCY_MIN_US);
    let not_a_figure = match doubt {
        Some(doubt) => Some(doubt.to_owned()),
        None if probed.latencies_us.is_empty() => Some("no read ended in time".to_owned()),
        None if probed.cached_bytes > 0 => {
            Some(format!("cached: the page cache kept {} of it", Bytes(probed.cached_bytes)))
        }
        None if impossible => Some(format!("cached: {:.1} GB/s at {p50:.1} us is no disk's", rate / 1e9)),
        None => None,
    };
    let given = |value: f64| not_a_figure.is_none().then_some(value);
    DiskFigure {
        pattern,
        read_bytes,
        depth,
        reads: probed.latencies_us.len(),
        bytes_per_second: given(rate),
        latency_us_p50: given(p50),
        latency_us_p99: given(probed.latency_us(0.99)),
        not_a_figure,
    }
}

fn ceiling(model: &ModelReads, read_bytes: usize, figures: &[DiskFigure]) -> Option<Ceiling> {
    let of_experts =
        figures.iter().filter(|figure| figure.pattern == Pattern::Random && figure.read_bytes == read_bytes);
    let best = of_experts.filter_map(|figure| figure.bytes_per_second).max_by(f64::total_cmp)?;
    Some(Ceiling {
        expert_bytes_per_token: Bytes(model.bytes_per_token),
        bytes_per_second: best,
        tokens_per_second: best / model.bytes_per_token as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(bytes: u64, latency_us: f64, cached_bytes: u64) -> Probed {
        let latencies_us = vec![latency_us; 100];
        Probed { bytes, elapsed: Duration::from_secs(1), latencies_us, cached_bytes }
    }

    #[test]
    fn what_a_cache_answered_is_not_a_figure() {
        let of = |probed: &Probed, doubt| figure(Pattern::Random, BLOCK, 1, probed, doubt);
        let good = of(&probed(1 << 30, 90.0, 0), None);
        assert!(good.bytes_per_second.is_some() && good.not_a_figure.is_none());
        let bad = [
            of(&probed(1 << 30, 90.0, 4096), None),
            of(&probed(1 << 30, 1.5, 0), None),
            of(&probed(100 << 30, 90.0, 0), None),
            of(&probed(1 << 30, 90.0, 0), Some("cached: in memory")),
            of(&Probed::default(), None),
        ];
        for figure in bad {
            assert_eq!((figure.bytes_per_second, figure.latency_us_p50), (None, None), "{figure:?}");
            assert!(figure.not_a_figure.is_some());
        }
    }

    #[test]
    fn a_file_that_is_no_model_is_read_as_it_is_and_a_tiny_one_has_no_figure() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        for (bytes, readable) in [(10, false), (1 << 20, true)] {
            std::fs::write(&path, vec![1; bytes]).expect("a file");
            let time = Duration::from_millis(30);
            let found = measure_random_reads(&path, 10_000, time, Bytes::MAX, &mut crate::generate::Silent)
                .expect("a report");
            assert_eq!((found.file_bytes, found.short_file), (Bytes(bytes as u64), true));
            assert_eq!(found.figures.len(), SHORT_DEPTHS.len());
            // Where temporary files lie in memory, neither has a figure.
            assert!(readable || found.bytes_per_second().is_none());
            assert_eq!(found.bytes_per_second().is_none(), found.figures[0].not_a_figure.is_some());
            assert_eq!(found.figures[0].read_bytes, if readable { 12_288 } else { BLOCK });
        }
    }
}
