//! Whether AMX with int8 products can be used: the processor has it, the system saves its registers, and this process may.
//!
//! Linux gives a process the tile registers (8 KiB of state per thread) only when it asks, once, for all its threads, those
//! that run already and those to come (kernel documentation, "Using XSTATE features in user space applications"). It refuses
//! when some thread's alternate signal stack is too small for the larger signal frames; the standard library sizes its own
//! after the auxiliary vector, so that it is not. A refusal means "not supported" here. Other systems are not asked.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Bits of CPUID leaf 7, sub-leaf 0, EDX.
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;

/// Bits of CPUID leaf 1, ECX: XSAVE, and "the system has switched it on".
const XSAVE: u32 = 1 << 26;
const OSXSAVE: u32 = 1 << 27;

/// Bits of XCR0: the system saves tile configuration and tile data.
const TILE_STATES: u64 = 1 << 17 | 1 << 18;

/// True when tile instructions with int8 products may be executed. The first call asks the system for permission.
pub(super) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| processor_has_it() && system_saves_tiles() && request_permission())
}

fn processor_has_it() -> bool {
    let wanted = AMX_TILE | AMX_INT8;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
}

fn system_saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn control_register() -> u64 {
        // SAFETY: the caller has seen that the system has switched XSAVE on.
        unsafe { _xgetbv(0) }
    }
    let wanted = XSAVE | OSXSAVE;
    // SAFETY: called only where CPUID says that XSAVE is there and switched on.
    __cpuid(1).ecx & wanted == wanted && unsafe { control_register() } & TILE_STATES == TILE_STATES
}

/// Asks Linux for the tile data registers (XSAVE component 18): `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)`.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: the call takes two numbers and no memory; a system call changes rcx and r11 and no other register.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
