//! The expert store: slots, who is in them, and the reads that fill them.
//!
//! [`ExpertStore::begin`] opens a [`Visit`]: the experts that the router chose in one layer. Those in memory are pinned at
//! once, reads for the others start, and [`Visit::next_ready`] hands out records as they are there, hits first. However
//! many experts are asked for, one slot is enough; each missing expert is read once.
//! Between visits nothing is in flight but what is read ahead (`ahead`). Does no arithmetic on weights, decides no routing.
//!
//! Invariants: a record is read only while pinned and only unpinned slots are refilled (`slots`); memory of a running
//! read belongs to the read (`slots`); after warm-up nothing here allocates. Read next: `loader`, `policy`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use coldpress_formats::SourceFile;
use coldpress_memory::Ledger;
use coldpress_memory::sys::ReleaseMode;
use coldpress_workers::Team;

use crate::ahead::{Ahead, Guess, ReadAheadMode};
use crate::control::StoreControl;
use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry, LayerExperts};
use crate::loader::{Destination, RecordLoader};
use crate::mapped::{MappedLoader, mapped_place_bytes};
use crate::pack::{LazyConfig, LazyPack, PackFile};
use crate::policy::{EvictionPolicy, PolicyKind};
use crate::prefault::Prefault;
use crate::reader::{ReaderChoice, open_reader};
use crate::reading::{Origin, Reading, SPLIT_MAX, reads_per_record};
use crate::rows::{RowStatistics, RowStore};
use crate::slabs::Slabs;
use crate::slots::{SlotMemory, SlotState, SlotTable};
use crate::source::{FileAccess, ModelSource};
use crate::statistics::ExpertStatistics;
use crate::telemetry::RouteTelemetry;
use crate::timeline::StoreTimeline;
use crate::visit::{Visit, VisitState};

/// Experts read at the same time unless told otherwise: enough for common SSDs to reach their full rate with reads of
/// about a megabyte.
pub const READ_AHEAD_DEFAULT: usize = 8;

/// Who holds the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Every expert has a slot of its own, of exactly its size.
    Resident,
    /// A number of equal slots, each large enough for any record.
    Streamed {
        /// Number of slots, at least 1.
        slots: usize,
    },
    /// As `Streamed`, but reads go through the page cache and leave their pages there.
    Paged {
        /// Number of slots, at least 1.
        slots: usize,
    },
    /// Records are used in place in a mapped pack; what loses its place is given back to the system.
    Mapped {
        /// Number of places, at least 1.
        places: usize,
        /// How records are given back.
        release: ReleaseMode,
    },
}

/// What an [`ExpertStore`] is made of.
pub struct StoreConfig {
    /// The experts of each routed layer.
    pub layers: Vec<LayerExperts>,
    /// The model files, in the numbering of [`Projection::file`](crate::Projection). Not opened when there is a pack.
    pub files: Vec<SourceFile>,
    /// The pack, if there is one.
    pub pack: Option<PackFile>,
    /// A pack to fill from the model files and to read from meanwhile; for `Streamed` without a pack.
    pub lazy: Option<LazyConfig>,
    /// Pays for slots and read ring.
    pub ledger: Ledger,
    /// Who holds the experts.
    pub residency: Residency,
    /// How to read.
    pub reader: ReaderChoice,
    /// Which record gives way; `None` for [`PolicyKind::DEFAULT`].
    pub policy: Option<Box<dyn EvictionPolicy>>,
    /// Experts in flight at the same time, at least 1; see [`READ_AHEAD_DEFAULT`].
    pub read_ahead: usize,
    /// Parallel reads that a record of a pack is cut into, 1 to [`SPLIT_MAX`].
    pub split: usize,
    /// Whether records are read before a router has asked for them.
    pub prefetch: ReadAheadMode,
    /// How reads go with the page cache. `Paged` and `Mapped` use it whatever stands here.
    pub access: FileAccess,
}

/// The experts in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    pub records: u64,
    pub bytes: u64,
}

