//! Tiles written once for all vector instruction sets: some activation rows times one group of 16 weight rows.
//!
//! A [`RowVectors`] holds some rows of the group in one register, a lane per row (16 for AVX-512, 8 for AVX2, 4 for NEON), so
//! nothing is ever summed across lanes. A weight vector is unpacked once and multiplied by all activation rows of the tile
//! before the next: the registers hold one integer and one float accumulator per activation row, and one weight vector.
//! Offsets (8, 16, 32; 128 where signed bytes are made unsigned) are not taken off the weights: the integer sum starts at
//! `-offset * sum of activations`. Scalar twin and definition: `scalar.rs`. An instruction set that multiplies whole matrices
//! writes tiles of its own.

use super::coded::{grid_pair, trits};
use super::driver::{FloatElement, FloatKind, Lanes};
use super::step_scales::{half_factors, half_minimums, half_scales, scales, step_at};
use crate::activations::ActivationBlock;
use crate::blocks::{CODES, IQ4_VALUES, QuantizedFormat};
use crate::layout::{GROUP_ROWS, MinimumStorage, QuantStorage, ScaleStorage, VECTOR_BYTES, packed_block};

/// Proof that an instruction set may be used, with its operations on vectors whose lanes are rows.
///
/// The methods become single instructions inside a function compiled with the same features. Those that read memory ask
/// the caller for all bytes of the vector to lie inside the slice.
pub(super) trait RowVectors: Copy {
    /// Rows (32-bit lanes) of a vector.
    const ROWS: usize;
    /// Added to signed bytes by [`RowVectors::stored_bytes`].
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
    /// Signed bytes as the dot product takes them.
    fn stored_bytes(self, bytes: Self::Bytes) -> Self::Bytes;
    fn low_nibbles(self, bytes: Self::Bytes) -> Self::Bytes;
    fn high_nibbles(self, bytes: Self::Bytes) -> Self::Bytes;
    /// What each code (below 16 in every byte) stands for.
    fn decode(self, codes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// Bit `from` of every byte moved to bit `to`, with the bits beside it, and then masked. Bits that leave their byte must
    /// be masked out.
    fn move_bits(self, plane: Self::Bytes, from: u32, to: u32, mask: u8) -> Self::Bytes;
    fn either(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Signed bytes: the negative of a byte where bit `bit` of the byte of `plane` is set.
    fn negate_where(self, magnitudes: Self::Bytes, plane: Self::Bytes, bit: u32) -> Self::Bytes;
    /// `(byte * power modulo 256) * 3 / 256` of every byte.
    fn trits(self, bytes: Self::Bytes, power: u8) -> Self::Bytes;
    /// Eight bytes for each row: the lower four and the upper four.
    fn entries(self, entry: impl Fn(usize) -> u64) -> [Self::Bytes; 2];
    /// Four bytes for each row.
    fn words(self, word: impl Fn(usize) -> u32) -> Self::Bytes;

    unsafe fn load_words(self, bytes: &[u8], at: usize) -> Self::Ints;
    unsafe fn load_unsigned(self, bytes: &[u8], at: usize) -> Self::Ints;
    unsafe fn load_unsigned_halves(self, bytes: &[u8], at: usize) -> Self::Ints;
    fn bytes_of(self, ints: Self::Ints) -> Self::Bytes;
    fn floats_of_bits(self, ints: Self::Ints) -> Self::Floats;
    fn shift_left(self, a: Self::Ints, count: u32) -> Self::Ints;
    /// Zeros come in from the left.
    fn shift_right(self, a: Self::Ints, count: u32) -> Self::Ints;
    fn and(self, a: Self::Ints, mask: u32) -> Self::Ints;
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn xor(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn add(self, a: Self::Ints, value: i32) -> Self::Ints;
    /// `a >> from & mask`.
    #[inline(always)]
    fn bits(self, a: Self::Ints, from: u32, mask: u32) -> Self::Ints {
        self.and(self.shift_right(a, from), mask)
    }

    /// `-offset * sum of the activations`.
    fn start(self, activations: &ActivationBlock, offset: i16) -> Self::Ints;
    /// `-offset * sum of the activations of half step `half``.
    fn half_start(self, activations: &ActivationBlock, offset: i16, half: usize) -> Self::Ints;
    fn zero(self) -> Self::Ints;
    fn begin(self, start: Self::Ints) -> Self::Partial;
    /// `first * sum of the first half step + second * sum of the second`, for factors of at most 15 bits.
    fn weigh_half_sums(self, activations: &ActivationBlock, factors: [Self::Ints; 2]) -> Self::Ints;
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
    /// What [`step_sums`] computes; instruction sets that have a better way for many rows write their own.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn step_sums<F: QuantizedFormat, const ROWS: usize>(
        self,
        weights: StepWeights<'_>,
        activations: StepRows<'_>,
    ) -> [Self::Floats; ROWS] {
        // SAFETY: passed on from the caller.
        unsafe { step_sums::<Self, F, ROWS>(self, weights, activations) }
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
    /// The entry of each code, which is below 16.
    fn entry_of(self, table: &[f32; 16], codes: Self::Ints) -> Self::Floats;
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
        let sums = v.step_sums::<F, ROWS>(weights, activations);
        let (scale, minimum) = scales::<V, F>(v, weights);
        let sub_minimums = match packed.minimums {
            MinimumStorage::SubtractedOfHalfSteps => half_minimums::<V, F>(v, weights),
            _ => [v.zero(); 2],
        };
        for row in 0..ROWS {
            let block = activations.get(row);
            let factor = v.mul(scale, v.splat(block.scale));
            let mut sum = v.fma(factor, sums[row], accumulators[row]);
            match packed.minimums {
                MinimumStorage::Absent => {}
                MinimumStorage::SubtractedOfHalfSteps => {
                    let weighed = v.to_floats(v.weigh_half_sums(block, sub_minimums));
                    sum = v.fma(v.mul(minimum, v.splat(block.scale)), weighed, sum);
                }
                _ => sum = v.fma(minimum, v.splat(block.scaled_sum), sum),
            }
            accumulators[row] = sum;
        }
    }
}

/// The integer sums over one step, weighed with the factors of its halves: what the definition calls `isum`.
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
pub(super) unsafe fn step_sums<V: RowVectors, F: QuantizedFormat, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
) -> [V::Floats; ROWS] {
    let packed = const { packed_block(F::FORMAT) };
    let offset = if packed.quants.is_signed() { V::STORED_BYTES_OFFSET } else { packed.quant_offset };
    let mut partials = [v.begin(v.zero()); ROWS];
    let mut sums = [v.zero(); ROWS];
    // SAFETY: passed on from the caller.
    unsafe {
        if !packed.scales.is_per_half_step() {
            if offset != 0 {
                for (row, partial) in partials.iter_mut().enumerate() {
                    *partial = v.begin(v.start(activations.get(row), offset));
                }
            }
            half_step::<V, F, 0, ROWS>(v, weights, activations, &mut partials);
            half_step::<V, F, 1, ROWS>(v, weights, activations, &mut partials);
            finish(v, &partials, &mut sums);
            let mut floats = [v.splat(0.0); ROWS];
            for (float, sum) in floats.iter_mut().zip(sums) {
                *float = v.to_floats(sum);
            }
            return floats;
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
        weigh_half_steps::<V, F, ROWS>(v, weights, first, sums)
    }
}

/// Integer sums of both halves of a step to one sum, for formats with scales of half steps.
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
pub(super) unsafe fn weigh_half_steps<V: RowVectors, F: QuantizedFormat, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    first: [V::Ints; ROWS],
    second: [V::Ints; ROWS],
) -> [V::Floats; ROWS] {
    let packed = const { packed_block(F::FORMAT) };
    let mut sums = [v.splat(0.0); ROWS];
    // SAFETY: passed on from the caller.
    unsafe {
        if packed.scales == ScaleStorage::HalfStepFloat {
            let [first_scale, second_scale] = half_scales::<V, F>(v, weights);
            for (row, sum) in sums.iter_mut().enumerate() {
                let weighed = v.mul(first_scale, v.to_floats(first[row]));
                *sum = v.fma(second_scale, v.to_floats(second[row]), weighed);
            }
            return sums;
        }
        let [first_factor, second_factor] = half_factors::<V, F>(v, weights);
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = v.to_floats(v.weigh(first[row], first_factor, second[row], second_factor));
        }
    }
    sums
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
        column_groups::<V, F, HALF, 0, ROWS>(v, weights, activations, partials);
        column_groups::<V, F, HALF, 1, ROWS>(v, weights, activations, partials);
    }
}

