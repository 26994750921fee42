//! Keys and values as blocks of small integers: how a block is made and read.
//!
//! A block is 32 numbers of one head of one position with one f16 scale, and depends on nothing else. The rules are those of GGUF's
//! Q8_0 (`scale = largest magnitude / 127`) and Q4_0 (`scale = element of the largest magnitude / -8`), with one change: numbers are
//! divided by the scale as it is stored, not as it was before it was rounded to f16, so that the rounding of the scale costs nothing but
//! the last step at the edge. A block with a NaN or an infinity, or beyond what an f16 scale reaches, has the scale NaN: a broken
//! value is seen and not hidden. Reading is exact: an f16 times a small integer fits f32.
#![allow(unsafe_code)]

use coldpress_workers::Team;
use half::f16;

use super::block::CacheElement;
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::for_each_span;

/// Numbers of a block.
pub const BLOCK_NUMBERS: usize = 32;
const LARGEST_8: f32 = 127.0;
/// The four-bit numbers are -8 to 7.
const LARGEST_4: f32 = 8.0;

/// 32 numbers as signed bytes, value = scale * byte. Within half a scale of what they were made from.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ8 {
    scale: f16,
    values: [i8; BLOCK_NUMBERS],
}

/// 32 numbers in four bits each, value = scale * (bits - 8): the low halves of the bytes are numbers 0 to 15, the high halves the
/// others. Within half a scale of what they were made from; within one scale on the side opposite to the largest magnitude, where
/// the range ends at 7.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ4 {
    scale: f16,
    values: [u8; BLOCK_NUMBERS / 2],
}

const _: () = assert!(size_of::<BlockQ8>() == 34 && size_of::<BlockQ4>() == 18);

mod plain_old_data {
    use super::{BlockQ4, BlockQ8};

    // SAFETY: all bytes zero is a valid value of every field.
    unsafe impl bytemuck::Zeroable for BlockQ8 {}
    // SAFETY: `repr(C)`, 2 + 32 bytes without padding (checked by the size assertion), every bit pattern is valid.
    unsafe impl bytemuck::Pod for BlockQ8 {}
    // SAFETY: all bytes zero is a valid value of every field.
    unsafe impl bytemuck::Zeroable for BlockQ4 {}
    // SAFETY: `repr(C)`, 2 + 16 bytes without padding (checked by the size assertion), every bit pattern is valid.
    unsafe impl bytemuck::Pod for BlockQ4 {}
}

impl BlockQ8 {
    /// What one unit of a number is.
    pub fn scale(&self) -> f32 {
        self.scale.to_f32_const()
    }

    /// The numbers of the block.
    pub fn numbers(&self) -> [f32; BLOCK_NUMBERS] {
        self.values.map(|value| self.scale() * f32::from(value))
    }
}

impl BlockQ4 {
    /// What one unit of a number is.
    pub fn scale(&self) -> f32 {
        self.scale.to_f32_const()
    }

    /// The numbers of the block.
    pub fn numbers(&self) -> [f32; BLOCK_NUMBERS] {
        std::array::from_fn(|index| {
            let byte = self.values[index % LANES];
            let bits = if index < LANES { byte & 0x0f } else { byte >> 4 };
            self.scale() * (f32::from(bits) - 8.0)
        })
    }
}

impl CacheElement for BlockQ8 {
    const NUMBERS: usize = BLOCK_NUMBERS;

    #[inline(always)]
    fn vector<S: Simd>(s: S, elements: &[Self], row: usize, step: usize) -> S::Lanes {
        let block = &elements[row + step / 2];
        let half = &block.values.as_chunks::<LANES>().0[step % 2];
        s.mul(s.load_bytes(half), s.splat_half(block.scale))
    }

    #[inline(always)]
    fn line_at(step: usize) -> Option<usize> {
        step.is_multiple_of(2).then_some(step / 2)
    }
}

impl CacheElement for BlockQ4 {
    const NUMBERS: usize = BLOCK_NUMBERS;

    #[inline(always)]
    fn vector<S: Simd>(s: S, elements: &[Self], row: usize, step: usize) -> S::Lanes {
        let block = &elements[row + step / 2];
        let numbers = if step.is_multiple_of(2) {
            s.load_nibbles::<false>(&block.values)
        } else {
            s.load_nibbles::<true>(&block.values)
        };
        s.mul(numbers, s.splat_half(block.scale))
    }

    #[inline(always)]
    fn line_at(step: usize) -> Option<usize> {
        step.is_multiple_of(4).then_some(step / 2)
    }
}

/// Zero for numbers that are all finite, else NaN.
#[inline(always)]
fn poison<S: Simd>(s: S, halves: [S::Lanes; 2]) -> f32 {
    let zero = s.splat(0.0);
    s.reduce_add(s.add(s.mul(halves[0], zero), s.mul(halves[1], zero)))
}

