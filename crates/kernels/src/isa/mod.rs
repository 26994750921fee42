//! Instruction sets and the proof that this processor has one.
//!
//! A [`Kernels`] value can only be made for an instruction set that the running processor supports, so whoever holds one
//! may call the functions compiled for it. Nothing here reads the environment: the program that starts up chooses
//! between [`Kernels::detect`] and [`Kernels::for_isa`]. All instruction sets give the same bits.

#[cfg(target_arch = "x86_64")]
mod amx;

use std::fmt;

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the definition of every result.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// [`Isa::Avx2`] and AVX-VNNI: int8 products without 16-bit sums in between (`vpdpbusd` on 256 bits).
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (and all that [`Isa::Avx2`] asks for).
    Avx512Vnni,
    /// [`Isa::Avx512Vnni`] and AMX with int8 products, on Linux: matrices of int8 at once for several input rows.
    AmxInt8,
    /// AArch64 with the dot product extension (`sdot`).
    Neon,
    /// [`Isa::Neon`] and the int8 matrix extension (`smmla`).
    NeonI8mm,
}

impl Isa {
    /// Every instruction set, the plainest first; the best one that runs is the last.
    pub const ALL: [Isa; 7] =
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::AmxInt8, Isa::Neon, Isa::NeonI8mm];

    /// The name that [`Isa::parse`] takes: `scalar`, `avx2`, `avxvnni`, `avx512vnni`, `amx`, `neon` or `neoni8mm`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::AmxInt8 => "amx",
            Isa::Neon => "neon",
            Isa::NeonI8mm => "neoni8mm",
        }
    }

    /// The instruction set of that name, in any letter case.
    pub fn parse(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// True when this processor (and operating system) can run it. Asked about [`Isa::AmxInt8`] for the first time, a process
    /// asks the system for the tile registers.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => has_avx2(),
            Isa::AvxVnni => has_avx_vnni(),
            Isa::Avx512Vnni => has_avx512_vnni(),
            Isa::AmxInt8 => has_amx_int8(),
            Isa::Neon => has_neon_dot_product(),
            Isa::NeonI8mm => has_neon_int8_matrices(),
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
fn has_avx_vnni() -> bool {
    has_avx2() && is_x86_feature_detected!("avxvnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx_vnni() -> bool {
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

#[cfg(target_arch = "x86_64")]
fn has_amx_int8() -> bool {
    has_avx512_vnni() && amx::is_usable()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx_int8() -> bool {
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

#[cfg(target_arch = "aarch64")]
fn has_neon_int8_matrices() -> bool {
    has_neon_dot_product() && std::arch::is_aarch64_feature_detected!("i8mm")
}

#[cfg(not(target_arch = "aarch64"))]
fn has_neon_int8_matrices() -> bool {
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

    /// The kernels of an instruction set that is not asked for: for tests that run its instructions in an emulator.
    ///
    /// # Safety
    /// Every instruction of `isa` must work, by the processor or by an emulator that is active in all threads that use the
    /// value; [`Isa::is_supported`] must hold for the other instruction sets that `isa` builds on.
    #[doc(hidden)]
    #[allow(unsafe_code)]
    pub const unsafe fn assume(isa: Isa) -> Kernels {
        Kernels { isa }
    }

    /// Which instruction set runs.
    pub const fn isa(self) -> Isa {
        self.isa
    }
}
