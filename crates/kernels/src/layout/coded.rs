//! Packed blocks of the formats that stay in their codes: indices of grids, and trits.
//!
//! ```text
//! block:  scales f16[16] | sub-scales u8[..][16] | steps
//! step:   index bytes u8[4 or 8][16] | signs u32[16] (IQ2, IQ3) | upper index bits u8[16] or u16[16] (IQ2_S, IQ3_S, IQ1)
//! trits:  13 vectors, byte j of the source in vector j / 4, for all 8 steps
//! ```
//!
//! Signs are a plane like the fifth bits: bit `g` of byte `c` belongs to column `4 g + c`. Where a format has seven sign bits for
//! eight columns, the bit of the eighth column holds one of four other bits of the step: a bit of the sub-scale (IQ2_XXS, IQ3_XXS)
//! or the ninth bit of an index (IQ2_XS). Nothing is lost, so a lane is a source block in other words: [`Carry`] describes
//! both directions at once.

use super::pack::fifth_bit_plane;
use super::{GROUP_ROWS, Grid, PackedBlock, QuantStorage, VECTOR_BYTES};

/// Vectors of a super-block of trits.
pub(crate) const TRIT_VECTORS: usize = 13;

/// Steps of a super-block.
const STEPS: usize = 8;

/// Bits of a plane of signs that stand for the last of eight columns.
const LAST_OF_EIGHT: u32 = 0xaa00_0000;

impl Grid {
    /// Index bytes of a step.
    pub(crate) const fn indices(self) -> usize {
        match self {
            Grid::Iq3Xxs | Grid::Iq3S => 8,
            _ => 4,
        }
    }

    const fn has_signs(self) -> bool {
        !matches!(self, Grid::Iq1S | Grid::Iq1M)
    }

    /// Offset of the signs in a step.
    pub(crate) const fn signs_at(self) -> usize {
        self.indices() * GROUP_ROWS
    }

    /// Offset of the upper index bits in a step, for the formats that keep them apart.
    pub(crate) const fn high_bits_at(self) -> usize {
        self.signs_at() + if self.has_signs() { 4 * GROUP_ROWS } else { 0 }
    }

    pub(super) const fn step_bytes(self) -> usize {
        self.high_bits_at()
            + match self {
                Grid::Iq2S | Grid::Iq3S => GROUP_ROWS,
                Grid::Iq1S | Grid::Iq1M => 2 * GROUP_ROWS,
                Grid::Iq2Xxs | Grid::Iq2Xs | Grid::Iq3Xxs => 0,
            }
    }
}

/// Moves between a source block and one lane of a packed block, in one of both directions.
pub(super) trait Carry {
    /// Source byte `source` and the lane's byte of the plane at `plane`.
    fn byte(&mut self, source: usize, plane: usize);

    /// The source bytes `sources`, a little-endian word of up to four bytes, and the lane's word of that width in the
    /// plane at `plane`; `to_packed` and `to_source` are inverse to each other.
    fn word<const N: usize>(
        &mut self,
        sources: [usize; N],
        plane: usize,
        to_packed: fn(u32) -> u32,
        to_source: fn(u32) -> u32,
    );

    /// The two bytes of an f16.
    fn half(&mut self, source: usize, plane: usize) {
        self.word([source, source + 1], plane, |word| word, |word| word);
    }

    /// The eight bytes of IQ1_M's sub-scales with the f16 scale among them.
    fn scattered_scale(&mut self, source: usize, packed: &PackedBlock);
}

/// From a source block to a lane.
pub(super) struct Packing<'a> {
    pub source: &'a [u8],
    pub lane: usize,
    pub block: &'a mut [u8],
}

/// From a lane to a source block.
pub(super) struct Unpacking<'a> {
    pub source: &'a mut [u8],
    pub lane: usize,
    pub block: &'a [u8],
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

