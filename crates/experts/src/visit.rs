//! One visit: the experts that a layer needs now, handed out as they arrive.
//!
//! ```text
//!   requested -- in memory: pinned --------------------------> ready -> handed out (pinned) -> unpinned
//!            \-- pending -- slot and place free: reading ----/
//!                                              \-- failed: one error
//! ```
//!
//! Every requested expert is either handed out once or reported by exactly one error; after an error the others are still
//! to be had. Dropping a visit waits for its reads and unpins everything; reads ahead of need go on.

use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::ExpertKey;
use crate::loader::{Destination, Landed};
use crate::record::RecordRef;
use crate::slots::SlotState;
use crate::store::ExpertStore;

/// A requested record and its slot: pinned, or being read.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    position: usize,
    slot: usize,
}

/// The lists of the current visit. They belong to the store and keep their memory from visit to visit.
#[derive(Debug)]
pub(crate) struct VisitState {
    layer: u32,
    experts: Vec<u32>,
    /// Positions not yet reading, the next one last.
    pending: Vec<usize>,
    /// Positions whose records are being read.
    awaited: Vec<Pinned>,
    ready: Vec<Pinned>,
    handed_out: Vec<Pinned>,
    errors: Vec<ExpertError>,
    /// Stamp of position 0.
    first_stamp: u64,
    /// Per expert: number of the last visit that named it.
    named_in: Vec<u64>,
    number: u64,
}

impl VisitState {
    pub(crate) fn new(expert_count_max: usize) -> Self {
        Self {
            layer: 0,
            experts: Vec::with_capacity(expert_count_max),
            pending: Vec::with_capacity(expert_count_max),
            awaited: Vec::with_capacity(expert_count_max),
            ready: Vec::with_capacity(expert_count_max),
            handed_out: Vec::with_capacity(expert_count_max),
            errors: Vec::new(),
            first_stamp: 0,
            named_in: vec![0; expert_count_max],
            number: 0,
        }
    }

    fn key(&self, position: usize) -> ExpertKey {
        ExpertKey { layer: self.layer, expert: self.experts[position] }
    }
}

/// See [`ExpertStore::begin`].
pub struct Visit<'s> {
    store: &'s mut ExpertStore,
}

impl<'s> Visit<'s> {
    pub(crate) fn begin(
        store: &'s mut ExpertStore,
        layer: usize,
        experts: &[u32],
    ) -> Result<Self, ExpertError> {
        // Only after a visit that was leaked instead of dropped is there anything to close.
        store.close_visit()?;
        store.check_request(layer, experts)?;
        let visit = Self { store };
        visit.store.open_visit(layer as u32, experts);
        visit.store.start_loads()?;
        Ok(visit)
    }

    /// The records that are ready now, or `None` when every requested expert has been handed out or reported.
    ///
    /// Blocks only if nothing is ready. The records of the previous call are unpinned: their slots serve the next reads.
    ///
    /// # Errors
    /// One expert could not be read, or its record is damaged. Calling again gives the other experts.
    pub fn next_ready(&mut self, team: &Team<'_>) -> Result<Option<Ready<'_>>, ExpertError> {
        let store = &mut *self.store;
        store.release_handed_out();
        store.start_loads()?;
        loop {
            let visit = &store.visit;
            let nothing_ready = visit.ready.is_empty() && visit.errors.is_empty();
            let nothing_left = visit.awaited.is_empty() && visit.pending.is_empty();
            if nothing_ready && nothing_left {
                return Ok(None);
            }
            let stuck = visit.awaited.is_empty() && store.loader.in_flight() == 0;
            assert!(
                !(nothing_ready && stuck),
                "policy {} frees no slot although none is in use",
                store.policy.name()
            );
            store.land(nothing_ready, Some(team))?;
            let visit = &mut store.visit;
            if let Some(error) = visit.errors.pop() {
                return Err(error);
            }
            if !visit.ready.is_empty() {
                std::mem::swap(&mut visit.ready, &mut visit.handed_out);
                return Ok(Some(Ready { store }));
            }
        }
    }

    /// Names experts of another layer that will probably be needed soon, the most probable first. They are read when
    /// nothing that is needed waits, also after the end of the visit; what was named before and not begun is forgotten.
    pub fn prefetch(&mut self, layer: usize, experts: impl DoubleEndedIterator<Item = u32>) {
        let store = &mut *self.store;
        store.ahead.wanted.clear();
        let count = store.geometry.expert_count(layer) as u32;
        let keys = experts.rev().filter(|&expert| expert < count);
        store.ahead.wanted.extend(keys.map(|expert| ExpertKey { layer: layer as u32, expert }));
        // A read that cannot start now is no failure: nobody waits for it.
        let _ = store.start_loads();
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // A broken reader is reported by the next `begin`.
        let _ = self.store.close_visit();
    }
}

/// Records that are ready, pinned until the next call of [`Visit::next_ready`] or the end of the visit.
#[derive(Clone, Copy)]
pub struct Ready<'v> {
    store: &'v ExpertStore,
}

