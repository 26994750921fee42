//! Seeded random numbers and weight blocks for the tests; plain std, so that they also run on other processors.

#![allow(dead_code)] // each test file uses its part

pub mod product;

use coldpress_kernels::WeightFormat;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Byte offsets of the f16 fields of a block.
fn half_fields(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => &[],
        WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q5_0 => &[0],
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[0, 2],
        WeightFormat::Q6K => &[208],
        WeightFormat::Mxfp4 | WeightFormat::Nvfp4 | WeightFormat::Iq1M | WeightFormat::Codes(_) => &[],
        WeightFormat::Q2K => &[80, 82],
        WeightFormat::Q3K => &[108],
        WeightFormat::Tq1_0 => &[52],
        WeightFormat::Tq2_0 => &[64],
        WeightFormat::Iq1S
        | WeightFormat::Iq2Xxs
        | WeightFormat::Iq2Xs
        | WeightFormat::Iq2S
        | WeightFormat::Iq3Xxs
        | WeightFormat::Iq3S
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs => &[0],
    }
}

/// Source rows of random bits: every quant and sub-scale occurs, scales are finite, of both signs, zero or subnormal.
pub fn random_rows(random: &mut Random, format: WeightFormat, rows: usize, columns: usize) -> Vec<u8> {
    let mut bytes = vec![0; rows * format.row_bytes(columns)];
    match format {
        WeightFormat::F32 => {
            bytes.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&random.float().to_le_bytes()))
        }
        WeightFormat::F16 => {
            bytes.chunks_exact_mut(2).for_each(|half| half.copy_from_slice(&random_half(random)))
        }
        WeightFormat::BF16 => bytes
            .chunks_exact_mut(2)
            .for_each(|value| value.copy_from_slice(&random.float().to_le_bytes()[2..])),
        _ => {
            bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                for &offset in half_fields(format) {
                    block[offset..offset + 2].copy_from_slice(&random_half(random));
                }
                if format == WeightFormat::Mxfp4 {
                    block[0] = random_exponent(random);
                }
                if format == WeightFormat::Iq1M {
                    // The scale is in the upper nibbles of four u16.
                    let scale = u16::from_le_bytes(random_half(random));
                    for part in 0..4 {
                        let byte = &mut block[49 + 2 * part];
                        *byte = *byte & 0x0f | ((scale >> (4 * part)) as u8) << 4;
                    }
                }
            }
        }
    }
    bytes
}

/// Bits of a finite f16: mostly around 2^-6, sometimes zero, subnormal or large.
fn random_half(random: &mut Random) -> [u8; 2] {
    let sign = (random.next() as u16 & 1) << 15;
    let mantissa = random.next() as u16 & 0x3ff;
    let exponent = match random.below(16) {
        0 => 0,
        1 => return sign.to_le_bytes(),
        2 => 20,
        _ => 5 + random.below(8) as u16,
    };
    (sign | exponent << 10 | mantissa).to_le_bytes()
}

/// Mostly around 2^-7, sometimes subnormal or large.
fn random_exponent(random: &mut Random) -> u8 {
    match random.below(16) {
        0 => random.below(3) as u8,
        1 => 130,
        _ => 116 + random.below(8) as u8,
    }
}

/// Column counts that a format accepts, short and long.
pub fn column_counts(format: WeightFormat) -> Vec<usize> {
    match format.block_elements() {
        1 => vec![1, 31, 64, 200],
        32 => vec![32, 96, 256],
        64 => vec![64, 192, 256],
        _ => vec![256, 768],
    }
}
