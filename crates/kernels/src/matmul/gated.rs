//! Gated networks in one parallel region: `activation(gate * x) * (up * x)`, ready as input of the down projection.
//!
//! A chunk computes its columns of both products for all rows, applies the activation while they are in the cache, and
//! quantises them: no second and third region, no pass over memory in between. Columns are cut in whole activation blocks,
//! so the bits are those of the separate operations.

use std::ops::Range;

use coldpress_workers::Team;

use super::{CHUNKS_PER_WORKER, MatmulJob, job_of, part};
use crate::Kernels;
use crate::activations::{ActivationBlock, InputRows, blocks_per_row, quantize_on_this_thread};
use crate::blocks::STEP_COLUMNS;
use crate::layout::{GROUP_ROWS, MatrixRef};
use crate::vector::spans::SharedSlice;
use crate::vector::{add_on_this_thread, clamped_swiglu_in_place, geglu_in_place, swiglu_in_place};

/// Row groups that are cut together: one activation block of the result.
const GROUPS_PER_UNIT: usize = STEP_COLUMNS / GROUP_ROWS;

/// What the gate product passes before it meets the up product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    #[default]
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// `x * sigmoid(slope * x)` of `x` up to `limit`; up is taken between `-limit` and `limit`, and `offset` more.
    ClampedSwiglu {
        /// Factor in the sigmoid.
        slope: f32,
        /// Largest value of the gate, and largest magnitude of up.
        limit: f32,
        /// Added to up: 1 in gpt-oss, 0 in DeepSeek-V4.
        offset: f32,
    },
}

/// The first half of one gated network for some rows.
#[derive(Debug)]
pub struct GatedJob<'a> {
    gate: MatmulJob<'a>,
    up: MatmulJob<'a>,
    activation: Activation,
    /// Added to every row of the gate and of the up product; empty for none.
    biases: [&'a [f32]; 2],
    rows: usize,
    /// Rows of the gate and up matrices.
    width: usize,
    result: SharedSlice<'a, f32>,
    up_result: SharedSlice<'a, f32>,
    blocks: SharedSlice<'a, ActivationBlock>,
}

impl<'a> GatedJob<'a> {
    /// `result` and `up_result` are `[input.rows(), width]` and are overwritten; `result` receives the activations of the
    /// down projection and `blocks`, `[input.rows(), width / 32]`, the same as int8 blocks. `blocks` is empty when
    /// `width` is not a multiple of 32.
    ///
    /// # Panics
    /// When shapes differ, and as [`MatmulJob::new`].
    pub fn new(
        gate: MatrixRef<'a>,
        up: MatrixRef<'a>,
        input: InputRows<'a>,
        result: &'a mut [f32],
        up_result: &'a mut [f32],
        blocks: &'a mut [ActivationBlock],
    ) -> Self {
        let (rows, width) = (input.rows(), gate.rows());
        assert_eq!(up.rows(), width, "rows of the gate and of the up matrix");
        let row_blocks = if width.is_multiple_of(STEP_COLUMNS) { blocks_per_row(width) } else { 0 };
        assert_eq!(blocks.len(), rows * row_blocks, "activation blocks of {rows} rows of {width}");
        // The two views of one buffer are never used at the same time: first the products write, then the activation.
        let result = SharedSlice::new(result);
        let up_result = SharedSlice::new(up_result);
        let gate = MatmulJob::into_shared(gate, input, &result);
        let up = MatmulJob::into_shared(up, input, &up_result);
        let activation = Activation::Silu;
        let blocks = SharedSlice::new(blocks);
        Self { gate, up, activation, biases: [&[]; 2], rows, width, result, up_result, blocks }
    }

    /// The same with another activation than SiLU.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The same with a vector, `[width]`, that is added to every row of the gate product, and one for the up product.
    ///
    /// # Panics
    /// When a length differs from the rows of the matrices.
    #[must_use]
    pub fn with_biases(self, gate: &'a [f32], up: &'a [f32]) -> Self {
        assert_eq!(
            [gate.len(), up.len()],
            [self.width; 2],
            "biases of gated matrices of {} rows",
            self.width
        );
        Self { biases: [gate, up], ..self }
    }

    fn units(&self) -> usize {
        self.gate.groups().max(self.up.groups()).div_ceil(GROUPS_PER_UNIT)
    }

    fn cost(&self) -> usize {
        self.gate.cost() + self.up.cost()
    }

    fn units_per_chunk(&self, chunk_cost: usize) -> usize {
        let groups = self.gate.groups_per_chunk(chunk_cost / 2).min(self.up.groups_per_chunk(chunk_cost / 2));
        groups.div_ceil(GROUPS_PER_UNIT)
    }

    /// Runs some units.
    ///
    /// # Safety
    /// No other thread may run an overlapping range of units of this job at the same time.
    unsafe fn run(&self, kernels: Kernels, units: Range<usize>) {
        let groups = units.start * GROUPS_PER_UNIT..(units.end * GROUPS_PER_UNIT).min(self.gate.groups());
        // SAFETY: units are whole groups, and this thread alone has them.
        unsafe {
            self.gate.run(kernels, groups.clone());
            self.up.run(kernels, groups.clone());
        }
        let columns = groups.start * GROUP_ROWS..(groups.end * GROUP_ROWS).min(self.width);
        for row in 0..self.rows {
            let place = row * self.width + columns.start..row * self.width + columns.end;
            // SAFETY: these columns belong to this thread, and the products are done with them.
            let (result, up) = unsafe { (self.result.part(place.clone()), self.up_result.part(place)) };
            let [gate_bias, up_bias] = self.biases;
            if !gate_bias.is_empty() {
                add_on_this_thread(kernels, result, &gate_bias[columns.clone()]);
                add_on_this_thread(kernels, up, &up_bias[columns.clone()]);
            }
            match self.activation {
                Activation::Silu => swiglu_in_place(kernels, result, up),
                Activation::GeluTanh => geglu_in_place(kernels, result, up),
                Activation::ClampedSwiglu { slope, limit, offset } => {
                    clamped_swiglu_in_place(kernels, result, up, slope, limit, offset);
                }
            }
            if self.width.is_multiple_of(STEP_COLUMNS) {
                let first = row * blocks_per_row(self.width) + columns.start / STEP_COLUMNS;
                // SAFETY: units are whole blocks, and this thread alone has them.
                let blocks = unsafe { self.blocks.part(first..first + columns.len() / STEP_COLUMNS) };
                quantize_on_this_thread(kernels, result, blocks);
            }
        }
    }
}

/// Runs all jobs as one parallel region and returns when every result is written. Allocates nothing.
pub fn gated(team: &Team<'_>, kernels: Kernels, jobs: &mut [GatedJob<'_>]) {
    let jobs: &[GatedJob<'_>] = jobs;
    let cost: usize = jobs.iter().map(GatedJob::cost).sum();
    let chunk_cost = cost.div_ceil(team.threads() * CHUNKS_PER_WORKER);
    let chunks_of = |job: &GatedJob<'_>| job.units().div_ceil(job.units_per_chunk(chunk_cost));
    let chunks = jobs.iter().map(chunks_of).sum();
    team.for_each_chunk(chunks, |chunk, _worker| {
        if let Some((job, chunk)) = job_of(jobs, chunk, chunks_of) {
            let units = part(chunk, job.units_per_chunk(chunk_cost), job.units());
            // SAFETY: `jobs` is borrowed mutably for the whole call, every chunk number runs once, and different chunk
            // numbers stand for different units.
            unsafe { job.run(kernels, units) };
        }
    });
}
