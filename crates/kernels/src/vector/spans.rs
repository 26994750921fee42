//! Cutting the output of a row-wise operation into spans that the threads of a team claim.
//!
//! Every operation here works on each row alone, so the cut changes no result; it only has to be worth a
//! region.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use coldpress_workers::Team;

use super::simd::LANES;

/// Elements below which a second thread costs more than it saves (a few microseconds of work).
const SPAN_ELEMENTS: usize = 16 * 1024;
/// Spans per thread, so that a late thread does not hold up the others for long.
const SPANS_PER_THREAD: usize = 4;

/// A mutable slice of which several threads hold disjoint parts.
#[derive(Debug)]
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for `&mut [T]`; parts are disjoint by the contract of `part`, so sharing it only moves
// `&mut T`s.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The first element.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// Elements in the slice.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Part of the slice. Panics when the range is not inside.
    ///
    /// # Safety
    /// No other part that overlaps this one is alive.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?} of a slice of {}",
            self.len
        );
        // SAFETY: inside the slice that was borrowed for 'a, and disjoint from other parts by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// Calls `body(elements, their part of out)` for spans that cover `out`.
pub(crate) fn for_each_span<T, F>(team: &Team<'_>, out: &mut [T], body: F)
where
    T: Send,
    F: Fn(Range<usize>, &mut [T]) + Sync,
{
    let per_span = rows_per_span(team, out.len(), 1).next_multiple_of(LANES);
    run(team, out, 1, per_span, body);
}

/// Calls `body(rows, their part of out)` for spans of rows that cover `out`, `[rows, row_len]`.
pub(crate) fn for_each_row_span<F>(team: &Team<'_>, out: &mut [f32], row_len: usize, body: F)
where
    F: Fn(Range<usize>, &mut [f32]) + Sync,
{
    let per_span = rows_per_span(team, out.len(), row_len);
    run(team, out, row_len, per_span, body);
}

fn rows_per_span(team: &Team<'_>, elements: usize, row_len: usize) -> usize {
    let spans = (elements / SPAN_ELEMENTS).clamp(1, SPANS_PER_THREAD * team.threads());
    (elements / row_len).div_ceil(spans)
}

fn run<T, F>(team: &Team<'_>, out: &mut [T], row_len: usize, rows_per_span: usize, body: F)
where
    T: Send,
    F: Fn(Range<usize>, &mut [T]) + Sync,
{
    let rows = out.len() / row_len;
    if rows == 0 {
        return;
    }
    let shared = SharedSlice::new(out);
    team.for_each_chunk(rows.div_ceil(rows_per_span), |span, _| {
        let span = span * rows_per_span..rows.min((span + 1) * rows_per_span);
        // SAFETY: the spans of different chunks do not overlap, and each chunk runs once.
        let part = unsafe { shared.part(span.start * row_len..span.end * row_len) };
        body(span, part);
    });
}
