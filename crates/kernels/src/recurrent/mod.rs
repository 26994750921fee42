//! Recurrent layers: short convolutions, the delta rule with its decays, norms with a gate.
//!
//! Owns the arithmetic of layers that carry a state of fixed size from position to position instead of a cache of keys
//! and values. A function computes several rows (positions) of one sequence in order and leaves the state behind the
//! last one, so a sequence may be cut anywhere: the bits of rows and state are the same. Rows are f32, row-major, and
//! may be columns of wider rows ([`Columns`]). As in [`vector`](crate::vector) every operation is written once over
//! sixteen lanes and gives the same bits on every instruction set; lengths are asserted, nothing allocates.

mod convolution;
mod decayed;
mod delta;
mod gates;
mod selective;

pub use convolution::{CONVOLUTION_TAPS_MAX, ConvolutionActivation, ShortConvolution, short_convolution};
pub use decayed::{
    DecayedRows, DecayedShape, DecayedSteps, HeadColumns, decayed_attention, decayed_state_len,
};
pub use delta::{Decay, DeltaRows, DeltaShape, KeyHeads, delta_rule, delta_state_len};
pub use gates::{DecayRule, GateActivation, decay_in_place, gate_in_place, gated_rms_norm, l2_norm_in_place};
pub use selective::{Rates, StepLimits, gate_and_rms_norm, selective_steps};

/// Some adjoining columns of rows: element `(row, column)` is `data[row * row_stride + first_column + column]`.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// Elements of a whole row.
    pub row_stride: usize,
    /// The first of the columns.
    pub first_column: usize,
}

impl<'a> Columns<'a> {
    /// Rows of `columns` elements, one after the other.
    pub fn whole(data: &'a [f32], columns: usize) -> Self {
        Self { data, row_stride: columns, first_column: 0 }
    }

    /// `count` columns of a row from `column` on.
    #[inline(always)]
    pub(crate) fn part(&self, row: usize, column: usize, count: usize) -> &'a [f32] {
        let start = row * self.row_stride + self.first_column + column;
        &self.data[start..start + count]
    }

    /// Panics unless there are `rows` rows with `columns` columns.
    pub(crate) fn assert_shape(&self, rows: usize, columns: usize, name: &str) {
        assert!(
            self.first_column + columns <= self.row_stride && rows * self.row_stride <= self.data.len(),
            "{name}: {} elements with {} in a row are not {rows} rows with {columns} columns from {} on",
            self.data.len(),
            self.row_stride,
            self.first_column
        );
    }
}
