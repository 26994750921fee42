//! Narrowing f32 to f16 for the KV cache.

use coldpress_workers::Team;
use half::f16;

use super::dispatch::instantiate;
use super::simd::{LANES, Simd, padded};
use super::spans::for_each_span;
use crate::Kernels;

#[inline(always)]
fn narrow_body<S: Simd>(s: S, x: &[f32], out: &mut [f16]) {
    let (x_full, x_rest) = x.as_chunks::<LANES>();
    let (out_full, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_full.iter().zip(out_full) {
        s.store_half(s.load(x), out);
    }
    if !out_rest.is_empty() {
        let mut last = [f16::ZERO; LANES];
        s.store_half(s.load(&padded(x_rest)), &mut last);
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

instantiate! { fn narrow(x: &[f32], out: &mut [f16]) => narrow_body }

/// `out = x` rounded to f16: to nearest, ties to even; subnormal results kept, too large ones infinite, as
/// [`half::f16::from_f32`]. A NaN stays a NaN with its sign and leading payload bits, made quiet. Panics when
/// the lengths differ.
pub fn convert_to_f16(team: &Team<'_>, kernels: Kernels, x: &[f32], out: &mut [f16]) {
    assert_eq!(x.len(), out.len(), "f16 conversion into a slice of different length");
    for_each_span(team, out, |span, out| narrow(kernels, &x[span], out));
}
