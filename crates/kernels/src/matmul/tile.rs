//! Tiles written once for all vector instruction sets: some activation rows times one group of 16 weight rows.
//!
//! A [`RowVectors`] holds some rows of the group in one register, a lane per row (16 for AVX-512, 8 for AVX2, 4 for NEON), so
//! nothing is ever summed across lanes. A weight vector is unpacked once and multiplied by all activation rows of the tile
//! before the next: the registers hold one integer and one float accumulator per activation row, and one weight vector.
//! Offsets (8, 16, 32; 128 where signed bytes are made unsigned) are not taken off the weights: the integer sum starts at
//! `-offset * sum of activations`. Scalar twin and definition: `scalar.rs`. An instruction set that multiplies whole matrices
//! writes tiles of its own.

use super::driver::{FloatElement, FloatKind, Lanes};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::{GROUP_ROWS, MinimumStorage, QuantStorage, ScaleStorage, VECTOR_BYTES, packed_block};

/// Proof that an instruction set may be used, with its operations on vectors whose lanes are rows.
///
/// The methods become single instructions inside a function compiled with the same features. Those that read memory ask
/// the caller for all bytes of the vector to lie inside the slice.
pub(super) trait RowVectors: Copy {
    /// Rows (32-bit lanes) of a vector.
    const ROWS: usize;
    /// Added to the signed bytes of Q8_0 by [`RowVectors::stored_bytes`].
    const STORED_BYTES_OFFSET: i16;

    /// Four bytes for each row.
    type Bytes: Copy;
    /// A 32-bit integer for each row.
    type Ints: Copy;
    /// An f32 for each row.
    type Floats: Copy;
    /// A sum of products for each row that is not finished yet.
    type Partial: Copy;

    unsafe fn load_bytes(self, bytes: &[u8], at: usize) -> Self::Bytes;
    /// The signed bytes of Q8_0 as the dot product takes them.
    fn stored_bytes(self, bytes: Self::Bytes) -> Self::Bytes;
    fn low_nibbles(self, bytes: Self::Bytes) -> Self::Bytes;
    fn high_nibbles(self, bytes: Self::Bytes) -> Self::Bytes;
    /// What each code (below 16 in every byte) stands for: `CODES` of MXFP4.
    fn decode(self, codes: Self::Bytes) -> Self::Bytes;
    /// `nibbles | (bits FROM .. FROM + width of plane, moved to bit 4)`, for masks of one or two bits at bit 4.
    fn add_high_bits(self, nibbles: Self::Bytes, plane: Self::Bytes, from: u32, mask: u8) -> Self::Bytes;

    /// `-offset * sum of the activations`, for the offsets 8, 16 and 128.
    fn start(self, activations: &ActivationBlock, offset: i16) -> Self::Ints;
    /// `-offset * sum of the activations of half step `half``.
    fn half_start(self, activations: &ActivationBlock, offset: i16, half: usize) -> Self::Ints;
    fn zero(self) -> Self::Ints;
    fn begin(self, start: Self::Ints) -> Self::Partial;
    /// Adds the products of one column group (of 8, at four columns each).
    fn dot(
        self,
        storage: QuantStorage,
        partial: Self::Partial,
        weights: Self::Bytes,
        activations: &ActivationBlock,
        group: usize,
    ) -> Self::Partial;
    /// Called after `groups` column groups of a half step, so that narrow sums can be widened before they overflow.
    fn widen(self, storage: QuantStorage, partial: Self::Partial, groups: usize) -> Self::Partial;
    fn finish(self, partial: Self::Partial) -> Self::Ints;
    /// What [`integer_sums`] computes; instruction sets that have a better way for many rows write their own.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn integer_sums<F: QuantizedFormat, const ROWS: usize>(
        self,
        weights: StepWeights<'_>,
        activations: StepRows<'_>,
    ) -> [Self::Ints; ROWS] {
        // SAFETY: passed on from the caller.
        unsafe { integer_sums::<Self, F, ROWS>(self, weights, activations) }
    }
    /// `a * factor + b * other`.
    fn weigh(self, a: Self::Ints, factor: Self::Ints, b: Self::Ints, other: Self::Ints) -> Self::Ints;

    unsafe fn load_signed_bytes(self, bytes: &[u8], at: usize) -> Self::Ints;
    unsafe fn load_unsigned_bytes(self, bytes: &[u8], at: usize) -> Self::Floats;
    /// `2^(exponent - 128)` of exponent bytes, subnormal ones too.
    unsafe fn load_exponents(self, bytes: &[u8], at: usize) -> Self::Floats;
    unsafe fn load_halves(self, bytes: &[u8], at: usize) -> Self::Floats;
    unsafe fn load_bfloats(self, bytes: &[u8], at: usize) -> Self::Floats;
    unsafe fn load_floats(self, bytes: &[u8], at: usize) -> Self::Floats;
    fn splat(self, value: f32) -> Self::Floats;
    fn to_floats(self, ints: Self::Ints) -> Self::Floats;
    fn negate(self, a: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Stores the vector as lanes `part * ROWS ..` of a group.
    fn store(self, floats: Self::Floats, lanes: &mut Lanes, part: usize);
}

