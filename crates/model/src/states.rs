//! Recurrent states in the pool of the KV cache: what layers without a row per position remember of a sequence.
//!
//! A slot holds the f32 state of all recurrent layers of one sequence at one length. A committed slot is never written: a pass
//! reads it, writes the sequence's next slot and exchanges the two when it commits, so a pass that fails or is left changes
//! nothing. That is why slots can have several owners, as pages have: a fork, a snapshot and the prefix tree own the state of a
//! length by counting, without a copy. States cannot be cut: a sequence goes back only to lengths at which somebody has kept its state
//! ([`KvPool::keep_state_at`]), else to its beginning, where the state is all zeros and takes no slot.
//! Refuses: choosing which states are worth keeping (`service/prefix.rs` of the engine does). Next: `kv.rs`, `recurrent/mod.rs`.

use std::ops::Range;

use arrayvec::ArrayVec;
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};
use coldpress_workers::Team;

use crate::error::{ModelError, PoolFull, PoolPart};
use crate::kv::{KvPool, Sequence};
use crate::spec::ModelSpec;

/// Lengths, beside its own, at which a sequence can have its state.
pub const KEPT_STATES_MAX: usize = 8;

/// f32 values that one chunk of a copied state takes.
const COPY_CHUNK: usize = 16 * 1024;

/// Bytes of state of one sequence, whatever its length; 0 without recurrent layers.
pub fn state_bytes(spec: &ModelSpec) -> usize {
    spec.state_lens().sum::<usize>() * size_of::<f32>()
}

/// The state of a sequence at a length, in a slot of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptState {
    /// Positions that it has seen.
    pub length: usize,
    /// Its slot.
    pub slot: u32,
}

/// The slots that a sequence owns.
#[derive(Debug, Default)]
pub(crate) struct SequenceStates {
    /// At the sequence's length; absent at length 0.
    committed: Option<u32>,
    /// What the next pass writes.
    next: Option<u32>,
    /// What the next pass writes beside that, in order of length.
    asked: ArrayVec<KeptState, KEPT_STATES_MAX>,
    /// Earlier states, in order of length.
    kept: ArrayVec<KeptState, KEPT_STATES_MAX>,
}

impl SequenceStates {
    /// The pass has succeeded: what it wrote is the state now.
    pub fn commit(&mut self) {
        if self.next.is_some() {
            std::mem::swap(&mut self.committed, &mut self.next);
            self.kept.extend(self.asked.drain(..));
        }
    }
}

/// See the module header.
pub(crate) struct StatePool {
    buffer: Buffer,
    /// Where each layer is in a slot, in f32 values.
    layers: Vec<Range<usize>>,
    slot_len: usize,
    /// Owners of each slot; 0 is a free one.
    owners: Vec<u32>,
    free: Vec<u32>,
}

impl StatePool {
    /// Reserves `slots` slots for layers with states of these lengths; none where no layer has any.
    pub fn new(
        ledger: &Ledger,
        lengths: impl Iterator<Item = usize>,
        slots: usize,
    ) -> Result<Self, ModelError> {
        let mut slot_len = 0;
        let place = |length: usize| {
            slot_len += length;
            slot_len - length..slot_len
        };
        let layers = lengths.map(place).collect();
        let slots = if slot_len == 0 { 0 } else { slots };
        let bytes = Bytes((slot_len * size_of::<f32>() * slots) as u64);
        let buffer = Buffer::new(ledger, Purpose::KvCache, bytes)?;
        let free = (0..slots as u32).rev().collect();
        Ok(Self { buffer, layers, slot_len, owners: vec![0; slots], free })
    }

    fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.owners[slot as usize] = 1;
        Some(slot)
    }

    fn retain(&mut self, slot: u32) {
        let owners = &mut self.owners[slot as usize];
        assert!(*owners > 0, "state {slot} is free and cannot be shared");
        *owners += 1;
    }

    fn release(&mut self, slot: u32) {
        let owners = &mut self.owners[slot as usize];
        assert!(*owners > 0, "state {slot} was given back before");
        *owners -= 1;
        if *owners == 0 {
            self.free.push(slot);
        }
    }

    fn is_shared(&self, slot: u32) -> bool {
        self.owners[slot as usize] > 1
    }

    fn release_all(&mut self, states: impl IntoIterator<Item = KeptState>) {
        states.into_iter().for_each(|kept| self.release(kept.slot));
    }

    fn place(&self, layer: usize, slot: u32) -> Range<usize> {
        let Range { start, end } = self.layers[layer].clone();
        let slot = slot as usize * self.slot_len;
        slot + start..slot + end
    }

    /// Copies a layer's part of a slot; from nowhere it is zeros.
    fn copy(&mut self, team: &Team<'_>, layer: usize, from: Option<u32>, to: u32) {
        let to = self.place(layer, to);
        let Some(from) = from.map(|from| self.place(layer, from)) else {
            return self.buffer.as_mut_slice_of::<f32>()[to].fill(0.0);
        };
        let all = self.buffer.as_mut_slice_of::<f32>();
        // Two different slots.
        let (from, to) = if from.start < to.start {
            let (before, behind) = all.split_at_mut(to.start);
            (&before[from], &mut behind[..to.end - to.start])
        } else {
            let (before, behind) = all.split_at_mut(from.start);
            (&behind[..from.end - from.start], &mut before[to])
        };
        team.for_each_part_mut(to, COPY_CHUNK, |part, to, _worker| {
            to.copy_from_slice(&from[part * COPY_CHUNK..][..to.len()]);
        });
    }
}

