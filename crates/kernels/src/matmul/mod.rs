//! Matrix products: packed weights times rows of activations, many matrices in one parallel region.
//!
//! Owns the definition of a product (scalar.rs), its twins per instruction set, and how work is cut into chunks. A
//! result is one lane of one group: `acc = 0`, then for each step of 32 columns in order
//!
//! ```text
//! acc = fma(weight_scale * activation_scale, isum as f32, acc)      isum: exact integer sum over the step
//! acc = fma(weight_minimum, activation_scale * sum of activations as f32, acc)    formats with a minimum
//! ```
//!
//! (Formats with scales of 16 columns: isum = factor_0 * isum_0 + factor_1 * isum_1 over the half steps, in f32 as
//! `fma(factor_1, isum_1, factor_0 * isum_0)` where factors are floats, NVFP4. Q2_K: the minimum is `-(minimum *
//! activation_scale)` times an integer sum that is weighed the same way. Float weights: `acc = fma(w, x, acc)` in column order; so the values of codes.) So it never depends on the rows beside it, on tiles, threads or the instruction set. Every function
//! compiled for an instruction set is a row of [`entries`]; a new one is tested by being there.
#![allow(unsafe_code)]

mod coded;
mod codes;
mod dispatch;
mod driver;
mod gated;
mod scalar;
mod step_scales;
mod tile;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

use coldpress_workers::Team;

pub use dispatch::entries;
pub use gated::{Activation, GatedJob, gated};

use crate::Kernels;
use crate::activations::InputRows;
use crate::layout::{GROUP_ROWS, MatrixRef, row_groups};
use crate::vector::spans::SharedSlice;
use driver::Span;

/// Weights that a chunk should at least read: below this, claiming chunks costs more than it balances.
const CHUNK_BYTES_MIN: usize = 32 * 1024;

/// Chunks per worker that the work is cut into, so that a late worker leaves little to wait for.
const CHUNKS_PER_WORKER: usize = 32;

/// One product: `output[n, rows] = input[n, columns] * weights[rows, columns]^T`.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    weights: MatrixRef<'a>,
    input: InputRows<'a>,
    output: *mut f32,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer stands for the `&'a mut [f32]` given to `new`, and a mutable slice of f32 is `Send`.
unsafe impl Send for MatmulJob<'_> {}
// SAFETY: a shared job can only be run, and `run` asks its callers for different groups, hence different outputs.
unsafe impl Sync for MatmulJob<'_> {}

impl<'a> MatmulJob<'a> {
    /// `output` is `[input.rows(), weights.rows()]`, row-major, and is overwritten.
    ///
    /// # Panics
    /// When the shapes differ, or `input` lacks what the weights need: f32 rows for float formats, int8 blocks for
    /// quantised ones.
    pub fn new(weights: MatrixRef<'a>, input: InputRows<'a>, output: &'a mut [f32]) -> MatmulJob<'a> {
        Self::into_shared(weights, input, &SharedSlice::new(output))
    }

    /// [`MatmulJob::new`] into a slice of which the caller uses other parts, or the same ones when the job does not run.
    fn into_shared(
        weights: MatrixRef<'a>,
        input: InputRows<'a>,
        output: &SharedSlice<'a, f32>,
    ) -> MatmulJob<'a> {
        assert_eq!(
            input.columns(),
            weights.columns(),
            "columns of the input and of the {} weights",
            weights.format()
        );
        assert_eq!(output.len(), input.rows() * weights.rows(), "output of {} input rows", input.rows());
        if weights.format().takes_int8() {
            assert!(
                input.rows() == 0 || !input.blocks().is_empty(),
                "{} weights need int8 rows",
                weights.format()
            );
        } else {
            assert!(
                input.rows() == 0 || !input.floats().is_empty(),
                "{} weights need f32 rows",
                weights.format()
            );
        }
        MatmulJob { weights, input, output: output.start(), owner: PhantomData }
    }