/// Multiplies one packed group by `ROWS` activation rows; `PARTS` vectors hold the group.
///
/// # Safety
/// `group` is one whole packed group of `F`, and `rows` has `ROWS` times as many blocks as the group has steps.
#[inline(always)] // into a function compiled with the features of `V`, as everything below
pub(super) unsafe fn quantized_tile<
    V: RowVectors,
    F: QuantizedFormat,
    const ROWS: usize,
    const PARTS: usize,
>(
    v: V,
    group: &[u8],
    rows: &[ActivationBlock],
    out: &mut [Lanes; ROWS],
) {
    const { assert!(PARTS * V::ROWS == GROUP_ROWS) };
    let packed = const { packed_block(F::FORMAT) };
    let row_blocks = rows.len() / ROWS;
    let mut accumulators = [[v.splat(0.0); ROWS]; PARTS];
    let mut column_step = 0;
    for block in group.chunks_exact(packed.bytes) {
        for step in 0..packed.steps {
            let activations = StepRows { rows, row_blocks, column_step };
            for (part, accumulators) in accumulators.iter_mut().enumerate() {
                let weights = StepWeights { block, step, first_row: part * V::ROWS };
                // SAFETY: `block` is a whole block of the format and `step` one of its steps; a row has `row_blocks`
                // blocks, one for each step of the group.
                unsafe { add_step::<V, F, ROWS>(v, weights, activations, accumulators) };
            }
            column_step += 1;
        }
    }
    for (part, accumulators) in accumulators.iter().enumerate() {
        for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
            v.store(*accumulator, lanes, part);
        }
    }
}

/// The weights of one step: some rows of 32 columns.
#[derive(Clone, Copy)]
pub(super) struct StepWeights<'a> {
    /// One whole packed block.
    pub block: &'a [u8],
    pub step: usize,
    pub first_row: usize,
}

/// The activations of one step: block `column_step` of every row of the tile.
#[derive(Clone, Copy)]
pub(super) struct StepRows<'a> {
    rows: &'a [ActivationBlock],
    row_blocks: usize,
    column_step: usize,
}

impl<'a> StepRows<'a> {
    /// # Safety
    /// `row` is a row of the tile.
    #[inline(always)]
    pub(super) unsafe fn get(self, row: usize) -> &'a ActivationBlock {
        debug_assert!(row * self.row_blocks + self.column_step < self.rows.len());
        // SAFETY: every row has `row_blocks` blocks, and `column_step` is one of them.
        unsafe { self.rows.get_unchecked(row * self.row_blocks + self.column_step) }
    }
}

/// Adds the products of one step to the accumulators.
///
/// # Safety
/// `weights` lies in a packed block of `F`, `activations` has `ROWS` rows.
#[inline(always)]
unsafe fn add_step<V: RowVectors, F: QuantizedFormat, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
    accumulators: &mut [V::Floats; ROWS],
) {
    let packed = const { packed_block(F::FORMAT) };
    // SAFETY: passed on from the caller.
    unsafe {
        let sums = v.integer_sums::<F, ROWS>(weights, activations);
        let (scale, minimum) = scales::<V, F>(v, weights);
        for row in 0..ROWS {
            let block = activations.get(row);
            let factor = v.mul(scale, v.splat(block.scale));
            let mut sum = v.fma(factor, v.to_floats(sums[row]), accumulators[row]);
            if packed.minimums != MinimumStorage::Absent {
                sum = v.fma(minimum, v.splat(block.scaled_sum), sum);
            }
            accumulators[row] = sum;
        }
    }
}

