//! What the store asks of whoever gets it records: from "this expert into this memory" to a whole, checked record.
//!
//! A load is begun as a whole, or as a head whose rest is read once somebody needs it. Every memory handed over comes back
//! in one [`Landed`], after failures and on cancelling too. Chooses neither slots nor victims; see `store`. Read next:
//! `reading`, which reads into the memory of slots, and `mapped`, which uses records where they lie.

use coldpress_memory::{Bytes, Ledger};
use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry};
use crate::pack::PackFile;
use crate::reader::ReadStatistics;
use crate::slots::SlotMemory;

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

    /// Starts to load the head of the record of `key`: `bytes` of it, or as much as can be read apart. Returns the bytes
    /// begun. The load lands after [`RecordLoader::finish_head`] or [`RecordLoader::cancel_head`].
    fn start_head(
        &mut self,
        key: ExpertKey,
        destination: Destination,
        memory: Option<SlotMemory>,
        bytes: usize,
    ) -> usize;

    /// The record whose head goes to `destination` is needed: starts to load the rest.
    fn finish_head(&mut self, destination: Destination);

    /// The record whose head goes to `destination` is not needed: it lands as cancelled.
    fn cancel_head(&mut self, destination: Destination);

    /// Whether all heads that were begun are in memory.
    fn heads_have_arrived(&mut self) -> Result<bool, ExpertError>;

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

    /// From now on keeps the experts that each layer uses most beyond their places, within `cap` bytes. To be called before
    /// the first load; loaders into the memory of slots have nothing to keep.
    fn advise(&mut self, cap: Bytes, geometry: &Geometry, ledger: &Ledger) -> Result<(), ExpertError> {
        let _ = (cap, geometry, ledger);
        Ok(())
    }

    /// A visit to `layer` is about to use `experts`.
    fn note_use(&mut self, layer: usize, experts: &[u32]) {
        let _ = (layer, experts);
    }
}

/// What the caller wants back with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