impl KvPool {
    /// Slots for recurrent states; 0 for models without any.
    pub fn state_slots(&self) -> usize {
        self.states.owners.len()
    }

    /// Slots that nobody has.
    pub fn state_slots_free(&self) -> usize {
        self.states.free.len()
    }

    /// Bytes of one slot; 0 for models without recurrent layers.
    pub fn state_bytes(&self) -> usize {
        self.states.slot_len * size_of::<f32>()
    }

    /// Whether the state of a sequence is needed to go on with it.
    pub fn has_states(&self) -> bool {
        self.states.slot_len > 0
    }

    /// Owners of a slot; 0 for a free one.
    pub fn state_owners(&self, slot: u32) -> usize {
        self.states.owners[slot as usize] as usize
    }

    /// Takes a free slot, to fill it.
    ///
    /// # Errors
    /// None is free.
    pub fn take_state(&mut self) -> Result<u32, PoolFull> {
        self.states.take().ok_or(PoolFull { part: PoolPart::States, needed: 1, free: 0 })
    }

    /// Adds an owner to a slot.
    ///
    /// # Panics
    /// The slot is free.
    pub fn retain_state(&mut self, slot: u32) {
        self.states.retain(slot);
    }

    /// Takes an owner from a slot; without one it is free.
    ///
    /// # Panics
    /// The slot is free already.
    pub fn release_state(&mut self, slot: u32) {
        self.states.release(slot);
    }

    /// The bytes of a slot, [`KvPool::state_bytes`] of them.
    pub fn state(&self, slot: u32) -> &[u8] {
        let bytes = self.state_bytes();
        &self.states.buffer.as_bytes()[slot as usize * bytes..][..bytes]
    }

    /// The bytes of a slot, to fill it.
    ///
    /// # Panics
    /// It has not exactly one owner.
    pub fn state_mut(&mut self, slot: u32) -> &mut [u8] {
        assert_eq!(self.state_owners(slot), 1, "state {slot} can be written by its only owner");
        let bytes = self.state_bytes();
        &mut self.states.buffer.as_bytes_mut()[slot as usize * bytes..][..bytes]
    }

    /// The state of `sequence` at its length, with one more owner; `None` at length 0 and for models without states.
    pub fn share_state(&mut self, sequence: &Sequence) -> Option<KeptState> {
        let slot = sequence.states.committed?;
        self.states.retain(slot);
        Some(KeptState { length: sequence.len(), slot })
    }

    /// Lets the next pass keep the state of `sequence` when it has seen `length` positions, more than it has now and no more than it
    /// was extended to. `false` where that is not possible: no slot is free, or too many were asked for. Lengths are asked for in
    /// order.
    pub fn keep_state_at(&mut self, sequence: &mut Sequence, length: usize) -> bool {
        let states = &mut sequence.states;
        let last = states.asked.last().map_or(sequence.length, |last| last.length);
        if states.next.is_none()
            || length <= last
            || states.kept.len() + states.asked.len() == KEPT_STATES_MAX
        {
            return false;
        }
        let Some(slot) = self.states.take() else { return false };
        states.asked.push(KeptState { length, slot });
        true
    }

    /// Keeps the state that `sequence` has now, to go back to. `false` where too many are kept, or there is none.
    pub fn keep_state(&mut self, sequence: &mut Sequence) -> bool {
        let (length, states) = (sequence.length, &mut sequence.states);
        let is_kept = states.kept.last().is_some_and(|kept| kept.length == length);
        let Some(slot) = states.committed.filter(|_| !is_kept && states.kept.len() < KEPT_STATES_MAX) else {
            return is_kept;
        };
        self.states.release_all(states.asked.drain(..));
        self.states.retain(slot);
        states.kept.push(KeptState { length, slot });
        true
    }

    /// Takes the states that a sequence kept at earlier lengths; they are the caller's to give back.
    pub fn take_kept_states(&mut self, sequence: &mut Sequence) -> ArrayVec<KeptState, KEPT_STATES_MAX> {
        std::mem::take(&mut sequence.states.kept)
    }

    /// Gives back the earliest state that a sequence kept; `false` if there is none.
    pub fn forget_kept_state(&mut self, sequence: &mut Sequence) -> bool {
        let earliest = (!sequence.states.kept.is_empty()).then(|| sequence.states.kept.remove(0));
        self.states.release_all(earliest);
        earliest.is_some()
    }

