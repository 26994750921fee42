//! AMX: tiles of 16 (or 8) activation rows times 16 weight rows, 32 columns at a time.
//!
//! The packed layout is the right factor as `tdpbssd` wants it: the vectors of a step are the rows of the tile, and the signed
//! bytes of Q8_0 are read where they lie. Other formats are unpacked into [`Chunk`], with the offset taken off, once for all
//! tiles of a pass. The left factor is read from the activation blocks, one block apart per step. Sums of a step go through
//! memory to AVX-512, which does the f32 part in the order of the definition; the product of the next step begins before
//! that, in another tile. Q6_K takes two products of 16 columns per step.
//!
//! Tiles are configured once per span (the piece of work of one thread) and released at its end: a span has one format and one
//! number of rows per tile. A tile may repeat rows that another one has done, which gives the same bits again; fewer than
//! [`REST_MIN`] remaining rows go to the tiles of the vector instruction set. Intrinsics are not stable, so tile instructions
//! are written as `asm!`; compiled code never touches tile registers, so they keep their values between these blocks.
//!
//! Assumed per step of 16 x 16 x 32 on Sapphire Rapids, not measured: the product 16 cycles (52 until it can be
//! stored), loading both tiles 12, storing the sums 16, the f32 part 48 vector operations on two ports, 24 (64 operations, 32
//! cycles with a minimum). These overlap, so about 25 to 40 cycles; AVX-512 alone has about 190 vector operations, 95 cycles.
//! Never run on hardware: the tests run in an emulator. Everything but the tile instructions takes a third of the time of the
//! AVX-512 tiles on Zen 4, whose vector units are half as wide: the bound that the f32 part sets.

use std::arch::asm;
use std::arch::x86_64::{__m512, __m512i};
use std::hint::black_box;

use super::avx512::Avx512Rows;
use super::driver::{Lanes, QuantizedTiles, Span, quantized_rows, rows_per_pass, run_quantized};
use super::step_scales::{half_minimums, half_scales, scales};
use super::tile::{RowVectors, StepWeights, quant_pair};
use crate::activations::{ActivationBlock, blocks_per_row};
use crate::blocks::QuantizedFormat;
use crate::layout::{
    GROUP_ROWS, MinimumStorage, PackedBlock, QuantStorage, STEP_GROUPS, VECTOR_BYTES, packed_block,
};

/// Activation rows of a tile, when there are as many; otherwise half of them.
const ROWS: usize = 16;
const ROWS_OF_HALF: usize = 8;

/// Remaining rows that are worth a tile of their own: below, the tiles of the vector instruction set do less work.
const REST_MIN: usize = 5;

/// Tiles that share the unpacked weights.
const TILES_PER_PASS: usize = 4;

/// Steps that are unpacked at a time, with room for the activations of a pass in the first cache.
const CHUNK_STEPS: usize = 8;

/// Weights of some steps of one group, as the tiles take them.
#[repr(C, align(64))]
struct Chunk {
    steps: usize,
    /// Signed bytes without offset; not used for formats that are stored so.
    quants: [[[u8; VECTOR_BYTES]; STEP_GROUPS]; CHUNK_STEPS],
    scales: [Lanes; CHUNK_STEPS],
    /// With the sign they are added with; only formats with a minimum.
    minimums: [Lanes; CHUNK_STEPS],
    /// Factors of both half steps; only formats with scales of half steps.
    half_scales: [[Lanes; 2]; CHUNK_STEPS],
    /// Sub-minimums of both half steps; only `SubtractedOfHalfSteps`.
    half_minimums: [[Lanes; 2]; CHUNK_STEPS],
}

impl Chunk {
    const EMPTY: Chunk = Chunk {
        steps: 0,
        quants: [[[0; VECTOR_BYTES]; STEP_GROUPS]; CHUNK_STEPS],
        scales: [[0.0; GROUP_ROWS]; CHUNK_STEPS],
        minimums: [[0.0; GROUP_ROWS]; CHUNK_STEPS],
        half_scales: [[[0.0; GROUP_ROWS]; 2]; CHUNK_STEPS],
        half_minimums: [[[0.0; GROUP_ROWS]; 2]; CHUNK_STEPS],
    };
}

