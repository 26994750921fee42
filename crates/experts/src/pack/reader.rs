//! An opened pack: checked as a whole at open, each record when it is read.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use coldpress_formats::SourceFile;
use coldpress_kernels::WeightFormat;
use coldpress_memory::{Ledger, sys};
use coldpress_workers::Team;

use crate::error::{ExpertError, PackFault};
use crate::geometry::{ExpertKey, Geometry, LayerExperts};
use crate::reader::ReaderChoice;
use crate::source::{FileAccess, ReadFile, aligned, open_file};
use crate::store::{ExpertStore, Residency, StoreConfig};

use super::format::{header_bytes, matrix_formats};
use super::{Fingerprint, PackLayout};

/// A pack whose header, length, shapes and fingerprint are right.
#[derive(Clone, Debug)]
pub struct PackFile {
    file: Arc<ReadFile>,
    layout: Arc<PackLayout>,
    fingerprint: Fingerprint,
}

impl PackFile {
    /// Opens the pack at `path` for a model with these shapes and this fingerprint.
    ///
    /// # Errors
    /// [`ExpertError::Pack`] names the file, what is wrong with it and what to do; [`ExpertError::Io`] when it cannot be
    /// read.
    pub fn open(path: &Path, geometry: &Geometry, fingerprint: &Fingerprint) -> Result<Self, ExpertError> {
        let fault = |fault| ExpertError::Pack { path: path.to_owned(), fault };
        let layout = PackLayout::new(geometry);
        layout.check(&read_header(path)?, fingerprint).map_err(fault)?;
        let file = ReadFile::open(path)?;
        let (found, wanted) = (file.length(), layout.file_bytes());
        if found != wanted {
            return Err(fault(PackFault::Length { found, wanted }));
        }
        Ok(Self { file, layout: Arc::new(layout), fingerprint: *fingerprint })
    }

    /// The formats of gate, up and down in each layer of the pack at `path`, as its header says; `None` for numbers that this version
    /// does not know.
    ///
    /// # Errors
    /// It is not a pack of this version, its header is damaged, or it cannot be read.
    pub fn formats(path: &Path) -> Result<Vec<[Option<WeightFormat>; 3]>, ExpertError> {
        matrix_formats(&read_header(path)?)
            .map_err(|fault| ExpertError::Pack { path: path.to_owned(), fault })
    }

    /// The open file.
    pub fn file(&self) -> &Arc<ReadFile> {
        &self.file
    }

    /// Where everything lies.
    pub fn layout(&self) -> &PackLayout {
        &self.layout
    }

    /// The fingerprint of its model.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// First byte of the record of `key`.
    pub fn offset(&self, key: ExpertKey) -> u64 {
        self.layout.offset(key)
    }

    /// Bytes of the record of `key`.
    pub fn record_bytes(&self, key: ExpertKey) -> usize {
        self.layout.geometry().layer(key.layer as usize).record_bytes
    }

    /// The same file, opened again for reads with `access`.
    ///
    /// # Errors
    /// When it cannot be opened, or another file has taken its place.
    pub(crate) fn with_access(self, access: FileAccess) -> Result<Self, ExpertError> {
        if self.file.access() == access || (access == FileAccess::Direct && !self.file.io().is_direct()) {
            return Ok(self);
        }
        let path = self.file.path();
        let failed = |source| ExpertError::Io { action: "open", path: path.to_owned(), offset: 0, source };
        let file = ReadFile::open_with(path, access)?;
        let place =
            |file: &ReadFile| file.file().metadata().map(|facts| (facts.dev(), facts.ino(), facts.len()));
        if place(&file).map_err(failed)? != place(&self.file).map_err(failed)? {
            return Err(failed(std::io::Error::other("another file has taken its place; start again")));
        }
        Ok(Self { file, ..self })
    }

    pub(crate) fn check_geometry(&self, geometry: &Geometry) -> Result<(), ExpertError> {
        if self.layout.geometry() == geometry {
            return Ok(());
        }
        let detail = "opened with other shapes than the store".to_owned();
        Err(ExpertError::Pack { path: self.file.path().to_owned(), fault: PackFault::Geometry { detail } })
    }

