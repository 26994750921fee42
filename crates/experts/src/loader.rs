//! The loader: from "this expert into this memory" to a whole, checked record.
//!
//! With a pack a record is one read, straight into the slot's memory, and is verified when it lands. Without one its three
//! matrices are read into a staging place of the read ring and arranged into the slot's memory by the whole team.
//! Every memory handed to [`Loader::start`] comes back in one [`Landed`], after failures and on cancelling too.
//! Chooses neither slots nor victims; see `store`.

use std::time::Instant;

use coldpress_memory::{Ledger, Purpose};
use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry, LayerExperts, RECORD_ALIGNMENT};
use crate::pack::PackFile;
use crate::reader::{ExpertReader, Finished, ReadQueue, ReadRequest, ReadStatistics};
use crate::record::{self, SourceMatrix};
use crate::slots::SlotMemory;
use crate::source::{ModelSource, aligned};

/// Where records come from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Finished records in one file.
    Pack(PackFile),
    /// The model files.
    Model(ModelSource),
}

impl Origin {
    /// Reads that one record takes.
    pub(crate) fn reads_per_record(&self) -> usize {
        match self {
            Self::Pack(_) => 1,
            Self::Model(_) => 3,
        }
    }

    /// What to sort by to read in disk order.
    pub(crate) fn disk_position(&self, key: ExpertKey) -> (usize, u64) {
        match self {
            Self::Pack(pack) => (0, pack.offset(key)),
            Self::Model(source) => {
                let file = source.layers()[key.layer as usize].gate.file;
                (file, source.range(key, 0).1.start)
            }
        }
    }
}

/// What the caller wants back with a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The slot that the memory belongs to.
    pub slot: usize,
    /// Position in the list of requested experts.
    pub position: usize,
}

/// The end of one load.
#[derive(Debug)]
pub(crate) struct Landed {
    pub key: ExpertKey,
    pub destination: Destination,
    pub memory: SlotMemory,
    pub result: Result<(), ExpertError>,
}

/// What the loader did, beside what its queue counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadStatistics {
    /// Bytes of records or source matrices that arrived, without alignment.
    pub bytes_read: u64,
    /// Records read again because a check failed.
    pub records_read_again: u64,
    /// Time spent on arranging and verifying, in microseconds.
    pub arrange_us: u64,
}

/// One load in progress, or a place for one.
#[derive(Debug)]
struct Load {
    key: ExpertKey,
    destination: Destination,
    /// The slot's memory; with a pack it is away while the read runs.
    memory: Option<SlotMemory>,
    /// Memory for gate, up and down as read; empty with a pack. A part is away while its read runs.
    staging: [Option<SlotMemory>; 3],
    /// Reads in flight.
    awaited: usize,
    read_again: bool,
    error: Option<ExpertError>,
}

/// See the module header.
pub(crate) struct Loader {
    origin: Origin,
    queue: ReadQueue,
    loads: Vec<Load>,
    /// Indices into `loads` that are not in use.
    idle: Vec<usize>,
    /// Indices of loads whose reads are all back.
    arrived: Vec<usize>,
    finished: Vec<Finished>,
    statistics: LoadStatistics,
}

impl Loader {
    /// A loader for `read_ahead` records at a time. Staging memory is reserved as [`Purpose::ReadRing`].
    pub(crate) fn new(
        origin: Origin,
        reader: Box<dyn ExpertReader>,
        read_ahead: usize,
        ledger: &Ledger,
    ) -> Result<Self, ExpertError> {
        let places = read_ahead.min(reader.capacity() / origin.reads_per_record());
        if places == 0 {
            return Err(ExpertError::Configuration(format!(
                "the reader {} takes {} reads at a time, one record needs {}",
                reader.name(),
                reader.capacity(),
                origin.reads_per_record()
            )));
        }
        let lengths = match &origin {
            Origin::Pack(_) => Vec::new(),
            Origin::Model(source) => staging_lengths(source.layers()).repeat(places),
        };
        let mut staging = SlotMemory::carve(ledger, Purpose::ReadRing, &lengths)?.into_iter();
        let place = |_| Load {
            key: ExpertKey { layer: 0, expert: 0 },
            destination: Destination { slot: 0, position: 0 },
            memory: None,
            staging: [staging.next(), staging.next(), staging.next()],
            awaited: 0,
            read_again: false,
            error: None,
        };
        let reads = places * origin.reads_per_record();
        Ok(Self {
            loads: (0..places).map(place).collect(),
            idle: (0..places).rev().collect(),
            queue: ReadQueue::new(reader, reads),
            arrived: Vec::with_capacity(places),
            finished: Vec::with_capacity(reads),
            origin,
            statistics: LoadStatistics::default(),
        })
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(crate) fn reader_name(&self) -> &'static str {
        self.queue.reader_name()
    }