impl<'v> Ready<'v> {
    /// Number of records, at least 1.
    pub fn len(&self) -> usize {
        self.store.visit.handed_out.len()
    }

    /// Whether there is none; never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Record `index` with the position of its expert in the requested list.
    ///
    /// # Panics
    /// When `index` is not below [`Ready::len`].
    pub fn get(&self, index: usize) -> (usize, RecordRef<'v>) {
        let Pinned { position, slot } = self.store.visit.handed_out[index];
        let geometry = self.store.geometry.layer(self.store.visit.layer as usize);
        (position, RecordRef::new(geometry, self.store.record(slot)))
    }

    /// Every record with the position of its expert in the requested list.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, RecordRef<'v>)> + use<'v> {
        let ready = *self;
        (0..ready.len()).map(move |index| ready.get(index))
    }
}

/// What a visit does to the store.
impl ExpertStore {
    fn check_request(&mut self, layer: usize, experts: &[u32]) -> Result<(), ExpertError> {
        let expert_count =
            if layer < self.geometry.layer_count() { self.geometry.expert_count(layer) } else { 0 };
        let visit = &mut self.visit;
        visit.number += 1;
        for expert in experts {
            let mut times = 1;
            if (*expert as usize) < expert_count {
                let last = std::mem::replace(&mut visit.named_in[*expert as usize], visit.number);
                if last != visit.number {
                    continue;
                }
                times = 2;
            }
            let key = ExpertKey { layer: u32::try_from(layer).unwrap_or(u32::MAX), expert: *expert };
            return Err(ExpertError::Request { key, times, expert_count });
        }
        Ok(())
    }

    /// Pins what is in memory, lists what is not.
    fn open_visit(&mut self, layer: u32, experts: &[u32]) {
        let visit = &mut self.visit;
        visit.layer = layer;
        visit.experts.clear();
        visit.experts.extend_from_slice(experts);
        visit.first_stamp = self.clock;
        self.clock += experts.len() as u64;
        self.policy.begin_visit(layer, visit.first_stamp);
        for position in 0..experts.len() {
            let record = self.geometry.record_index(visit.key(position));
            self.uses[record] = self.uses[record].saturating_add(1);
            match self.slot_of_record[record] {
                Some(slot) => {
                    let slot = slot as usize;
                    let bytes = self.geometry.layer(layer as usize).used_bytes;
                    self.policy.used(slot, visit.first_stamp + position as u64);
                    if self.slots.state(slot) == SlotState::Loading {
                        self.ahead.in_flight -= 1;
                        visit.awaited.push(Pinned { position, slot });
                    } else {
                        self.slots.pin(slot);
                        visit.ready.push(Pinned { position, slot });
                    }
                    self.ahead.used(slot, bytes);
                }
                None => visit.pending.push(position),
            }
        }
        self.hits += visit.ready.len() as u64;
        self.misses += (visit.pending.len() + visit.awaited.len()) as u64;
        let loader = &self.loader;
        let (experts, layer) = (&visit.experts, visit.layer);
        visit.pending.sort_unstable_by_key(|position| {
            std::cmp::Reverse(loader.disk_position(ExpertKey { layer, expert: experts[*position] }))
        });
    }