/// Integer sums of one step as a tile stores them, by activation row and weight row; two for half steps.
#[repr(C, align(64))]
struct StepSums([[[i32; GROUP_ROWS]; ROWS]; 2]);

impl StepSums {
    const ZERO: StepSums = StepSums([[[0; GROUP_ROWS]; ROWS]; 2]);
}

/// Memory of a span.
struct Scratch {
    chunk: Chunk,
    /// Of even and of odd steps.
    sums: [StepSums; 2],
    /// Results of the tiles of a pass, `[tile][row of the tile][lane]`.
    results: [[Lanes; ROWS]; TILES_PER_PASS],
}

/// Runs a span of quantised weights; `T` are the tiles for rows that are too few.
///
/// # Safety
/// As [`run_quantized`], with AMX as well.
pub(super) unsafe fn run_amx<T: QuantizedTiles, F: QuantizedFormat>(span: &Span<'_>) {
    // Codes are looked up in the time that the tiles save, and compiling both sizes for each such format takes minutes.
    if const { packed_block(F::FORMAT).quants.is_coded() } {
        // SAFETY: passed on from the caller.
        return unsafe { run_quantized::<T, F>(span) };
    }
    // SAFETY: passed on from the caller.
    unsafe {
        match span.input.rows() {
            ROWS.. => run_tiles::<T, F, ROWS>(span),
            ROWS_OF_HALF.. => run_tiles::<T, F, ROWS_OF_HALF>(span),
            _ => run_quantized::<T, F>(span),
        }
    }
}

/// # Safety
/// As [`run_amx`]; the span has at least `TILE_ROWS` activation rows.
unsafe fn run_tiles<T: QuantizedTiles, F: QuantizedFormat, const TILE_ROWS: usize>(span: &Span<'_>) {
    let packed = const { packed_block(F::FORMAT) };
    let row_blocks = blocks_per_row(span.columns);
    let rows = span.input.rows();
    let input = &span.input.blocks()[..rows * row_blocks];
    let pass_rows = rows_per_pass(row_blocks, TILE_ROWS).min(TILES_PER_PASS * TILE_ROWS);
    let mut scratch = Scratch {
        chunk: Chunk::EMPTY,
        sums: [StepSums::ZERO; 2],
        results: [[[0.0; GROUP_ROWS]; ROWS]; TILES_PER_PASS],
    };
    // SAFETY: the caller says that AMX may be used.
    let _configured = unsafe { ConfiguredTiles::new(TILE_ROWS, columns_per_product(&packed)) };
    for first in (0..rows).step_by(pass_rows) {
        let end = rows.min(first + pass_rows);
        let (starts, tiles) = tile_starts::<TILE_ROWS>(first, end);
        let rest = if (end - first) % TILE_ROWS < REST_MIN { (end - first) % TILE_ROWS } else { 0 };
        for (group, weights) in span.weights.chunks_exact(span.group_bytes).enumerate() {
            // SAFETY: every tile begins at a row with `TILE_ROWS - 1` rows behind it; the tiles are configured for them.
            // Results go to rows of the span, as the caller allows.
            unsafe {
                multiply_group::<F, TILE_ROWS>(weights, input, row_blocks, &starts[..tiles], &mut scratch);
                for (&start, results) in starts[..tiles].iter().zip(&scratch.results) {
                    for (row, lanes) in results[..TILE_ROWS].iter().enumerate() {
                        span.store(group, start + row, lanes);
                    }
                }
                let blocks = &input[(end - rest) * row_blocks..end * row_blocks];
                quantized_rows::<T, F>(span, group, weights, end - rest, blocks);
            }
        }
    }
}

/// First rows of the tiles that do rows `first..end`, and how many they are. The last one may begin earlier than its
/// neighbour ends, so that it is full.
fn tile_starts<const TILE_ROWS: usize>(first: usize, end: usize) -> ([usize; TILES_PER_PASS], usize) {
    let mut starts = [0; TILES_PER_PASS];
    let mut tiles = 0;
    for start in (first..end).step_by(TILE_ROWS) {
        let rest = end - start;
        if rest >= TILE_ROWS.min(REST_MIN) {
            starts[tiles] = if rest < TILE_ROWS { end - TILE_ROWS } else { start };
            tiles += 1;
        }
    }
    (starts, tiles)
}

