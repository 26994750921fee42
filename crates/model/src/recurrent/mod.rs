//! The token mixing half of layers that remember a state of fixed size instead of a row per position: short convolutions, linear
//! attention, state space models.
//!
//! Each kind is a file with a spec that implements [`Mixer`]; this module does what all have in common: the norm before it, whose state
//! is advanced by which rows, copies of states on the way, the output projection, the residual. Rows pass in pieces of
//! [`RECURRENT_ROWS`]. A mixer advances a state row after row, whatever rows come in one call, so chunks, blocks, pieces and
//! neighbours in a batch change no bit; it is parallel over heads or channels. Where the states lie, and why a pass that fails changes
//! none of them, is told in `states.rs`.
//! To add a kind: a file here, a variant of [`RecurrentSpec`], two lines in `RecurrentSpec::mixer`.

mod convolution;
mod delta_rule;
mod gated_delta;
mod kimi_delta;
mod lightning;
mod mamba2;
mod short_convolution;
mod taps;

use std::ops::Range;

use coldpress_kernels::{Kernels, MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::attend::follow_memory;
use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model, Segment};
use crate::scratch::{Need, Prepared, Scratch, scratch_buffer};
use crate::segments::advance_states;
use crate::spec::{AttentionKind, LinearSpec, ModelSpec};
use crate::streams::Half;

pub use convolution::ConvolutionSpec;
pub use delta_rule::{DecayRate, DeltaRuleSpec};
pub use gated_delta::{GatedDeltaSpec, Projections};
pub use kimi_delta::{GateProjection, KimiDeltaSpec};
pub use lightning::LightningSpec;
pub use mamba2::Mamba2Spec;
pub use short_convolution::ShortConvolutionSpec;
pub use taps::ConvolutionTaps;

/// Rows that a mixer gets at a time at most.
pub(crate) const RECURRENT_ROWS: usize = 128;
/// Buffers with a value per row that a mixer may use.
pub(crate) const ROW_BUFFERS: usize = 6;

/// One variant per kind of mixer.
#[derive(Clone, Debug)]
pub enum RecurrentSpec {
    /// Gated short convolution (LFM2).
    ShortConvolution(ShortConvolutionSpec),
    /// Mamba-2 (Granite 4).
    Mamba2(Mamba2Spec),
    /// Lightning attention (MiniMax-01).
    Lightning(LightningSpec),
    /// Gated DeltaNet (Qwen3-Next, Qwen3.5).
    GatedDelta(GatedDeltaSpec),
    /// Kimi Delta Attention (Kimi Linear, Ling 3).
    KimiDelta(KimiDeltaSpec),
}

impl RecurrentSpec {
    pub(crate) fn mixer(&self) -> &dyn Mixer {
        match self {
            Self::ShortConvolution(spec) => spec,
            Self::Mamba2(spec) => spec,
            Self::Lightning(spec) => spec,
            Self::GatedDelta(spec) => spec,
            Self::KimiDelta(spec) => spec,
        }
    }

    /// f32 numbers of state of one sequence, tails of convolutions included.
    pub fn state_len(&self) -> usize {
        self.mixer().state_len()
    }

    /// Elements of a row that the output projection reads.
    pub fn result_len(&self) -> usize {
        self.mixer().result_len()
    }
}

/// What a mixer needs of scratch memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Widths {
    /// f32 values per row of each of [`Work::rows`].
    pub rows: [usize; ROW_BUFFERS],
    /// Columns of [`Work::inner`].
    pub inner: usize,
    /// f32 values of [`Work::fixed`], whatever the rows.
    pub fixed: usize,
}

/// What a mixer computes with.
pub(crate) struct Work<'a, 'team> {
    pub model: &'a Model,
    pub team: &'a Team<'team>,
    pub kernels: Kernels,
    /// First the normed rows `[rows, hidden]` as matrix input, then the results `[rows, result_len]`.
    pub input: &'a mut Prepared,
    /// What a mixer carries from its projections to the state, one row after the other.
    pub rows: &'a mut [Buffer; ROW_BUFFERS],
    /// Input of a second matrix, where a projection has low rank.
    pub inner: &'a mut Prepared,
    /// Anything else.
    pub fixed: &'a mut Buffer,
}

/// One kind of token mixer with its weights and sizes.
pub(crate) trait Mixer {
    /// f32 numbers of state of one sequence. All zeros before its first row.
    fn state_len(&self) -> usize;

    /// Elements of a row of the result.
    fn result_len(&self) -> usize;

    /// Scratch memory.
    fn widths(&self) -> Widths;

    /// From the normed rows in `input` to what [`Mixer::advance`] reads of each row in `rows`. `input` is free afterwards.
    fn project(&self, work: &mut Work<'_, '_>, rows: usize);

    /// Advances the state of one sequence by the rows `rows` of this piece, one after the other, and writes their results into the f32
    /// values of `input`, at `row * result_len`.
    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]);

    /// What happens to the results of all rows before the output projection: a gate, a norm. By default nothing.
    fn finish(&self, _work: &mut Work<'_, '_>, _rows: usize) {}

    /// From the results to the hidden size.
    fn output(&self) -> LinearSpec;
}

