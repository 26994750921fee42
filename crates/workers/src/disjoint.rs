//! Parts of one slice for the chunks of one region, without a lock and without `unsafe` at the call site.
//!
//! Obligation: no two live references to the same element. Parts of different chunks do not overlap, and a region
//! runs each chunk once.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A slice cut into parts of `part_len` elements, the last possibly shorter.
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    part_len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing `Parts` lets threads obtain `&mut T` to different elements, which is what `T: Send` allows.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T], part_len: usize) -> Self {
        assert!(part_len > 0, "a slice cannot be cut into parts of no elements");
        Self { start: slice.as_mut_ptr(), len: slice.len(), part_len, slice: PhantomData }
    }

    pub(crate) fn count(&self) -> usize {
        self.len.div_ceil(self.part_len)
    }

    /// The elements of part `index`.
    ///
    /// # Safety
    /// While the result lives nobody else asks for the same `index`.
    #[expect(clippy::mut_from_ref, reason = "parts of different indices do not overlap")]
    pub(crate) unsafe fn part(&self, index: usize) -> &mut [T] {
        assert!(index < self.count(), "part {index} of {}", self.count());
        let first = index * self.part_len;
        let len = self.part_len.min(self.len - first);
        // SAFETY: `first + len <= self.len`, the slice is mutably borrowed for `'a`, and by the contract of this function
        // no other reference to these elements exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}

/// Runs `body(part index, part, worker)` for every part of `slice` as one region of `team`.
pub(crate) fn for_each_part_mut<T, F>(team: &crate::Team<'_>, slice: &mut [T], part_len: usize, body: F)
where
    T: Send,
    F: Fn(usize, &mut [T], usize) + Sync,
{
    let parts = Parts::new(slice, part_len);
    team.for_each_chunk(parts.count(), |chunk, worker| {
        // SAFETY: a region runs each chunk once, so this is the only request for the part.
        body(chunk, unsafe { parts.part(chunk) }, worker);
    });
}

/// Runs `body(chunk, scratch of the worker)` for every chunk as one region of `team`.
pub(crate) fn for_each_chunk_with<S, F>(
    team: &crate::Team<'_>,
    scratch: &mut [S],
    chunk_count: usize,
    body: F,
) where
    S: Send,
    F: Fn(usize, &mut S) + Sync,
{
    assert!(scratch.len() >= team.threads(), "{} scratches for {} threads", scratch.len(), team.threads());
    let parts = Parts::new(scratch, 1);
    team.for_each_chunk(chunk_count, |chunk, worker| {
        // SAFETY: one thread holds a worker index for the length of a region and runs its chunks one after the other.
        let [scratch] = (unsafe { parts.part(worker) }) else { unreachable!("parts of one element") };
        body(chunk, scratch);
    });
}