/// Multiplies one group by the tiles that begin at `starts`, into `scratch.results`.
///
/// # Safety
/// The processor has AVX-512 as [`Avx512Rows`] asks; `group` is one packed group of `F`; every start has `TILE_ROWS` rows of
/// `row_blocks` blocks in `input`, as many as the group has steps; tiles are configured for the format and `TILE_ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply_group<F: QuantizedFormat, const TILE_ROWS: usize>(
    group: &[u8],
    input: &[ActivationBlock],
    row_blocks: usize,
    starts: &[usize],
    scratch: &mut Scratch,
) {
    let packed = const { packed_block(F::FORMAT) };
    // SAFETY: this function is compiled with the features.
    let v = unsafe { Avx512Rows::new() };
    scratch.results[..starts.len()].fill([[0.0; GROUP_ROWS]; ROWS]);
    for first_step in (0..row_blocks).step_by(CHUNK_STEPS) {
        scratch.chunk.steps = CHUNK_STEPS.min(row_blocks - first_step);
        // SAFETY: the steps lie in the group.
        unsafe { unpack::<F>(v, group, first_step, &mut scratch.chunk) };
        for (&start, results) in starts.iter().zip(&mut scratch.results) {
            let stored = match packed.quants {
                QuantStorage::Bytes => StepBytes::of_group(&packed, group, first_step),
                _ => StepBytes::of_chunk(&scratch.chunk),
            };
            let blocks = &input[start * row_blocks + first_step..];
            // SAFETY: passed on from the caller; the chunk holds `steps` steps from `first_step`.
            unsafe {
                add_chunk::<F, TILE_ROWS>(
                    v,
                    &scratch.chunk,
                    stored,
                    LeftRows { blocks, row_blocks },
                    &mut scratch.sums,
                    results,
                );
            }
        }
    }
}

/// Where the right factors of the steps of a chunk lie: 8 rows of 64 signed bytes each.
#[derive(Clone, Copy)]
struct StepBytes {
    first: *const u8,
    step_distance: usize,
}

impl StepBytes {
    /// Formats of one step per block that are stored as signed bytes.
    fn of_group(packed: &PackedBlock, group: &[u8], first_step: usize) -> StepBytes {
        let first = group[first_step * packed.bytes + packed.steps_at..].as_ptr();
        StepBytes { first, step_distance: packed.bytes }
    }

    fn of_chunk(chunk: &Chunk) -> StepBytes {
        StepBytes { first: chunk.quants.as_ptr().cast(), step_distance: STEP_GROUPS * VECTOR_BYTES }
    }
}

/// The activation rows of a tile, from the first step of a chunk on.
#[derive(Clone, Copy)]
struct LeftRows<'a> {
    blocks: &'a [ActivationBlock],
    row_blocks: usize,
}

