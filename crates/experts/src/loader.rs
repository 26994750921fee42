//! The loader: from "this expert into this memory" to a whole, checked record.
//!
//! With a pack a record is one read, straight into the slot's memory (or a few reads side by side, each owning its part of
//! it), and is verified when it lands. Without one its three matrices are read into a staging place of the read ring and
//! arranged into the slot's memory by the whole team; a pack that fills meanwhile is read first and gets what it lacks.
//!
//! Every memory handed to [`Loader::start`] comes back in one [`Landed`], after failures and on cancelling too.
//! Chooses neither slots nor victims; see `store`. Read next: `mapped`, the other implementation of [`RecordLoader`].

use std::time::Instant;

use coldpress_memory::{Ledger, Purpose};
use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry, LayerExperts, RECORD_ALIGNMENT};
use crate::pack::{LazyPack, PackFile};
use crate::reader::{ExpertReader, Finished, ReadQueue, ReadRequest, ReadStatistics};
use crate::record::{self, SourceMatrix};
use crate::slots::SlotMemory;
use crate::source::{ModelSource, aligned};

/// Most parallel reads of one record of a pack.
pub const SPLIT_MAX: usize = 8;

/// Gets records for the store, one way or another. Loads are started in the order of [`RecordLoader::disk_position`].
pub(crate) trait RecordLoader: Send {
    /// What to sort by to read in disk order.
    fn disk_position(&self, key: ExpertKey) -> (usize, u64);

    /// The pack in use, if any.
    fn pack(&self) -> Option<&PackFile>;

    /// Name of the reader for status and logs.
    fn reader_name(&self) -> &'static str;

    /// What was done so far.
    fn statistics(&self) -> (LoadStatistics, ReadStatistics);

    /// Whether another load can be started.
    fn has_room(&self) -> bool;

    /// Loads started and not landed.
    fn in_flight(&self) -> usize;

    /// Starts to load the record of `key`; reads begin with [`RecordLoader::submit`]. `memory` is that of the slot, `None` for
    /// records that are used where they lie.
    fn start(&mut self, key: ExpertKey, destination: Destination, memory: Option<SlotMemory>);

    /// Starts the reads of every load begun since the last call.
    fn submit(&mut self) -> Result<(), ExpertError>;

    /// Whether a load has all its bytes and waits for [`RecordLoader::next_landed`].
    fn has_arrived(&self) -> bool;

    /// Makes one record whole: verified or arranged with a team, discarded as cancelled without one.
    ///
    /// `None` when no load has all its bytes; with `wait` only when nothing is in flight. One at a time, so that the caller
    /// can start the next reads before it spends time on the next record.
    fn next_landed(
        &mut self,
        wait: bool,
        geometry: &Geometry,
        team: Option<&Team<'_>>,
    ) -> Result<Option<Landed>, ExpertError>;

    /// The bytes of a record that is used where it lies; `None` for records in slot memory.
    fn in_place(&self, key: ExpertKey) -> Option<&[u8]> {
        let _ = key;
        None
    }

    /// The record of `key` has left its slot.
    fn left(&mut self, key: ExpertKey) {
        let _ = key;
    }
}

/// Where records come from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Finished records in one file.
    Pack(PackFile),
    /// The model files.
    Model(ModelSource),
}

/// What the caller wants back with a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The slot that the memory belongs to.
    pub slot: usize,
}

/// The end of one load.
#[derive(Debug)]
pub(crate) struct Landed {
    pub key: ExpertKey,
    pub destination: Destination,
    /// The memory handed to `start`.
    pub memory: Option<SlotMemory>,
    pub result: Result<(), ExpertError>,
}

/// What the loader did, beside what its queue counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadStatistics {
    /// Bytes of records or source matrices that arrived, without alignment.
    pub bytes_read: u64,
    /// Records read again because a check failed.
    pub records_read_again: u64,
    /// Records taken from a pack that is being filled.
    pub lazy_reads: u64,
    /// Records written to it.
    pub lazy_writes: u64,
    /// Time spent on arranging and verifying, in microseconds.
    pub arrange_us: u64,
}

/// One load in progress, or a place for one.
#[derive(Debug)]
struct Load {
    key: ExpertKey,
    destination: Destination,
    /// The slot's memory; with a pack it is away while reads run, cut into their parts.
    memory: Option<SlotMemory>,
    /// By number of the read. With a pack: parts of the slot's memory whose reads have ended, empty between reads. Without:
    /// memory for gate, up and down as read; each is away while its read runs.
    parts: [Option<SlotMemory>; SPLIT_MAX],
    /// Whether it is read from the pack that is being filled.
    lazy: bool,
    /// Reads in flight.
    awaited: usize,
    read_again: bool,
    error: Option<ExpertError>,
}

