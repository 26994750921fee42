//! Records read from files into the memory of slots.
//!
//! With a pack a record is one read, straight into the slot's memory (or a few reads side by side, each owning its piece of
//! it), and is verified when it lands. Without one its parts (mostly three matrices) are read into a staging place of the read ring and
//! arranged into the slot's memory by the whole team; a pack that fills meanwhile is read first and gets what it lacks.
//! The head of a record is its first bytes, or its first parts.

use std::sync::Arc;
use std::time::Instant;

use coldpress_memory::{Ledger, Purpose};
use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry, LayerExperts, RECORD_ALIGNMENT};
use crate::loader::{Destination, Landed, LoadStatistics, RecordLoader};
use crate::pack::{LazyPack, PackFile};
use crate::reader::{ExpertReader, Finished, ReadQueue, ReadRequest, ReadStatistics};
use crate::record;
use crate::requantize::{self, Quantising};
use crate::slots::SlotMemory;
use crate::source::{ModelSource, ReadFile, aligned};
use crate::stored::{self, PARTS_MAX};

/// Most parallel reads of one record of a pack.
pub const SPLIT_MAX: usize = 8;
/// The head of a record and the parts of the rest.
const PIECES_MAX: usize = 1 + SPLIT_MAX;
/// Where records come from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Finished records in one file.
    Pack(PackFile),
    /// The model files.
    Model(ModelSource),
}

/// How much of a record a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All of it.
    Whole,
    /// Its head, until somebody says whether the rest is needed.
    Head,
    /// No more than was begun, and that for nothing.
    Cancelled,
}

/// One load in progress, or a place for one.
#[derive(Debug)]
struct Load {
    key: ExpertKey,
    destination: Destination,
    extent: Extent,
    /// The slot's memory. Of a packed record: what lies behind the pieces that are being read.
    memory: Option<SlotMemory>,
    /// By number of the read: pieces of the slot's memory whose reads of a packed record have ended.
    pieces: [Option<SlotMemory>; PIECES_MAX],
    /// Memory for the parts as read; each is away while its read runs. None with a pack.
    staging: [Option<SlotMemory>; PARTS_MAX],
    /// Whether it is read from the pack that is being filled.
    lazy: bool,
    /// Reads begun.
    begun: usize,
    /// Bytes of a packed record that they cover.
    begun_bytes: usize,
    /// Reads in flight.
    awaited: usize,
    read_again: bool,
    error: Option<ExpertError>,
}

/// Where a record lies as a whole.
struct Packed {
    file: Arc<ReadFile>,
    offset: u64,
    bytes: usize,
}

/// See the module header.
pub(crate) struct Reading {
    origin: Origin,
    /// With the model files: the pack that is being filled from them.
    lazy: Option<LazyPack>,
    /// What quantises the layers that ask for it.
    quantising: Option<Quantising>,
    queue: ReadQueue,
    /// Parts of a packed record, without a head before them.
    split: usize,
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

/// Reads that one record takes at most: a head and `split` parts with a pack, one per part as it is stored without.
pub(crate) fn reads_per_record(origin: &Origin, split: usize) -> usize {
    match origin {
        Origin::Pack(_) => 1 + split.clamp(1, SPLIT_MAX),
        Origin::Model(source) => parts_per_record(source.layers()),
    }
}

fn parts_per_record(layers: &[LayerExperts]) -> usize {
    layers.iter().map(LayerExperts::part_count).max().unwrap_or(0)
}

impl Reading {
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
        let reads_per_record = reads_per_record(&origin, split);
        let places = read_ahead.min(reader.capacity() / reads_per_record);
        if places == 0 {
            return Err(ExpertError::Configuration(format!(
                "the reader {} takes {} reads at a time, one record needs {reads_per_record}",
                reader.name(),
                reader.capacity(),
            )));
        }
        let layers = match &origin {
            Origin::Pack(_) => &[][..],
            Origin::Model(source) => source.layers(),
        };
        let mut lengths = staging_lengths(layers).collect::<Vec<_>>().repeat(places);
        let staged = lengths.len() / places;
        lengths.extend(Some(requantize::scratch_bytes(layers)).filter(|bytes| *bytes > 0));
        let mut staging = SlotMemory::carve(ledger, Purpose::ReadRing, &lengths)?;
        let scratch = if lengths.len() > staged * places { staging.pop() } else { None };
        let quantising = scratch.map(|memory| Quantising::new(layers, memory)).transpose()?;
        let mut staging = staging.into_iter();
        let mut place = |_| Load {
            key: ExpertKey { layer: 0, expert: 0 },
            destination: Destination { slot: 0 },
            extent: Extent::Whole,
            memory: None,
            pieces: [const { None }; PIECES_MAX],
            staging: std::array::from_fn(|part| if part < staged { staging.next() } else { None }),
            lazy: false,
            begun: 0,
            begun_bytes: 0,
            awaited: 0,
            read_again: false,
            error: None,
        };
        let reads = places * reads_per_record;
        Ok(Self {
            loads: (0..places).map(&mut place).collect(),
            idle: (0..places).rev().collect(),
            queue: ReadQueue::new(reader, reads),
            split: if matches!(origin, Origin::Pack(_)) { reads_per_record - 1 } else { 1 },
            reads_per_record,
            arrived: Vec::with_capacity(places),
            finished: Vec::with_capacity(reads),
            quantising,
            origin,
            lazy,
            statistics: LoadStatistics::default(),
        })
    }