/// Adds two column groups.
///
/// # Safety
/// As [`add_step`]; `HALF < 2`, `PAIR < 2`.
#[inline(always)]
unsafe fn column_groups<
    V: RowVectors,
    F: QuantizedFormat,
    const HALF: usize,
    const PAIR: usize,
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
        let [first, second] = quant_pair::<V, F, HALF, PAIR>(v, weights);
        for (row, partial) in partials.iter_mut().enumerate() {
            let sum = v.dot(storage, *partial, first, activations.get(row), HALF * 4 + PAIR * 2);
            *partial = v.widen(storage, sum, PAIR * 2 + 1);
        }
        for (row, partial) in partials.iter_mut().enumerate() {
            let sum = v.dot(storage, *partial, second, activations.get(row), HALF * 4 + PAIR * 2 + 1);
            *partial = v.widen(storage, sum, PAIR * 2 + 2);
        }
    }
}

/// The stored values of column groups `4 * HALF + 2 * PAIR` and the next, as the dot product takes them.
///
/// # Safety
/// As [`column_groups`].
#[inline(always)]
pub(super) unsafe fn quant_pair<V: RowVectors, F: QuantizedFormat, const HALF: usize, const PAIR: usize>(
    v: V,
    weights: StepWeights<'_>,
) -> [V::Bytes; 2] {
    let storage = const { packed_block(F::FORMAT) }.quants;
    // SAFETY: passed on from the caller.
    unsafe {
        match (storage, PAIR) {
            (QuantStorage::Grid(grid), _) => grid_pair::<V, F, HALF, PAIR>(v, grid, weights),
            (_, 0) => [quants::<V, F, HALF, 0>(v, weights), quants::<V, F, HALF, 1>(v, weights)],
            _ => [quants::<V, F, HALF, 2>(v, weights), quants::<V, F, HALF, 3>(v, weights)],
        }
    }
}