/// The exact integer sums over one step: what the definition calls `isum`.
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
pub(super) unsafe fn integer_sums<V: RowVectors, F: QuantizedFormat, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
) -> [V::Ints; ROWS] {
    let packed = const { packed_block(F::FORMAT) };
    let offset = match packed.quants {
        QuantStorage::Bytes => V::STORED_BYTES_OFFSET,
        _ => packed.quant_offset,
    };
    let mut partials = [v.begin(v.zero()); ROWS];
    let mut sums = [v.zero(); ROWS];
    // SAFETY: passed on from the caller; offsets lie inside the block by the construction of `PackedBlock`.
    unsafe {
        if packed.scales != ScaleStorage::HalfStepSubScale {
            if offset != 0 {
                for (row, partial) in partials.iter_mut().enumerate() {
                    *partial = v.begin(v.start(activations.get(row), offset));
                }
            }
            half_step::<V, F, 0, ROWS>(v, weights, activations, &mut partials);
            half_step::<V, F, 1, ROWS>(v, weights, activations, &mut partials);
            finish(v, &partials, &mut sums);
            return sums;
        }
        for (row, partial) in partials.iter_mut().enumerate() {
            *partial = v.begin(v.half_start(activations.get(row), offset, 0));
        }
        half_step::<V, F, 0, ROWS>(v, weights, activations, &mut partials);
        let mut first = [v.zero(); ROWS];
        finish(v, &partials, &mut first);
        for (row, partial) in partials.iter_mut().enumerate() {
            *partial = v.begin(v.half_start(activations.get(row), offset, 1));
        }
        half_step::<V, F, 1, ROWS>(v, weights, activations, &mut partials);
        finish(v, &partials, &mut sums);
        let at = packed.sub_scales_at + 2 * weights.step * GROUP_ROWS + weights.first_row;
        let first_factor = v.load_signed_bytes(weights.block, at);
        let second_factor = v.load_signed_bytes(weights.block, at + GROUP_ROWS);
        for (sum, first) in sums.iter_mut().zip(first) {
            *sum = v.weigh(first, first_factor, *sum, second_factor);
        }
        sums
    }
}

#[inline(always)]
fn finish<V: RowVectors, const ROWS: usize>(v: V, partials: &[V::Partial; ROWS], sums: &mut [V::Ints; ROWS]) {
    for (sum, partial) in sums.iter_mut().zip(partials) {
        *sum = v.finish(*partial);
    }
}

/// Adds the four column groups of half step `HALF`.
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
unsafe fn half_step<V: RowVectors, F: QuantizedFormat, const HALF: usize, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
    partials: &mut [V::Partial; ROWS],
) {
    // SAFETY: passed on from the caller. Written out, because a loop this large is not always unrolled.
    unsafe {
        column_group::<V, F, HALF, 0, ROWS>(v, weights, activations, partials);
        column_group::<V, F, HALF, 1, ROWS>(v, weights, activations, partials);
        column_group::<V, F, HALF, 2, ROWS>(v, weights, activations, partials);
        column_group::<V, F, HALF, 3, ROWS>(v, weights, activations, partials);
    }
}

/// # Safety
/// As [`add_step`]; `HALF < 2`, `INDEX < 4`.
#[inline(always)]
unsafe fn column_group<
    V: RowVectors,
    F: QuantizedFormat,
    const HALF: usize,
    const INDEX: usize,
    const ROWS: usize,
>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
    partials: &mut [V::Partial; ROWS],
) {
    let storage = const { packed_block(F::FORMAT) }.quants;
    // SAFETY: passed on from the caller.
    unsafe {
        let quants = quants::<V, F, HALF, INDEX>(v, weights);
        for (row, partial) in partials.iter_mut().enumerate() {
            let sum = v.dot(storage, *partial, quants, activations.get(row), HALF * 4 + INDEX);
            *partial = v.widen(storage, sum, INDEX + 1);
        }
    }
}

/// The stored values of one column group as the dot product takes them.
///
/// # Safety
/// As [`column_group`].
#[inline(always)]
pub(super) unsafe fn quants<V: RowVectors, F: QuantizedFormat, const HALF: usize, const INDEX: usize>(
    v: V,
    weights: StepWeights<'_>,
) -> V::Bytes {
    let packed = const { packed_block(F::FORMAT) };
    let first = packed.steps_at + weights.step * packed.step_bytes + 4 * weights.first_row;
    // SAFETY: all vectors of the step lie inside the block.
    unsafe {
        if packed.quants == QuantStorage::Bytes {
            let at = first + (HALF * 4 + INDEX) * VECTOR_BYTES;
            return v.stored_bytes(v.load_bytes(weights.block, at));
        }
        let both = v.load_bytes(weights.block, first + INDEX * VECTOR_BYTES);
        let nibbles = if HALF == 0 { v.low_nibbles(both) } else { v.high_nibbles(both) };
        match packed.quants {
            QuantStorage::Bytes | QuantStorage::Nibbles => nibbles,
            QuantStorage::Codes => v.decode(nibbles),
            QuantStorage::NibblesAndFifthBit => {
                let plane = v.load_bytes(weights.block, first + 4 * VECTOR_BYTES);
                v.add_high_bits(nibbles, plane, (HALF * 4 + INDEX) as u32, 0x10)
            }
            QuantStorage::NibblesAndBitPairs => {
                let plane = v.load_bytes(weights.block, first + (4 + HALF) * VECTOR_BYTES);
                v.add_high_bits(nibbles, plane, 2 * INDEX as u32, 0x30)
            }
        }
    }
}