    /// Reads every record and checks it. `progress` gets bytes of records done and in total, and returns whether to go on.
    ///
    /// # Errors
    /// The first record that is damaged or cannot be read; [`ExpertError::Cancelled`] when `progress` says so.
    pub fn verify(
        &self,
        config: VerifyConfig<'_>,
        team: &Team<'_>,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<(), ExpertError> {
        let mut pack = config.store(ReaderChoice::Auto, Some(self.clone()))?;
        pack.preload_all(team, progress)
    }

    /// Reads every record and compares it, byte for byte, with what the model files give. `progress` as in `verify`.
    ///
    /// # Errors
    /// The first record that is damaged, differs or cannot be read; [`ExpertError::Cancelled`].
    pub fn verify_against_source(
        &self,
        config: VerifyConfig<'_>,
        team: &Team<'_>,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<(), ExpertError> {
        let mut pack = config.store(ReaderChoice::Auto, Some(self.clone()))?;
        let mut model = config.store(ReaderChoice::Auto, None)?;
        let geometry = self.layout.geometry();
        let total = geometry.records_bytes();
        let mut done = 0;
        for layer in 0..geometry.layer_count() {
            let experts: Vec<u32> = (0..geometry.expert_count(layer) as u32).collect();
            let mut visit = model.begin(layer, &experts)?;
            while let Some(arranged) = visit.next_ready(team)? {
                for (position, arranged) in arranged.iter() {
                    let key = ExpertKey { layer: layer as u32, expert: experts[position] };
                    let mut visit = pack.begin(layer, &[key.expert])?;
                    let packed = visit.next_ready(team)?.expect("one expert was asked for").get(0).1;
                    self.compare(key, packed.bytes(), arranged.bytes())?;
                    done += arranged.bytes().len() as u64;
                    if !progress(done, total) {
                        return Err(ExpertError::Cancelled);
                    }
                }
            }
        }
        Ok(())
    }

    fn compare(&self, key: ExpertKey, packed: &[u8], arranged: &[u8]) -> Result<(), ExpertError> {
        if packed == arranged {
            return Ok(());
        }
        let at = packed.iter().zip(arranged).take_while(|(packed, arranged)| packed == arranged).count();
        let fault = PackFault::DiffersFromSource { key, at };
        Err(ExpertError::Pack { path: self.file.path().to_owned(), fault })
    }
}

/// What checking a pack needs beside the pack.
#[derive(Clone, Copy, Debug)]
pub struct VerifyConfig<'a> {
    /// The experts of each routed layer.
    pub layers: &'a [LayerExperts],
    /// The model files.
    pub files: &'a [SourceFile],
    /// Pays for the memory.
    pub ledger: &'a Ledger,
    /// Records in flight at the same time.
    pub read_ahead: usize,
}

impl VerifyConfig<'_> {
    pub(super) fn store(
        &self,
        reader: ReaderChoice,
        pack: Option<PackFile>,
    ) -> Result<ExpertStore, ExpertError> {
        ExpertStore::open(StoreConfig {
            layers: self.layers.to_vec(),
            files: self.files.to_vec(),
            pack,
            lazy: None,
            ledger: self.ledger.clone(),
            // One more than is being read: the record in use.
            residency: Residency::Streamed { slots: self.read_ahead + 1 },
            reader,
            policy: None,
            read_ahead: self.read_ahead,
            split: 1,
            prefetch: crate::ReadAheadMode::Off,
            access: FileAccess::Direct,
        })
    }
}

/// Reads the header, whose length stands in its first bytes and is bounded.
fn read_header(path: &Path) -> Result<Vec<u8>, ExpertError> {
    let failed = |action| move |source| ExpertError::Io { action, path: path.to_owned(), offset: 0, source };
    let file = open_file(path).map_err(failed("open"))?;
    // Advice: what is read ahead would stay in the page cache.
    let _ = sys::expect_random_reads(&file);
    let length = file.metadata().map_err(failed("open"))?.len();
    let mut start = [0; 96];
    let start_bytes = length.min(start.len() as u64) as usize;
    file.read_exact_at(&mut start[..start_bytes], 0).map_err(failed("read"))?;
    let wanted = header_bytes(&start[..start_bytes])
        .map_err(|fault| ExpertError::Pack { path: path.to_owned(), fault })?;
    let mut header = vec![0; wanted.min(usize::try_from(length).unwrap_or(usize::MAX))];
    file.read_exact_at(&mut header, 0).map_err(failed("read"))?;
    // Advice: a refusal changes no result.
    let _ = sys::drop_page_cache(&file, aligned(0..wanted as u64));
    Ok(header)
}