/// See the module header.
pub struct ExpertStore {
    pub(crate) geometry: Geometry,
    pub(crate) residency: Residency,
    pub(crate) loader: Box<dyn RecordLoader>,
    pub(crate) slots: SlotTable,
    /// Finds memory for slots that have not been used yet.
    prefault: Option<Prefault>,
    /// The memory of the slots, or the right to the pages of places.
    pub(crate) slabs: Slabs,
    pub(crate) control: Arc<StoreControl>,
    /// Records that are loading or in memory.
    pub(crate) resident: Resident,
    /// Not resident: slots that hold nothing, the one to use next last.
    pub(crate) free_slots: Vec<usize>,
    /// Free slots whose pages were given back during this visit; they are used again after it.
    pub(crate) hollow: Vec<usize>,
    /// Per record: the slot that holds or loads it.
    pub(crate) slot_of_record: Vec<Option<u32>>,
    pub(crate) policy: Box<dyn EvictionPolicy>,
    /// Counts uses of records; the next stamp.
    pub(crate) clock: u64,
    pub(crate) visit: VisitState,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Per record: visits that named it.
    pub(crate) uses: Vec<u32>,
    pub(crate) ahead: Ahead,
    /// When the pass before this one began, if it was one of a single token.
    decode_pass_began: Option<Instant>,
    /// The layer that is being visited again and again.
    held_layer: Option<u32>,
    evictions: u64,
    notices: Vec<String>,
    /// Where reads are written down, if somebody asks for it.
    pub(crate) timeline: Option<Box<StoreTimeline>>,
    /// Where uses of experts are counted, if somebody asks for it.
    pub(crate) telemetry: Option<Box<RouteTelemetry>>,
    /// Tables that stay on disk whatever the residency, if the model has any.
    rows: Option<Box<RowStore>>,
}

impl ExpertStore {
    /// Opens the files, makes the reader and reserves all memory.
    ///
    /// # Errors
    /// When shapes do not fit together, a file is missing or too short, or the budget has no room.
    pub fn open(mut config: StoreConfig) -> Result<Self, ExpertError> {
        let geometry = Geometry::new(&config.layers)?;
        config.check()?;
        let expert_counts: Vec<usize> = config.layers.iter().map(|layer| layer.expert_count).collect();
        let Parts { loader, slots, prefault, slabs, notices } = config.parts(&geometry)?;
        let policy = config.policy.unwrap_or_else(|| PolicyKind::DEFAULT.build(slots.len(), &expert_counts));
        let expert_count_max = expert_counts.iter().copied().max().unwrap_or(0);
        let ahead =
            Ahead::new(config.read_ahead, expert_count_max, geometry.record_bytes_max(), config.prefetch);
        Ok(Self {
            free_slots: (0..slots.len()).rev().collect(),
            hollow: Vec::new(),
            slot_of_record: vec![None; geometry.record_count()],
            uses: vec![0; geometry.record_count()],
            visit: VisitState::new(expert_count_max),
            geometry,
            residency: config.residency,
            loader,
            slots,
            prefault,
            control: Arc::new(StoreControl::new(slabs.bytes())),
            slabs,
            resident: Resident::default(),
            policy,
            clock: 0,
            hits: 0,
            misses: 0,
            ahead,
            decode_pass_began: None,
            held_layer: None,
            evictions: 0,
            notices,
            timeline: None,
            telemetry: None,
            rows: None,
        })
    }

