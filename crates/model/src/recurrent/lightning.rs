//! Lightning attention (Qin et al. 2024, arXiv:2401.04658): linear attention whose heads forget at a pace that is fixed for the layer.
//!
//! Queries, keys and values lie side by side per head and pass SiLU; the output is normed over all heads and gated by a product
//! of the row. Nothing is rotated: the decay tells positions apart.
//!
//! Reference: `modeling_minimax.py` of transformers.

use std::ops::Range;

use coldpress_kernels::recurrent::{
    Columns, DecayedRows, DecayedShape, DecayedSteps, GateActivation, HeadColumns, decayed_attention,
    decayed_state_len, gated_rms_norm,
};
use coldpress_kernels::vector;

use super::{Mixer, Widths, Work};
use crate::scratch::rows_per_part;
use crate::spec::{LinearSpec, VectorHandle};

/// Where a piece's queries, keys and values and its gates are among the buffers.
const MIXED: usize = 0;
const GATE: usize = 1;

/// See the module header.
#[derive(Clone, Debug)]
pub struct LightningSpec {
    /// From the hidden size to query, key and value of each head in turn.
    pub mixed: LinearSpec,
    /// From the hidden size to the gates of the output.
    pub gate: LinearSpec,
    /// RMSNorm of the output, over all heads.
    pub norm: VectorHandle,
    /// Its epsilon.
    pub norm_epsilon: f32,
    /// Back to the hidden size.
    pub output: LinearSpec,
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a query, of a key and of a value.
    pub head_dim: usize,
    /// What each head multiplies its state by from one position to the next.
    pub decays: Vec<f32>,
}

impl LightningSpec {
    fn shape(&self) -> DecayedShape {
        let Self { heads, head_dim, .. } = *self;
        DecayedShape { heads, key_heads: heads, key_dim: head_dim, value_dim: head_dim }
    }
}

impl Mixer for LightningSpec {
    fn state_len(&self) -> usize {
        decayed_state_len(self.shape())
    }

    fn result_len(&self) -> usize {
        self.heads * self.head_dim
    }

    fn widths(&self) -> Widths {
        let mut widths = Widths::default();
        widths.rows[MIXED] = 3 * self.result_len();
        widths.rows[GATE] = self.result_len();
        widths
    }

    fn project(&self, work: &mut Work<'_, '_>, rows: usize) {
        let width = self.result_len();
        let products = [(self.mixed, MIXED, 3 * width), (self.gate, GATE, width)];
        work.multiply_input(products, rows, self.hidden);
        let mixed = &mut work.rows[MIXED].as_mut_slice_of::<f32>()[..rows * 3 * width];
        let kernels = work.kernels;
        let per_part = rows_per_part(work.team, rows, 3 * width * size_of::<f32>());
        work.team.for_each_part_mut(mixed, per_part * 3 * width, |_part, mixed, _worker| {
            vector::silu(kernels, mixed);
        });
    }

    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]) {
        let (width, head_dim) = (self.result_len(), self.head_dim);
        let mixed = &work.rows[MIXED].as_slice_of::<f32>()[rows.start * 3 * width..rows.end * 3 * width];
        let part = |first_column| HeadColumns {
            columns: Columns { data: mixed, row_stride: 3 * width, first_column },
            head_stride: 3 * head_dim,
        };
        let input = DecayedRows {
            rows: rows.len(),
            query: part(0),
            key: part(head_dim),
            value: part(2 * head_dim),
            steps: DecayedSteps::Constant(&self.decays),
            skip: None,
        };
        let out = &mut work.input.floats_mut(rows.end * width)[rows.start * width..];
        decayed_attention(work.team, work.kernels, self.shape(), input, state, out);
    }

    fn finish(&self, work: &mut Work<'_, '_>, rows: usize) {
        let width = self.result_len();
        let gate = Columns::whole(&work.rows[GATE].as_slice_of::<f32>()[..rows * width], width);
        let weight = work.model.weights.vector(self.norm);
        let out = work.input.floats_mut(rows * width);
        gated_rms_norm(
            work.team,
            work.kernels,
            out,
            width,
            gate,
            weight,
            self.norm_epsilon,
            GateActivation::Sigmoid,
        );
    }

    fn output(&self) -> LinearSpec {
        self.output
    }
}
