//! Slots come and go while the store works, as its [`StoreControl`] says.
//!
//! Memory is given back slab by slab, the one whose records were used least first, and only slabs that nobody reads and
//! nothing is read into; between two visits reads ahead are called off if need be. What was in a slab is read again when it
//! is asked for, so no answer changes. During a visit nearly every slab has a slot in use: then single slots are *hollowed*, their
//! pages given back at once, and their slabs follow at the end of the visit. A store that held every expert turns into one that streams; it stays one, and holds
//! every expert again when there is memory again. Nothing waits for a target that cannot be reached now: the next look goes on.

use std::sync::Arc;

use coldpress_memory::Bytes;

use crate::control::{Figure, StoreControl};
use crate::error::ExpertError;
use crate::slabs::{Restored, Slabs};
use crate::slots::{SlotState, SlotTable};
use crate::store::{ExpertStore, Residency};

impl ExpertStore {
    /// How others steer and watch this store.
    pub fn control(&self) -> Arc<StoreControl> {
        Arc::clone(&self.control)
    }

    /// Memory of all slots that exist.
    pub fn slot_bytes(&self) -> Bytes {
        Bytes(self.slabs.bytes())
    }

    /// Gives memory back or takes more as [`StoreControl::set_target`] says, now. Visits do the same by themselves; this is for
    /// times without visits.
    ///
    /// # Errors
    /// [`ExpertError::Reader`] when the reader is broken.
    pub fn follow_target(&mut self) -> Result<(), ExpertError> {
        self.follow(true)?;
        self.publish();
        Ok(())
    }

    /// The same during a forward pass, as seldom as it is needed: slots only go. A broken reader is reported by the next visit.
    pub fn follow_between_visits(&mut self) {
        if self.control.target().0 < self.slabs.bytes() {
            let _ = self.follow(true);
        }
    }

    /// Gives all slots back. The next visit takes as many again as the target allows.
    ///
    /// # Errors
    /// [`ExpertError::Reader`] when the reader is broken.
    pub fn release_slots(&mut self) -> Result<(), ExpertError> {
        self.call_off_heads()?;
        self.shrink_to(0, 0);
        self.publish();
        Ok(())
    }

    /// One look at the target. Between two visits nothing but heads is being read.
    pub(crate) fn follow(&mut self, between_visits: bool) -> Result<(), ExpertError> {
        if between_visits && !self.hollow.is_empty() {
            self.free_slots.append(&mut self.hollow);
        }
        let (target, held) = (self.control.target().0, self.slabs.bytes());
        if target < held {
            self.shrink(target, between_visits)?;
        } else if between_visits && target > held {
            self.grow(target);
        }
        if self.slabs.bytes() == 0 && between_visits {
            // A store without any slot could hand out nothing: take one slab whatever the target is.
            self.take_slab()?;
            self.resized();
        }
        Ok(())
    }

    fn shrink(&mut self, target: u64, between_visits: bool) -> Result<(), ExpertError> {
        if self.residency == Residency::Resident && !self.share_slots(between_visits) {
            return Ok(());
        }
        self.shrink_to(target, 1);
        if self.slabs.bytes() > target && between_visits && !self.ahead.heads.is_empty() {
            self.call_off_heads()?;
            self.shrink_to(target, 1);
        }
        if self.slabs.bytes() > target && !between_visits && !self.slabs.are_places() {
            self.hollow_to(target);
        }
        Ok(())
    }

    /// Gives the pages of idle slots back until what the others may hold is at most `target`, as far as there are idle ones. One
    /// slot stays: with it the visit can end. Slabs whose records were used least come first, as they do when slabs are given back.
    fn hollow_to(&mut self, target: u64) {
        let slot_bytes = self.slabs.slot_bytes();
        let kept = |store: &Self| store.slabs.slots() - store.hollow.len();
        let is_done = |store: &Self| kept(store) <= 1 || kept(store) as u64 * slot_bytes <= target;
        if is_done(self) {
            return;
        }
        let uses = |slab: &std::ops::Range<usize>| slab.clone().map(|slot| self.uses_of(slot)).sum::<u64>();
        let mut slabs: Vec<_> = self.slabs.present().map(|(_, slab)| slab.slots.clone()).collect();
        slabs.sort_by_cached_key(uses);
        for slot in slabs.into_iter().flatten() {
            if is_done(self) {
                return;
            }
            if self.slots.is_evictable(slot) {
                let key = self.slots.evict(slot);
                self.forget(key, slot);
                self.slots.discard(slot);
                self.hollow.push(slot);
            }
        }
    }

    fn uses_of(&self, slot: usize) -> u64 {
        self.slots.key(slot).map_or(0, |key| u64::from(self.uses[self.geometry.record_index(key)]))
    }