/// A scale as it is stored and what numbers are multiplied by; `None` where the block has no scale.
#[inline(always)]
fn stored_scale(scale: f32, poison: f32) -> Option<(f16, f32)> {
    let scale = f16::from_f32_const(scale + poison);
    if !scale.is_finite() {
        return None;
    }
    let value = scale.to_f32_const();
    Some((scale, if value == 0.0 { 0.0 } else { 1.0 / value }))
}

/// Numbers in units of the scale, within `low..=high`.
#[inline(always)]
fn units<S: Simd>(s: S, numbers: S::Lanes, inverse: f32, (low, high): (f32, f32)) -> [i8; LANES] {
    let scaled = s.mul(numbers, s.splat(inverse));
    let clamped = s.larger(s.smaller(scaled, s.splat(high)), s.splat(low));
    let mut bytes = [0; LANES];
    s.store_bytes(clamped, &mut bytes);
    bytes
}

#[inline(always)]
fn quantize_q8_body<S: Simd>(s: S, numbers: &[[[f32; LANES]; 2]], out: &mut [BlockQ8]) {
    for (numbers, out) in numbers.iter().zip(out) {
        let halves = [s.load(&numbers[0]), s.load(&numbers[1])];
        let smallest = s.smaller(s.negative_magnitude(halves[0]), s.negative_magnitude(halves[1]));
        let largest = s.reduce_larger(s.sub(s.splat(0.0), smallest));
        let Some((scale, inverse)) = stored_scale(largest / LARGEST_8, poison(s, halves)) else {
            *out = BlockQ8 { scale: f16::NAN, values: [0; BLOCK_NUMBERS] };
            continue;
        };
        out.scale = scale;
        let (places, _) = out.values.as_chunks_mut::<LANES>();
        places[0] = units(s, halves[0], inverse, (-LARGEST_8, LARGEST_8));
        places[1] = units(s, halves[1], inverse, (-LARGEST_8, LARGEST_8));
    }
}

#[inline(always)]
fn quantize_q4_body<S: Simd>(s: S, numbers: &[[[f32; LANES]; 2]], out: &mut [BlockQ4]) {
    let zero = s.splat(0.0);
    for (numbers, out) in numbers.iter().zip(out) {
        let halves = [s.load(&numbers[0]), s.load(&numbers[1])];
        let high = s.reduce_larger(s.larger(halves[0], halves[1]));
        let low = s.reduce_larger(s.larger(s.sub(zero, halves[0]), s.sub(zero, halves[1])));
        // The number of the largest magnitude becomes -8.
        let scale = if high > low { -high / LARGEST_4 } else { low / LARGEST_4 };
        let Some((scale, inverse)) = stored_scale(scale, poison(s, halves)) else {
            *out = BlockQ4 { scale: f16::NAN, values: [0; BLOCK_NUMBERS / 2] };
            continue;
        };
        out.scale = scale;
        let first = units(s, halves[0], inverse, (-LARGEST_4, LARGEST_4 - 1.0));
        let second = units(s, halves[1], inverse, (-LARGEST_4, LARGEST_4 - 1.0));
        let mut index = 0;
        while index < LANES {
            let bits = [(first[index] + 8).cast_unsigned(), (second[index] + 8).cast_unsigned()];
            out.values[index] = bits[0] | bits[1] << 4;
            index += 1;
        }
    }
}

instantiate! { fn q8_blocks(numbers: &[[[f32; LANES]; 2]], out: &mut [BlockQ8]) => quantize_q8_body }
instantiate! { fn q4_blocks(numbers: &[[[f32; LANES]; 2]], out: &mut [BlockQ4]) => quantize_q4_body }

fn blocks_of(numbers: &[f32], blocks: usize) -> &[[[f32; LANES]; 2]] {
    assert_eq!(numbers.len(), blocks * BLOCK_NUMBERS, "{} numbers for {blocks} blocks", numbers.len());
    numbers.as_chunks::<LANES>().0.as_chunks::<2>().0
}

/// Rounds `numbers` to 8 bits, 32 of them to a block. Panics when the lengths do not fit.
pub fn quantize_q8(team: &Team<'_>, kernels: Kernels, numbers: &[f32], out: &mut [BlockQ8]) {
    let numbers = blocks_of(numbers, out.len());
    for_each_span(team, out, |span, out| q8_blocks(kernels, &numbers[span], out));
}

/// Rounds `numbers` to 4 bits, 32 of them to a block. Panics when the lengths do not fit.
pub fn quantize_q4(team: &Team<'_>, kernels: Kernels, numbers: &[f32], out: &mut [BlockQ4]) {
    let numbers = blocks_of(numbers, out.len());
    for_each_span(team, out, |span, out| q4_blocks(kernels, &numbers[span], out));
}
