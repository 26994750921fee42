//! YaRN (Peng et al., arXiv 2309.00071) with the two scales of DeepSeek: frequencies of long waves are divided by the factor, and the
//! logarithm of the factor stretches the rotated parts (`mscale` over `mscale_all_dim`) and all dot products (`mscale_all_dim`).
//!
//! GGUF states one number for both scales (`yarn_log_multiplier`), so there the rotated parts keep their length.

use std::f64::consts::TAU;

use super::rope;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{FrequencyDivisors, RopePairing, RopeSpec};

/// The usual bounds, in rotations over the original context.
const BETA_FAST: f32 = 32.0;
const BETA_SLOW: f32 = 1.0;
/// A logarithm of the factor counts this much per unit of a scale.
const SCALE_UNIT: f64 = 0.1;

/// The rotary embedding of `dimensions` elements, and the factor on all dot products.
pub(super) fn rope(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    dimensions: usize,
) -> Result<(RopeSpec, f64), ModelError> {
    if builder.text("rope.scaling.type")? != Some("yarn") {
        return Ok((rope::rope(builder, pairing, dimensions)?, 1.0));
    }
    let base = rope::base(builder)?;
    let factor = f64::from(builder.positive("rope.scaling.factor")?);
    let (magnitude, dot_factor) = scales(builder, factor)?;
    let divisors = FrequencyDivisors::Values(divisors(builder, base, dimensions, factor)?);
    let rope =
        RopeSpec { pairing, dimensions, base, linear_factor: 1.0, divisors, magnitude: magnitude as f32 };
    Ok((rope, dot_factor))
}

/// Factors on sines and cosines, and on dot products.
fn scales(builder: &SpecBuilder<'_>, factor: f64) -> Result<(f64, f64), ModelError> {
    let scale = |unit: f64| if factor <= 1.0 { 1.0 } else { unit * factor.ln() + 1.0 };
    let stated = builder.optional_float("rope.scaling.attn_factor")?.map(f64::from);
    if builder.by_source(true, false) {
        if stated.is_some_and(|stated| stated != 1.0) {
            let key = builder.key("rope.scaling.attn_factor")?;
            return Err(builder.unsupported(format!("{key} other than 1 for latent attention")));
        }
        let all = scale(f64::from(builder.positive("rope.scaling.yarn_log_multiplier")?));
        return Ok((1.0, all * all));
    }
    let rotated = f64::from(builder.float_or("rope.scaling.mscale", 0.0)?);
    let all = f64::from(builder.float_or("rope.scaling.mscale_all_dim", 0.0)?);
    let usual = match rotated != 0.0 && all != 0.0 {
        true => scale(SCALE_UNIT * rotated) / scale(SCALE_UNIT * all),
        false => scale(SCALE_UNIT),
    };
    let dots = if all == 0.0 { 1.0 } else { scale(SCALE_UNIT * all) };
    Ok((stated.unwrap_or(usual), dots * dots))
}

/// Waves with more rotations over the original context than the fast bound are kept, those with fewer than the slow one stretched,
/// and between them it goes linearly by pair (`modeling_rope_utils.py` of transformers).
fn divisors(
    builder: &SpecBuilder<'_>,
    base: f32,
    dimensions: usize,
    factor: f64,
) -> Result<Vec<f32>, ModelError> {
    let context = builder.dimension("rope.scaling.original_context_length")? as f64;
    let fast = f64::from(builder.positive_or("rope.scaling.yarn_beta_fast", BETA_FAST)?);
    let slow = f64::from(builder.positive_or("rope.scaling.yarn_beta_slow", BETA_SLOW)?);
    let whole = builder.flag("rope.scaling.truncate")?.unwrap_or(true);
    if base <= 1.0 {
        return Err(builder.bad(format!("{} is {base}, not above 1", builder.key("rope.freq_base")?)));
    }
    let pair_of = |rotations: f64| {
        dimensions as f64 * (context / (rotations * TAU)).ln() / (2.0 * f64::from(base).ln())
    };
    let (mut low, mut high) = (pair_of(fast), pair_of(slow));
    if whole {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dimensions as f64 - 1.0));
    if low == high {
        // As the reference, which has no step either.
        high += 0.001;
    }
    let divisor = |pair: usize| {
        let stretched = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / (stretched / factor + 1.0 - stretched)) as f32
    };
    Ok((0..dimensions / 2).map(divisor).collect())
}