    /// Gives slabs back until at most `target` bytes are held, as far as they are idle, and keeps `slabs_min`.
    fn shrink_to(&mut self, target: u64, slabs_min: usize) {
        let before = self.slabs.bytes();
        while self.slabs.bytes() > target
            && self.slabs.present().count() > slabs_min
            && let Some(slab) = self.coldest_idle_slab()
        {
            self.give_back(slab);
        }
        if self.slabs.bytes() != before {
            self.resized();
        }
    }

    /// The slab that nobody uses whose records were used least.
    fn coldest_idle_slab(&self) -> Option<usize> {
        let is_idle =
            |slot: usize| matches!(self.slots.state(slot), SlotState::Free | SlotState::Resident { pins: 0 });
        let uses = |slot: usize| self.uses_of(slot);
        let idle = self.slabs.present().filter(|(_, slab)| slab.slots.clone().all(is_idle));
        let (slab, _) = idle.min_by_key(|(_, slab)| slab.slots.clone().map(uses).sum::<u64>())?;
        Some(slab)
    }

    fn give_back(&mut self, slab: usize) {
        let slots = self.slabs.slots_of(slab);
        for slot in slots.clone() {
            if self.slots.is_evictable(slot) {
                let key = self.slots.evict(slot);
                self.forget(key, slot);
            }
            self.slots.retire(slot);
        }
        self.free_slots.retain(|slot| !slots.contains(slot));
        self.hollow.retain(|slot| !slots.contains(slot));
        self.slabs.give_back(slab);
    }

    /// Takes slabs as long as the target and the ledger allow and there are experts without a slot.
    fn grow(&mut self, target: u64) {
        let before = self.slabs.bytes();
        let records = self.geometry.record_count();
        while let Some(bytes) = self.slabs.next_bytes(records)
            && self.slabs.bytes().saturating_add(bytes) <= target
            && self.take_slab().is_ok()
        {}
        if self.slabs.bytes() != before {
            self.resized();
        }
    }

    fn take_slab(&mut self) -> Result<(), ExpertError> {
        let Some(restored) = self.slabs.restore(self.geometry.record_count())? else { return Ok(()) };
        let Restored { slots, memory } = restored;
        let mut memory = memory.into_iter();
        for slot in slots.clone() {
            self.slots.restore(slot, memory.next());
        }
        self.free_slots.splice(0..0, slots.rev());
        Ok(())
    }

    /// Every expert had a slot of its own; from now on all share them. Where records differ in size the slots do too, and
    /// only new ones fit all records: that has to wait for the end of a visit. Returns whether it is done.
    fn share_slots(&mut self, between_visits: bool) -> bool {
        let size = self.geometry.record_bytes_max();
        let equal =
            (0..self.geometry.layer_count()).all(|layer| self.geometry.layer(layer).record_bytes == size);
        if !equal && !between_visits {
            return false;
        }
        self.residency = Residency::Streamed { slots: self.slabs.slots() };
        let is_free = |slot: &usize| self.slots.state(*slot) == SlotState::Free;
        self.free_slots = (0..self.slots.len()).rev().filter(is_free).collect();
        if !equal {
            let total = usize::try_from(self.slabs.bytes()).unwrap_or(usize::MAX);
            self.shrink_to(0, 0);
            self.slabs = Slabs::new(self.slabs.ledger(), size, total, false);
            self.slots = SlotTable::new(Vec::new());
            self.grow(self.control.target().0);
        }
        true
    }

    /// Forgets what is being read ahead and waits for it.
    fn call_off_heads(&mut self) -> Result<(), ExpertError> {
        self.forget_heads();
        while self.ahead.forgotten > 0 && self.land(true, None)? {}
        Ok(())
    }

    /// Tells everybody who counts slots how many there are.
    fn resized(&mut self) {
        let slots = self.slabs.slots();
        self.policy.resize(self.slots.len(), slots);
        match &mut self.residency {
            Residency::Resident => {}
            Residency::Streamed { slots: count }
            | Residency::Paged { slots: count }
            | Residency::Mapped { places: count, .. } => *count = slots,
        }
    }

    /// Shows the figures of this moment to others.
    pub(crate) fn publish(&self) {
        let control = &self.control;
        control.publish(Figure::SlotBytes, self.slabs.bytes());
        control.publish(Figure::Slots, self.slabs.slots() as u64);
        control.publish(Figure::Resident, self.resident.records);
        control.publish(Figure::ResidentBytes, self.resident.bytes);
        control.publish(Figure::Hits, self.hits);
        control.publish(Figure::Misses, self.misses);
        control.publish(Figure::BytesRead, self.loader.statistics().0.bytes_read);
        let rows = self.row_statistics();
        control.publish(Figure::RowsAsked, rows.asked);
        control.publish(Figure::RowHits, rows.hits);
        control.publish(Figure::RowMisses, rows.misses);
        control.publish(Figure::RowBytesRead, rows.bytes_read);
        control.publish(Figure::RowWait, rows.wait_us);
        control.publish(Figure::RowLatencyP50, rows.latency.quantile_us(0.5));
        control.publish(Figure::RowLatencyP99, rows.latency.quantile_us(0.99));
    }
}