/// Scale and minimum of a step, the minimum with the sign it is added with (0 for formats without).
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
pub(super) unsafe fn scales<V: RowVectors, F: QuantizedFormat>(
    v: V,
    weights: StepWeights<'_>,
) -> (V::Floats, V::Floats) {
    let packed = const { packed_block(F::FORMAT) };
    let StepWeights { block, step, first_row } = weights;
    // SAFETY: all offsets lie inside the block by the construction of `PackedBlock`.
    unsafe {
        let mut scale = match packed.scales {
            ScaleStorage::Exponent => v.load_exponents(block, first_row),
            _ => v.load_halves(block, 2 * first_row),
        };
        if packed.scales == ScaleStorage::SubScale {
            let at = packed.sub_scales_at + step * GROUP_ROWS + first_row;
            scale = v.mul(scale, v.load_unsigned_bytes(block, at));
        }
        let minimum = match packed.minimums {
            MinimumStorage::Absent => v.splat(0.0),
            MinimumStorage::Added => v.load_halves(block, packed.minimums_at + 2 * first_row),
            MinimumStorage::SubtractedOfSuperBlock => {
                let super_minimum = v.load_halves(block, packed.minimums_at + 2 * first_row);
                let at = packed.sub_minimums_at + step * GROUP_ROWS + first_row;
                v.negate(v.mul(super_minimum, v.load_unsigned_bytes(block, at)))
            }
        };
        (scale, minimum)
    }
}

/// Multiplies `GROUPS` neighbouring groups of float weights by `ROWS` activation rows; `PARTS` vectors hold a group.
///
/// # Safety
/// `groups` is `GROUPS` whole packed groups of `columns` elements, and `rows` is `ROWS * columns` activations.
#[inline(always)]
pub(super) unsafe fn float_tile<
    V: RowVectors,
    E: FloatElement,
    const GROUPS: usize,
    const ROWS: usize,
    const PARTS: usize,
>(
    v: V,
    columns: usize,
    groups: &[u8],
    rows: &[f32],
    out: &mut [[Lanes; ROWS]; GROUPS],
) {
    const { assert!(PARTS * V::ROWS == GROUP_ROWS) };
    let mut accumulators = [[[v.splat(0.0); PARTS]; ROWS]; GROUPS];
    for column in 0..columns {
        for (group, accumulators) in accumulators.iter_mut().enumerate() {
            let at = (group * columns + column) * GROUP_ROWS * E::BYTES;
            let mut weights = [v.splat(0.0); PARTS];
            for (part, weights) in weights.iter_mut().enumerate() {
                // SAFETY: the column lies inside the group, the group inside `groups`.
                *weights = unsafe { load_elements::<V, E>(v, groups, at + part * V::ROWS * E::BYTES) };
            }
            for (row, accumulators) in accumulators.iter_mut().enumerate() {
                // SAFETY: `rows` has `ROWS * columns` elements.
                let activation = v.splat(unsafe { *rows.get_unchecked(row * columns + column) });
                for (accumulator, weights) in accumulators.iter_mut().zip(weights) {
                    *accumulator = v.fma(weights, activation, *accumulator);
                }
            }
        }
    }
    for (results, accumulators) in out.iter_mut().zip(&accumulators) {
        for (lanes, parts) in results.iter_mut().zip(accumulators) {
            for (part, accumulator) in parts.iter().enumerate() {
                v.store(*accumulator, lanes, part);
            }
        }
    }
}

/// Float weights of one column, widened to f32.
///
/// # Safety
/// `V::ROWS` elements at byte `at` lie inside `bytes`.
#[inline(always)]
unsafe fn load_elements<V: RowVectors, E: FloatElement>(v: V, bytes: &[u8], at: usize) -> V::Floats {
    // SAFETY: passed on from the caller.
    unsafe {
        match E::KIND {
            FloatKind::F32 => v.load_floats(bytes, at),
            FloatKind::F16 => v.load_halves(bytes, at),
            FloatKind::Bf16 => v.load_bfloats(bytes, at),
        }
    }
}
