//! The table of matrix kernels: one row per format and instruction set, and the selection by both.

use super::codes::run_codes;
use super::driver::{Span, run_float, run_quantized};
use super::scalar::ScalarTiles;
use crate::{Isa, WeightFormat, blocks};

use super::driver::{Bf16Element, F16Element, F32Element};
#[cfg(target_arch = "aarch64")]
use super::neon::{NeonI8mmTiles, NeonTiles};
#[cfg(target_arch = "x86_64")]
use super::{
    amx::run_amx,
    avx2::{Avx2Tiles, AvxVnniTiles},
    avx512::Avx512Tiles,
};

/// Computes a span of row groups; the processor must have the instruction set of the entry.
pub(super) type RunSpan = unsafe fn(&Span<'_>);

struct KernelEntry {
    format: WeightFormat,
    isa: Isa,
    run: RunSpan,
}

/// The entries of one instruction set: its tiles, and what runs a span of quantised weights with them.
macro_rules! entries_of {
    ($isa:expr, $tiles:ty, $run_quantized:ident) => {
        entries_of!($isa, $tiles, $run_quantized,
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Mxfp4 Q2K Q3K Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Iq4Nl Iq4Xs Tq1_0 Tq2_0 Nvfp4)
    };
    ($isa:expr, $tiles:ty, $run_quantized:ident, $($format:ident)*) => {
        [
            KernelEntry { format: WeightFormat::F32, isa: $isa, run: run_float::<$tiles, F32Element> },
            KernelEntry { format: WeightFormat::F16, isa: $isa, run: run_float::<$tiles, F16Element> },
            KernelEntry { format: WeightFormat::BF16, isa: $isa, run: run_float::<$tiles, Bf16Element> },
            $(KernelEntry {
                format: WeightFormat::$format,
                isa: $isa,
                run: $run_quantized::<$tiles, blocks::$format>,
            },)*
        ]
    };
}

static TABLES: &[&[KernelEntry]] = &[
    &entries_of!(Isa::Scalar, ScalarTiles, run_quantized),
    #[cfg(target_arch = "x86_64")]
    &entries_of!(Isa::Avx2, Avx2Tiles, run_quantized),
    #[cfg(target_arch = "x86_64")]
    &entries_of!(Isa::AvxVnni, AvxVnniTiles, run_quantized),
    #[cfg(target_arch = "x86_64")]
    &entries_of!(Isa::Avx512Vnni, Avx512Tiles, run_quantized),
    #[cfg(target_arch = "x86_64")]
    &entries_of!(Isa::AmxInt8, Avx512Tiles, run_amx),
    #[cfg(target_arch = "aarch64")]
    &entries_of!(Isa::Neon, NeonTiles, run_quantized),
    #[cfg(target_arch = "aarch64")]
    &entries_of!(Isa::NeonI8mm, NeonI8mmTiles, run_quantized),
];

/// What runs a span of codes on each instruction set.
static OF_CODES: &[(Isa, RunSpan)] = &[
    (Isa::Scalar, run_codes::<ScalarTiles>),
    #[cfg(target_arch = "x86_64")]
    (Isa::Avx2, run_codes::<Avx2Tiles>),
    #[cfg(target_arch = "x86_64")]
    (Isa::AvxVnni, run_codes::<AvxVnniTiles>),
    #[cfg(target_arch = "x86_64")]
    (Isa::Avx512Vnni, run_codes::<Avx512Tiles>),
    #[cfg(target_arch = "x86_64")]
    (Isa::AmxInt8, run_codes::<Avx512Tiles>),
    #[cfg(target_arch = "aarch64")]
    (Isa::Neon, run_codes::<NeonTiles>),
    #[cfg(target_arch = "aarch64")]
    (Isa::NeonI8mm, run_codes::<NeonI8mmTiles>),
];

/// Format and instruction set of every matrix kernel in this build, whether or not this processor can run it.
pub fn entries() -> impl Iterator<Item = (WeightFormat, Isa)> {
    TABLES.iter().copied().flatten().map(|entry| (entry.format, entry.isa))
}

/// The kernel of a format on an instruction set that some `Kernels` was made for.
pub(super) fn select(format: WeightFormat, isa: Isa) -> RunSpan {
    if let WeightFormat::Codes(_) = format {
        let entry = OF_CODES.iter().find(|entry| entry.0 == isa);
        return entry.expect("every supported instruction set has a kernel for codes").1;
    }
    let entry = TABLES.iter().copied().flatten().find(|entry| entry.format == format && entry.isa == isa);
    entry.expect("every supported instruction set has a kernel for every format").run
}
