//! Keys and values of 8 and 4 bits: every instruction set stores the same bytes, they are within the documented error of what was
//! stored, attention over them is attention over the numbers they stand for, and rotating heads changes no product.
//!
//! What could go wrong: ties rounded another way on one instruction set, halves of a block or of a byte swapped, a scale from
//! the block beside, a row found at the wrong stride, a NaN that becomes a number, a sign of the rotation that the way back lacks.

use crate::attention_support::{all_kernels, bits, noise};
use coldpress_kernels::attention::{
    Attention, AttentionShape, BLOCK_NUMBERS, BlockQ4, BlockQ8, KvElements, KvRows, PAGE_POSITIONS,
    attention, quantize_q4, quantize_q8,
};
use coldpress_kernels::{Kernels, vector};
use coldpress_workers::{Team, Workers};
use half::f16;

fn q8(team: &Team<'_>, kernels: Kernels, numbers: &[f32]) -> Vec<BlockQ8> {
    let mut blocks = vec![bytemuck::Zeroable::zeroed(); numbers.len() / BLOCK_NUMBERS];
    quantize_q8(team, kernels, numbers, &mut blocks);
    blocks
}

fn q4(team: &Team<'_>, kernels: Kernels, numbers: &[f32]) -> Vec<BlockQ4> {
    let mut blocks = vec![bytemuck::Zeroable::zeroed(); numbers.len() / BLOCK_NUMBERS];
    quantize_q4(team, kernels, numbers, &mut blocks);
    blocks
}

/// Blocks of all magnitudes, of ties between two steps, of zeros, with one large number, and with numbers that are not finite.
fn blocks() -> Vec<f32> {
    let mut numbers = noise(600 * BLOCK_NUMBERS, 5);
    for (index, block) in numbers.chunks_exact_mut(BLOCK_NUMBERS).enumerate() {
        let factor = 10_f32.powi((index % 60) as i32 - 38);
        block.iter_mut().for_each(|number| *number *= factor);
        match index % 7 {
            3 => block[index % BLOCK_NUMBERS] *= 100.0,
            4 => {
                block.iter_mut().zip(0..).for_each(|(number, place)| *number = place as f32 / 2.0 - 7.5);
                block[31] = if index % 2 == 0 { 127.0 } else { -8.0 };
            }
            5 => block[index % BLOCK_NUMBERS] = 0.0,
            _ => {}
        }
    }
    numbers[..BLOCK_NUMBERS].fill(0.0);
    numbers[40] = f32::NAN;
    numbers[70] = f32::INFINITY;
    numbers[100] = f32::NEG_INFINITY;
    numbers[130] = 1e30;
    numbers
}

#[test]
fn every_instruction_set_stores_the_same_bytes() {
    let numbers = blocks();
    let scalar = all_kernels()[0];
    let expected = Workers::new(1).enter(|team| (q8(team, scalar, &numbers), q4(team, scalar, &numbers)));
    for threads in [1, 2] {
        for kernels in all_kernels() {
            let found = Workers::new(threads)
                .enter(|team| (q8(team, kernels, &numbers), q4(team, kernels, &numbers)));
            let isa = kernels.isa();
            assert!(bytemuck::cast_slice::<_, u8>(&found.0) == bytemuck::cast_slice(&expected.0), "q8 {isa}");
            assert!(bytemuck::cast_slice::<_, u8>(&found.1) == bytemuck::cast_slice(&expected.1), "q4 {isa}");
        }
    }
    // Alone, a block is what it is among others.
    Workers::new(1).enter(|team| {
        for (index, block) in numbers.chunks_exact(BLOCK_NUMBERS).enumerate() {
            let (q8, q4) = (q8(team, scalar, block), q4(team, scalar, block));
            assert!(bytemuck::bytes_of(&q8[0]) == bytemuck::bytes_of(&expected.0[index]));
            assert!(bytemuck::bytes_of(&q4[0]) == bytemuck::bytes_of(&expected.1[index]));
        }
    });
}

