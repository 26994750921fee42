//! Instruction sets and the proof that this processor has one.
//!
//! A [`Kernels`] value can only be made for an instruction set that the running processor supports, so whoever holds one
//! may call the functions compiled for it. Nothing here reads the environment: the program that starts up chooses
//! between [`Kernels::detect`] and [`Kernels::for_isa`]. All instruction sets give the same bits.

use std::fmt;

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the definition of every result.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (and all that [`Isa::Avx2`] asks for).
    Avx512Vnni,
    /// AArch64 with the dot product extension (`sdot`).
    Neon,
}

impl Isa {
    /// Every instruction set, the plainest first; the best one that runs is the last.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512Vnni, Isa::Neon];

    /// The name that [`Isa::parse`] takes: `scalar`, `avx2`, `avx512vnni` or `neon`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::Neon => "neon",
        }
    }

    /// The instruction set of that name, in any letter case.
    pub fn parse(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// True when this processor (and operating system) can run it.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => has_avx2(),
            Isa::Avx512Vnni => has_avx512_vnni(),
            Isa::Neon => has_neon_dot_product(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_vnni() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512_vnni() -> bool {
    false
}

#[cfg(target_arch = "aarch64")]
fn has_neon_dot_product() -> bool {
    std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod")
}

#[cfg(not(target_arch = "aarch64"))]
fn has_neon_dot_product() -> bool {
    false
}

/// Proof that one instruction set runs on this processor; small and `Copy`, passed to every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    isa: Isa,
}

impl Kernels {
    /// The best instruction set of this processor.
    pub fn detect() -> Kernels {
        let isa = Isa::ALL.into_iter().rev().find(|isa| isa.is_supported()).unwrap_or(Isa::Scalar);
        Kernels { isa }
    }

    /// The kernels of one instruction set, or `None` when this processor cannot run it.
    pub fn for_isa(isa: Isa) -> Option<Kernels> {
        isa.is_supported().then_some(Kernels { isa })
    }

    /// Which instruction set runs.
    pub const fn isa(self) -> Isa {
        self.isa
    }
}
