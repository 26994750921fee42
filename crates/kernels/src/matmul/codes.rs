//! Products with matrices of codes: their values are made for some columns at a time and used as F32 weights are.
//!
//! So a product is what it would be with the values as F32 weights, bit for bit, and no instruction set needs kernels of its own for
//! a coding: values are made by vectors whose lanes are rows, as the tiles are. Between pieces of columns the accumulators stay in the
//! output.

use super::driver::{F32Element, FloatTiles, Lanes, Span};
use super::tile::RowVectors;
use crate::WeightFormat;
use crate::blocks::STEP_COLUMNS;
use crate::coding::{Levels, ScaleFormat};
use crate::layout::{CodesGroup, GROUP_ROWS};

/// Columns whose values are made at a time: four groups of them are 16 KB.
const PIECE_COLUMNS: usize = 64;

/// Groups whose values are made at a time.
const PIECE_GROUPS: usize = 4;

/// Some columns of a packed group.
pub(super) struct Piece<'a> {
    pub group: CodesGroup<'a>,
    /// The first of them, at the start of a step.
    pub first_column: usize,
}

/// Runs a span of codes.
///
/// # Safety
/// As [`FloatTiles::tile`]; `span` is consistent and its output rows belong to the caller.
pub(super) unsafe fn run_codes<T: FloatTiles>(span: &Span<'_>) {
    let WeightFormat::Codes(coding) = span.format else { unreachable!("only codes come here") };
    let mut values = [[0.0; GROUP_ROWS]; PIECE_COLUMNS * PIECE_GROUPS];
    let groups = span.weights.len() / span.group_bytes;
    for first in (0..groups).step_by(PIECE_GROUPS) {
        let count = PIECE_GROUPS.min(groups - first);
        for first_column in (0..span.columns).step_by(PIECE_COLUMNS) {
            let columns = PIECE_COLUMNS.min(span.columns - first_column);
            let values = &mut values[..count * columns];
            for (index, values) in values.chunks_exact_mut(columns).enumerate() {
                let bytes = &span.weights[(first + index) * span.group_bytes..][..span.group_bytes];
                let group = CodesGroup::new(coding, span.columns, bytes);
                // SAFETY: passed on from the caller.
                unsafe { decode::<T>(coding.bits(), &Piece { group, first_column }, values) };
            }
            // SAFETY: passed on from the caller.
            unsafe {
                match count {
                    4 => piece::<T, 4>(span, first, first_column, values),
                    3 => {
                        piece::<T, 2>(span, first, first_column, &values[..2 * columns]);
                        piece::<T, 1>(span, first + 2, first_column, &values[2 * columns..]);
                    }
                    2 => piece::<T, 2>(span, first, first_column, values),
                    _ => piece::<T, 1>(span, first, first_column, values),
                }
            }
        }
    }
}

/// # Safety
/// The processor has the instruction set of `T`.
unsafe fn decode<T: FloatTiles>(bits: usize, piece: &Piece<'_>, values: &mut [Lanes]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match bits {
            2 => T::decode::<2>(piece, values),
            3 => T::decode::<3>(piece, values),
            4 => T::decode::<4>(piece, values),
            5 => T::decode::<5>(piece, values),
            6 => T::decode::<6>(piece, values),
            _ => T::decode::<8>(piece, values),
        }
    }
}

/// The values one by one: the definition.
pub(super) fn decode_scalar(piece: &Piece<'_>, values: &mut [Lanes]) {
    let codebook = piece.group.codebook();
    for (column, lanes) in values.iter_mut().enumerate() {
        for (lane, value) in lanes.iter_mut().enumerate() {
            *value = piece.group.value(&codebook, lane, piece.first_column + column);
        }
    }
}

/// How vectors find the level of a code.
enum Lookup {
    /// The number itself, less this.
    Number(i32),
    /// A table for four bits or fewer.
    Table([f32; 16]),
    /// e4m3fn.
    Float8,
    /// One by one.
    Scalar,
}

fn lookup(group: &CodesGroup<'_>) -> Lookup {
    let coding = group.coding();
    match coding.levels() {
        Levels::Unsigned => Lookup::Number(0),
        Levels::OffsetBinary => Lookup::Number(1 << (coding.bits() - 1)),
        Levels::E4m3 => Lookup::Float8,
        _ if coding.bits() <= 4 => {
            let codebook = group.codebook();
            let level = |code: usize| coding.level(code as u32 & ((1 << coding.bits()) - 1), &codebook);
            Lookup::Table(std::array::from_fn(level))
        }
        _ => Lookup::Scalar,
    }
}

/// Columns that certainly share a scale.
const HALF_STEP: usize = STEP_COLUMNS / 2;

