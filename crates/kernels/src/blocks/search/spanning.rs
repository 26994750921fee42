//! Q4_K and Q5_K: 8 sub-blocks of 32 unsigned integers, value = (scale * sub_scale) * q - minimum * sub_minimum.

use super::write;
use super::{LANES, add, add_products, inverse, nearest, rounded_to_half, sum_of, total};

const SUB_BLOCKS: usize = 8;
const SUB_BLOCK: usize = 32;
/// Sub-scales and sub-minimums have six bits.
const SUB_SCALE_MAX: f32 = 63.0;

/// Steps by which the integers may reach beyond the last one when the span of a sub-block is divided.
const STRETCHES: [f32; 16] =
    [-2.4, -2.0, -1.6, -1.3, -1.0, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3];
/// Rounds of fitting scale and minimum to the integers and the integers to them.
const FIT_ROUNDS: usize = 3;
/// Rounds of choosing sub-scales and fitting the two f16 numbers of the block to them.
const BLOCK_ROUNDS: usize = 3;

pub(super) fn q4_k(values: &[f32; 256], out: &mut [u8]) {
    let block = best_block(values, 15.0);
    write::q4_k(&block.header(), &block.quants(values, 15.0), out);
}

pub(super) fn q5_k(values: &[f32; 256], out: &mut [u8]) {
    let block = best_block(values, 31.0);
    write::q5_k(&block.header(), &block.quants(values, 31.0), out);
}

/// How a sub-block is read: `scale * q - minimum`.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    minimum: f32,
}

/// The two f16 numbers of a block, its sub-scales and sub-minimums (whole numbers), and its squared error.
#[derive(Clone, Copy)]
struct Block {
    error: f32,
    scale: (f32, u16),
    minimum: (f32, u16),
    sub: [Line; SUB_BLOCKS],
}

impl Block {
    fn line(&self, index: usize) -> Line {
        let Line { scale, minimum } = self.sub[index];
        Line { scale: self.scale.0 * scale, minimum: self.minimum.0 * minimum }
    }

    fn header(&self) -> write::KHeader {
        write::KHeader {
            scale: self.scale.1,
            minimum: self.minimum.1,
            sub_scales: self.sub.map(|sub| sub.scale as u8),
            sub_minimums: self.sub.map(|sub| sub.minimum as u8),
        }
    }

    fn quants(&self, values: &[f32; 256], highest: f32) -> [u8; 256] {
        let mut quants = [0; 256];
        let sub_blocks = values.chunks_exact(SUB_BLOCK).zip(quants.chunks_exact_mut(SUB_BLOCK));
        for (index, (values, quants)) in sub_blocks.enumerate() {
            let line = self.line(index);
            let inverse = inverse(line.scale);
            for (quant, value) in quants.iter_mut().zip(values) {
                *quant = nearest((value + line.minimum) * inverse, 0.0, highest) as u8;
            }
        }
        quants
    }
}

fn best_block(values: &[f32; 256], highest: f32) -> Block {
    let (sub_blocks, _) = values.as_chunks::<SUB_BLOCK>();
    let fitted: [Line; SUB_BLOCKS] = std::array::from_fn(|index| fitted_line(&sub_blocks[index], highest));
    let largest = fitted.iter().fold(Line::default(), |largest, line| Line {
        scale: largest.scale.max(line.scale),
        minimum: largest.minimum.max(line.minimum),
    });
    let mut numbers =
        (rounded_to_half(largest.scale / SUB_SCALE_MAX), rounded_to_half(largest.minimum / SUB_SCALE_MAX));
    let mut best: Option<Block> = None;
    let mut targets = fitted;
    for _ in 0..BLOCK_ROUNDS {
        let block = with_sub_scales(sub_blocks, &targets, numbers, highest);
        if best.is_some_and(|best| block.error >= best.error) {
            break;
        }
        numbers = refitted(sub_blocks, &block, highest);
        targets = std::array::from_fn(|index| block.line(index));
        best = Some(block);
    }
    best.expect("there is more than one round")
}

/// Chooses the sub-scales and sub-minimums around `targets` that leave the smallest error.
fn with_sub_scales(
    sub_blocks: &[[f32; SUB_BLOCK]],
    targets: &[Line; SUB_BLOCKS],
    (scale, minimum): ((f32, u16), (f32, u16)),
    highest: f32,
) -> Block {
    let inverses = (inverse(scale.0), inverse(minimum.0));
    let mut block = Block { error: 0.0, scale, minimum, sub: [Line::default(); SUB_BLOCKS] };
    for ((values, target), sub) in sub_blocks.iter().zip(targets).zip(&mut block.sub) {
        let middle = Line {
            scale: nearest(target.scale * inverses.0, 0.0, SUB_SCALE_MAX),
            minimum: nearest(target.minimum * inverses.1, 0.0, SUB_SCALE_MAX),
        };
        let mut best = (f32::INFINITY, middle);
        for by_scale in [0.0, -1.0, 1.0] {
            for by_minimum in [0.0, -1.0, 1.0] {
                let candidate = Line {
                    scale: (middle.scale + by_scale).clamp(0.0, SUB_SCALE_MAX),
                    minimum: (middle.minimum + by_minimum).clamp(0.0, SUB_SCALE_MAX),
                };
                let line = Line { scale: scale.0 * candidate.scale, minimum: minimum.0 * candidate.minimum };
                let error = error_of(values, line, highest);
                if error < best.0 {
                    best = (error, candidate);
                }
            }
        }
        block.error += best.0;
        *sub = best.1;
    }
    block
}

