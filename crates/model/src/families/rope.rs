//! Rotary embeddings from metadata: which scaling kinds exist, and what they do to the frequencies.
//!
//! Refuses kinds that are not computed, by key and value.

use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::Accepted;
use crate::spec::{FrequencyDivisors, RopePairing, RopeSpec};

/// Sections of the rotary embedding in models with pictures: all positions of a text are the same in each.
pub(super) const SECTIONS: &[(&str, Accepted)] = &[
    ("rope_parameters.mrope_section", Accepted::Anything),
    ("rope_parameters.mrope_interleaved", Accepted::Anything),
    ("rope_scaling.mrope_section", Accepted::Anything),
    ("rope_scaling.mrope_interleaved", Accepted::Anything),
];

/// Rotary embedding from the usual keys.
pub(super) fn rope(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    head_dim: usize,
) -> Result<RopeSpec, ModelError> {
    let dimensions = dimensions(builder, head_dim)?;
    let base = base(builder)?;
    let scaling = builder.text("rope.scaling.type")?.unwrap_or("none");
    let mut linear_factor = 1.0;
    let mut divisors = match builder.optional_vector("rope_freqs.weight", dimensions / 2)? {
        Some(tensor) => FrequencyDivisors::Tensor(tensor),
        None => FrequencyDivisors::None,
    };
    match scaling {
        "none" | "default" => {}
        "linear" => linear_factor = builder.positive_or("rope.scaling.factor", 1.0)?,
        // GGUF has the divisors of this kind in the tensor.
        "llama3" => divisors = FrequencyDivisors::Values(llama3_divisors(builder, base, dimensions)?),
        other => {
            let key = builder.key("rope.scaling.type")?;
            return Err(
                builder.unsupported(format!("{key} is '{other}'; none, linear and llama3 are supported"))
            );
        }
    }
    if matches!(scaling, "none" | "default") {
        // Published configurations carry a factor that this kind does not use.
        builder.optional_float("rope.scaling.factor")?;
    }
    Ok(RopeSpec { pairing, dimensions, base, linear_factor, divisors, magnitude: 1.0 })
}

/// Rotated elements of a head.
pub(super) fn dimensions(builder: &SpecBuilder<'_>, head_dim: usize) -> Result<usize, ModelError> {
    let stated = match builder.optional_float("rope.partial_factor")? {
        Some(factor) => Some((head_dim as f32 * factor) as usize),
        None => builder.optional_dimension("rope.dimension_count")?,
    };
    let dimensions = stated.unwrap_or(head_dim);
    if dimensions == 0 || dimensions % 2 != 0 || dimensions > head_dim {
        return Err(
            builder.bad(format!("{dimensions} of the {head_dim} elements of a head are to be rotated"))
        );
    }
    Ok(dimensions)
}

/// Base of the frequencies.
pub(super) fn base(builder: &SpecBuilder<'_>) -> Result<f32, ModelError> {
    builder.positive_or("rope.freq_base", 10_000.0)
}

/// Long wavelengths are stretched by the factor, short ones are kept, and those in between are blended (`modeling_rope_utils.py`
/// of transformers).
fn llama3_divisors(builder: &SpecBuilder<'_>, base: f32, dimensions: usize) -> Result<Vec<f32>, ModelError> {
    let factor = f64::from(builder.positive("rope.scaling.factor")?);
    let low = f64::from(builder.positive("rope.scaling.low_frequency_factor")?);
    let high = f64::from(builder.positive("rope.scaling.high_frequency_factor")?);
    let context = builder.dimension("rope.scaling.original_context_length")? as f64;
    if high <= low {
        return Err(builder.bad(format!("the high frequency factor {high} is not above the low one, {low}")));
    }
    let divisor = |pair: usize| {
        let wavelength = std::f64::consts::TAU * f64::from(base).powf(2.0 * pair as f64 / dimensions as f64);
        let periods = context / wavelength;
        let kept = ((periods - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - kept) / factor + kept)) as f32
    };
    Ok((0..dimensions / 2).map(divisor).collect())
}