    /// Says that a forward pass of `rows` tokens begins; the time between two passes of one token is that of a token.
    pub fn begin_pass(&mut self, rows: usize) {
        let now = Instant::now();
        let began = std::mem::replace(&mut self.decode_pass_began, (rows == 1).then_some(now));
        if let Some(began) = began {
            self.ahead.governor.token(now.duration_since(began));
        }
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.begin_pass(rows);
        }
        if let Some(rows) = &mut self.rows {
            rows.begin_pass();
        }
        self.publish();
    }

    /// Whether it is worth finding out what the next layer will probably need, or only naming what it is certain to need.
    pub fn wants_prefetch(&self, guess: Guess) -> bool {
        self.residency != Residency::Resident && self.ahead.governor.wanted(guess)
    }

    /// Names the experts that the next visit, to `layer`, is certain to ask for, before it begins: each once, the most wanted first.
    /// Their records are begun as far as there is room. What does not exist is passed over.
    pub fn prefetch(&mut self, layer: usize, experts: impl DoubleEndedIterator<Item = u32>) {
        if layer < self.geometry.layer_count() {
            self.name_ahead(layer, experts, Guess::Certain);
        }
    }

    /// Says that `layer` will be visited again before any other: until the next call its records stay, as far as others
    /// can give way. Changes no result, only what is read twice.
    pub fn hold_layer(&mut self, layer: Option<usize>) {
        self.held_layer = layer.map(|layer| layer as u32);
    }

    /// Gives the store the tables of the model whose rows are looked up by number.
    pub fn attach_rows(&mut self, rows: RowStore) {
        self.notices.extend_from_slice(rows.notices());
        self.rows = Some(Box::new(rows));
    }

    /// The tables whose rows are looked up by number, if the model has any.
    pub fn rows(&mut self) -> Option<&mut RowStore> {
        self.rows.as_deref_mut()
    }

    /// What was looked up in tables so far.
    pub(crate) fn row_statistics(&self) -> RowStatistics {
        self.rows.as_ref().map(|rows| rows.statistics()).unwrap_or_default()
    }

    /// Layout and numbering of the records.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the record of an expert is in memory because it was asked for before. Between two visits that follows from the
    /// requests, the slots and the policy alone; heads that were read ahead do not count.
    ///
    /// # Panics
    /// There is no such layer or expert.
    pub fn is_in_memory(&self, layer: usize, expert: usize) -> bool {
        assert!(expert < self.geometry.expert_count(layer), "layer {layer} has no expert {expert}");
        let key = ExpertKey { layer: layer as u32, expert: expert as u32 };
        let slot = self.slot_of_record[self.geometry.record_index(key)];
        slot.is_some_and(|slot| matches!(self.slots.state(slot as usize), SlotState::Resident { .. }))
    }

    /// Number of slots that exist.
    pub fn slot_count(&self) -> usize {
        self.slabs.slots()
    }

    /// Name of the reader in use.
    pub fn reader_name(&self) -> &'static str {
        self.loader.reader_name()
    }

    /// Name of the eviction policy in use.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// The pack file in use, if any.
    pub fn pack_path(&self) -> Option<PathBuf> {
        self.loader.pack().map(|pack| pack.file().path().to_owned())
    }

    /// Second choices that had to be taken at open, one line each, for the log.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Counters since the store was opened.
    pub fn statistics(&self) -> ExpertStatistics {
        let (load, read) = self.loader.statistics();
        ExpertStatistics {
            hits: self.hits,
            misses: self.misses,
            evictions: self.evictions,
            reads: read.reads,
            bytes_read: load.bytes_read,
            device_bytes_read: read.device_bytes,
            read_retries: read.retries,
            records_read_again: load.records_read_again,
            lazy_reads: load.lazy_reads,
            lazy_writes: load.lazy_writes,
            prefetched: self.ahead.statistics.records,
            prefetched_bytes: self.ahead.statistics.bytes,
            prefetch_used: self.ahead.statistics.used,
            prefetch_used_bytes: self.ahead.statistics.used_bytes,
            disk_wait_us: read.wait_us,
            arrange_us: load.arrange_us,
            rows: self.row_statistics(),
        }
    }

    /// Begins or ends writing down every read over time. Off by default; changes no result.
    pub fn record_timeline(&mut self, on: bool) {
        self.timeline = on.then(|| Box::new(StoreTimeline::new()));
    }

    /// What is being written down, if it is.
    pub fn timeline(&mut self) -> Option<&mut StoreTimeline> {
        self.timeline.as_deref_mut()
    }

    /// Begins a visit to `experts` (each named once) of routed layer `layer`: pins those in memory and starts to read the
    /// others, in disk order, as far as slots and reader allow.
    ///
    /// A later place in the list counts as a later use. A prefill chunk should therefore name the experts of its last
    /// tokens last: they stay when there are more experts than slots.
    ///
    /// # Errors
    /// [`ExpertError::Request`] for an expert that does not exist or is named twice (nothing has happened then);
    /// [`ExpertError::Reader`] when the reader is broken.
    pub fn begin(&mut self, layer: usize, experts: &[u32]) -> Result<Visit<'_>, ExpertError> {
        Visit::begin(self, layer, experts)
    }

    /// Reads every expert that is not in memory, layer by layer. `progress` gets bytes of records done and in total,
    /// and returns whether to go on. Counts neither hits nor misses nor uses: nobody asked for an expert.
    ///
    /// Meant for [`Residency::Resident`]; with fewer slots than experts the first ones have given way at the end.
    ///
    /// # Errors
    /// The first read or check that fails; [`ExpertError::Cancelled`] when `progress` says so.
    pub fn preload_all(
        &mut self,
        team: &Team<'_>,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<(), ExpertError> {
        let total = self.geometry.records_bytes();
        let mut done = 0;
        self.uncounted(|store| {
            for layer in 0..store.geometry.layer_count() {
                let experts: Vec<u32> = (0..store.geometry.expert_count(layer) as u32).collect();
                let record_bytes = store.geometry.layer(layer).record_bytes as u64;
                let mut visit = store.begin(layer, &experts)?;
                while let Some(ready) = visit.next_ready(team)? {
                    done += ready.len() as u64 * record_bytes;
                    if !progress(done, total) {
                        return Err(ExpertError::Cancelled);
                    }
                }
            }
            Ok(())
        })
    }

    /// A free slot for `key`, if need be made free by layer `giving` as the policy says; `None` when nothing may give way
    /// at this moment.
    pub(crate) fn acquire_slot(&mut self, key: ExpertKey, giving: u32) -> Option<usize> {
        if self.residency == Residency::Resident {
            return Some(self.geometry.record_index(key));
        }
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        let slot = self.victim(giving)?;
        let evicted = self.slots.evict(slot);
        self.forget(evicted, slot);
        self.evictions += 1;
        Some(slot)
    }

    /// Whose record gives way for one of `layer`. While a layer is held, it loses records only when no other layer can
    /// give any: first those beyond a layer's share, then those of the layers visited last, whose turn is furthest away.
    fn victim(&mut self, layer: u32) -> Option<usize> {
        let (slots, policy) = (&self.slots, &mut self.policy);
        let Some(held) = self.held_layer else {
            return policy.victim(layer, &|slot| slots.is_evictable(slot));
        };
        let is_of = |slot: usize, layer: u32| slots.key(slot).is_some_and(|key| key.layer == layer);
        if let Some(slot) = policy.victim(layer, &|slot| slots.is_evictable(slot) && !is_of(slot, held)) {
            return Some(slot);
        }
        let layers = self.geometry.layer_count() as u32;
        let earlier = (1..layers).map(|distance| (held + layers - distance) % layers);
        for other in earlier {
            let may_go = |slot: usize| slots.is_evictable(slot) && is_of(slot, other);
            if let Some(slot) = policy.victim(other, &may_go) {
                return Some(slot);
            }
        }
        policy.victim(layer, &|slot| slots.is_evictable(slot))
    }

    /// Hands the memory of `slot` to a read of `key`.
    pub(crate) fn start_load(&mut self, key: ExpertKey, slot: usize, stamp: u64) {
        if let Some(prefault) = &self.prefault {
            prefault.reached(slot, self.slots.len());
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.begun(key, slot, self.geometry.layer(key.layer as usize).record_bytes, false);
        }
        let memory = self.slots.begin_load(slot, key);
        self.occupy(key, slot, stamp);
        self.loader.start(key, Destination { slot }, memory);
    }

    /// The bytes of the record in `slot`, which is pinned.
    pub(crate) fn record(&self, slot: usize) -> &[u8] {
        match self.loader.in_place(self.slots.pinned_key(slot)) {
            Some(bytes) => bytes,
            None => self.slots.record(slot),
        }
    }

    /// Takes back the memory of a load that gave no record.
    pub(crate) fn abandon(&mut self, slot: usize, memory: Option<SlotMemory>) {
        self.slots.abandon(slot, memory);
        if self.residency != Residency::Resident {
            self.free_slots.push(slot);
        }
    }

    /// The record of `key` is on its way into `slot`, because it was asked for.
    pub(crate) fn occupy(&mut self, key: ExpertKey, slot: usize, stamp: u64) {
        self.slot_of_record[self.geometry.record_index(key)] = Some(slot as u32);
        self.policy.inserted(slot, key, stamp);
        self.resident.records += 1;
        self.resident.bytes += self.geometry.layer(key.layer as usize).record_bytes as u64;
    }

    /// The record of `key` is no longer in `slot`, nor on its way there.
    pub(crate) fn forget(&mut self, key: ExpertKey, slot: usize) {
        self.slot_of_record[self.geometry.record_index(key)] = None;
        self.resident.records -= 1;
        self.resident.bytes -= self.geometry.layer(key.layer as usize).record_bytes as u64;
        self.policy.removed(slot);
        self.loader.left(key);
    }
}