    /// Gives back what only a sequence that computes needs: the slot that its next pass would write.
    pub fn rest(&mut self, sequence: &mut Sequence) {
        self.states.release_all(sequence.states.asked.drain(..));
        let spare = sequence.states.next.take();
        spare.into_iter().for_each(|slot| self.states.release(slot));
    }

    /// The longest beginning of at most `length` positions that a sequence can go back to.
    pub fn reachable(&self, sequence: &Sequence, length: usize) -> usize {
        if !self.has_states() || length >= sequence.length {
            return length.min(sequence.length);
        }
        sequence.states.at_most(length).map_or(0, |kept| kept.length)
    }

    /// Takes what a pass needs: a slot of its own to write.
    pub(crate) fn extend_states(&mut self, sequence: &mut Sequence) -> Result<(), PoolFull> {
        if !self.has_states() {
            return Ok(());
        }
        let states = &mut sequence.states;
        self.states.release_all(states.asked.drain(..));
        if let Some(slot) = states.next.take_if(|slot| self.states.is_shared(*slot)) {
            self.states.release(slot);
        }
        if states.next.is_none() {
            states.next = Some(self.take_state()?);
        }
        Ok(())
    }

    /// Whether a pass may write a state.
    pub(crate) fn has_next_state(&self, sequence: &Sequence) -> bool {
        let mut written = sequence.states.next.into_iter();
        !self.has_states() || written.any(|slot| !self.states.is_shared(slot))
    }

    /// Gives `sequence` the state of its first `length` positions, and forgets all later ones.
    pub(crate) fn go_back(&mut self, sequence: &mut Sequence, length: usize) {
        let states = &mut sequence.states;
        let committed = states.at_most(length).filter(|kept| kept.length == length).map(|kept| kept.slot);
        committed.into_iter().for_each(|slot| self.states.retain(slot));
        if let Some(slot) = std::mem::replace(&mut states.committed, committed) {
            self.states.release(slot);
        }
        let later = states.kept.iter().position(|kept| kept.length > length);
        self.states.release_all(states.kept.drain(later.unwrap_or(states.kept.len())..));
        self.states.release_all(states.asked.drain(..));
    }

    /// Gives `fork`, which has the first positions of `sequence`, the state that belongs to them.
    pub(crate) fn share_state_with(&mut self, fork: &mut Sequence, sequence: &Sequence) {
        let slot = match fork.length == sequence.length {
            true => sequence.states.committed,
            false => sequence.states.at_most(fork.length).map(|kept| kept.slot),
        };
        if fork.length > 0 {
            self.set_state(fork, slot);
        }
    }

    /// Makes `slot`, of which it becomes an owner, the state of `sequence` at its length.
    pub(crate) fn set_state(&mut self, sequence: &mut Sequence, slot: Option<u32>) {
        slot.into_iter().for_each(|slot| self.states.retain(slot));
        sequence.states.committed = slot;
    }

    /// Gives back all slots of a sequence.
    pub(crate) fn release_states(&mut self, states: SequenceStates) {
        let SequenceStates { committed, next, asked, kept } = states;
        committed.into_iter().chain(next).for_each(|slot| self.states.release(slot));
        self.states.release_all(asked.into_iter().chain(kept));
    }

    /// The state of `layer` that a pass advances, before the sequence's first row: a copy of the committed one.
    pub(crate) fn begin_state(&mut self, team: &Team<'_>, layer: usize, sequence: &Sequence) {
        let SequenceStates { committed, next, .. } = sequence.states;
        self.states.copy(team, layer, committed, next.expect("the sequence was extended"));
    }

    /// The state of `layer` at the length of a sequence; `None` before its first position.
    pub(crate) fn committed_state(&self, layer: usize, sequence: &Sequence) -> Option<&[f32]> {
        let place = self.states.place(layer, sequence.states.committed?);
        Some(&self.states.buffer.as_slice_of::<f32>()[place])
    }

    /// The state of `layer` that a pass advances.
    pub(crate) fn next_state(&mut self, layer: usize, sequence: &Sequence) -> &mut [f32] {
        let place = self.states.place(layer, sequence.states.next.expect("the sequence was extended"));
        &mut self.states.buffer.as_mut_slice_of::<f32>()[place]
    }

    /// Keeps the state of `layer` where the pass has advanced it to one of the lengths that were asked for.
    pub(crate) fn keep_next_state(
        &mut self,
        team: &Team<'_>,
        layer: usize,
        sequence: &Sequence,
        length: usize,
    ) {
        let SequenceStates { next, asked, .. } = &sequence.states;
        for kept in asked.iter().filter(|kept| kept.length == length) {
            self.states.copy(team, layer, *next, kept.slot);
        }
    }
}

impl SequenceStates {
    /// The state at the longest length that is at most `length`.
    fn at_most(&self, length: usize) -> Option<KeptState> {
        self.kept.iter().rev().find(|kept| kept.length <= length).copied()
    }

    /// The next of the lengths that were asked for, after `length`.
    pub fn next_asked(&self, length: usize) -> Option<usize> {
        self.asked.iter().map(|kept| kept.length).find(|&asked| asked > length)
    }
}
