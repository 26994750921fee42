//! Weights as codes of a few bits with scales in arrays of their own: FP8, MLX, INT4 of compressed-tensors, JANG.
//!
//! One description, [`Coding`], covers them all: `value = level(code) * scale`, then `+ bias` where the coding has one, each rounded
//! to f32. Scale and bias belong to a group of columns of a row. Products take f32 activations and give, bit for bit, what the
//! same values as F32 weights give. The packed form is in `layout/codes.rs`, products in `matmul/codes.rs`.
//! Refuses: widths that no checkpoint has. Which tensors of a checkpoint hold what is the caller's business.

use std::fmt;

/// What a code stands for before it is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Levels {
    /// The code itself, without a sign: MLX affine, JANG.
    Unsigned,
    /// The code less half of its range: `pack-quantized` of compressed-tensors.
    OffsetBinary,
    /// Four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (e2m1 of the OCP microscaling formats).
    E2m1,
    /// Eight bits: e4m3fn, whose codes 0x7f and 0xff are NaN.
    E4m3,
    /// A table that is stored with the matrix: JANGTQ and JANGH.
    Codebook,
}

/// How scales and biases are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleFormat {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl ScaleFormat {
    /// Bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleFormat::F32 => 4,
            ScaleFormat::F16 | ScaleFormat::Bf16 => 2,
        }
    }
}

/// How scales and biases are written in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleSource {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// A power of two: `2^(byte - 127)`, 255 is NaN. Held as bfloat16.
    E8m0,
    /// A byte of e4m3fn. Held as binary16.
    E4m3,
}

impl ScaleSource {
    /// Bytes of one scale in the checkpoint.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleSource::F32 => 4,
            ScaleSource::F16 | ScaleSource::Bf16 => 2,
            ScaleSource::E8m0 | ScaleSource::E4m3 => 1,
        }
    }

    /// How such scales are held: always without rounding.
    pub const fn held(self) -> ScaleFormat {
        match self {
            ScaleSource::F32 => ScaleFormat::F32,
            ScaleSource::F16 | ScaleSource::E4m3 => ScaleFormat::F16,
            ScaleSource::Bf16 | ScaleSource::E8m0 => ScaleFormat::Bf16,
        }
    }
}

/// How the values of a matrix follow from codes, scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coding {
    bits: u8,
    levels: Levels,
    group: u16,
    scales: ScaleFormat,
    has_bias: bool,
}

/// Groups of columns are multiples of this.
pub const GROUP_COLUMNS_MIN: usize = 16;
/// Largest group that is not the whole row.
pub const GROUP_COLUMNS_MAX: usize = 4096;

impl Coding {
    /// A coding of `bits` bits with a scale for each `group` columns, or for the whole row where `group` is `None`. `None` where
    /// no checkpoint has such codes: widths other than 2, 3, 4, 5, 6 and 8, or not the one of `levels`; groups that are not
    /// multiples of 16 or larger than 4096.
    pub const fn new(
        bits: u32,
        levels: Levels,
        group: Option<usize>,
        scales: ScaleFormat,
        has_bias: bool,
    ) -> Option<Coding> {
        let has_width = match levels {
            Levels::E2m1 => bits == 4,
            Levels::E4m3 => bits == 8,
            _ => matches!(bits, 2 | 3 | 4 | 5 | 6 | 8),
        };
        let group = match group {
            None => 0,
            Some(group) if group > GROUP_COLUMNS_MAX || group == 0 => return None,
            Some(group) => group,
        };
        if !has_width || !group.is_multiple_of(GROUP_COLUMNS_MIN) {
            return None;
        }
        Some(Coding { bits: bits as u8, levels, group: group as u16, scales, has_bias })
    }

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// What codes stand for.
    pub const fn levels(self) -> Levels {
        self.levels
    }

    /// Columns that share a scale in rows of `columns`; the last group of a row may have fewer.
    pub const fn group_columns(self, columns: usize) -> usize {
        if self.group == 0 { columns } else { self.group as usize }
    }

    /// How scales and biases are held.
    pub const fn scales(self) -> ScaleFormat {
        self.scales
    }

    /// Whether each group has a bias.
    pub const fn has_bias(self) -> bool {
        self.has_bias
    }

    /// A number for files, different for each coding, with the highest bit set.
    pub const fn number(self) -> u32 {
        1 << 31
            | (self.levels as u32) << 24
            | (self.bits as u32) << 20
            | (self.scales as u32) << 18
            | (self.has_bias as u32) << 17
            | self.group as u32
    }

    /// A short name without the group, such as `4-bit affine`.
    pub const fn name(self) -> &'static str {
        match (self.levels, self.bits) {
            (Levels::Unsigned, 2) => "2-bit affine",
            (Levels::Unsigned, 3) => "3-bit affine",
            (Levels::Unsigned, 4) => "4-bit affine",
            (Levels::Unsigned, 5) => "5-bit affine",
            (Levels::Unsigned, 6) => "6-bit affine",
            (Levels::Unsigned, _) => "8-bit affine",
            (Levels::OffsetBinary, 4) => "INT4",
            (Levels::OffsetBinary, 8) => "INT8",
            (Levels::OffsetBinary, _) => "INT",
            (Levels::E2m1, _) => "FP4",
            (Levels::E4m3, _) => "FP8",
            (Levels::Codebook, 2) => "2-bit codebook",
            (Levels::Codebook, 3) => "3-bit codebook",
            (Levels::Codebook, 4) => "4-bit codebook",
            (Levels::Codebook, _) => "codebook",
        }
    }

    /// The level of a code; `codebook` is the table of [`Levels::Codebook`].
    pub(crate) fn level(self, code: u32, codebook: &[f32]) -> f32 {
        match self.levels {
            Levels::Unsigned => code as f32,
            Levels::OffsetBinary => code as f32 - (1u32 << (self.bits - 1)) as f32,
            Levels::E2m1 => E2M1[code as usize & 15],
            Levels::E4m3 => e4m3_to_f32(code as u8),
            Levels::Codebook => codebook[code as usize],
        }
    }

    /// Entries of the codebook; 0 for codings without one.
    pub const fn codebook_len(self) -> usize {
        match self.levels {
            Levels::Codebook => 1 << self.bits,
            _ => 0,
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            0 => write!(formatter, "{} ({} bits, a scale per row)", self.name(), self.bits),
            group => write!(formatter, "{} (groups of {group})", self.name()),
        }
    }
}

/// The values of [`Levels::E2m1`].
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A byte of e4m3fn: a sign, four bits of exponent with bias 7, three of mantissa; no infinities.
pub(crate) fn e4m3_to_f32(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    if magnitude == 0x7f {
        return f32::NAN;
    }
    // As binary16 the bits are the same number divided by 2^8, subnormal ones too.
    let value = crate::blocks::f16_to_f32((magnitude << 7) as u16) * 256.0;
    if byte & 0x80 == 0 { value } else { -value }
}