    pub(crate) fn statistics(&self) -> (LoadStatistics, ReadStatistics) {
        (self.statistics, self.queue.statistics())
    }

    /// Whether another load can be started.
    pub(crate) fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Loads started and not landed.
    pub(crate) fn in_flight(&self) -> usize {
        self.loads.len() - self.idle.len()
    }

    /// Starts to load the record of `key`; reads begin with [`Loader::submit`].
    pub(crate) fn start(&mut self, key: ExpertKey, destination: Destination, memory: SlotMemory) {
        let place = self.idle.pop().expect("the caller asks has_room first");
        let load = &mut self.loads[place];
        load.key = key;
        load.destination = destination;
        load.memory = Some(memory);
        load.read_again = false;
        load.error = None;
        self.push_reads(place);
    }

    /// Starts the reads of every load begun since the last call.
    pub(crate) fn submit(&mut self) -> Result<(), ExpertError> {
        self.queue.submit()
    }

    /// Whether a load has all its bytes and waits for [`Loader::next_landed`].
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Makes one record whole: verified or arranged with a team, discarded as cancelled without one.
    ///
    /// `None` when no load has all its bytes; with `wait` only when nothing is in flight. One at a time, so that the caller
    /// can start the next reads before it spends time on the next record.
    pub(crate) fn next_landed(
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

    fn push_reads(&mut self, place: usize) {
        let load = &mut self.loads[place];
        let first_ticket = (place * self.origin.reads_per_record()) as u64;
        match &self.origin {
            Origin::Pack(pack) => {
                let length = pack.record_bytes(load.key);
                self.queue.push(ReadRequest {
                    ticket: first_ticket,
                    file: pack.file().clone(),
                    offset: pack.offset(load.key),
                    length,
                    needed: length,
                    filled: 0,
                    memory: load.memory.take().expect("the memory of a load is there between reads"),
                });
                load.awaited = 1;
            }
            Origin::Model(source) => {
                for (part, staging) in load.staging.iter_mut().enumerate() {
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
                load.awaited = load.staging.len();
            }
        }
    }

    /// Takes back the memory of one read.
    fn take_back(&mut self, read: Finished) {
        let reads_per_record = self.origin.reads_per_record();
        let ticket = read.request.ticket as usize;
        let place = ticket / reads_per_record;
        let load = &mut self.loads[place];
        match &self.origin {
            Origin::Pack(_) => load.memory = Some(read.request.memory),
            Origin::Model(_) => load.staging[ticket % reads_per_record] = Some(read.request.memory),
        }
        if let Err(error) = read.result {
            load.error.get_or_insert(error);
        }
        load.awaited -= 1;
        if load.awaited == 0 {
            self.arrived.push(place);
        }
    }

    /// All reads of a load are back: makes the record whole. `None` when it is being read again.
    fn complete(&mut self, place: usize, geometry: &Geometry, team: Option<&Team<'_>>) -> Option<Landed> {
        let load = &mut self.loads[place];
        let (key, destination) = (load.key, load.destination);
        let result = match (load.error.take(), team) {
            (Some(error), _) => Err(error),
            (None, None) => Err(ExpertError::Cancelled),
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
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        self.idle.push(place);
        let memory = self.loads[place].memory.take().expect("the memory of a load is there between reads");
        Some(Landed { key, destination, memory, result })
    }
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
                record::verify(key, record).map_err(|fault| ExpertError::Damaged {
                    path: pack.file().path().to_owned(),
                    offset: pack.offset(key),
                    key,
                    fault,
                })?;
                Ok(layer.used_bytes)
            }
            Self::Model(source) => {
                let mut bytes_needed = 0;
                let mut part = 0;
                let sources = load.staging.each_mut().map(|staging| {
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
