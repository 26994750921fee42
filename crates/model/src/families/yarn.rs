//! YaRN (Peng et al., arXiv 2309.00071): long waves are stretched by a factor, short ones are kept, those in between are blended by
//! their place among the frequencies, and sines and cosines get a factor of their own. DeepSeek has two more scales: the logarithm
//! of the factor stretches the rotated parts (`mscale` over `mscale_all_dim`) and all dot products (`mscale_all_dim`).
//!
//! Reference: `modeling_rope_utils.py` of transformers. Keys of GGUF are those of llama.cpp, which always rounds the bounds.

use std::f64::consts::TAU;

use super::rope;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{FrequencyDivisors, RopePairing, RopeSpec};

/// Rotations within the original context from which on a frequency is kept, and up to which it is stretched.
const BETA_FAST: f32 = 32.0;
const BETA_SLOW: f32 = 1.0;
/// A logarithm of the factor counts this much per unit of a scale.
const SCALE_UNIT: f64 = 0.1;

/// Keys of config.json beside the usual ones, for all who use YaRN.
pub(super) const KEYS: [(&str, &str); 6] = [
    ("rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast"),
    ("rope.scaling.yarn_beta_fast", "rope_parameters.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow"),
    ("rope.scaling.yarn_beta_slow", "rope_parameters.beta_slow"),
    ("rope.scaling.truncate", "rope_scaling.truncate"),
    ("rope.scaling.truncate", "rope_parameters.truncate"),
];

/// What the logarithm of the factor scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// Sines and cosines.
    Usual,
    /// As latent attention has it. GGUF states one number for both of its scales (`yarn_log_multiplier`), so there the rotated parts
    /// keep their length.
    Latent,
}

/// The rotary embedding of heads of `head_dim` elements, with YaRN where the file asks for it, and the factor on all dot products.
pub(super) fn rope(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    head_dim: usize,
    scales: Scales,
) -> Result<(RopeSpec, f64), ModelError> {
    if builder.text("rope.scaling.type")? != Some("yarn") {
        return Ok((rope::rope(builder, pairing, head_dim)?, 1.0));
    }
    let dimensions = rope::dimensions(builder, head_dim)?;
    let base = rope::base(builder)?;
    let factor = f64::from(builder.positive("rope.scaling.factor")?);
    let (magnitude, dot_factor) = factors(builder, factor, scales)?;
    let divisors = FrequencyDivisors::Values(divisors(builder, base, dimensions, factor)?);
    let rope =
        RopeSpec { pairing, dimensions, base, linear_factor: 1.0, divisors, magnitude: magnitude as f32 };
    Ok((rope, dot_factor))
}

/// Factors on sines and cosines, and on dot products.
fn factors(builder: &SpecBuilder<'_>, factor: f64, scales: Scales) -> Result<(f64, f64), ModelError> {
    let scale = |unit: f64| if factor <= 1.0 { 1.0 } else { unit * factor.ln() + 1.0 };
    let stated = builder.optional_float("rope.scaling.attn_factor")?.map(f64::from);
    if builder.by_source(true, false) {
        if stated.is_some_and(|stated| stated != 1.0) {
            let key = builder.key("rope.scaling.attn_factor")?;
            return Err(builder.unsupported(format!("{key} other than 1 with YaRN")));
        }
        if scales == Scales::Usual {
            return Ok((scale(SCALE_UNIT), 1.0));
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

/// What the frequency of each pair is divided by. Waves with more rotations over the original context than the fast bound are
/// kept, those with fewer than the slow one stretched, and between them it goes linearly by pair.
pub(super) fn divisors(
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