/// See the module header.
pub(crate) struct Loader {
    origin: Origin,
    /// With the model files: the pack that is being filled from them.
    lazy: Option<LazyPack>,
    queue: ReadQueue,
    /// Most reads of one record; tickets are numbered by it.
    reads_per_record: usize,
    loads: Vec<Load>,
    /// Indices into `loads` that are not in use.
    idle: Vec<usize>,
    /// Indices of loads whose reads are all back.
    arrived: Vec<usize>,
    finished: Vec<Finished>,
    statistics: LoadStatistics,
}

/// Reads that one record takes at most: `split` with a pack, one per matrix without.
pub(crate) fn reads_per_record(has_pack: bool, split: usize) -> usize {
    if has_pack { split.clamp(1, SPLIT_MAX) } else { 3 }
}

impl Loader {
    /// A loader for `read_ahead` records at a time, each read in `split` parts from a pack. Staging memory is reserved as
    /// [`Purpose::ReadRing`].
    pub(crate) fn new(
        origin: Origin,
        lazy: Option<LazyPack>,
        reader: Box<dyn ExpertReader>,
        read_ahead: usize,
        split: usize,
        ledger: &Ledger,
    ) -> Result<Self, ExpertError> {
        let reads_per_record = reads_per_record(matches!(origin, Origin::Pack(_)), split);
        let places = read_ahead.min(reader.capacity() / reads_per_record);
        if places == 0 {
            return Err(ExpertError::Configuration(format!(
                "the reader {} takes {} reads at a time, one record needs {reads_per_record}",
                reader.name(),
                reader.capacity(),
            )));
        }
        let lengths = match &origin {
            Origin::Pack(_) => Vec::new(),
            Origin::Model(source) => staging_lengths(source.layers()).repeat(places),
        };
        let mut staging = SlotMemory::carve(ledger, Purpose::ReadRing, &lengths)?.into_iter();
        let mut place = |_| {
            let mut parts = [const { None }; SPLIT_MAX];
            parts.iter_mut().take(3).for_each(|part| *part = staging.next());
            Load {
                key: ExpertKey { layer: 0, expert: 0 },
                destination: Destination { slot: 0 },
                memory: None,
                parts,
                lazy: false,
                awaited: 0,
                read_again: false,
                error: None,
            }
        };
        let reads = places * reads_per_record;
        Ok(Self {
            loads: (0..places).map(&mut place).collect(),
            idle: (0..places).rev().collect(),
            queue: ReadQueue::new(reader, reads),
            reads_per_record,
            arrived: Vec::with_capacity(places),
            finished: Vec::with_capacity(reads),
            origin,
            lazy,
            statistics: LoadStatistics::default(),
        })
    }

    fn push_reads(&mut self, place: usize) {
        let load = &mut self.loads[place];
        let first_ticket = (place * self.reads_per_record) as u64;
        match &self.origin {
            Origin::Pack(pack) => {
                let record_bytes = pack.record_bytes(load.key);
                let part_bytes = part_bytes(record_bytes, self.reads_per_record);
                let mut rest = load.memory.take();
                let mut start = 0;
                load.awaited = 0;
                while let Some(mut memory) = rest.take() {
                    let length = part_bytes.min(record_bytes - start);
                    // A slot may be longer than this record: the last part takes what is left.
                    if start + length < record_bytes {
                        rest = Some(memory.split_off(length));
                    }
                    self.queue.push(ReadRequest {
                        ticket: first_ticket + load.awaited as u64,
                        file: pack.file().clone(),
                        offset: pack.offset(load.key) + start as u64,
                        length,
                        needed: length,
                        filled: 0,
                        memory,
                    });
                    load.awaited += 1;
                    start += length;
                }
            }
            Origin::Model(source) => {
                let lazy = self.lazy.as_ref().filter(|lazy| lazy.has(load.key));
                load.lazy = lazy.is_some();
                if let Some(lazy) = lazy {
                    let length = lazy.record_bytes(load.key);
                    self.queue.push(ReadRequest {
                        ticket: first_ticket,
                        file: lazy.file().clone(),
                        offset: lazy.offset(load.key),
                        length,
                        needed: length,
                        filled: 0,
                        memory: load.memory.take().expect("the memory of a load is there between reads"),
                    });
                    load.awaited = 1;
                    return;
                }
                for (part, staging) in load.parts.iter_mut().take(3).enumerate() {
                    let (file, range) = source.range(load.key, part);
                    let read = aligned(range.clone());
                    self.queue.push(ReadRequest {
                        ticket: first_ticket + part as u64,
                        file: file.clone(),
                        offset: read.start,
                        length: (read.end - read.start) as usize,
                        needed: (range.end - read.start) as usize,
                        filled: 0,
                        memory: staging.take().expect("the staging of a load is there between reads"),
                    });
                }
                load.awaited = 3;
            }
        }
    }