    fn groups(&self) -> usize {
        if self.input.rows() == 0 { 0 } else { row_groups(self.weights.rows()) }
    }

    /// Weight bytes times input rows: what the work of the job grows with.
    fn cost(&self) -> usize {
        self.groups() * self.weights.group_bytes() * self.input.rows()
    }

    fn groups_per_chunk(&self, chunk_cost: usize) -> usize {
        let group_bytes = self.weights.group_bytes();
        let by_cost = chunk_cost / (group_bytes * self.input.rows().max(1));
        by_cost.max(CHUNK_BYTES_MIN.div_ceil(group_bytes)).max(1)
    }

    /// Runs the groups of one chunk.
    ///
    /// # Safety
    /// No other thread may run an overlapping range of groups of this job at the same time.
    unsafe fn run(&self, kernels: Kernels, groups: Range<usize>) {
        let group_bytes = self.weights.group_bytes();
        let first_row = groups.start * GROUP_ROWS;
        let span = Span {
            format: self.weights.format(),
            columns: self.weights.columns(),
            weights: &self.weights.bytes()[groups.start * group_bytes..groups.end * group_bytes],
            group_bytes,
            rows: (groups.end * GROUP_ROWS).min(self.weights.rows()) - first_row,
            input: self.input,
            // SAFETY: `first_row` is below `weights.rows()`, so the pointer stays inside the first output row.
            output: unsafe { self.output.add(first_row) },
            output_stride: self.weights.rows(),
        };
        let run = dispatch::select(self.weights.format(), kernels.isa());
        // SAFETY: `Kernels` proves the instruction set. The span writes `output[n * stride..][..rows]` for each input
        // row n, inside the slice whose length `new` checked, and nobody else writes there while the region runs.
        unsafe { run(&span) };
        if self.weights.factor() != 1.0 {
            for row in 0..self.input.rows() {
                // SAFETY: the same elements that the span wrote, which this thread alone has.
                let written =
                    unsafe { from_raw_parts_mut(span.output.add(row * span.output_stride), span.rows) };
                written.iter_mut().for_each(|value| *value *= self.weights.factor());
            }
        }
    }
}

/// The job that chunk number `chunk` belongs to, counting through all jobs, and its number among the chunks of that job.
fn job_of<J>(jobs: &[J], mut chunk: usize, chunks_of: impl Fn(&J) -> usize) -> Option<(&J, usize)> {
    for job in jobs {
        let chunks = chunks_of(job);
        if chunk < chunks {
            return Some((job, chunk));
        }
        chunk -= chunks;
    }
    None
}

/// Part number `part` of `0..total`, cut into parts of `per_part`.
fn part(part: usize, per_part: usize, total: usize) -> Range<usize> {
    part * per_part..((part + 1) * per_part).min(total)
}

/// Runs all jobs as one parallel region and returns when every output is written. Allocates nothing.
pub fn matmul(team: &Team<'_>, kernels: Kernels, jobs: &mut [MatmulJob<'_>]) {
    let jobs: &[MatmulJob<'_>] = jobs;
    let cost: usize = jobs.iter().map(MatmulJob::cost).sum();
    let chunk_cost = cost.div_ceil(team.threads() * CHUNKS_PER_WORKER);
    let chunks_of = |job: &MatmulJob<'_>| job.groups().div_ceil(job.groups_per_chunk(chunk_cost));
    let chunks = jobs.iter().map(chunks_of).sum();
    team.for_each_chunk(chunks, |chunk, _worker| {
        if let Some((job, chunk)) = job_of(jobs, chunk, chunks_of) {
            let groups = part(chunk, job.groups_per_chunk(chunk_cost), job.groups());
            // SAFETY: `jobs` is borrowed mutably for the whole call, every chunk number runs once, and different chunk
            // numbers stand for different groups.
            unsafe { job.run(kernels, groups) };
        }
    });
}
