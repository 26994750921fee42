//! What a forward pass tells the service while it runs: how far prompts are, who is not wanted any more, and logits.

use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use coldpress_model::{ForwardObserver, KvPool, Sequence};

use super::PARALLEL_MAX;
use super::answer::{Chooser, Told};
use super::client::Shared;
use super::keeping::give_back;
use super::prefix::PrefixTree;
use super::snapshots::Snapshots;
use crate::keeper::lock;
use crate::sampling::Sampler;

/// One request's part of a pass.
pub(super) struct Part<'a> {
    pub id: u64,
    pub rows: usize,
    /// Tokens before them.
    pub from: usize,
    /// Those tokens.
    pub known: &'a [u32],
    pub told: &'a mut Told,
    pub cancelled: &'a AtomicBool,
    pub chooser: &'a mut Chooser,
}

/// A request that runs and has no row in a pass.
pub(super) struct Resting<'a> {
    pub id: u64,
    pub cancelled: &'a AtomicBool,
    /// Tokens whose keys and values are in `sequence`.
    pub known: &'a [u32],
    pub sequence: &'a mut Sequence,
}

/// Watches a pass for requests that nobody wants any more, and chooses tokens at its end.
pub(super) struct Pass<'a> {
    pub parts: ArrayVec<Part<'a>, PARALLEL_MAX>,
    pub resting: ArrayVec<Resting<'a>, PARALLEL_MAX>,
    pub sampler: &'a mut Sampler,
    pub shared: &'a Shared,
    pub prefix: &'a mut PrefixTree,
    pub snapshots: Option<&'a mut Snapshots>,
}

impl ForwardObserver for Pass<'_> {
    fn layer_done(&mut self, layer: usize, layers: usize) -> bool {
        for part in self.parts.iter_mut().filter(|part| part.rows > 1) {
            part.told.prefill(part.from + part.rows * (layer + 1) / layers);
        }
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn leaves(&mut self, segment: usize, pool: &mut KvPool, sequence: &mut Sequence) -> bool {
        // Those that have no row in this pass wait for its end like the others.
        while let Some(left) = self.resting.iter().position(|resting| is_set(resting.cancelled)) {
            let Resting { id, known, sequence, .. } = self.resting.swap_remove(left);
            self.give_back(id, known, sequence, pool);
        }
        let part = &self.parts[segment];
        if !is_set(part.cancelled) {
            return false;
        }
        self.give_back(part.id, part.known, sequence, pool);
        true
    }

    fn logits(&mut self, segment: usize, _row: usize, logits: &mut [f32]) {
        self.parts[segment].chooser.choose(self.sampler, logits);
    }
}

fn is_set(cancelled: &AtomicBool) -> bool {
    cancelled.load(Ordering::Relaxed)
}

impl Pass<'_> {
    /// Whoever is not wanted any more gives its place and its pages back now, and not when the others are done: what it had
    /// computed before this pass stays in the tree as long as nobody needs the pages.
    fn give_back(&mut self, id: u64, known: &[u32], sequence: &mut Sequence, pool: &mut KvPool) {
        let given_back = std::mem::replace(sequence, Sequence::new(0));
        give_back(self.prefix, self.snapshots.as_deref_mut(), pool, known, given_back);
        let mut figures = lock(&self.shared.figures);
        figures.running.retain(|running| running.id != id);
        figures.prefix.free_pages = pool.pages_free();
        figures.prefix.cached_pages = self.prefix.pages();
    }
}
