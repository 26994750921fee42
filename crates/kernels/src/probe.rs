//! What the machine can do at best: reading memory, and multiplying bytes.
//!
//! A kernel's speed says little by itself; beside the bounds measured here it is a fraction. The read is plain Rust over
//! memory that the caller brings. The int8 loop of each instruction set feeds its best dot-product instruction from
//! registers only, with enough independent sums to hide its latency, so no kernel of that set can be faster. Loops are
//! whole `asm!` blocks where a compiler could move an instruction out of them.
//! Nothing here takes part in computing a model.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use coldpress_workers::Team;

use crate::{Isa, Kernels};

/// Elements of one chunk of the read: 1 MiB.
const READ_CHUNK: usize = (1 << 20) / size_of::<u64>();

/// Bursts that the time of an int8 measurement is divided into; the best one counts.
const BURSTS: u32 = 12;

/// The name that the processor gives itself (CPUID on x86-64); `None` where it has none to tell.
pub fn processor_name() -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        if __cpuid(0x8000_0000).eax < 0x8000_0004 {
            return None;
        }
        let words = (0x8000_0002..=0x8000_0004)
            .map(__cpuid)
            .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).take_while(|&byte| byte != 0).collect();
        let name = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!name.is_empty()).then_some(name)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Bytes per second at which all threads of `team` together read `data`, which should be several times larger than the
/// last cache. The median of all passes counts, because on a shared machine the best one is luck; passes are made for
/// `time`, at least one.
pub fn read_bandwidth(team: &Team<'_>, data: &[u64], time: Duration) -> f64 {
    let started = Instant::now();
    let mut passes = Vec::new();
    loop {
        let pass = Instant::now();
        team.for_each_chunk(data.len().div_ceil(READ_CHUNK), |chunk, _worker| {
            let first = chunk * READ_CHUNK;
            let part = &data[first..(first + READ_CHUNK).min(data.len())];
            black_box(part.iter().fold(0u64, |sum, &value| sum.wrapping_add(value)));
        });
        passes.push(pass.elapsed());
        if started.elapsed() >= time {
            passes.sort_unstable();
            return size_of_val(data) as f64 / passes[passes.len() / 2].as_secs_f64();
        }
    }
}

/// The result of [`int8_peak`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int8Peak {
    /// The instruction, or instructions, that the loop consists of.
    pub instruction: &'static str,
    /// Multiplications and additions per second, counted separately, all threads together.
    pub operations_per_second: f64,
}

/// The rate of int8 multiply-adds from registers with all threads of `team`, measured for about `time`.
pub fn int8_peak(team: &Team<'_>, kernels: Kernels, time: Duration) -> Int8Peak {
    let int8 = Int8Loop::of(kernels.isa());
    let burst = |steps: u64| {
        let started = Instant::now();
        // SAFETY: `kernels` proves that this processor has the instruction set of the loop; `steps` is not zero.
        team.for_each_chunk(team.threads(), |_chunk, _worker| unsafe { (int8.run)(steps) });
        started.elapsed()
    };
    let mut steps = 1 << 12;
    while burst(steps) < time / (2 * BURSTS) && steps < 1 << 40 {
        steps *= 2;
    }
    let best = (0..BURSTS).map(|_| burst(steps)).min().unwrap_or(time).as_secs_f64();
    let multiply_adds = int8.multiply_adds_per_step as f64 * steps as f64 * team.threads() as f64;
    Int8Peak { instruction: int8.instruction, operations_per_second: 2.0 * multiply_adds / best }
}

/// A loop of dot-product instructions on registers.
struct Int8Loop {
    instruction: &'static str,
    multiply_adds_per_step: u64,
    /// Runs the given number of steps, at least 1; the processor must have the instruction set.
    run: unsafe fn(u64),
}