impl Carry for Packing<'_> {
    #[inline(always)] // as all of this file into loops over the lanes
    fn byte(&mut self, source: usize, plane: usize) {
        self.block[plane + self.lane] = self.source[source];
    }

    #[inline(always)]
    fn word<const N: usize>(
        &mut self,
        sources: [usize; N],
        plane: usize,
        to_packed: fn(u32) -> u32,
        _: fn(u32) -> u32,
    ) {
        let word = to_packed(little_endian(&sources.map(|source| self.source[source])));
        self.block[plane + N * self.lane..][..N].copy_from_slice(&word.to_le_bytes()[..N]);
    }

    fn scattered_scale(&mut self, source: usize, packed: &PackedBlock) {
        let mut scale = 0;
        let mut six = [0; STEPS];
        for (index, bytes) in self.source[source..source + 8].chunks_exact(2).enumerate() {
            let word = little_endian(bytes) as u16;
            scale |= word >> 12 << (4 * index);
            six[2 * index] = word as u8 & 0x3f;
            six[2 * index + 1] = (word >> 6) as u8 & 0x3f;
        }
        self.block[2 * self.lane..][..2].copy_from_slice(&scale.to_le_bytes());
        write_six_bits(&six, &mut self.block[packed.sub_scales_at..], self.lane);
    }
}