/// The same by vectors; `PARTS` of them hold a column of the group.
///
/// # Safety
/// The codes have `BITS` bits.
#[inline(always)] // into a function compiled with the features of `V`
pub(super) unsafe fn decode_piece<V: RowVectors, const BITS: usize, const PARTS: usize>(
    v: V,
    piece: &Piece<'_>,
    values: &mut [Lanes],
) {
    let lookup = lookup(&piece.group);
    for part in 0..PARTS {
        // SAFETY: passed on from the caller.
        unsafe {
            match &lookup {
                Lookup::Scalar => return decode_scalar(piece, values),
                Lookup::Number(offset) => decode_part::<V, _, BITS>(v, piece, part, values, Number(*offset)),
                Lookup::Table(table) => {
                    if const { BITS <= 4 } {
                        decode_part::<V, _, BITS>(v, piece, part, values, Table(table));
                    }
                }
                Lookup::Float8 => {
                    if const { BITS == 8 } {
                        decode_part::<V, _, BITS>(v, piece, part, values, Float8);
                    }
                }
            }
        }
    }
}

/// The levels of a vector of codes. Types and not closures, because closures are not always compiled into their callers.
trait Level<V: RowVectors>: Copy {
    fn of(self, v: V, code: V::Ints) -> V::Floats;
}

#[derive(Clone, Copy)]
struct Number(i32);

impl<V: RowVectors> Level<V> for Number {
    #[inline(always)] // as `decode_piece`
    fn of(self, v: V, code: V::Ints) -> V::Floats {
        v.to_floats(v.add(code, -self.0))
    }
}

#[derive(Clone, Copy)]
struct Table<'a>(&'a [f32; 16]);

impl<V: RowVectors> Level<V> for Table<'_> {
    #[inline(always)] // as `decode_piece`
    fn of(self, v: V, code: V::Ints) -> V::Floats {
        v.entry_of(self.0, code)
    }
}

#[derive(Clone, Copy)]
struct Float8;

impl<V: RowVectors> Level<V> for Float8 {
    #[inline(always)] // as `decode_piece`
    fn of(self, v: V, code: V::Ints) -> V::Floats {
        float8(v, code)
    }
}