    /// Starts to read pending experts as far as places and slots allow.
    fn start_loads(&mut self) -> Result<(), ExpertError> {
        while self.loader.has_room()
            && let Some(position) = self.visit.pending.last().copied()
        {
            let key = self.visit.key(position);
            let Some(slot) = self.acquire_slot(key) else { break };
            self.visit.pending.pop();
            self.visit.awaited.push(Pinned { position, slot });
            self.start_load(key, slot, self.visit.first_stamp + position as u64);
        }
        if self.visit.pending.is_empty() {
            self.start_ahead();
        }
        self.loader.submit()
    }

    /// Starts to read what will probably be needed, as far as needed reads leave room.
    fn start_ahead(&mut self) {
        while self.ahead.in_flight < self.ahead.in_flight_max
            && self.loader.has_room()
            && let Some(key) = self.ahead.wanted.pop()
        {
            if self.slot_of_record[self.geometry.record_index(key)].is_some() {
                continue;
            }
            let Some(slot) = self.acquire_slot(key) else { break };
            let bytes = self.geometry.layer(key.layer as usize).used_bytes;
            self.ahead.in_flight += 1;
            self.ahead.unused[slot] = true;
            self.ahead.statistics.records += 1;
            self.ahead.statistics.bytes += bytes as u64;
            self.start_load(key, slot, self.clock);
        }
    }

    /// Takes what has arrived into the slots; with `wait` at least one record, if any is in flight. Without a team
    /// everything that comes back is discarded. New reads start between one record and the next.
    fn land(&mut self, wait: bool, team: Option<&Team<'_>>) -> Result<(), ExpertError> {
        let mut landed = self.loader.next_landed(wait, &self.geometry, team)?;
        while let Some(Landed { key, destination: Destination { slot }, memory, result }) = landed {
            let awaited = self.visit.awaited.iter().position(|awaited| awaited.slot == slot);
            let awaited = awaited.map(|at| self.visit.awaited.swap_remove(at));
            if awaited.is_none() {
                self.ahead.in_flight -= 1;
            }
            match result {
                Ok(()) => {
                    self.slots.land(slot, memory);
                    if let Some(requested) = awaited {
                        self.slots.pin(slot);
                        self.visit.ready.push(requested);
                    }
                }
                Err(error) => {
                    self.abandon(key, slot, memory);
                    // What fails when nobody waits for it is tried again when somebody does.
                    if awaited.is_some() {
                        self.visit.errors.push(error);
                    }
                }
            }
            self.start_loads()?;
            if !self.loader.has_arrived() {
                break;
            }
            landed = self.loader.next_landed(false, &self.geometry, team)?;
        }
        Ok(())
    }

    fn release_handed_out(&mut self) {
        while let Some(pinned) = self.visit.handed_out.pop() {
            self.slots.unpin(pinned.slot);
        }
    }

    /// Waits for every read in flight, gives their memory back to the slots and unpins everything.
    ///
    /// Fails when the reader is broken and keeps the memory of its reads.
    fn close_visit(&mut self) -> Result<(), ExpertError> {
        self.visit.pending.clear();
        self.ahead.wanted.clear();
        self.release_handed_out();
        while let Some(pinned) = self.visit.ready.pop() {
            self.slots.unpin(pinned.slot);
        }
        let mut closed = Ok(());
        while !self.visit.awaited.is_empty() && closed.is_ok() {
            closed = self.land(true, None);
        }
        self.visit.errors.clear();
        closed
    }
}
