//! Which thread computes what, and in which part of the scratch memory.
//!
//! Many rows: a chunk is a part of the heads of a KV head and a block of rows, and goes through its spans alone. Few
//! rows (decode): there are too few such chunks, so the spans of a part are chunks too; their states are merged
//! after every wave of spans. Both ways call the same functions in the same order for every query.
#![allow(unsafe_code)]

use coldpress_workers::Team;

use super::AttentionShape;
use super::span::{Problem, Unit, attend_span, work_len};
use super::state::{State, finish, merge, state_len};
use crate::Kernels;
use crate::vector::simd::LANES;
use crate::vector::spans::SharedSlice;

/// Query vectors of a chunk: enough to pay for unpacking a block of keys, few enough for the level 2 cache.
const UNIT_VECTORS: usize = 128;
/// Query vectors per part up to which spans run side by side.
const SPLIT_VECTORS: usize = 32;
/// Chunks per thread in one region.
const CHUNKS_PER_THREAD: usize = 8;

/// Most rows of one chunk.
fn unit_rows(shape: &AttentionShape) -> usize {
    (UNIT_VECTORS / shape.part_heads()).max(1)
}

/// Most rows of a call whose spans run side by side.
fn split_rows(shape: &AttentionShape) -> usize {
    (SPLIT_VECTORS / shape.part_heads()).max(1)
}

/// Parts of all KV heads.
fn all_parts(shape: &AttentionShape) -> usize {
    shape.kv_heads * shape.parts()
}

/// The unit of part number `part` of all.
fn unit(shape: &AttentionShape, part: usize, first_row: usize, end_row: usize) -> Unit {
    let first_head = part % shape.parts() * shape.part_heads();
    let heads = shape.part_heads().min(shape.group() - first_head);
    Unit { kv_head: part / shape.parts(), first_head, heads, first_row, end_row }
}

/// Spans of a part in one wave.
fn wave_spans(shape: &AttentionShape, threads: usize) -> usize {
    (CHUNKS_PER_THREAD * threads).div_ceil(all_parts(shape))
}

/// See [`AttentionShape::scratch_len`].
pub(super) fn scratch_len(shape: &AttentionShape, rows: usize, threads: usize) -> usize {
    let row_vectors = shape.head_dim.div_ceil(LANES);
    let vectors = rows.min(unit_rows(shape)) * shape.part_heads();
    let split_vectors = rows.min(split_rows(shape)) * shape.part_heads();
    let direct_states = 2 * threads * state_len(vectors, row_vectors);
    let split_states =
        all_parts(shape) * (wave_spans(shape, threads) + 1) * state_len(split_vectors, row_vectors);
    let alignment = LANES - 1;
    threads * work_len(vectors, row_vectors) + direct_states.max(split_states) + alignment
}

/// Runs a checked call.
pub(super) fn run(
    team: &Team<'_>,
    kernels: Kernels,
    problem: &Problem<'_>,
    rows: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    if rows == 0 {
        return;
    }
    let unaligned = scratch.as_ptr().align_offset(size_of::<[f32; LANES]>()).min(LANES - 1);
    let scratch = &mut scratch[unaligned..];
    if rows <= split_rows(&problem.shape) && problem.spans(&(0..rows)).len() > 1 {
        run_spans(team, kernels, problem, rows, out, scratch);
    } else {
        run_row_blocks(team, kernels, problem, rows, out, scratch);
    }
}

/// The outputs of a unit's rows. The caller must not run two of these for the same unit at once.
fn write_out(
    kernels: Kernels,
    problem: &Problem<'_>,
    unit: &Unit,
    state: &mut [f32],
    out: &SharedSlice<'_, f32>,
) {
    let head_dim = problem.shape.head_dim;
    let width = unit.heads * head_dim;
    for row in unit.rows() {
        let start = row * problem.shape.query_row_len() + unit.query_head(problem) * head_dim;
        // SAFETY: a row and query head is in one unit only, and each unit is written by one chunk.
        let part = unsafe { out.part(start..start + width) };
        finish(kernels, problem, unit, state, row, part);
    }
}