impl Work<'_, '_> {
    /// Products of the normed rows, or of any other rows of `hidden` columns in `input`, with matrices; biases are added. `out`
    /// names the buffers of `rows` for the results.
    pub fn multiply_input<const COUNT: usize>(
        &mut self,
        linears: [(LinearSpec, usize, usize); COUNT],
        rows: usize,
        columns: usize,
    ) {
        let input = self.input.rows(0, rows, columns);
        let mut jobs = arrayvec::ArrayVec::<MatmulJob<'_>, ROW_BUFFERS>::new();
        for (index, buffer) in self.rows.iter_mut().enumerate() {
            if let Some((linear, _, width)) = linears.iter().find(|(_, at, _)| *at == index) {
                let out = &mut buffer.as_mut_slice_of::<f32>()[..rows * width];
                jobs.push(MatmulJob::new(self.model.weights.matrix(linear.weight), input, out));
            }
        }
        matmul(self.team, self.kernels, &mut jobs);
        drop(jobs);
        for (linear, at, width) in linears {
            if let Some(bias) = linear.bias {
                self.model.add_bias(
                    self.team,
                    bias,
                    &mut self.rows[at].as_mut_slice_of::<f32>()[..rows * width],
                );
            }
        }
    }
}

/// Sizes of the buffers of [`RecurrentScratch`].
pub(crate) struct RecurrentNeeds {
    rows: [Need; ROW_BUFFERS],
    inner: [Need; 2],
    fixed: Need,
}

impl RecurrentNeeds {
    /// `None` for a model without recurrent layers.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let mut most: Option<Widths> = None;
        for layer in &spec.layers {
            let AttentionKind::Recurrent(recurrent) = &layer.attention else { continue };
            let (widths, most) = (recurrent.mixer().widths(), most.get_or_insert_default());
            for (most, width) in most.rows.iter_mut().zip(widths.rows) {
                *most = width.max(*most);
            }
            most.inner = most.inner.max(widths.inner);
            most.fixed = most.fixed.max(widths.fixed);
        }
        let most = most?;
        Some(Self {
            rows: most.rows.map(|width| Need::fixed(RECURRENT_ROWS * width * size_of::<f32>())),
            inner: Prepared::needs(most.inner).map(|need| need.of_rows(RECURRENT_ROWS)),
            fixed: Need::fixed(most.fixed * size_of::<f32>()),
        })
    }

    pub fn all(&self) -> impl Iterator<Item = Need> {
        self.rows.into_iter().chain(self.inner).chain([self.fixed])
    }
}

/// The buffers of mixers, for [`RECURRENT_ROWS`] rows.
pub(crate) struct RecurrentScratch {
    rows: [Buffer; ROW_BUFFERS],
    inner: Prepared,
    fixed: Buffer,
}

impl RecurrentScratch {
    pub fn new(ledger: &Ledger, needs: &RecurrentNeeds) -> Result<Self, ModelError> {
        let buffer = |at: usize| scratch_buffer(ledger, needs.rows[at], 0);
        Ok(Self {
            rows: [buffer(0)?, buffer(1)?, buffer(2)?, buffer(3)?, buffer(4)?, buffer(5)?],
            inner: Prepared::new(ledger, needs.inner, 0)?,
            fixed: scratch_buffer(ledger, needs.fixed, 0)?,
        })
    }
}

impl Model {
    /// Adds what the mixer of a layer makes of the rows of a block to the residual stream, and advances the states.
    pub(crate) fn advance_states(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &RecurrentSpec,
        segments: &[Segment<'_>],
        layer: usize,
        block: &Range<usize>,
    ) {
        let mixer = spec.mixer();
        for first in block.clone().step_by(RECURRENT_ROWS) {
            let rows = first..block.end.min(first + RECURRENT_ROWS);
            self.norm_half(engine, self.spec.layers[layer].attention_norm, block, &rows);
            mixer.project(&mut self.work(engine.team, engine.kernels, engine.scratch), rows.len());
            follow_memory(engine);
            self.advance_segments(engine, mixer, segments, layer, &rows);
            mixer.finish(&mut self.work(engine.team, engine.kernels, engine.scratch), rows.len());
            self.recurrent_output(engine, mixer, rows.start - block.start, rows.len());
            follow_memory(engine);
        }
        self.add_result(engine, layer, Half::Attention, block);
    }

    fn work<'a, 'team>(
        &'a self,
        team: &'a Team<'team>,
        kernels: Kernels,
        scratch: &'a mut Scratch,
    ) -> Work<'a, 'team> {
        let Scratch { input, recurrent, .. } = scratch;
        let recurrent = recurrent.as_mut().expect("a model with recurrent layers has their scratch");
        let RecurrentScratch { rows, inner, fixed } = recurrent;
        Work { model: self, team, kernels, input, rows, inner, fixed }
    }

    /// Advances each sequence's state by its rows of a piece; a state that is to be kept on the way is copied there.
    fn advance_segments(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        mixer: &dyn Mixer,
        segments: &[Segment<'_>],
        layer: usize,
        piece: &Range<usize>,
    ) {
        let ForwardEngine { team, kernels, pool, scratch, .. } = engine;
        let mut work = self.work(team, *kernels, scratch);
        advance_states(pool, team, layer, segments, piece, |_tokens, rows, state| {
            mixer.advance(&mut work, rows, state);
        });
    }

    /// From the results of a piece to what is added to the residual stream, into rows `first..` of the block's result.
    fn recurrent_output(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        mixer: &dyn Mixer,
        first: usize,
        rows: usize,
    ) {
        let (hidden, width, output) = (self.spec.hidden, mixer.result_len(), mixer.output());
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, block_out, .. } = &mut *engine.scratch;
        input.quantize(team, kernels, rows, width);
        let out = &mut block_out.as_mut_slice_of::<f32>()[first * hidden..(first + rows) * hidden];
        let weights = self.weights.matrix(output.weight);
        matmul(team, kernels, &mut [MatmulJob::new(weights, input.rows(0, rows, width), &mut *out)]);
        if let Some(bias) = output.bias {
            self.add_bias(team, bias, out);
        }
    }
}