impl Int8Loop {
    fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self {
                instruction: "vpmaddubsw + vpmaddwd + vpaddd",
                multiply_adds_per_step: 8 * 32,
                run: x86::avx2,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Self { instruction: "vpdpbusd zmm", multiply_adds_per_step: 16 * 64, run: x86::avx512_vnni }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => {
                Self { instruction: "vpdpbusd ymm", multiply_adds_per_step: 12 * 32, run: x86::avx_vnni }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AmxInt8 => Self {
                instruction: "tdpbssd, whole tiles",
                multiply_adds_per_step: 6 * 16 * 16 * 64,
                run: x86::amx_int8,
            },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Self { instruction: "sdot", multiply_adds_per_step: 16 * 16, run: aarch64::neon },
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                Self { instruction: "smmla", multiply_adds_per_step: 16 * 32, run: aarch64::neon_i8mm }
            }
            _ => Self { instruction: "plain Rust", multiply_adds_per_step: 64, run: scalar },
        }
    }
}

/// What the compiler makes of a dot product for the least processor of the architecture.
fn scalar(steps: u64) {
    let (left, right) = ([43_i8; 64], [-7_i8; 64]);
    let mut sums = [0_i32; 16];
    for _ in 0..steps {
        let (left, right) = (black_box(&left), black_box(&right));
        for (left, right) in left.as_chunks::<16>().0.iter().zip(right.as_chunks::<16>().0) {
            for ((sum, &left), &right) in sums.iter_mut().zip(left).zip(right) {
                *sum = sum.wrapping_add(i32::from(left) * i32::from(right));
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{_mm256_set1_epi8, _mm256_set1_epi16, _mm512_set1_epi8};

    /// Bytes times bytes into register 8, pairs summed twice, added to the sum `$sum`.
    macro_rules! dot_avx2 {
        ($sum:literal) => {
            concat!(
                "vpmaddubsw ymm8, {left}, {right}\n",
                "vpmaddwd ymm8, ymm8, {ones}\n",
                "vpaddd ymm",
                $sum,
                ", ymm",
                $sum,
                ", ymm8"
            )
        };
    }

    /// # Safety
    /// The processor has AVX2; `steps` is not zero.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(steps: u64) {
        let (left, right, ones) = (_mm256_set1_epi8(43), _mm256_set1_epi8(-7), _mm256_set1_epi16(1));
        // SAFETY: registers only, all that change are named; the loop ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "2:",
                dot_avx2!("0"),
                dot_avx2!("1"),
                dot_avx2!("2"),
                dot_avx2!("3"),
                dot_avx2!("4"),
                dot_avx2!("5"),
                dot_avx2!("6"),
                dot_avx2!("7"),
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                left = in(ymm_reg) left,
                right = in(ymm_reg) right,
                ones = in(ymm_reg) ones,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _,
                out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _,
                options(nomem, nostack),
            );
        }
    }

    macro_rules! dot_avx_vnni {
        ($sum:literal) => {
            concat!("{{vex}} vpdpbusd ymm", $sum, ", {left}, {right}")
        };
    }

    /// # Safety
    /// The processor has AVX2 and AVX-VNNI; `steps` is not zero.
    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn avx_vnni(steps: u64) {
        let (left, right) = (_mm256_set1_epi8(43), _mm256_set1_epi8(-7));
        // SAFETY: registers only, all that change are named; the loop ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "2:",
                dot_avx_vnni!("0"),
                dot_avx_vnni!("1"),
                dot_avx_vnni!("2"),
                dot_avx_vnni!("3"),
                dot_avx_vnni!("4"),
                dot_avx_vnni!("5"),
                dot_avx_vnni!("6"),
                dot_avx_vnni!("7"),
                dot_avx_vnni!("8"),
                dot_avx_vnni!("9"),
                dot_avx_vnni!("10"),
                dot_avx_vnni!("11"),
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                left = in(ymm_reg) left,
                right = in(ymm_reg) right,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                options(nomem, nostack),
            );
        }
    }

    /// Eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct WholeTiles([u8; 64]);

    static WHOLE_TILES: WholeTiles = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
            tile += 1;
        }
        WholeTiles(bytes)
    };

    /// # Safety
    /// The process may use AMX with int8 products; `steps` is not zero.
    pub(super) unsafe fn amx_int8(steps: u64) {
        // SAFETY: tile registers only, which compiled code never uses; the configuration is 64 readable bytes; the loop
        // ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                "2:",
                "tdpbssd tmm0, tmm6, tmm7",
                "tdpbssd tmm1, tmm6, tmm7",
                "tdpbssd tmm2, tmm6, tmm7",
                "tdpbssd tmm3, tmm6, tmm7",
                "tdpbssd tmm4, tmm6, tmm7",
                "tdpbssd tmm5, tmm6, tmm7",
                "dec {steps}",
                "jnz 2b",
                "tilerelease",
                steps = inout(reg) steps => _,
                configuration = in(reg) WHOLE_TILES.0.as_ptr(),
                options(readonly, nostack),
            );
        }
    }

    macro_rules! dot_avx512 {
        ($sum:literal) => {
            concat!("vpdpbusd zmm", $sum, ", {left}, {right}")
        };
    }

    /// # Safety
    /// The processor has AVX-512 F and VNNI; `steps` is not zero.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn avx512_vnni(steps: u64) {
        let (left, right) = (_mm512_set1_epi8(43), _mm512_set1_epi8(-7));
        // SAFETY: registers only, all that change are named; the loop ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "2:",
                dot_avx512!("0"),
                dot_avx512!("1"),
                dot_avx512!("2"),
                dot_avx512!("3"),
                dot_avx512!("4"),
                dot_avx512!("5"),
                dot_avx512!("6"),
                dot_avx512!("7"),
                dot_avx512!("8"),
                dot_avx512!("9"),
                dot_avx512!("10"),
                dot_avx512!("11"),
                dot_avx512!("12"),
                dot_avx512!("13"),
                dot_avx512!("14"),
                dot_avx512!("15"),
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                left = in(zmm_reg) left,
                right = in(zmm_reg) right,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                options(nomem, nostack),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::aarch64::vdupq_n_s8;
    use std::arch::asm;

    macro_rules! dot {
        ($sum:literal) => {
            concat!("sdot v", $sum, ".4s, {left:v}.16b, {right:v}.16b")
        };
    }

    /// # Safety
    /// The processor has the dot product extension; `steps` is not zero.
    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn neon(steps: u64) {
        let (left, right) = (vdupq_n_s8(43), vdupq_n_s8(-7));
        // SAFETY: registers only, all that change are named; the loop ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "2:",
                dot!("0"),
                dot!("1"),
                dot!("2"),
                dot!("3"),
                dot!("4"),
                dot!("5"),
                dot!("6"),
                dot!("7"),
                dot!("16"),
                dot!("17"),
                dot!("18"),
                dot!("19"),
                dot!("20"),
                dot!("21"),
                dot!("22"),
                dot!("23"),
                "subs {steps}, {steps}, #1",
                "b.ne 2b",
                steps = inout(reg) steps => _,
                left = in(vreg) left,
                right = in(vreg) right,
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _,
                out("v7") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _,
                out("v21") _, out("v22") _, out("v23") _,
                options(nomem, nostack),
            );
        }
    }

    macro_rules! multiply {
        ($sum:literal) => {
            concat!("smmla v", $sum, ".4s, {left:v}.16b, {right:v}.16b")
        };
    }

    /// # Safety
    /// The processor has the int8 matrix extension; `steps` is not zero.
    #[target_feature(enable = "neon,i8mm")]
    pub(super) unsafe fn neon_i8mm(steps: u64) {
        let (left, right) = (vdupq_n_s8(43), vdupq_n_s8(-7));
        // SAFETY: registers only, all that change are named; the loop ends because `steps` counts down to zero.
        unsafe {
            asm!(
                "2:",
                multiply!("0"),
                multiply!("1"),
                multiply!("2"),
                multiply!("3"),
                multiply!("4"),
                multiply!("5"),
                multiply!("6"),
                multiply!("7"),
                multiply!("16"),
                multiply!("17"),
                multiply!("18"),
                multiply!("19"),
                multiply!("20"),
                multiply!("21"),
                multiply!("22"),
                multiply!("23"),
                "subs {steps}, {steps}, #1",
                "b.ne 2b",
                steps = inout(reg) steps => _,
                left = in(vreg) left,
                right = in(vreg) right,
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _,
                out("v7") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _,
                out("v21") _, out("v22") _, out("v23") _,
                options(nomem, nostack),
            );
        }
    }
}
