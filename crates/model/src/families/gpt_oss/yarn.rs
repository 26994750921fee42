//! YaRN (Peng et al., arXiv 2309.00071): long wavelengths are stretched by a factor, short ones are kept, those in between are
//! blended by their place among the frequencies, and sines and cosines get a factor of their own.
//!
//! Reference: `modeling_rope_utils.py` of transformers. Keys of GGUF are those of llama.cpp, which always rounds the bounds.

use std::f64::consts::TAU;

use super::super::rope;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{FrequencyDivisors, RopePairing, RopeSpec};

/// Rotations within the original context from which on a frequency is kept, and up to which it is stretched.
const BETA_FAST: f32 = 32.0;
const BETA_SLOW: f32 = 1.0;

/// Keys of config.json beside the usual ones.
pub(super) const KEYS: [(&str, &str); 6] = [
    ("rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast"),
    ("rope.scaling.yarn_beta_fast", "rope_parameters.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow"),
    ("rope.scaling.yarn_beta_slow", "rope_parameters.beta_slow"),
    ("rope.scaling.truncate", "rope_scaling.truncate"),
    ("rope.scaling.truncate", "rope_parameters.truncate"),
];

/// Rotary embedding with YaRN where the file asks for it, else none of the kinds of scaling.
pub(super) fn rope(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    head_dim: usize,
) -> Result<RopeSpec, ModelError> {
    if builder.text("rope.scaling.type")? != Some("yarn") {
        return rope::rope(builder, pairing, head_dim);
    }
    let dimensions = rope::dimensions(builder, head_dim)?;
    let base = rope::base(builder)?;
    let factor = builder.positive("rope.scaling.factor")?;
    let context = builder.dimension("rope.scaling.original_context_length")?;
    let fast = builder.positive_or("rope.scaling.yarn_beta_fast", BETA_FAST)?;
    let slow = builder.positive_or("rope.scaling.yarn_beta_slow", BETA_SLOW)?;
    let rounded = builder.flag("rope.scaling.truncate")?.unwrap_or(true);
    if base <= 1.0 {
        return Err(builder.bad(format!("YaRN with a base of {base} for its frequencies")));
    }
    // The place among the pairs of the frequency that turns so often within the original context.
    let place = |turns: f32| {
        let wavelength = context as f64 / f64::from(turns);
        dimensions as f64 * (wavelength / TAU).ln() / (2.0 * f64::from(base).ln())
    };
    let (mut first, mut last) = (place(fast), place(slow));
    if rounded {
        (first, last) = (first.floor(), last.ceil());
    }
    let (first, mut last) = (first.max(0.0), last.min(dimensions as f64 - 1.0));
    if first == last {
        // As in the reference: a step instead of a slope.
        last += 0.001;
    }
    let divisor = |pair: usize| {
        let stretched = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
        (1.0 / (stretched / f64::from(factor) + 1.0 - stretched)) as f32
    };
    let divisors = FrequencyDivisors::Values((0..dimensions / 2).map(divisor).collect());
    let magnitude = if factor > 1.0 { (0.1 * f64::from(factor).ln() + 1.0) as f32 } else { 1.0 };
    Ok(RopeSpec { pairing, dimensions, base, linear_factor: 1.0, divisors, magnitude })
}