/// Unpacks the steps of a chunk from `first_step` on.
///
/// # Safety
/// `group` is a packed group of `F` with at least `first_step + chunk.steps` steps.
#[inline(always)] // into a function with the features of `v`, as everything below
unsafe fn unpack<F: QuantizedFormat>(v: Avx512Rows, group: &[u8], first_step: usize, chunk: &mut Chunk) {
    let packed = const { packed_block(F::FORMAT) };
    for index in 0..chunk.steps {
        let step = first_step + index;
        let block = &group[step / packed.steps * packed.bytes..][..packed.bytes];
        let weights = StepWeights { block, step: step % packed.steps, first_row: 0 };
        // SAFETY: `block` is a whole block and the step one of its steps.
        unsafe {
            let (scale, minimum) = scales::<_, F>(v, weights);
            v.store(scale, &mut chunk.scales[index], 0);
            if packed.minimums != MinimumStorage::Absent {
                v.store(minimum, &mut chunk.minimums[index], 0);
            }
            if packed.scales.is_per_half_step() {
                let [first, second] = half_scales::<_, F>(v, weights);
                v.store(first, &mut chunk.half_scales[index][0], 0);
                v.store(second, &mut chunk.half_scales[index][1], 0);
            }
            if packed.minimums == MinimumStorage::SubtractedOfHalfSteps {
                let [first, second] = half_minimums::<_, F>(v, weights);
                v.store(v.to_floats(first), &mut chunk.half_minimums[index][0], 0);
                v.store(v.to_floats(second), &mut chunk.half_minimums[index][1], 0);
            }
            if packed.quants != QuantStorage::Bytes {
                // Signed values come with 128 added.
                let offset = if packed.quants.is_signed() { i8::MIN } else { packed.quant_offset as i8 };
                let vectors = &mut chunk.quants[index];
                store_pair(v, quant_pair::<_, F, 0, 0>(v, weights), offset, &mut vectors[0..2]);
                store_pair(v, quant_pair::<_, F, 0, 1>(v, weights), offset, &mut vectors[2..4]);
                store_pair(v, quant_pair::<_, F, 1, 0>(v, weights), offset, &mut vectors[4..6]);
                store_pair(v, quant_pair::<_, F, 1, 1>(v, weights), offset, &mut vectors[6..8]);
            }
        }
    }
}

#[inline(always)]
fn store_pair(v: Avx512Rows, pair: [__m512i; 2], offset: i8, vectors: &mut [[u8; VECTOR_BYTES]]) {
    v.store_signed(pair[0], offset, &mut vectors[0]);
    v.store_signed(pair[1], offset, &mut vectors[1]);
}

/// Adds the steps of a chunk to the results of one tile.
///
/// # Safety
/// As [`multiply_group`]; `left` has `TILE_ROWS` rows with at least `chunk.steps` blocks behind each beginning, `stored` as
/// many steps.
#[inline(always)]
unsafe fn add_chunk<F: QuantizedFormat, const TILE_ROWS: usize>(
    v: Avx512Rows,
    chunk: &Chunk,
    stored: StepBytes,
    left: LeftRows<'_>,
    sums: &mut [StepSums; 2],
    results: &mut [Lanes; ROWS],
) {
    let mut accumulators: [__m512; TILE_ROWS] = [v.splat(0.0); TILE_ROWS];
    for (accumulator, lanes) in accumulators.iter_mut().zip(&*results) {
        *accumulator = v.load_lanes(lanes);
    }
    let [even, odd] = sums;
    // Hidden from the compiler, which would copy the f32 part for the last step and spill the accumulators around it.
    let end = black_box(chunk.steps);
    // SAFETY: passed on from the caller. A product is stored before another one begins in its tile.
    unsafe {
        begin_step::<F, 0>(stored, left, 0);
        for step in (0..chunk.steps).step_by(2) {
            if step + 1 < end {
                begin_step::<F, 1>(stored, left, step + 1);
            }
            store_step::<F, 0>(even);
            add_step::<F, TILE_ROWS>(v, chunk, step, left, even, &mut accumulators);
            if step + 1 < chunk.steps {
                if step + 2 < end {
                    begin_step::<F, 0>(stored, left, step + 2);
                }
                store_step::<F, 1>(odd);
                add_step::<F, TILE_ROWS>(v, chunk, step + 1, left, odd, &mut accumulators);
            }
        }
    }
    for (accumulator, lanes) in accumulators.iter().zip(results) {
        v.store(*accumulator, lanes, 0);
    }
}

