//! MXFP4: the exponent among the neighbours of the rule's whose codes are closest.

use super::super::STEP_COLUMNS;
use super::super::mxfp4::scale_of_exponent;
use super::super::q4::write_nibbles;
use super::sum_of;

/// Doubled magnitudes half-way between neighbouring codes, and the step from one code to the next.
const BOUNDS: [(f32, f32); 7] =
    [(0.5, 1.0), (1.5, 1.0), (2.5, 1.0), (3.5, 1.0), (5.0, 2.0), (7.0, 2.0), (10.0, 4.0)];

/// What is tried beside the exponent of the rule.
const EXPONENTS_BELOW: i32 = 1;
const EXPONENTS_ABOVE: i32 = 2;

pub(super) fn mxfp4(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // The exponent of `largest` as a float of normal size; what is smaller is zero in any format of weights.
    let exponent = (largest.to_bits() >> 23) as i32 - 2;
    let mut best = (f32::INFINITY, 0);
    for candidate in exponent - EXPONENTS_BELOW..=exponent + EXPONENTS_ABOVE {
        let candidate = candidate.clamp(2, 254) as u8;
        let error = error_of(values, candidate);
        if error < best.0 {
            best = (error, candidate);
        }
    }
    let exponent = if largest == 0.0 { 0 } else { best.1 };
    let inverse = inverse_scale(exponent);
    out[0] = exponent;
    write_nibbles(&values.map(|value| code_of(value * inverse)), &mut out[1..]);
}

/// The inverse of the scale of doubled values: a power of two, so products with it are exact.
fn inverse_scale(exponent: u8) -> f32 {
    1.0 / scale_of_exponent(exponent.max(2))
}

fn error_of(values: &[f32; STEP_COLUMNS], exponent: u8) -> f32 {
    let (scale, inverse) = (scale_of_exponent(exponent), inverse_scale(exponent));
    sum_of(values, |value| {
        let magnitude = value.abs() * inverse;
        let mut nearest = 0.0;
        for (bound, step) in BOUNDS {
            nearest += if magnitude > bound { step } else { 0.0 };
        }
        let difference = (magnitude - nearest) * scale;
        difference * difference
    })
}

fn code_of(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = BOUNDS.iter().filter(|(bound, _)| magnitude > *bound).count() as u8;
    if value < 0.0 && code > 0 { code | 8 } else { code }
}