#[test]
fn numbers_come_back_within_half_a_step() {
    let numbers = blocks();
    let kernels = Kernels::detect();
    let (q8, q4) = Workers::new(2).enter(|team| (q8(team, kernels, &numbers), q4(team, kernels, &numbers)));
    let mut compared = 0;
    for ((block, q8), q4) in numbers.chunks_exact(BLOCK_NUMBERS).zip(&q8).zip(&q4) {
        let largest = block.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        if !block.iter().all(|number| number.is_finite()) || largest / 127.0 > 65_519.0 {
            assert!(q8.numbers().iter().all(|number| number.is_nan()), "{block:?}");
        }
        if !block.iter().all(|number| number.is_finite()) || largest / 8.0 > 65_519.0 {
            assert!(q4.numbers().iter().all(|number| number.is_nan()), "{block:?}");
            continue;
        }
        // An f16 scale is within 2^-11 of its true value, or within half of the smallest f16.
        let rounding = |scale: f32| (scale / 2048.0).max(2_f32.powi(-25));
        let step8 = largest / 127.0;
        let step4 = largest / 8.0;
        for (number, (q8, q4)) in block.iter().zip(q8.numbers().iter().zip(q4.numbers())) {
            // Half a step of the stored scale; where that was rounded down, the largest number lies 127 times that further out.
            let bound = 0.5001 * (step8 + rounding(step8)) + 127.0 * rounding(step8);
            assert!((number - q8).abs() <= bound, "{number} came back as {q8} with steps of {step8}");
            // The range ends at 7 steps on the side opposite to the largest number.
            let bound = 1.0001 * (step4 + rounding(step4)) + 8.0 * rounding(step4);
            assert!((number - q4).abs() <= bound, "{number} came back as {q4} with steps of {step4}");
            compared += 1;
        }
        if largest > 1e-3 {
            let exact = block.iter().position(|number| number.abs() == largest).expect("it is there");
            let (found8, found4) = (q8.numbers()[exact], q4.numbers()[exact]);
            assert!((block[exact] - found8).abs() <= largest / 2048.0, "{} is {found8}", block[exact]);
            assert!((block[exact] - found4).abs() <= largest / 2048.0, "{} is {found4}", block[exact]);
        }
    }
    assert!(compared > 10_000, "{compared} numbers were compared");
}

/// One layer's cache, of one type, and the query rows.
struct Cached<'a> {
    pool: KvElements<'a>,
    numbers: usize,
    shape: AttentionShape,
    query: &'a [f32],
    first_position: usize,
    pages: &'a [u32],
}

impl Cached<'_> {
    fn run(&self, kernels: Kernels, threads: usize, chunk: usize) -> Vec<u32> {
        let row_len = self.shape.query_row_len();
        let part = PAGE_POSITIONS * self.shape.kv_row_len() / self.numbers;
        let mut out = vec![f32::NAN; self.query.len()];
        let calls = self.query.chunks(chunk * row_len).zip(out.chunks_mut(chunk * row_len));
        Workers::new(threads).enter(|team| {
            for (call, (query, out)) in calls.enumerate() {
                let mut scratch = vec![f32::NAN; self.shape.scratch_len(query.len() / row_len, threads)];
                let cache = KvRows {
                    pool: self.pool,
                    pages: self.pages,
                    page_elements: 2 * part,
                    keys_offset: 0,
                    values_offset: part,
                };
                let call = Attention {
                    shape: self.shape,
                    query,
                    first_position: self.first_position + call * chunk,
                    cache,
                    scale: 0.2,
                    window: None,
                    chunk: None,
                    sinks: None,
                    out,
                    scratch: &mut scratch,
                };
                attention(team, kernels, call);
            }
        });
        bits(&out)
    }
}