    /// Makes `place` ready for the reads of a record, none of which has begun.
    fn begin(&mut self, place: usize) {
        let load = &mut self.loads[place];
        load.lazy = self.lazy.as_ref().is_some_and(|lazy| lazy.has(load.key));
        load.begun = 0;
        load.begun_bytes = 0;
    }

    /// Where the record of `load` lies as a whole, if it does.
    fn packed(&self, load: &Load) -> Option<Packed> {
        let key = load.key;
        match (&self.origin, &self.lazy) {
            (Origin::Pack(pack), _) => {
                let (file, offset) = (pack.file().clone(), pack.offset(key));
                Some(Packed { file, offset, bytes: pack.record_bytes(key) })
            }
            (Origin::Model(_), Some(lazy)) if load.lazy => {
                let (file, offset) = (lazy.file().clone(), lazy.offset(key));
                Some(Packed { file, offset, bytes: lazy.record_bytes(key) })
            }
            _ => None,
        }
    }

    /// Reads all of the record that has not been begun.
    fn push_rest(&mut self, place: usize) {
        let load = &self.loads[place];
        match self.packed(load) {
            Some(packed) => {
                let rest = packed.bytes - load.begun_bytes;
                let part_bytes = rest.div_ceil(self.split).next_multiple_of(RECORD_ALIGNMENT);
                while self.loads[place].begun_bytes < packed.bytes {
                    self.push_piece(place, &packed, part_bytes);
                }
            }
            None => (load.begun..self.parts_of(load.key)).for_each(|_| {
                self.push_part(place);
            }),
        }
    }

    /// Reads the next `length` bytes of a packed record, or what there is; returns how many.
    fn push_piece(&mut self, place: usize, packed: &Packed, length: usize) -> usize {
        let load = &mut self.loads[place];
        let start = load.begun_bytes;
        let length = length.min(packed.bytes - start);
        let mut memory = load.memory.take().expect("the memory of a load is there between reads");
        // A slot may be longer than this record: the last piece takes what is left.
        load.memory = (start + length < packed.bytes).then(|| memory.split_off(length));
        self.queue.push(ReadRequest {
            ticket: (place * self.reads_per_record + load.begun) as u64,
            file: packed.file.clone(),
            offset: packed.offset + start as u64,
            length,
            needed: length,
            filled: 0,
            memory,
        });
        load.begun += 1;
        load.begun_bytes += length;
        load.awaited += 1;
        length
    }

    /// Parts that the record of `key` is read in without a pack.
    fn parts_of(&self, key: ExpertKey) -> usize {
        match &self.origin {
            Origin::Pack(_) => 0,
            Origin::Model(source) => source.layers()[key.layer as usize].part_count(),
        }
    }

    /// Reads the next part of a record that is not packed; returns its bytes.
    fn push_part(&mut self, place: usize) -> usize {
        let Origin::Model(source) = &self.origin else { return 0 };
        let load = &mut self.loads[place];
        let part = load.begun;
        let (file, range) = source.range(load.key, part);
        let read = aligned(range.clone());
        let staging = load.staging[part].take();
        self.queue.push(ReadRequest {
            ticket: (place * self.reads_per_record + part) as u64,
            file: file.clone(),
            offset: read.start,
            length: (read.end - read.start) as usize,
            needed: (range.end - read.start) as usize,
            filled: 0,
            memory: staging.expect("the staging of a load is there between reads"),
        });
        load.begun += 1;
        load.awaited += 1;
        (range.end - range.start) as usize
    }

