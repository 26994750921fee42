//! One visit: the experts that a layer needs now, handed out as they arrive.
//!
//! ```text
//!   requested -- in memory: pinned --------------------------> ready -> handed out (pinned) -> unpinned
//!            \-- pending -- slot and place free: reading ----/
//!                                              \-- failed: one error
//! ```
//!
//! Every requested expert is either handed out once or reported by exactly one error; after an error the others are still
//! to be had. Dropping a visit waits for its reads and unpins everything; the heads of the next layer's records stay.

use std::time::Instant;

use coldpress_workers::Team;

use crate::ahead::{Guess, Head};
use crate::error::ExpertError;
use crate::geometry::ExpertKey;
use crate::loader::{Destination, Landed};
use crate::record::RecordRef;
use crate::store::ExpertStore;

/// Records handed out at once by a visit to many: what is computed with them is the time between two looks at how much memory slots
/// may take. A visit to no more than twice as many hands out all that it has.
const HANDED_OUT_MAX: usize = 16;

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
    /// Records whose heads were there or on their way.
    heads_taken: usize,
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
            heads_taken: 0,
            first_stamp: 0,
            named_in: vec![0; expert_count_max],
            number: 0,
        }
    }

    /// Whether every requested record is in memory: none is being read or has yet to be.
    fn has_all(&self) -> bool {
        self.pending.is_empty() && self.awaited.is_empty()
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
        store.follow(true)?;
        let visit = Self { store };
        let no_heads = visit.store.ahead.heads.is_empty();
        let heads_arrived = no_heads || visit.store.loader.heads_have_arrived()?;
        if let Some(timeline) = &mut visit.store.timeline {
            timeline.reaped();
        }
        visit.store.note_use(layer, experts);
        visit.store.open_visit(layer as u32, experts);
        visit.store.settle_heads(heads_arrived);
        visit.store.start_loads()?;
        Ok(visit)
    }

    /// Number of experts of routed layer `layer`.
    pub fn expert_count(&self, layer: usize) -> usize {
        self.store.geometry.expert_count(layer)
    }

    /// As [`ExpertStore::is_in_memory`], while the visit lasts.
    pub fn is_in_memory(&self, layer: usize, expert: usize) -> bool {
        self.store.is_in_memory(layer, expert)
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
        store.follow(false)?;
        store.start_loads()?;
        loop {
            let visit = &store.visit;
            let nothing_ready = visit.ready.is_empty() && visit.errors.is_empty();
            if nothing_ready && visit.has_all() {
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
                let few = visit.experts.len() <= 2 * HANDED_OUT_MAX;
                let count = if few { visit.ready.len() } else { visit.ready.len().min(HANDED_OUT_MAX) };
                visit.handed_out.extend(visit.ready.drain(..count));
                return Ok(Some(Ready { store }));
            }
        }
    }

    /// Whether the device has nothing to do for the rest of this visit, or the caller has nothing to do without it: the
    /// moment to find out what to name with [`Visit::prefetch`].
    pub fn is_idle(&self) -> bool {
        let visit = &self.store.visit;
        visit.has_all() || visit.ready.is_empty() && visit.errors.is_empty()
    }

    /// Names experts of the layer to be visited next, the most probable first. Their records are begun when nothing that is
    /// needed waits, until that visit begins; what was named before is forgotten.
    pub fn prefetch(&mut self, layer: usize, experts: impl DoubleEndedIterator<Item = u32>, guess: Guess) {
        self.store.name_ahead(layer, experts, guess);
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
    /// Names what is begun when nothing that is needed waits.
    pub(crate) fn name_ahead(
        &mut self,
        layer: usize,
        experts: impl DoubleEndedIterator<Item = u32>,
        guess: Guess,
    ) {
        self.ahead.name(guess, self.visit.has_all());
        let count = self.geometry.expert_count(layer) as u32;
        let keys = experts.rev().filter(|&expert| expert < count);
        self.ahead.wanted.extend(keys.map(|expert| ExpertKey { layer: layer as u32, expert }));
        // A read that cannot start now is no failure: nobody waits for it.
        let _ = self.start_loads();
    }

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
        visit.heads_taken = 0;
        visit.first_stamp = self.clock;
        self.clock += experts.len() as u64;
        self.policy.begin_visit(layer, visit.first_stamp);
        for position in 0..experts.len() {
            let key = self.visit.key(position);
            let stamp = self.visit.first_stamp + position as u64;
            let record = self.geometry.record_index(key);
            self.uses[record] = self.uses[record].saturating_add(1);
            if let Some(slot) = self.slot_of_record[record] {
                let slot = slot as usize;
                self.policy.used(slot, stamp);
                self.slots.pin(slot);
                self.visit.ready.push(Pinned { position, slot });
            } else if let Some(Head { slot, .. }) = self.ahead.take(key) {
                self.occupy(key, slot, stamp);
                if let Some(timeline) = &mut self.timeline {
                    timeline.needed(slot, self.geometry.layer(layer as usize).record_bytes);
                }
                self.loader.finish_head(Destination { slot });
                self.visit.heads_taken += 1;
                self.visit.awaited.push(Pinned { position, slot });
            } else {
                self.visit.pending.push(position);
            }
        }
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.record(layer as usize, experts, self.visit.ready.iter().map(|pinned| pinned.position));
        }
        let visit = &mut self.visit;
        let missing = visit.pending.len() + visit.awaited.len();
        self.hits += visit.ready.len() as u64;
        self.misses += missing as u64;
        self.ahead.needed(missing * self.geometry.layer(layer as usize).record_bytes);
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
            let Some(slot) = self.acquire_slot(key, key.layer) else { break };
            self.visit.pending.pop();
            self.visit.awaited.push(Pinned { position, slot });
            self.start_load(key, slot, self.visit.first_stamp + position as u64);
        }
        if self.visit.pending.is_empty() {
            self.start_ahead();
        }
        self.loader.submit()
    }

    /// Forgets the heads that are not asked for; `arrived` says whether all heads had been read when the visit began.
    fn settle_heads(&mut self, arrived: bool) {
        if self.ahead.heads.is_empty() && self.visit.heads_taken == 0 {
            return;
        }
        let somebody_waits = !self.visit.pending.is_empty() || self.visit.heads_taken > 0;
        if somebody_waits {
            self.ahead.observe(arrived, self.visit.heads_taken > 0);
        }
        self.forget_heads();
    }

    /// Whatever heads there are, nobody needs them.
    pub(crate) fn forget_heads(&mut self) {
        for Head { slot, .. } in self.ahead.heads.drain(..) {
            if let Some(timeline) = &mut self.timeline {
                timeline.forgotten(slot);
            }
            self.loader.cancel_head(Destination { slot });
            self.ahead.forgotten += 1;
        }
    }

    /// Begins what the next layer will probably ask for.
    fn start_ahead(&mut self) {
        let certain = self.ahead.guess == Guess::Certain;
        // A guess shares the device with nothing that somebody waits for.
        if !certain && !self.visit.awaited.is_empty() {
            return;
        }
        while self.ahead.bytes_left > 0
            && self.ahead.heads.len() + self.ahead.forgotten < self.ahead.heads_max
            && self.loader.has_room()
            && let Some(key) = self.ahead.wanted.pop()
        {
            if self.slot_of_record[self.geometry.record_index(key)].is_some() {
                continue;
            }
            // When every expert of the next layer is needed, giving one up for another would gain nothing.
            let giving = if certain { self.visit.layer } else { key.layer };
            let Some(slot) = self.acquire_slot(key, giving) else { break };
            let bytes = self.ahead.bytes_left.min(self.geometry.layer(key.layer as usize).record_bytes);
            let memory = self.slots.begin_load(slot, key);
            let bytes = self.loader.start_head(key, Destination { slot }, memory, bytes);
            if let Some(timeline) = &mut self.timeline {
                timeline.begun(key, slot, bytes, true);
            }
            self.ahead.heads.push(Head { key, slot, bytes });
            self.ahead.begun(bytes);
        }
    }

    /// Takes what has arrived into the slots; with `wait` at least one record, if any is in flight. Without a team
    /// everything that comes back is discarded. New reads start between one record and the next. Returns whether anything came.
    pub(crate) fn land(&mut self, wait: bool, team: Option<&Team<'_>>) -> Result<bool, ExpertError> {
        let mut landed = self.next_landed(wait, team)?;
        let anything = landed.is_some();
        while let Some(Landed { key, destination: Destination { slot }, memory, result }) = landed {
            let awaited = self.visit.awaited.iter().position(|awaited| awaited.slot == slot);
            let awaited = awaited.map(|at| self.visit.awaited.swap_remove(at));
            match (result, awaited) {
                (Ok(()), Some(requested)) => {
                    self.slots.land(slot, memory);
                    self.slots.pin(slot);
                    self.visit.ready.push(requested);
                }
                (Err(error), Some(_)) => {
                    self.forget(key, slot);
                    self.abandon(slot, memory);
                    self.visit.errors.push(error);
                }
                // A head that nobody needs. What failed there is tried again when somebody does.
                (_, None) => {
                    self.ahead.forgotten -= 1;
                    self.abandon(slot, memory);
                    if self.slot_of_record[self.geometry.record_index(key)].is_none() {
                        self.loader.left(key);
                    }
                }
            }
            self.start_loads()?;
            if !self.loader.has_arrived() {
                break;
            }
            landed = self.next_landed(false, team)?;
        }
        Ok(anything)
    }

    /// One record from the loader, written down if somebody asks for it.
    fn next_landed(&mut self, wait: bool, team: Option<&Team<'_>>) -> Result<Option<Landed>, ExpertError> {
        let Some(timeline) = &mut self.timeline else {
            return self.loader.next_landed(wait, &self.geometry, team);
        };
        let had_arrived = self.loader.has_arrived();
        let (loads, reads) = self.loader.statistics();
        let began = Instant::now();
        let landed = self.loader.next_landed(wait, &self.geometry, team)?;
        let (loads_after, reads_after) = self.loader.statistics();
        let arrange_us = loads_after.arrange_us - loads.arrange_us;
        timeline.worked(began, reads_after.wait_us - reads.wait_us, arrange_us);
        if let Some(Landed { destination, result, .. }) = &landed {
            let result = result.as_ref().map(|_| ()).map_err(|_| ());
            timeline.landed(destination.slot, had_arrived, arrange_us, result);
        }
        Ok(landed)
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
        // What is awaited is in flight, unless a panic lost it on the way: then nothing comes, and this must not wait for it.
        let mut closed = Ok(true);
        while !self.visit.awaited.is_empty() && matches!(closed, Ok(true)) {
            closed = self.land(true, None);
        }
        self.visit.errors.clear();
        closed.map(|_| ())
    }
}