/// The f32 part of a step, as the definition says.
///
/// Sums of half steps are multiplied by their factors in f32: |sum| is at most 16 * 32 * 128 and |factor| at most 128 (Q6_K;
/// the others have smaller products), so both products and their sum are at most 2^24 and exact. Factors that are floats
/// are multiplied like this by definition. That a zero may become a negative one, which no integer does, makes
/// no difference: without a minimum the accumulator is never a negative zero, as it begins as zero and small products are
/// multiples of the smallest f32.
///
/// # Safety
/// As [`add_chunk`]; `step` is below `chunk.steps`.
#[inline(always)]
unsafe fn add_step<F: QuantizedFormat, const TILE_ROWS: usize>(
    v: Avx512Rows,
    chunk: &Chunk,
    step: usize,
    left: LeftRows<'_>,
    sums: &StepSums,
    accumulators: &mut [__m512; TILE_ROWS],
) {
    // SAFETY: passed on from the caller. Written out, so that the accumulators stay in registers.
    unsafe {
        add_four_rows::<F, TILE_ROWS, 0>(v, chunk, step, left, sums, accumulators);
        add_four_rows::<F, TILE_ROWS, 4>(v, chunk, step, left, sums, accumulators);
        if TILE_ROWS == ROWS {
            add_four_rows::<F, TILE_ROWS, 8>(v, chunk, step, left, sums, accumulators);
            add_four_rows::<F, TILE_ROWS, 12>(v, chunk, step, left, sums, accumulators);
        }
    }
}

/// Rows `FIRST` to `FIRST + 3` of [`add_step`].
///
/// # Safety
/// As [`add_step`].
#[inline(always)]
unsafe fn add_four_rows<F: QuantizedFormat, const TILE_ROWS: usize, const FIRST: usize>(
    v: Avx512Rows,
    chunk: &Chunk,
    step: usize,
    left: LeftRows<'_>,
    sums: &StepSums,
    accumulators: &mut [__m512; TILE_ROWS],
) {
    let packed = const { packed_block(F::FORMAT) };
    let scale = v.load_lanes(&chunk.scales[step]);
    let minimum = v.load_lanes(&chunk.minimums[step]);
    let half_scales = [0, 1].map(|half| v.load_lanes(&chunk.half_scales[step][half]));
    let half_minimums = [0, 1].map(|half| v.load_lanes(&chunk.half_minimums[step][half]));
    for (row, accumulator) in accumulators.iter_mut().enumerate().skip(FIRST).take(4) {
        // SAFETY: a row of the tile has the block of this step.
        let block = unsafe { left.blocks.get_unchecked(row * left.row_blocks + step) };
        let mut sum = v.to_floats(v.load_ints(&sums.0[0][row]));
        if packed.scales.is_per_half_step() {
            let first = v.mul(sum, half_scales[0]);
            let second = v.to_floats(v.load_ints(&sums.0[1][row]));
            sum = v.fma(second, half_scales[1], first);
        }
        *accumulator = v.fma(v.mul(scale, v.splat(block.scale)), sum, *accumulator);
        match packed.minimums {
            MinimumStorage::Absent => {}
            MinimumStorage::SubtractedOfHalfSteps => {
                let [first, second] = block.half_sums;
                let (first, second) = (v.splat(f32::from(first)), v.splat(f32::from(second)));
                let weighed = v.fma(second, half_minimums[1], v.mul(first, half_minimums[0]));
                *accumulator = v.fma(v.mul(minimum, v.splat(block.scale)), weighed, *accumulator);
            }
            _ => *accumulator = v.fma(minimum, v.splat(block.scaled_sum), *accumulator),
        }
    }
}

/// Columns that one tile product takes: a step or half of it.
const fn columns_per_product(packed: &PackedBlock) -> usize {
    if packed.scales.is_per_half_step() { 16 } else { 32 }
}

/// Begins the product of a step in the sum tiles of `PHASE` (0 or 1). Tiles: sums 0 to 3, left 4 and 5, right 6 and 7.
///
/// # Safety
/// As [`add_chunk`].
#[inline(always)]
unsafe fn begin_step<F: QuantizedFormat, const PHASE: usize>(
    stored: StepBytes,
    left: LeftRows<'_>,
    step: usize,
) {
    let packed = const { packed_block(F::FORMAT) };
    let row_bytes = left.row_blocks * size_of::<ActivationBlock>();
    // SAFETY: the step is one of the chunk's, for both factors.
    unsafe {
        let right = stored.first.add(step * stored.step_distance);
        let left = left.blocks.get_unchecked(step).values.as_ptr();
        match (packed.scales.is_per_half_step(), PHASE) {
            (true, _) => {
                let (second_left, second_right) = (left.add(16), right.add(4 * VECTOR_BYTES));
                if PHASE == 0 {
                    begin_product::<0, 4, 6>(left, row_bytes, right);
                    begin_product::<1, 5, 7>(second_left, row_bytes, second_right);
                } else {
                    begin_product::<2, 4, 6>(left, row_bytes, right);
                    begin_product::<3, 5, 7>(second_left, row_bytes, second_right);
                }
            }
            (_, 0) => begin_product::<0, 4, 6>(left, row_bytes, right),
            _ => begin_product::<2, 5, 7>(left, row_bytes, right),
        }
    }
}