#[test]
fn attention_is_that_over_the_numbers_that_were_stored() {
    for (heads, kv_heads, head_dim, first_position, rows) in
        [(8, 2, 64, 700, 1), (4, 2, 32, 0, 150), (6, 3, 128, 1100, 9), (3, 3, 96, 60, 70)]
    {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        let query: Vec<f32> =
            noise(rows * shape.query_row_len(), 1).into_iter().map(|number| 4.0 * number).collect();
        let count = (first_position + rows).div_ceil(PAGE_POSITIONS) as u32;
        // Pages in another order than positions.
        let pages: Vec<u32> = (0..count).rev().collect();
        let numbers = noise(count as usize * 2 * PAGE_POSITIONS * shape.kv_row_len(), 2);
        let kernels = all_kernels();
        let (q8, q4) =
            Workers::new(2).enter(|team| (q8(team, kernels[0], &numbers), q4(team, kernels[0], &numbers)));
        let meant8: Vec<f32> = q8.iter().flat_map(BlockQ8::numbers).collect();
        let meant4: Vec<f32> = q4.iter().flat_map(BlockQ4::numbers).collect();
        for (name, pool, meant) in
            [("q8", KvElements::Q8(&q8), &meant8), ("q4", KvElements::Q4(&q4), &meant4)]
        {
            let cached =
                |pool, numbers| Cached { pool, numbers, shape, query: &query, first_position, pages: &pages };
            let expected = cached(KvElements::F32(meant), 1).run(kernels[0], 1, rows);
            for &kernels in &kernels {
                for (threads, chunk) in [(1, rows), (2, rows), (2, 7), (3, 1)] {
                    let found = cached(pool, BLOCK_NUMBERS).run(kernels, threads, chunk);
                    assert!(found == expected, "{name} {shape:?} {} threads {threads}", kernels.isa());
                }
            }
        }
    }
}

#[test]
fn a_scale_that_is_wrong_changes_the_result() {
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 64 };
    let query = noise(shape.query_row_len(), 1);
    let numbers = noise(2 * PAGE_POSITIONS * shape.kv_row_len(), 2);
    let mut blocks = Workers::new(1).enter(|team| q8(team, Kernels::detect(), &numbers));
    let run = |blocks: &[BlockQ8]| {
        let pool = KvElements::Q8(blocks);
        let cached =
            Cached { pool, numbers: BLOCK_NUMBERS, shape, query: &query, first_position: 40, pages: &[0] };
        cached.run(Kernels::detect(), 1, 1)
    };
    let right = run(&blocks);
    // The last bit of one scale of a key that is seen, and of one that is not.
    let flip = |block: &mut BlockQ8| bytemuck::bytes_of_mut(block)[0] ^= 1;
    flip(&mut blocks[2 * 41]);
    assert!(run(&blocks) == right, "a hidden key was read");
    flip(&mut blocks[2 * 17]);
    assert!(run(&blocks) != right, "a scale was not used");
}

#[test]
fn rotation_keeps_products_and_comes_back() {
    for (heads, head_dim) in [(5, 32), (3, 64), (40, 128), (2, 96), (1, 512), (3, 192), (1, 1024)] {
        let block = vector::rotation_block(head_dim).expect("a multiple of 32");
        let (a, b) = (noise(heads * head_dim, 1), noise(heads * head_dim, 2));
        let mut results = Vec::new();
        for kernels in all_kernels() {
            for threads in [1, 3] {
                let (mut ra, mut rb) = (a.clone(), b.clone());
                let mut back = Vec::new();
                Workers::new(threads).enter(|team| {
                    vector::rotate_heads(team, kernels, &mut ra, head_dim);
                    vector::rotate_heads(team, kernels, &mut rb, head_dim);
                    back.clone_from(&ra);
                    vector::rotate_heads_back(team, kernels, &mut back, head_dim);
                });
                let roundings = f64::from(block.ilog2() + 3) / (1 << 24) as f64;
                let length = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let product = |x: &[f32], y: &[f32]| -> f64 {
                    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
                };
                for head in 0..heads {
                    let of = |x: &'_ [f32]| x[head * head_dim..(head + 1) * head_dim].to_vec();
                    let (a, b, ra, rb) = (of(&a), of(&b), of(&ra), of(&rb));
                    // Each element of both is off by `roundings` times the length of its block.
                    let bound = 3.0 * roundings * (head_dim as f64).sqrt() * length(&a) * length(&b);
                    let error = (product(&a, &b) - product(&ra, &rb)).abs();
                    assert!(error <= bound, "{error} > {bound} for heads of {head_dim}");
                    let moved = a.iter().zip(&ra).filter(|(a, b)| a != b).count();
                    assert!(moved > head_dim / 2, "nothing was rotated");
                    for (a, back) in a.iter().zip(of(&back)) {
                        let error = (f64::from(*a) - f64::from(back)).abs();
                        assert!(error <= 3.0 * roundings * length(&ra), "{a} came back as {back}");
                    }
                }
                results.push(bits(&ra));
            }
        }
        assert!(results.iter().all(|result| *result == results[0]), "instruction sets differ at {head_dim}");
    }
    for refused in [0, 16, 80, 24, 1] {
        assert_eq!(vector::rotation_block(refused), None, "{refused}");
    }
}