impl Carry for Unpacking<'_> {
    #[inline(always)]
    fn byte(&mut self, source: usize, plane: usize) {
        self.source[source] = self.block[plane + self.lane];
    }

    #[inline(always)]
    fn word<const N: usize>(
        &mut self,
        sources: [usize; N],
        plane: usize,
        _: fn(u32) -> u32,
        to_source: fn(u32) -> u32,
    ) {
        let word = to_source(little_endian(&self.block[plane + N * self.lane..][..N]));
        for (source, byte) in sources.into_iter().zip(word.to_le_bytes()) {
            self.source[source] = byte;
        }
    }

    fn scattered_scale(&mut self, source: usize, packed: &PackedBlock) {
        let scale = little_endian(&self.block[2 * self.lane..][..2]) as u16;
        let six = read_six_bits::<STEPS>(&self.block[packed.sub_scales_at..], self.lane).map(u16::from);
        for (index, bytes) in self.source[source..source + 8].chunks_exact_mut(2).enumerate() {
            let word = six[2 * index] | six[2 * index + 1] << 6 | (scale >> (4 * index)) << 12;
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Six-bit values of a lane as planes of nibbles, two in a byte, and behind them planes of pairs, four in a byte.
#[inline(always)] // as `write_lane`
pub(super) fn write_six_bits<const N: usize>(values: &[u8; N], planes: &mut [u8], lane: usize) {
    for (index, pair) in values.chunks_exact(2).enumerate() {
        planes[index * GROUP_ROWS + lane] = (pair[0] & 0x0f) | pair[1] << 4;
    }
    for (index, four) in values.chunks_exact(4).enumerate() {
        planes[(N / 2 + index) * GROUP_ROWS + lane] =
            four.iter().rev().fold(0, |byte, value| byte << 2 | (value >> 4 & 3));
    }
}

/// The inverse of [`write_six_bits`].
#[inline(always)] // as `write_lane`
pub(super) fn read_six_bits<const N: usize>(planes: &[u8], lane: usize) -> [u8; N] {
    std::array::from_fn(|index| {
        let low = planes[index / 2 * GROUP_ROWS + lane] >> (index % 2 * 4) & 0x0f;
        let high = planes[(N / 2 + index / 4) * GROUP_ROWS + lane] >> (index % 4 * 2) & 3;
        low | high << 4
    })
}

/// All that a source block and a lane have in common.
#[inline(always)]
pub(super) fn carry(packed: &PackedBlock, carry: &mut impl Carry) {
    match packed.quants {
        QuantStorage::Trits => carry_trits(packed, carry),
        QuantStorage::Grid(grid) => carry_grid(grid, packed, carry),
        _ => unreachable!("the other formats have planes of values"),
    }
}

#[inline(always)]
fn carry_trits(packed: &PackedBlock, carry: &mut impl Carry) {
    for vector in 0..TRIT_VECTORS {
        let sources = [0, 1, 2, 3].map(|byte| 4 * vector + byte);
        carry.word(sources, packed.steps_at + vector * VECTOR_BYTES, |word| word, |word| word);
    }
    carry.half(4 * TRIT_VECTORS, 0);
}

#[inline(always)]
fn carry_grid(grid: Grid, packed: &PackedBlock, carry: &mut impl Carry) {
    match grid {
        Grid::Iq1M => carry.scattered_scale(48, packed),
        _ => carry.half(0, 0),
    }
    // Source offset of the sub-scales that are bytes of their own, and their number.
    let (sub_scales, count) = match grid {
        Grid::Iq2Xs => (66, 8),
        Grid::Iq2S => (74, 8),
        Grid::Iq3S => (106, 4),
        _ => (0, 0),
    };
    for index in 0..count {
        carry.byte(sub_scales + index, packed.sub_scales_at + index * GROUP_ROWS);
    }
    for step in 0..STEPS {
        let at = packed.steps_at + step * packed.step_bytes;
        for index in 0..grid.indices() {
            let source = match grid {
                Grid::Iq1M => 4 * step + index,
                Grid::Iq1S | Grid::Iq2S => 2 + 4 * step + index,
                Grid::Iq2Xxs => 2 + 8 * step + index,
                Grid::Iq2Xs => 2 + 8 * step + 2 * index,
                Grid::Iq3Xxs | Grid::Iq3S => 2 + 8 * step + index,
            };
            carry.byte(source, at + index * GROUP_ROWS);
        }
        let (signs, high) = (at + grid.signs_at(), at + grid.high_bits_at());
        let four = |first: usize| [first, first + 1, first + 2, first + 3];
        match grid {
            Grid::Iq1S => carry.half(34 + 2 * step, high),
            Grid::Iq1M => carry.half(32 + 2 * step, high),
            Grid::Iq2Xxs => carry.word(four(6 + 8 * step), signs, plane_of_scaled, scaled_of_plane),
            Grid::Iq3Xxs => carry.word(four(66 + 4 * step), signs, plane_of_scaled, scaled_of_plane),
            Grid::Iq2Xs => {
                let upper = [0, 2, 4, 6].map(|byte| 3 + 8 * step + byte);
                carry.word(upper, signs, plane_of_indexed, indexed_of_plane);
            }
            Grid::Iq2S => {
                carry.word(four(34 + 4 * step), signs, fifth_bit_plane, bits_of_plane);
                carry.byte(66 + step, high);
            }
            Grid::Iq3S => {
                carry.word(four(74 + 4 * step), signs, fifth_bit_plane, bits_of_plane);
                carry.byte(66 + step, high);
            }
        }
    }
}

/// The inverse of [`fifth_bit_plane`].
#[inline(never)] // used for every lane of every step
fn bits_of_plane(plane: u32) -> u32 {
    (0..32).fold(0, |bits, column| bits | (plane >> (column % 4 * 8 + column / 4) & 1) << column)
}

/// Sign bits of 32 columns and four bits of another kind, as a plane with those in the places of each eighth column.
#[inline(never)] // used for every lane of every step
fn plane_of_signs_and(signs: u32, other: u32) -> u32 {
    let spread = (other & 3 | (other & 0xc) << 2) & 0x33;
    let spread = ((spread | spread << 1) & 0x55) << 25;
    debug_assert!(spread & !LAST_OF_EIGHT == 0);
    fifth_bit_plane(signs & 0x7f7f_7f7f) | spread
}

/// The inverse of [`plane_of_signs_and`].
#[inline(never)] // as above
fn signs_and_other(plane: u32) -> (u32, u32) {
    let other = (0..4).fold(0, |bits, index| bits | (plane >> (25 + 2 * index) & 1) << index);
    (bits_of_plane(plane & !LAST_OF_EIGHT), other)
}

/// Seven sign bits each from bit 0, 7, 14 and 21, a sub-scale from bit 28.
fn plane_of_scaled(word: u32) -> u32 {
    let signs = word & 0x7f | (word & 0x7f << 7) << 1 | (word & 0x7f << 14) << 2 | (word & 0x7f << 21) << 3;
    plane_of_signs_and(signs, word >> 28)
}

fn scaled_of_plane(plane: u32) -> u32 {
    let (signs, scale) = signs_and_other(plane);
    let parts = [0, 8, 16, 24].map(|shift| signs >> shift & 0x7f);
    parts[0] | parts[1] << 7 | parts[2] << 14 | parts[3] << 21 | scale << 28
}

/// Four bytes, each of the ninth bit of an index and seven sign bits above it.
fn plane_of_indexed(word: u32) -> u32 {
    let ninth = word & 1 | word >> 7 & 2 | word >> 14 & 4 | word >> 21 & 8;
    plane_of_signs_and(word >> 1, ninth)
}

fn indexed_of_plane(plane: u32) -> u32 {
    let (signs, ninth) = signs_and_other(plane);
    (0..4).fold(signs << 1, |word, index| word | (ninth >> index & 1) << (8 * index))
}