    /// Takes back the memory of one read; the last one of a load makes it whole again.
    fn take_back(&mut self, read: Finished) {
        let ticket = read.request.ticket as usize;
        let (place, part) = (ticket / self.reads_per_record, ticket % self.reads_per_record);
        let load = &mut self.loads[place];
        if load.lazy {
            load.memory = Some(read.request.memory);
        } else {
            load.parts[part] = Some(read.request.memory);
        }
        if let Err(error) = read.result {
            load.error.get_or_insert(error);
        }
        load.awaited -= 1;
        if load.awaited > 0 {
            return;
        }
        if matches!(self.origin, Origin::Pack(_)) {
            let mut parts = load.parts.iter_mut().map_while(Option::take);
            let mut memory = parts.next().expect("a load has at least one read");
            parts.for_each(|part| memory.join(part));
            load.memory = Some(memory);
        }
        self.arrived.push(place);
    }

    /// All reads of a load are back: makes the record whole. `None` when it is being read again.
    fn complete(&mut self, place: usize, geometry: &Geometry, team: Option<&Team<'_>>) -> Option<Landed> {
        let load = &mut self.loads[place];
        let (key, destination) = (load.key, load.destination);
        if load.lazy && team.is_some() && !self.take_lazy(place, geometry) {
            self.push_reads(place);
            return None;
        }
        let load = &mut self.loads[place];
        let result = match (load.error.take(), team) {
            (Some(error), _) => Err(error),
            (None, None) => Err(ExpertError::Cancelled),
            (None, Some(_)) if load.lazy => Ok(()),
            (None, Some(team)) => {
                let started = Instant::now();
                let made = self.origin.make_record(team, geometry, load);
                self.statistics.arrange_us += started.elapsed().as_micros() as u64;
                match made {
                    Err(ExpertError::Damaged { .. }) if !load.read_again => {
                        load.read_again = true;
                        self.statistics.records_read_again += 1;
                        self.push_reads(place);
                        return None;
                    }
                    Ok(bytes) => {
                        self.statistics.bytes_read += bytes as u64;
                        if let (Some(lazy), Some(memory)) = (&self.lazy, &load.memory) {
                            lazy.offer(key, &memory[..geometry.layer(key.layer as usize).record_bytes]);
                        }
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        self.idle.push(place);
        let memory = self.loads[place].memory.take();
        assert!(memory.is_some(), "the memory of a load is there between reads");
        Some(Landed { key, destination, memory, result })
    }
}

impl Loader {
    /// A record has come from the pack that is being filled: whether it is whole. If not, it is forgotten there.
    fn take_lazy(&mut self, place: usize, geometry: &Geometry) -> bool {
        let load = &mut self.loads[place];
        let (Some(lazy), Some(memory)) = (&self.lazy, &load.memory) else { return false };
        let started = Instant::now();
        let layer = geometry.layer(load.key.layer as usize);
        let read = load.error.take().is_none();
        let whole = read && record::verify(load.key, &memory[..layer.record_bytes]).is_ok();
        self.statistics.arrange_us += started.elapsed().as_micros() as u64;
        if whole {
            lazy.confirm(load.key);
            self.statistics.lazy_reads += 1;
            self.statistics.bytes_read += layer.used_bytes as u64;
        } else {
            lazy.forget(load.key);
            self.statistics.records_read_again += 1;
        }
        whole
    }
}

/// Bytes of each part but the last when a record is read in `split` parts: whole blocks.
fn part_bytes(record_bytes: usize, split: usize) -> usize {
    record_bytes.div_ceil(split).next_multiple_of(RECORD_ALIGNMENT)
}

impl RecordLoader for Loader {
    fn disk_position(&self, key: ExpertKey) -> (usize, u64) {
        match &self.origin {
            Origin::Pack(pack) => (0, pack.offset(key)),
            Origin::Model(source) => {
                if let Some(lazy) = self.lazy.as_ref().filter(|lazy| lazy.has(key)) {
                    return (usize::MAX, lazy.offset(key));
                }
                let file = source.layers()[key.layer as usize].gate.file;
                (file, source.range(key, 0).1.start)
            }
        }
    }

    fn pack(&self) -> Option<&PackFile> {
        match &self.origin {
            Origin::Pack(pack) => Some(pack),
            Origin::Model(_) => None,
        }
    }

    fn reader_name(&self) -> &'static str {
        self.queue.reader_name()
    }

    fn statistics(&self) -> (LoadStatistics, ReadStatistics) {
        let lazy_writes = self.lazy.as_ref().map_or(0, LazyPack::written);
        (LoadStatistics { lazy_writes, ..self.statistics }, self.queue.statistics())
    }

    fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.loads.len() - self.idle.len()
    }

    fn start(&mut self, key: ExpertKey, destination: Destination, memory: Option<SlotMemory>) {
        let place = self.idle.pop().expect("the caller asks has_room first");
        let load = &mut self.loads[place];
        load.key = key;
        load.destination = destination;
        load.memory = Some(memory.expect("slots of this loader have memory"));
        load.read_again = false;
        load.error = None;
        self.push_reads(place);
    }

    fn submit(&mut self) -> Result<(), ExpertError> {
        self.queue.submit()
    }

    fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    fn next_landed(
        &mut self,
        wait: bool,
        geometry: &Geometry,
        team: Option<&Team<'_>>,
    ) -> Result<Option<Landed>, ExpertError> {
        loop {
            while let Some(place) = self.arrived.pop() {
                if let Some(landed) = self.complete(place, geometry, team) {
                    return Ok(Some(landed));
                }
            }
            let wait = wait && self.in_flight() > 0;
            let mut finished = std::mem::take(&mut self.finished);
            let reaped = self.queue.reap(wait, &mut finished);
            finished.drain(..).for_each(|read| self.take_back(read));
            self.finished = finished;
            reaped?;
            if self.arrived.is_empty() && !wait {
                return Ok(None);
            }
        }
    }
}

/// Checks the record of `key` in the pack, as it lies in `record`.
pub(crate) fn verify_packed(pack: &PackFile, key: ExpertKey, record: &[u8]) -> Result<(), ExpertError> {
    record::verify(key, record).map_err(|fault| ExpertError::Damaged {
        path: pack.file().path().to_owned(),
        offset: pack.offset(key),
        key,
        fault,
    })
}

impl Origin {
    /// Verifies or arranges; returns the bytes that were needed from the disk.
    fn make_record(
        &self,
        team: &Team<'_>,
        geometry: &Geometry,
        load: &mut Load,
    ) -> Result<usize, ExpertError> {
        let key = load.key;
        let layer = geometry.layer(key.layer as usize);
        let memory = load.memory.as_mut().expect("the memory of a load is there between reads");
        let record = &mut memory[..layer.record_bytes];
        match self {
            Self::Pack(pack) => {
                verify_packed(pack, key, record)?;
                Ok(layer.used_bytes)
            }
            Self::Model(source) => {
                let mut bytes_needed = 0;
                let mut part = 0;
                let [gate, up, down, ..] = &mut load.parts;
                let sources = [gate, up, down].map(|staging| {
                    let (_, range) = source.range(key, part);
                    let skip = (range.start - aligned(range.clone()).start) as usize;
                    let length = (range.end - range.start) as usize;
                    let big_endian = source.layers()[key.layer as usize].projections()[part].big_endian;
                    part += 1;
                    bytes_needed += length;
                    let staging = staging.as_mut().expect("the staging of a load is there between reads");
                    SourceMatrix { bytes: &mut staging[skip..skip + length], big_endian }
                });
                record::arrange(team, layer, key, sources, record);
                Ok(bytes_needed)
            }
        }
    }
}

/// Bytes of one staging place: for gate, up and down the largest of any layer, plus what alignment adds.
fn staging_lengths(layers: &[LayerExperts]) -> [usize; 3] {
    [0, 1, 2].map(|part| {
        let largest = layers.iter().map(|layer| layer.projections()[part].expert_bytes()).max().unwrap_or(0);
        // A range reaches over at most one block boundary more than its length covers.
        largest.next_multiple_of(RECORD_ALIGNMENT) + RECORD_ALIGNMENT
    })
}

/// Bytes of the read ring of a store that reads model files directly with `read_ahead` experts in flight. With a pack no
/// ring is needed. `layers` must have passed [`Geometry::new`].
pub fn read_ring_bytes(layers: &[LayerExperts], read_ahead: usize) -> u64 {
    staging_lengths(layers).iter().map(|length| *length as u64).sum::<u64>() * read_ahead as u64
}