/// The stored values of column group `4 * HALF + INDEX`; not for grids.
///
/// # Safety
/// As [`column_groups`]; `INDEX < 4`.
#[inline(always)]
unsafe fn quants<V: RowVectors, F: QuantizedFormat, const HALF: usize, const INDEX: usize>(
    v: V,
    weights: StepWeights<'_>,
) -> V::Bytes {
    let packed = const { packed_block(F::FORMAT) };
    let first = step_at(&packed, weights) + 4 * weights.first_row;
    macro_rules! vector {
        ($index:expr) => {
            v.load_bytes(weights.block, first + $index * VECTOR_BYTES)
        };
    }
    macro_rules! nibbles {
        () => {
            if HALF == 0 { v.low_nibbles(vector!(INDEX)) } else { v.high_nibbles(vector!(INDEX)) }
        };
    }
    macro_rules! pair {
        ($index:expr, $to:literal) => {
            v.move_bits(vector!($index), 2 * INDEX as u32, $to, 3 << $to)
        };
    }
    macro_rules! bit {
        ($index:expr, $to:literal) => {
            v.move_bits(vector!($index), (HALF * 4 + INDEX) as u32, $to, 1 << $to)
        };
    }
    // SAFETY: all vectors of the step lie inside the block.
    unsafe {
        match packed.quants {
            QuantStorage::Bytes => v.stored_bytes(vector!(HALF * 4 + INDEX)),
            QuantStorage::Nibbles | QuantStorage::Grid(_) => nibbles!(),
            QuantStorage::Codes => v.decode(nibbles!(), &CODES),
            QuantStorage::SignedCodes => v.stored_bytes(v.decode(nibbles!(), &IQ4_VALUES)),
            QuantStorage::NibblesAndFifthBit => v.either(nibbles!(), bit!(4, 4)),
            QuantStorage::NibblesAndBitPairs => v.either(nibbles!(), pair!(4 + HALF, 4)),
            QuantStorage::BitPairs => pair!(HALF, 0),
            QuantStorage::BitPairsAndThirdBit => v.either(pair!(HALF, 0), bit!(2, 2)),
            QuantStorage::Trits => trits::<V, F, HALF, INDEX>(v, weights),
        }
    }
}

/// Adds the products of `GROUPS` neighbouring groups of float weights and `ROWS` activation rows to `out`; `PARTS` vectors hold a
/// group.
///
/// # Safety
/// `groups` is `GROUPS` whole packed groups of `columns` elements, and `rows` is `ROWS` rows of `columns` activations, `stride`
/// apart.
#[inline(always)]
pub(super) unsafe fn float_tile<
    V: RowVectors,
    E: FloatElement,
    const GROUPS: usize,
    const ROWS: usize,
    const PARTS: usize,
>(
    v: V,
    (columns, stride): (usize, usize),
    groups: &[u8],
    rows: &[f32],
    out: &mut [[Lanes; ROWS]; GROUPS],
) {
    const { assert!(PARTS * V::ROWS == GROUP_ROWS) };
    let mut accumulators = [[[v.splat(0.0); PARTS]; ROWS]; GROUPS];
    for (results, accumulators) in out.iter().zip(&mut accumulators) {
        for (lanes, parts) in results.iter().zip(accumulators) {
            for (part, accumulator) in parts.iter_mut().enumerate() {
                let at = part * V::ROWS * size_of::<f32>();
                // SAFETY: the parts lie inside the lanes.
                *accumulator = unsafe { v.load_floats(bytemuck::cast_slice(lanes.as_slice()), at) };
            }
        }
    }
    for column in 0..columns {
        for (group, accumulators) in accumulators.iter_mut().enumerate() {
            let at = (group * columns + column) * GROUP_ROWS * E::BYTES;
            let mut weights = [v.splat(0.0); PARTS];
            for (part, weights) in weights.iter_mut().enumerate() {
                // SAFETY: the column lies inside the group, the group inside `groups`.
                *weights = unsafe { load_elements::<V, E>(v, groups, at + part * V::ROWS * E::BYTES) };
            }
            for (row, accumulators) in accumulators.iter_mut().enumerate() {
                // SAFETY: `rows` has `ROWS` rows.
                let activation = v.splat(unsafe { *rows.get_unchecked(row * stride + column) });
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