    /// Takes back the memory of one read.
    fn take_back(&mut self, read: Finished) {
        let ticket = read.request.ticket as usize;
        let (place, number) = (ticket / self.reads_per_record, ticket % self.reads_per_record);
        let load = &mut self.loads[place];
        if load.begun_bytes > 0 {
            load.pieces[number] = Some(read.request.memory);
        } else {
            load.staging[number] = Some(read.request.memory);
        }
        if let Err(error) = read.result {
            load.error.get_or_insert(error);
        }
        load.awaited -= 1;
        self.settle(place);
    }

    /// A load whose reads are all back, and that is to have no more of them, has arrived.
    fn settle(&mut self, place: usize) {
        let load = &mut self.loads[place];
        if load.awaited > 0 || load.extent == Extent::Head {
            return;
        }
        let pieces = load.pieces.iter_mut().map_while(Option::take).chain(load.memory.take());
        load.memory = pieces.into_iter().reduce(|mut memory, next| {
            memory.join(next);
            memory
        });
        self.arrived.push(place);
    }

    /// The place of the head that goes to `destination`.
    fn head(&self, destination: Destination) -> usize {
        let is_it = |load: &Load| load.extent == Extent::Head && load.destination == destination;
        self.loads.iter().position(is_it).expect("a head is begun before it is finished or cancelled")
    }