#[test]
fn rotation_is_the_hadamard_matrix_with_signs() {
    // The rows of unit vectors are the columns of the matrix: plus or minus 1 / sqrt(n), orthogonal to each other.
    let size = 64;
    let mut columns = vec![0.0; size * size];
    columns.iter_mut().step_by(size + 1).for_each(|diagonal| *diagonal = 1.0);
    Workers::new(1).enter(|team| vector::rotate_heads(team, Kernels::detect(), &mut columns, size));
    assert!(columns.iter().all(|x| x.abs() == 0.125), "1 / 8 everywhere");
    for (i, row) in columns.chunks(size).enumerate() {
        let sign = row[0].signum();
        for (j, x) in row.iter().enumerate() {
            let natural = if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
            assert_eq!(x.signum(), sign * natural, "element {j} of column {i}");
        }
    }
    let negative = columns.chunks(size).filter(|row| row[0] < 0.0).count();
    assert!((16..=48).contains(&negative), "{negative} of 64 signs are negative");
}

#[test]
fn rotation_pays_where_one_element_stands_out() {
    let (rows, head_dim) = (64, 128);
    let mut numbers = noise(rows * head_dim, 9);
    // As keys have them: one dimension that is large in every row.
    numbers.iter_mut().skip(37).step_by(head_dim).for_each(|number| *number = 12.0 + 0.3 * *number);
    let kernels = Kernels::detect();
    let error = |found: &[f32]| -> f64 {
        numbers.iter().zip(found).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    Workers::new(1).enter(|team| {
        let plain: Vec<f32> = q4(team, kernels, &numbers).iter().flat_map(BlockQ4::numbers).collect();
        let mut rotated = numbers.clone();
        vector::rotate_heads(team, kernels, &mut rotated, head_dim);
        let mut turned: Vec<f32> = q4(team, kernels, &rotated).iter().flat_map(BlockQ4::numbers).collect();
        vector::rotate_heads_back(team, kernels, &mut turned, head_dim);
        let (plain, turned) = (error(&plain), error(&turned));
        assert!(turned < plain / 2.0, "{turned} with rotation, {plain} without");
    });
}

#[test]
fn half_precision_is_what_it_was() {
    // The loops over numbers and over blocks are one; numbers must not have become blocks.
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 80 };
    let query = noise(shape.query_row_len(), 1);
    let numbers = noise(2 * PAGE_POSITIONS * shape.kv_row_len(), 2);
    let halves: Vec<f16> = numbers.iter().copied().map(f16::from_f32).collect();
    let widened: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
    let run = |pool| {
        let cached = Cached { pool, numbers: 1, shape, query: &query, first_position: 50, pages: &[0] };
        cached.run(Kernels::detect(), 2, 1)
    };
    assert!(run(KvElements::F16(&halves)) == run(KvElements::F32(&widened)));
}