/// Stores the sums of the step that [`begin_step`] began.
///
/// # Safety
/// Tiles are configured for at most 16 rows.
#[inline(always)]
unsafe fn store_step<F: QuantizedFormat, const PHASE: usize>(sums: &mut StepSums) {
    let packed = const { packed_block(F::FORMAT) };
    let [first, second] = &mut sums.0;
    // SAFETY: a tile of sums has at most 16 rows of 64 bytes.
    unsafe {
        if PHASE == 0 {
            store_tile::<0>(first)
        } else {
            store_tile::<2>(first)
        }
        if packed.scales.is_per_half_step() {
            if PHASE == 0 { store_tile::<1>(second) } else { store_tile::<3>(second) }
        }
    }
}

/// `tile SUM = left * right`, with tiles `LEFT` and `RIGHT` for the factors.
///
/// # Safety
/// The tiles are configured; `left` has as many rows as configured, `left_distance` bytes apart, and `right` 64-byte rows.
#[inline(always)]
unsafe fn begin_product<const SUM: usize, const LEFT: usize, const RIGHT: usize>(
    left: *const i8,
    left_distance: usize,
    right: *const u8,
) {
    // SAFETY: passed on from the caller; changes tile registers only, which compiled code does not use.
    unsafe {
        asm!(
            "tileloadd tmm{left_tile}, [{left} + {left_distance}*1]",
            "tileloadd tmm{right_tile}, [{right} + {right_distance}*1]",
            "tilezero tmm{sum_tile}",
            "tdpbssd tmm{sum_tile}, tmm{left_tile}, tmm{right_tile}",
            left = in(reg) left,
            left_distance = in(reg) left_distance,
            right = in(reg) right,
            right_distance = in(reg) VECTOR_BYTES,
            sum_tile = const SUM,
            left_tile = const LEFT,
            right_tile = const RIGHT,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// # Safety
/// Tile `SUM` is configured with 64-byte rows.
#[inline(always)]
unsafe fn store_tile<const SUM: usize>(sums: &mut [[i32; GROUP_ROWS]; ROWS]) {
    // SAFETY: a tile has at most 16 rows, and so has `sums`.
    unsafe {
        asm!(
            "tilestored [{sums} + {distance}*1], tmm{tile}",
            sums = in(reg) sums.as_mut_ptr(),
            distance = in(reg) size_of::<[i32; GROUP_ROWS]>(),
            tile = const SUM,
            options(nostack, preserves_flags),
        );
    }
}

/// Tiles with shapes, until it is dropped.
struct ConfiguredTiles(());

impl ConfiguredTiles {
    /// Sums of `rows` times 16, left factors of `rows` times `columns` bytes, right factors of `columns / 4` times 64 bytes.
    ///
    /// # Safety
    /// The process may use AMX; no other value of this type lives in the thread.
    unsafe fn new(rows: usize, columns: usize) -> ConfiguredTiles {
        // Palette 1; bytes of a row from byte 16 on (two for each tile), rows from byte 48 on (one for each).
        let mut configuration = [0_u8; 64];
        configuration[0] = 1;
        for tile in 0..8 {
            let (rows, row_bytes) = match tile {
                0..4 => (rows, VECTOR_BYTES),
                4..6 => (rows, columns),
                _ => (columns / 4, VECTOR_BYTES),
            };
            configuration[16 + 2 * tile] = row_bytes as u8;
            configuration[48 + tile] = rows as u8;
        }
        // SAFETY: 64 readable bytes; the caller says that AMX may be used.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) configuration.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        ConfiguredTiles(())
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        // SAFETY: the value was made where AMX may be used, and nothing reads the tiles any more.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}