/// The two numbers of the block fitted to its integers, sub-scales and sub-minimums.
fn refitted(sub_blocks: &[[f32; SUB_BLOCK]], block: &Block, highest: f32) -> ((f32, u16), (f32, u16)) {
    // Sums of: (s q)^2, s q m, m^2, x s q, x m.
    let mut sums = [0.0_f32; 5];
    for (index, values) in sub_blocks.iter().enumerate() {
        let line = block.line(index);
        let sum = sum_of(values, |value| value);
        let fit = Sums::at(values, sum, inverse(line.scale), line.minimum, highest);
        let Line { scale, minimum } = block.sub[index];
        sums[0] += scale * scale * fit.squares;
        sums[1] += scale * minimum * fit.quants;
        sums[2] += minimum * minimum * SUB_BLOCK as f32;
        sums[3] += scale * fit.products;
        sums[4] += minimum * fit.values;
    }
    let [aa, ab, bb, ax, bx] = sums;
    let determinant = aa * bb - ab * ab;
    let (scale, minimum) = if determinant > 0.0 {
        ((ax * bb - bx * ab) / determinant, (ax * ab - bx * aa) / determinant)
    } else {
        (ax * inverse(aa), 0.0)
    };
    if scale > 0.0 && minimum >= 0.0 {
        (rounded_to_half(scale), rounded_to_half(minimum))
    } else {
        (block.scale, block.minimum)
    }
}

/// What a fit of a line needs of a sub-block and its integers.
struct Sums {
    values: f32,
    quants: f32,
    squares: f32,
    products: f32,
}

impl Sums {
    /// With the integers nearest to `(value + minimum) * inverse`; `sum` is that of the values.
    #[inline(always)] // so that it becomes vector instructions
    fn at(values: &[f32; SUB_BLOCK], sum: f32, inverse: f32, minimum: f32, highest: f32) -> Sums {
        let [mut quants, mut squares, mut products] = [[0.0_f32; LANES]; 3];
        let nearby = values.map(|value| nearest((value + minimum) * inverse, 0.0, highest));
        let (chunks, _) = values.as_chunks::<LANES>();
        for (chunk, nearby) in chunks.iter().zip(nearby.as_chunks::<LANES>().0) {
            add(&mut quants, nearby);
            add_products(&mut squares, nearby, nearby);
            add_products(&mut products, chunk, nearby);
        }
        Sums { values: sum, quants: total(quants), squares: total(squares), products: total(products) }
    }

    /// The line closest to the values, its minimum not below zero, and how much of the sum of squares it explains.
    fn fit(&self) -> (f32, Line) {
        let count = SUB_BLOCK as f32;
        let determinant = count * self.squares - self.quants * self.quants;
        if determinant > 0.0 {
            let scale = (count * self.products - self.quants * self.values) / determinant;
            let minimum = (self.quants * self.products - self.squares * self.values) / determinant;
            if minimum >= 0.0 {
                let explained = scale * self.products - minimum * self.values;
                return (explained, Line { scale, minimum });
            }
        }
        let scale = self.products * inverse(self.squares);
        (scale * self.products, Line { scale, minimum: 0.0 })
    }
}

/// Scale and minimum, not rounded, closest to the values of a sub-block.
fn fitted_line(values: &[f32; SUB_BLOCK], highest: f32) -> Line {
    let low = values.iter().fold(0.0_f32, |low, &value| if value < low { value } else { low });
    let high = values.iter().fold(f32::NEG_INFINITY, |high, &value| if value > high { value } else { high });
    let span = inverse(high - low);
    if span == 0.0 {
        return Line { scale: 0.0, minimum: -low };
    }
    let sum = sum_of(values, |value| value);
    let mut best = (f32::NEG_INFINITY, Line::default());
    for stretch in STRETCHES {
        let fit = Sums::at(values, sum, (highest + stretch) * span, -low, highest).fit();
        if fit.0 > best.0 {
            best = fit;
        }
    }
    for _ in 0..FIT_ROUNDS {
        let fit = Sums::at(values, sum, inverse(best.1.scale), best.1.minimum, highest).fit();
        if fit.0 <= best.0 {
            break;
        }
        best = fit;
    }
    best.1
}

/// Squared error of the best integers for a line.
#[inline(always)] // as `Sums::at`
fn error_of(values: &[f32; SUB_BLOCK], line: Line, highest: f32) -> f32 {
    let inverse = inverse(line.scale);
    sum_of(values, |value| {
        let quant = nearest((value + line.minimum) * inverse, 0.0, highest);
        let difference = value - (line.scale * quant - line.minimum);
        difference * difference
    })
}
