//! Asking for memory before it is needed.
//!
//! A tile computes longer on a step of weights than the memory takes to send it, but it asks for the next one too late:
//! the processor's own prefetcher sees short runs with long pauses. Whoever knows the next weights names them here.
#![allow(unsafe_code)]

const LINE_BYTES: usize = 64;

/// Asks for `bytes` to be brought into the level 2 cache. May do nothing.
pub(crate) fn into_level_2(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch accepts any address; the instruction is part of every x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch accepts any address and changes nothing that a program can see.
        unsafe {
            std::arch::asm!(
                "prfm pldl2keep, [{address}]",
                address = in(reg) line.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}