/// What a store is made of beside its books.
struct Parts {
    loader: Box<dyn RecordLoader>,
    slots: SlotTable,
    prefault: Option<Prefault>,
    slabs: Slabs,
    notices: Vec<String>,
}

impl StoreConfig {
    fn check(&self) -> Result<(), ExpertError> {
        let wrong = match self {
            Self { read_ahead: 0, .. } => "read_ahead is 0; at least 1 expert must be in flight".to_owned(),
            Self { split, .. } if !(1..=SPLIT_MAX).contains(split) => {
                format!("records cannot be read in {split} parts; 1 to {SPLIT_MAX} work")
            }
            Self { residency: Residency::Mapped { places: 0, .. }, .. }
            | Self { residency: Residency::Streamed { slots: 0 } | Residency::Paged { slots: 0 }, .. } => {
                "a store whose experts share slots needs at least 1 slot".to_owned()
            }
            Self { residency: Residency::Mapped { .. }, pack: None, .. } => {
                "experts can be used in place in a pack only; write one with `coldpress pack`".to_owned()
            }
            _ => return Ok(()),
        };
        Err(ExpertError::Configuration(wrong))
    }

    /// Opens the files, makes the reader and reserves all memory.
    fn parts(&mut self, geometry: &Geometry) -> Result<Parts, ExpertError> {
        let slot_lengths = match self.residency {
            Residency::Resident => {
                geometry.keys().map(|key| geometry.layer(key.layer as usize).record_bytes).collect()
            }
            Residency::Streamed { slots } | Residency::Paged { slots } => {
                vec![geometry.record_bytes_max(); slots]
            }
            Residency::Mapped { places, release } => return self.mapped(geometry, places, release),
        };
        let access = match self.residency {
            Residency::Paged { .. } => FileAccess::Cached,
            _ => self.access,
        };
        let origin = open_origin(self.pack.take(), &self.files, &self.layers, geometry, access)?;
        let mut notices: Vec<String> = match &origin {
            Origin::Pack(pack) => pack.file().notice(access).into_iter().collect(),
            Origin::Model(source) => source.files().iter().filter_map(|file| file.notice(access)).collect(),
        };
        let reads = self.read_ahead * reads_per_record(&origin, self.split);
        let choice = std::mem::replace(&mut self.reader, ReaderChoice::Auto);
        let (reader, notice) = open_reader(choice, reads)?;
        notices.extend(notice);
        let lazy = match (&self.lazy, &origin, self.residency) {
            (Some(config), Origin::Model(_), Residency::Streamed { .. }) => {
                let (lazy, notice) = LazyPack::open(config, geometry, &self.files, &self.ledger)?;
                notices.extend(notice);
                lazy
            }
            _ => None,
        };
        let loader = Box::new(Reading::new(origin, lazy, reader, self.read_ahead, self.split, &self.ledger)?);
        let total = slot_lengths.iter().sum();
        let mut slabs = Slabs::new(&self.ledger, geometry.record_bytes_max(), total, false);
        let memory = slabs.begin_with(&slot_lengths)?;
        let prefault = Some(Prefault::start(Slabs::buffers(&memory)));
        Ok(Parts { loader, slots: SlotTable::new(memory), prefault, slabs, notices })
    }

