//! One generic body, one compiled copy per instruction set.
//!
//! [`instantiate!`] writes the function that picks the copy by [`Kernels::isa`](crate::Kernels::isa). The
//! body must be `#[inline(always)]` all the way down and free of closures around lane operations: only code
//! inlined into the copy is compiled with its target features.

/// `instantiate! { pub fn name(arguments) -> Result => body }` defines `name(kernels, arguments)`, which
/// calls `body(simd, arguments)`. Tile sizes may differ per instruction set: `=> body { avx512: [4, 4],
/// others: [2, 2] }` calls `body::<_, 4, 4>`.
macro_rules! instantiate {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? => $body:ident
        $({ avx512: [$($wide:literal),*], others: [$($narrow:literal),*] })?
    ) => {
        $(#[$attribute])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visibility fn $name(kernels: $crate::Kernels, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            fn avx512($($argument: $type),*) $(-> $result)? {
                // SAFETY: this function is compiled with, hence only called with, these features.
                let simd = unsafe { $crate::vector::simd_x86::Avx512::new() };
                $body$(::<_, $($wide),*>)?(simd, $($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($argument: $type),*) $(-> $result)? {
                // SAFETY: this function is compiled with, hence only called with, these features.
                let simd = unsafe { $crate::vector::simd_x86::Avx2::new() };
                $body$(::<_, $($narrow),*>)?(simd, $($argument),*)
            }

            match kernels.isa() {
                // SAFETY: a `Kernels` of this instruction set exists only where the processor has the
                // features.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512Vnni | $crate::Isa::AmxInt8 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 | $crate::Isa::AvxVnni => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::Isa::Neon | $crate::Isa::NeonI8mm => {
                    $body$(::<_, $($narrow),*>)?($crate::vector::simd_neon::Neon, $($argument),*)
                }
                _ => $body$(::<_, $($narrow),*>)?($crate::vector::simd::Portable, $($argument),*),
            }
        }
    };
}

pub(crate) use instantiate;