fn run_row_blocks(
    team: &Team<'_>,
    kernels: Kernels,
    problem: &Problem<'_>,
    rows: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = &problem.shape;
    let row_vectors = problem.row_vectors();
    let parts = all_parts(shape);
    let fair_share = (rows * parts).div_ceil(CHUNKS_PER_THREAD * team.threads());
    let block_rows = fair_share.clamp(1, unit_rows(shape).min(rows));
    let blocks = rows.div_ceil(block_rows);
    let vectors = block_rows * shape.part_heads();
    let (work_len, state_len) = (work_len(vectors, row_vectors), state_len(vectors, row_vectors));
    let worker_len = work_len + 2 * state_len;
    let (scratch, out) = (SharedSlice::new(scratch), SharedSlice::new(out));
    team.for_each_chunk(blocks * parts, |chunk, worker| {
        // The last rows see the most keys: they go first, so that no thread starts a long chunk at the end.
        let first_row = (blocks - 1 - chunk / parts) * block_rows;
        let unit = unit(shape, chunk % parts, first_row, rows.min(first_row + block_rows));
        // SAFETY: a worker index is held by one thread at a time.
        let memory = unsafe { scratch.part(worker * worker_len..(worker + 1) * worker_len) };
        let (work, states) = memory.split_at_mut(work_len);
        let (state, total) = states.split_at_mut(state_len);
        State::new(total, unit.vectors(), row_vectors).clear();
        for span in problem.spans(&unit.rows()) {
            attend_span(kernels, problem, &unit, span, work, state);
            merge(kernels, problem, &unit, span, state, total);
        }
        write_out(kernels, problem, &unit, total, &out);
    });
}

fn run_spans(
    team: &Team<'_>,
    kernels: Kernels,
    problem: &Problem<'_>,
    rows: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let parts = all_parts(&problem.shape);
    let row_vectors = problem.row_vectors();
    let vectors = rows * problem.shape.part_heads();
    let (work_len, state_len) = (work_len(vectors, row_vectors), state_len(vectors, row_vectors));
    let unit = |part| unit(&problem.shape, part, 0, rows);
    let (work, states) = scratch.split_at_mut(team.threads() * work_len);
    let (totals, states) = states.split_at_mut(parts * state_len);
    for total in totals.chunks_exact_mut(state_len) {
        State::new(total, vectors, row_vectors).clear();
    }
    let work = SharedSlice::new(work);
    let totals = SharedSlice::new(totals);
    let states = SharedSlice::new(states);
    let spans = problem.spans(&(0..rows));
    let wave_spans = wave_spans(&problem.shape, team.threads());
    for first_span in spans.clone().step_by(wave_spans) {
        let count = wave_spans.min(spans.end - first_span);
        team.for_each_chunk(count * parts, |chunk, worker| {
            // SAFETY: a worker index is held by one thread at a time.
            let work = unsafe { work.part(worker * work_len..(worker + 1) * work_len) };
            // SAFETY: each chunk has a state of its own, and no other region runs meanwhile.
            let state = unsafe { states.part(chunk * state_len..(chunk + 1) * state_len) };
            attend_span(kernels, problem, &unit(chunk % parts), first_span + chunk / parts, work, state);
        });
        team.for_each_chunk(parts, |part, _| {
            // SAFETY: each chunk has a total of its own.
            let total = unsafe { totals.part(part * state_len..(part + 1) * state_len) };
            for span in 0..count {
                let start = (span * parts + part) * state_len;
                // SAFETY: states of one part are read by one chunk only.
                let state = unsafe { states.part(start..start + state_len) };
                merge(kernels, problem, &unit(part), first_span + span, state, total);
            }
        });
    }
    let out = SharedSlice::new(out);
    for part in 0..parts {
        // SAFETY: no region runs any more.
        let total = unsafe { totals.part(part * state_len..(part + 1) * state_len) };
        write_out(kernels, problem, &unit(part), total, &out);
    }
}
