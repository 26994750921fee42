//! The model families. Each file turns one GGUF architecture into a [`ModelSpec`]; the table below registers it.
//!
//! To add a family: one file with a `describe` function, one line in [`FAMILIES`].

use coldpress_formats::ModelFile;

use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{ModelSpec, RopePairing, RopeSpec};

mod blocks;
mod kv_types;
mod llama;
mod qwen2moe;
mod qwen3moe;

pub use kv_types::{allowed_kv_types, check_kv_type};

type Describe = fn(&mut SpecBuilder<'_>) -> Result<Outline, ModelError>;

/// Registered architectures: name in `general.architecture`, function that describes it.
const FAMILIES: &[(&str, Describe)] =
    &[("llama", llama::describe), ("qwen2moe", qwen2moe::describe), ("qwen3moe", qwen3moe::describe)];

/// What a family returns: a spec whose tensor lists are still in the builder.
pub(crate) struct Outline {
    pub frame: blocks::Frame,
    pub rope: RopeSpec,
    pub layers: Vec<crate::spec::LayerSpec>,
}

/// Names of the registered architectures.
pub fn family_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|&(name, _)| name)
}

/// Describes the model in `file`; reads metadata and the tensor directory only.
///
/// # Errors
/// Unknown architecture, metadata that is absent or contradicts the tensors, tensors without a place.
pub fn describe(file: &ModelFile) -> Result<ModelSpec, ModelError> {
    let architecture = file.metadata().string("general.architecture")?;
    let mut builder = SpecBuilder::new(file, architecture);
    let Some(&(family, describe)) = FAMILIES.iter().find(|&&(name, _)| name == architecture) else {
        return Err(ModelError::UnknownArchitecture {
            file: builder.file_name(),
            found: architecture.to_owned(),
            supported: family_names().collect::<Vec<_>>().join(", "),
        });
    };
    let Outline { frame, rope, layers } = describe(&mut builder)?;
    let name = file.metadata().opt_string("general.name")?.map(str::to_owned);
    let (tensors, experts) = builder.finish()?;
    Ok(ModelSpec {
        family,
        name,
        vocabulary: frame.vocabulary,
        hidden: frame.hidden,
        trained_context: frame.trained_context,
        norm_epsilon: frame.norm_epsilon,
        embedding: frame.embedding,
        output_norm: frame.output_norm,
        output: frame.output,
        rope,
        layers,
        tensors,
        experts,
    })
}

/// Rotary embedding from the usual keys; refuses scaling kinds that are not computed.
pub(crate) fn rope(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    head_dim: usize,
) -> Result<RopeSpec, ModelError> {
    let dimensions = builder.optional_dimension("rope.dimension_count")?.unwrap_or(head_dim);
    if dimensions % 2 != 0 || dimensions > head_dim {
        return Err(
            builder.bad(format!("rope.dimension_count is {dimensions}; heads have {head_dim} elements"))
        );
    }
    let key = builder.key("rope.scaling.type");
    let scaling = builder.metadata().opt_string(&key)?.unwrap_or("none");
    let linear_factor = match scaling {
        "none" => 1.0,
        "linear" => builder.float_or("rope.scaling.factor", 1.0)?,
        other => {
            return Err(builder.unsupported(format!("{key} is '{other}'; none and linear are supported")));
        }
    };
    if linear_factor <= 0.0 {
        return Err(builder.bad(format!("rope.scaling.factor is {linear_factor}, not a positive number")));
    }
    let base = builder.float_or("rope.freq_base", 10_000.0)?;
    if base <= 0.0 {
        return Err(builder.bad(format!("rope.freq_base is {base}, not a positive number")));
    }
    let frequency_divisors = builder.optional_vector("rope_freqs.weight", dimensions / 2)?;
    Ok(RopeSpec { pairing, dimensions, base, linear_factor, frequency_divisors })
}