    fn mapped(
        &mut self,
        geometry: &Geometry,
        places: usize,
        release: ReleaseMode,
    ) -> Result<Parts, ExpertError> {
        let pack = self.pack.take().expect("checked before");
        pack.check_geometry(geometry)?;
        // Pages of the mapping and direct reads of the same file do not mix well; nothing else reads it.
        let pack = pack.with_access(FileAccess::Cached)?;
        let bytes = mapped_place_bytes(geometry.record_bytes_max());
        let mut slabs = Slabs::new(&self.ledger, bytes, bytes.saturating_mul(places), true);
        slabs.begin_with(&vec![bytes; places])?;
        let loader = Box::new(MappedLoader::new(pack, release, self.read_ahead)?);
        let slots = SlotTable::places(places);
        Ok(Parts { loader, slots, prefault: None, slabs, notices: Vec::new() })
    }
}

fn open_origin(
    pack: Option<PackFile>,
    files: &[SourceFile],
    layers: &[LayerExperts],
    geometry: &Geometry,
    access: FileAccess,
) -> Result<Origin, ExpertError> {
    match pack {
        Some(pack) => {
            pack.check_geometry(geometry)?;
            Ok(Origin::Pack(pack.with_access(access)?))
        }
        None => Ok(Origin::Model(ModelSource::open(files, layers, access)?)),
    }
}