    /// All reads of a load are back: makes the record whole. `None` when it is being read again.
    fn complete(&mut self, place: usize, geometry: &Geometry, team: Option<&Team<'_>>) -> Option<Landed> {
        let load = &mut self.loads[place];
        let (key, destination) = (load.key, load.destination);
        let team = team.filter(|_| load.extent == Extent::Whole);
        if load.lazy
            && let Some(team) = team
            && !self.take_lazy(team, place, geometry)
        {
            self.begin(place);
            self.push_rest(place);
            return None;
        }
        let load = &mut self.loads[place];
        let result = match (load.error.take(), team) {
            (Some(error), _) => Err(error),
            (None, None) => Err(ExpertError::Cancelled),
            (None, Some(_)) if load.lazy => Ok(()),
            (None, Some(team)) => {
                let started = Instant::now();
                let made = self.origin.make_record(team, geometry, load, self.quantising.as_mut());
                self.statistics.arrange_us += started.elapsed().as_micros() as u64;
                match made {
                    Err(ExpertError::Damaged { .. }) if !load.read_again => {
                        load.read_again = true;
                        self.statistics.records_read_again += 1;
                        self.begin(place);
                        self.push_rest(place);
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
        self.loads[place].extent = Extent::Whole;
        let memory = self.loads[place].memory.take();
        assert!(memory.is_some(), "the memory of a load is there between reads");
        Some(Landed { key, destination, memory, result })
    }
}

impl Reading {
    /// Gives a free place to a load of which nothing is read yet.
    fn occupy(
        &mut self,
        key: ExpertKey,
        destination: Destination,
        memory: Option<SlotMemory>,
        extent: Extent,
    ) -> usize {
        let place = self.idle.pop().expect("the caller asks has_room first");
        let load = &mut self.loads[place];
        load.key = key;
        load.destination = destination;
        load.extent = extent;
        load.memory = Some(memory.expect("slots of this loader have memory"));
        load.read_again = false;
        load.error = None;
        self.begin(place);
        place
    }

    /// Takes back what the reader has finished; with `wait` at least one read.
    fn reap(&mut self, wait: bool) -> Result<(), ExpertError> {
        let mut finished = std::mem::take(&mut self.finished);
        let reaped = self.queue.reap(wait, &mut finished);
        finished.drain(..).for_each(|read| self.take_back(read));
        self.finished = finished;
        reaped
    }

    /// A record has come from the pack that is being filled: whether it is whole. If not, it is forgotten there.
    fn take_lazy(&mut self, team: &Team<'_>, place: usize, geometry: &Geometry) -> bool {
        let load = &mut self.loads[place];
        let (Some(lazy), Some(memory)) = (&self.lazy, &load.memory) else { return false };
        let started = Instant::now();
        let layer = geometry.layer(load.key.layer as usize);
        let read = load.error.take().is_none();
        let whole = read && record::verify_together(team, load.key, &memory[..layer.record_bytes]).is_ok();
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

impl RecordLoader for Reading {
    fn disk_position(&self, key: ExpertKey) -> (usize, u64) {
        match &self.origin {
            Origin::Pack(pack) => (0, pack.offset(key)),
            Origin::Model(source) => {
                if let Some(lazy) = self.lazy.as_ref().filter(|lazy| lazy.has(key)) {
                    return (usize::MAX, lazy.offset(key));
                }
                let gate = &source.layers()[key.layer as usize].gate;
                let file = gate.place(key.expert as usize).map_or(gate.file, |place| place.file);
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
        let place = self.occupy(key, destination, memory, Extent::Whole);
        self.push_rest(place);
    }

    fn start_head(
        &mut self,
        key: ExpertKey,
        destination: Destination,
        memory: Option<SlotMemory>,
        bytes: usize,
    ) -> usize {
        let place = self.occupy(key, destination, memory, Extent::Head);
        match self.packed(&self.loads[place]) {
            Some(packed) => self.push_piece(place, &packed, bytes.next_multiple_of(RECORD_ALIGNMENT)),
            None => {
                let mut begun = self.push_part(place);
                while self.loads[place].begun < self.parts_of(key) && begun < bytes {
                    begun += self.push_part(place);
                }
                begun
            }
        }
    }

    fn finish_head(&mut self, destination: Destination) {
        let place = self.head(destination);
        self.loads[place].extent = Extent::Whole;
        self.push_rest(place);
        self.settle(place);
    }

    fn cancel_head(&mut self, destination: Destination) {
        let place = self.head(destination);
        self.loads[place].extent = Extent::Cancelled;
        self.settle(place);
    }

    fn heads_have_arrived(&mut self) -> Result<bool, ExpertError> {
        self.reap(false)?;
        Ok(self.loads.iter().all(|load| load.extent != Extent::Head || load.awaited == 0))
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
            let wait = wait && self.queue.in_flight() > 0;
            self.reap(wait)?;
            if self.arrived.is_empty() && !wait {
                return Ok(None);
            }
        }
    }
}

/// Checks the record of `key` in the pack, as it lies in `record`.
pub(crate) fn verify_packed(
    team: &Team<'_>,
    pack: &PackFile,
    key: ExpertKey,
    record: &[u8],
) -> Result<(), ExpertError> {
    record::verify_together(team, key, record).map_err(|fault| ExpertError::Damaged {
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
        quantising: Option<&mut Quantising>,
    ) -> Result<usize, ExpertError> {
        let key = load.key;
        let layer = geometry.layer(key.layer as usize);
        let memory = load.memory.as_mut().expect("the memory of a load is there between reads");
        let record = &mut memory[..layer.record_bytes];
        match self {
            Self::Pack(pack) => {
                verify_packed(team, pack, key, record)?;
                Ok(layer.used_bytes)
            }
            Self::Model(source) => {
                let experts = &source.layers()[key.layer as usize];
                let mut parts: [&mut [u8]; PARTS_MAX] = Default::default();
                let staged = load.staging.iter_mut().take(experts.part_count());
                for (index, (part, staging)) in parts.iter_mut().zip(staged).enumerate() {
                    let (_, range) = source.range(key, index);
                    let skip = (range.start - aligned(range.clone()).start) as usize;
                    let length = (range.end - range.start) as usize;
                    let staging = staging.as_mut().expect("the staging of a load is there between reads");
                    *part = &mut staging[skip..skip + length];
                }
                let bytes_needed = parts.iter().map(|part| part.len()).sum();
                match (experts.quantised, quantising) {
                    (Some(_), Some(quantising)) => {
                        quantising.arrange(team, experts, layer, key, parts, record)?;
                    }
                    _ => stored::arrange(team, experts, layer, key, parts, record),
                }
                Ok(bytes_needed)
            }
        }
    }
}

/// Bytes of one staging place: for each part the largest of any layer, plus what alignment adds.
fn staging_lengths(layers: &[LayerExperts]) -> impl Iterator<Item = usize> + '_ {
    (0..parts_per_record(layers)).map(|index| {
        let with_it = layers.iter().filter(|layer| index < layer.part_count());
        let largest = with_it.map(|layer| layer.part(index).bytes).max().unwrap_or(0);
        // A range reaches over at most one block boundary more than its length covers.
        largest.next_multiple_of(RECORD_ALIGNMENT) + RECORD_ALIGNMENT
    })
}

/// Bytes of the read ring of a store that reads model files directly with `read_ahead` experts in flight. With a pack no
/// ring is needed. `layers` must have passed [`Geometry::new`].
pub fn read_ring_bytes(layers: &[LayerExperts], read_ahead: usize) -> u64 {
    let staging = staging_lengths(layers).map(|length| length as u64).sum::<u64>() * read_ahead as u64;
    staging + requantize::scratch_bytes(layers) as u64
}
