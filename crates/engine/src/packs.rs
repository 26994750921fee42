//! Pack files of a model: where they are, whether they can be used, writing and checking them.
//!
//! A pack lies in a folder under its model's fingerprint, so models never get each other's experts. A pack that cannot be
//! used is reported and left alone; reading experts from the model file gives the same bytes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use coldpress_experts::pack::{PACK_MAGIC, PackConfig, VerifyConfig, WRITE_WINDOW_BYTES, write_pack};
use coldpress_experts::{
    ExpertError, Fingerprint, Geometry, LazyConfig, PACK_EXTENSION as EXTENSION, PackFile,
    READ_AHEAD_DEFAULT, ReaderChoice, read_ring_bytes,
};
use coldpress_formats::ModelFile;
use coldpress_memory::{Bytes, DoesNotFit, Ledger, MachineFacts, SizeSpec};
use coldpress_model::{ModelSpec, describe};
use coldpress_workers::Workers;

use crate::configuration::{PackUse, Residency};
use crate::error::EngineError;
use crate::expert_types::{ExpertType, in_words, quantise_experts};
use crate::files::{begins_with, open_model};
use crate::plan::{PROGRAM_BYTES, Prepared};
use crate::runtime::{LoadObserver, LoadStage};

/// What packing or checking did.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PackReport {
    /// What the experts are held as where that is not what the model file has, such as `experts q4_k`.
    pub lossy: Option<String>,
    /// Matrices that are not what was asked for, and why, a line each.
    pub exceptions: Vec<String>,
    /// The pack.
    pub path: PathBuf,
    /// Its size.
    pub file_bytes: Bytes,
    /// Records in it.
    pub records: u64,
    /// Records written by this call; the others were there and whole.
    pub records_written: u64,
}

fn place(folder: &Path, fingerprint: &Fingerprint) -> PathBuf {
    folder.join(format!("{fingerprint}.{EXTENSION}"))
}