/// One vector of rows of the columns.
///
/// # Safety
/// The codes have `BITS` bits.
#[inline(always)] // as `decode_piece`
unsafe fn decode_part<V: RowVectors, L: Level<V>, const BITS: usize>(
    v: V,
    piece: &Piece<'_>,
    part: usize,
    values: &mut [Lanes],
    level: L,
) {
    let (group, first_row) = (&piece.group, part * V::ROWS);
    let has_bias = group.coding().has_bias();
    let mut scale_group = usize::MAX;
    let (mut scale, mut bias) = (v.splat(0.0), v.splat(0.0));
    for (half_step, columns) in values.chunks_mut(HALF_STEP).enumerate() {
        let first_column = piece.first_column + half_step * HALF_STEP;
        if group.scale_group(first_column) != scale_group {
            scale_group = group.scale_group(first_column);
            // SAFETY: the scales of all groups of columns lie inside the packed group.
            scale = unsafe { load_scales(v, group, 0, scale_group, first_row) };
            if has_bias {
                // SAFETY: as above.
                bias = unsafe { load_scales(v, group, 1, scale_group, first_row) };
            }
        }
        let mut words = [v.zero(); BITS];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: the step lies inside the packed group.
            *word = unsafe { v.load_words(group.bytes(), group.word_at(first_column, index, first_row)) };
        }
        let Ok(columns) = <&mut [Lanes; HALF_STEP]>::try_from(&mut *columns) else {
            // The last columns of a row: a piece begins with a step, so they are few and seldom.
            for (column, lanes) in columns.iter_mut().enumerate() {
                let code = code_of::<V, BITS>(v, &words, first_column % STEP_COLUMNS + column);
                v.store(weigh(v, level.of(v, code), scale, bias, has_bias), lanes, part);
            }
            continue;
        };
        // One after the other and not in a loop, so that words and shifts are known when this is compiled.
        macro_rules! columns {
            ($first:literal: $($column:literal)*) => {
                $(
                    let code = code_of::<V, BITS>(v, &words, $first + $column);
                    v.store(weigh(v, level.of(v, code), scale, bias, has_bias), &mut columns[$column], part);
                )*
            };
        }
        if half_step % 2 == 0 {
            columns!(0: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        } else {
            columns!(16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    }
}

/// `level * scale`, `+ bias`, each rounded.
#[inline(always)] // as `decode_piece`
fn weigh<V: RowVectors>(
    v: V,
    level: V::Floats,
    scale: V::Floats,
    bias: V::Floats,
    has_bias: bool,
) -> V::Floats {
    let scaled = v.mul(level, scale);
    // Without a bias nothing is added: zero would make -0 positive.
    if has_bias { v.fma(v.splat(1.0), scaled, bias) } else { scaled }
}

/// The code of a column of a step.
#[inline(always)] // as `decode_piece`
fn code_of<V: RowVectors, const BITS: usize>(v: V, words: &[V::Ints; BITS], column: usize) -> V::Ints {
    let (bit, mask) = (column * BITS, (1u32 << BITS) - 1);
    let (word, shift) = (bit / 32, (bit % 32) as u32);
    let low = v.shift_right(words[word], shift);
    if shift as usize + BITS <= 32 {
        return v.and(low, mask);
    }
    v.and(v.or(low, v.shift_left(words[word + 1], 32 - shift)), mask)
}

/// Factors of the mantissa and summands by exponent: `(m + 8) * 2^(e - 10)`, and `m * 2^-9` for exponent 0.
const FLOAT8_FACTORS: [f32; 16] = float8_table(1.0, 1.0);
const FLOAT8_SUMMANDS: [f32; 16] = float8_table(0.0, 8.0);

const fn float8_table(of_zero: f32, of_others: f32) -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut unit = 1.0 / 512.0;
    table[0] = of_zero * unit;
    let mut exponent = 1;
    while exponent < 16 {
        table[exponent] = of_others * unit;
        unit *= 2.0;
        exponent += 1;
    }
    table
}

/// The values of codes of e4m3fn.
#[inline(always)] // as `decode_piece`
fn float8<V: RowVectors>(v: V, code: V::Ints) -> V::Floats {
    let exponent = v.bits(code, 3, 0xf);
    let mantissa = v.to_floats(v.and(code, 7));
    let factor = v.entry_of(&FLOAT8_FACTORS, exponent);
    let magnitude = v.fma(mantissa, factor, v.entry_of(&FLOAT8_SUMMANDS, exponent));
    // One with the sign of the code, or NaN for the one code that is: 0x7f has a carry into bit 7 when one is added.
    let carry = v.bits(v.add(v.and(code, 0x7f), 1), 7, 1);
    let nan = v.or(v.shift_left(carry, 30), v.shift_left(carry, 22));
    let sign = v.shift_left(v.and(code, 0x80), 24);
    let one = v.add(v.zero(), 0x3f80_0000);
    v.mul(magnitude, v.floats_of_bits(v.or(v.or(one, sign), nan)))
}

/// Scales (0) or biases (1) of some rows.
///
/// # Safety
/// `V::ROWS` rows from `first_row` on are in the group.
#[inline(always)] // as `decode_piece`
unsafe fn load_scales<V: RowVectors>(
    v: V,
    group: &CodesGroup<'_>,
    kind: usize,
    scale_group: usize,
    first_row: usize,
) -> V::Floats {
    let at = group.scale_at(kind, scale_group, first_row);
    // SAFETY: passed on from the caller.
    unsafe {
        match group.coding().scales() {
            ScaleFormat::F32 => v.load_floats(group.bytes(), at),
            ScaleFormat::F16 => v.load_halves(group.bytes(), at),
            ScaleFormat::Bf16 => v.load_bfloats(group.bytes(), at),
        }
    }
}

/// Adds the products of some columns of `GROUPS` groups to the output.
///
/// # Safety
/// As [`run_codes`]; `values` holds the columns from `first_column` on.
unsafe fn piece<T: FloatTiles, const GROUPS: usize>(
    span: &Span<'_>,
    first_group: usize,
    first_column: usize,
    values: &[Lanes],
) {
    let columns = values.len() / GROUPS;
    let weights: &[u8] = bytemuck::cast_slice(values);
    let floats = span.input.floats();
    let mut row = 0;
    while row < span.input.rows() {
        let rows = &floats[row * span.columns + first_column..];
        // SAFETY: passed on from the caller.
        row += unsafe {
            match span.input.rows() - row {
                4.. if GROUPS <= T::GROUPS_OF_FOUR_ROWS => rows_of_piece::<T, GROUPS, 4>(
                    span,
                    first_group,
                    first_column,
                    (columns, weights),
                    (row, rows),
                ),
                4.. => {
                    for (index, weights) in weights.chunks_exact(columns * size_of::<Lanes>()).enumerate() {
                        let group = first_group + index;
                        rows_of_piece::<T, 1, 4>(span, group, first_column, (columns, weights), (row, rows));
                    }
                    4
                }
                _ => rows_of_piece::<T, GROUPS, 1>(
                    span,
                    first_group,
                    first_column,
                    (columns, weights),
                    (row, rows),
                ),
            }
        };
    }
}

/// # Safety
/// As [`piece`]; there are `ROWS` rows from row `first_row` on.
unsafe fn rows_of_piece<T: FloatTiles, const GROUPS: usize, const ROWS: usize>(
    span: &Span<'_>,
    first_group: usize,
    first_column: usize,
    (columns, weights): (usize, &[u8]),
    (first_row, rows): (usize, &[f32]),
) -> usize {
    let mut lanes: [[Lanes; ROWS]; GROUPS] = [[[0.0; GROUP_ROWS]; ROWS]; GROUPS];
    for (group, all) in lanes.iter_mut().enumerate() {
        for (row, lanes) in all.iter_mut().enumerate() {
            if first_column > 0 {
                // SAFETY: passed on from the caller.
                unsafe { span.load(first_group + group, first_row + row, lanes) };
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { T::tile::<F32Element, GROUPS, ROWS>((columns, span.columns), weights, rows, &mut lanes) };
    for (group, all) in lanes.iter().enumerate() {
        for (row, lanes) in all.iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe { span.store(first_group + group, first_row + row, lanes) };
        }
    }
    ROWS
}