/// The pack to use for a model, if the configuration allows one and it exists. A pack in the cache folder that cannot be
/// used becomes a note; one that was named by the user becomes an error.
pub(crate) fn find(
    pack_use: &PackUse,
    file: &ModelFile,
    spec: &ModelSpec,
    geometry: &Geometry,
    notes: &mut Vec<String>,
) -> Result<Option<PackFile>, EngineError> {
    let folder = match pack_use {
        PackUse::Never => return Ok(None),
        PackUse::File(path) => {
            let fingerprint = Fingerprint::of(file.files(), &spec.experts)?;
            return Ok(Some(PackFile::open(path, geometry, &fingerprint)?));
        }
        PackUse::IfPresent(folder) | PackUse::BuildIfAbsent(folder) | PackUse::Fill(folder) => folder,
    };
    // Without any pack there is nothing to compare a fingerprint with, and no reason to read for one.
    if !folder_has_packs(folder) {
        return Ok(None);
    }
    let fingerprint = Fingerprint::of(file.files(), &spec.experts)?;
    let path = place(folder, &fingerprint);
    if !path.exists() {
        return Ok(None);
    }
    match PackFile::open(&path, geometry, &fingerprint) {
        Ok(pack) => Ok(Some(pack)),
        Err(error @ (ExpertError::Pack { .. } | ExpertError::Io { .. })) => {
            notes.push(format!("the pack is not used: {error}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn folder_has_packs(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.path().extension().is_some_and(|extension| extension == EXTENSION))
}

/// Writes the pack before the first token where the configuration asks for it.
pub(crate) fn build(
    pack_use: &PackUse,
    prepared: &Prepared,
    ledger: &Ledger,
    workers: &Workers,
    observer: &mut dyn LoadObserver,
) -> Result<Option<PackFile>, EngineError> {
    let PackUse::BuildIfAbsent(folder) = pack_use else { return Ok(None) };
    let spec = &prepared.spec;
    if spec.experts.is_empty() {
        return Ok(None);
    }
    let geometry = Geometry::new(&spec.experts)?;
    let fingerprint = Fingerprint::of(prepared.file.files(), &spec.experts)?;
    let path = place(folder, &fingerprint);
    // The slots of the store do not exist yet, so there is room for those of the packer.
    let read_ahead = crate::plan::read_ahead(prepared.report.plan.slot_count.saturating_sub(1));
    let job = Job { file: &prepared.file, spec, ledger, workers, read_ahead };
    job.write(&path, observer)?;
    Ok(Some(PackFile::open(&path, &geometry, &fingerprint)?))
}

/// The pack to fill while the model runs, if the configuration asks for one and there is no complete one.
pub(crate) fn to_fill(pack_use: &PackUse, prepared: &Prepared) -> Result<Option<LazyConfig>, EngineError> {
    let PackUse::Fill(folder) = pack_use else { return Ok(None) };
    if prepared.pack.is_some() || prepared.report.residency != Residency::Streamed {
        return Ok(None);
    }
    let fingerprint = Fingerprint::of(prepared.file.files(), &prepared.spec.experts)?;
    let config = LazyConfig::new(place(folder, &fingerprint), fingerprint);
    let staged_records =
        if prepared.report.pack_staging > Bytes::ZERO { LazyConfig::STAGED_RECORDS } else { 0 };
    Ok(Some(LazyConfig { staged_records, ..config }))
}

/// Writes the pack of `model`, or the rest of an unfinished one. `out` is the file to write (named `….cpack`), or a folder
/// in which the pack gets its fingerprint's name.
///
/// # Errors
/// The model has no routed experts, the budget cannot work, `out` is something else than a pack, the disk has no room,
/// another process writes the same pack, or reading or writing failed. What was written stays and the next call goes on
/// from there.
pub fn pack_model(
    model: &Path,
    out: &Path,
    budget: Option<SizeSpec>,
    observer: &mut dyn LoadObserver,
) -> Result<PackReport, EngineError> {
    pack_model_as(model, out, ExpertType::Keep, budget, observer)
}

/// As [`pack_model`], with experts quantised to `experts` on the way, a few rows at a time. Such a pack has a fingerprint of its own.
///
/// # Errors
/// Those of [`pack_model`]; a matrix has values that `experts` cannot hold.
pub fn pack_model_as(
    model: &Path,
    out: &Path,
    experts: ExpertType,
    budget: Option<SizeSpec>,
    observer: &mut dyn LoadObserver,
) -> Result<PackReport, EngineError> {
    let (file, mut spec) = open(model)?;
    let exceptions = quantise_experts(&mut spec, experts);
    let path = pack_path(out, &file, &spec)?;
    let Resources { ledger, workers, read_ahead } = Resources::new(&spec, budget, 1)?;
    let job = Job { file: &file, spec: &spec, ledger: &ledger, workers: &workers, read_ahead };
    Ok(PackReport { exceptions, ..job.write(&path, observer)? })
}

/// Compares every record of the model's pack with the model file, byte for byte.
///
/// # Errors
/// The pack is absent, damaged, of another model, or a record differs: the first one is named.
pub fn verify_pack(
    model: &Path,
    out: &Path,
    budget: Option<SizeSpec>,
    observer: &mut dyn LoadObserver,
) -> Result<PackReport, EngineError> {
    verify_pack_as(model, out, ExpertType::Keep, budget, observer)
}

/// As [`verify_pack`], for a pack of experts that were quantised to `experts`: they are quantised again and compared.
///
/// # Errors
/// Those of [`verify_pack`].
pub fn verify_pack_as(
    model: &Path,
    out: &Path,
    experts: ExpertType,
    budget: Option<SizeSpec>,
    observer: &mut dyn LoadObserver,
) -> Result<PackReport, EngineError> {
    let (file, mut spec) = open(model)?;
    let exceptions = quantise_experts(&mut spec, experts);
    let Resources { ledger, workers, read_ahead } = Resources::new(&spec, budget, 2)?;
    let geometry = Geometry::new(&spec.experts)?;
    let path = pack_path(out, &file, &spec)?;
    let fingerprint = Fingerprint::of(file.files(), &spec.experts)?;
    let pack = PackFile::open(&path, &geometry, &fingerprint)?;
    let config = VerifyConfig { layers: &spec.experts, files: file.files(), ledger: &ledger, read_ahead };
    workers.enter(|team| {
        pack.verify_against_source(config, team, |done, total| {
            observer.progress(LoadStage::Verify, done, total);
            !observer.should_stop()
        })
    })?;
    Ok(PackReport {
        path,
        file_bytes: Bytes(pack.layout().file_bytes()),
        records: geometry.record_count() as u64,
        records_written: 0,
        lossy: in_words(&spec),
        exceptions,
    })
}

fn open(model: &Path) -> Result<(ModelFile, ModelSpec), EngineError> {
    let file = open_model(model)?;
    let spec = describe(&file).map_err(EngineError::BadModel)?;
    if spec.experts.is_empty() {
        let reason = format!("{} has no routed experts: there is nothing to pack", model.display());
        return Err(EngineError::BadOption(reason));
    }
    Ok((file, spec))
}

/// Memory and threads for packing and checking.
struct Resources {
    ledger: Ledger,
    workers: Workers,
    /// Experts in flight at the same time: as many as the budget allows.
    read_ahead: usize,
}

impl Resources {
    /// For work on `spec` with `stores` stores at the same time.
    fn new(spec: &ModelSpec, budget: Option<SizeSpec>, stores: u64) -> Result<Self, EngineError> {
        let facts = MachineFacts::detect()?;
        let budget = facts.budget(budget);
        let record = Geometry::new(&spec.experts)?.record_bytes_max() as u64;
        let page = facts.page_size as u64;
        // A slot more than reads in flight, and the ring for model files; the program and the window of unsynced writes.
        let slots = |ahead: u64| stores * ((ahead + 1) * record).next_multiple_of(page);
        let ring = |ahead: u64| read_ring_bytes(&spec.experts, ahead as usize).next_multiple_of(page);
        let fixed = PROGRAM_BYTES + WRITE_WINDOW_BYTES;
        let fits = |ahead: &u64| fixed + slots(*ahead) + ring(*ahead) <= budget.0;
        let Some(read_ahead) = (1..=READ_AHEAD_DEFAULT as u64).rev().find(fits) else {
            let parts = vec![
                ("program and writes in flight".to_owned(), Bytes(fixed)),
                ("expert slots".to_owned(), Bytes(slots(1))),
                ("read ring".to_owned(), Bytes(ring(1))),
            ];
            let smallest_budget = Bytes(fixed + slots(1) + ring(1));
            return Err(DoesNotFit { budget, parts, smallest_budget, suggestions: Vec::new() }.into());
        };
        let ledger = Ledger::new(Bytes(budget.0.saturating_sub(fixed)));
        Ok(Self { ledger, workers: Workers::new(facts.cpu_count.max(1)), read_ahead: read_ahead as usize })
    }
}

/// Where the pack goes, which must be nothing, a folder, or a pack: anything else would be lost.
fn pack_path(out: &Path, file: &ModelFile, spec: &ModelSpec) -> Result<PathBuf, EngineError> {
    let named = out.extension().is_some_and(|extension| extension == EXTENSION) && !out.is_dir();
    let path = if named || (out.exists() && !out.is_dir()) {
        out.to_owned()
    } else {
        place(out, &Fingerprint::of(file.files(), &spec.experts)?)
    };
    match path.metadata() {
        Err(_) => Ok(path),
        Ok(_) if begins_with(&path, PACK_MAGIC) => Ok(path),
        Ok(_) => {
            let reason = "exists and is not a pack: it is not overwritten; choose another place".to_owned();
            Err(EngineError::BadOutput { path, reason })
        }
    }
}

/// A model whose pack is to be written, and what to write it with.
struct Job<'a> {
    file: &'a ModelFile,
    spec: &'a ModelSpec,
    ledger: &'a Ledger,
    workers: &'a Workers,
    read_ahead: usize,
}

impl Job<'_> {
    fn write(&self, path: &Path, observer: &mut dyn LoadObserver) -> Result<PackReport, EngineError> {
        let cancel = AtomicBool::new(false);
        let config = PackConfig {
            layers: &self.spec.experts,
            files: self.file.files(),
            destination: path,
            ledger: self.ledger,
            reader: ReaderChoice::Auto,
            read_ahead: self.read_ahead,
        };
        let written = self.workers.enter(|team| {
            write_pack(config, team, &cancel, |done, total| {
                observer.progress(LoadStage::Pack, done, total);
                cancel.store(observer.should_stop(), Ordering::Relaxed);
            })
        })?;
        Ok(PackReport {
            path: path.to_owned(),
            file_bytes: Bytes(written.file_bytes),
            records: (written.records_written + written.records_kept) as u64,
            records_written: written.records_written as u64,
            lossy: in_words(self.spec),
            exceptions: Vec::new(),
        })
    }
}
