//! Phi-3.5-MoE (`phimoe`): LayerNorm with biases, biases in attention and head, the sparse mixer as router, long-rope.
//!
//! Long-rope has two sets of frequencies, one for texts up to the original context and one beyond it; a text that grows past
//! that point would change all keys that are cached. The first set is computed, and longer contexts are refused.
//! GGUF files do not state the mixer's jitter: it is that of the published model.
//!
//! Reference: `modeling_phimoe.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::llama::BLOCK_SPARSE;
use super::{Family, Outline, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{FrequencyDivisors, Renormalize, RopePairing, RopeSpec, RouterScores};

pub(super) const FAMILY: Family = Family {
    gguf: "phimoe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: BLOCK_SPARSE,
        accepted: ACCEPTED,
        ..HuggingFace::usual("phimoe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("router.jitter", "router_jitter_noise"),
    ("rope.short_factors", "rope_scaling.short_factor"),
    ("rope.short_factors", "rope_parameters.short_factor"),
    ("rope.scaling.attn_factor", "rope_scaling.short_mscale"),
    ("rope.scaling.attn_factor", "rope_parameters.short_mscale"),
];

/// What belongs to texts beyond the original context, what other keys say as well, and whether there are biases, which the
/// tensors tell.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("original_max_position_embeddings", Accepted::Anything),
    ("rope_scaling.long_factor", Accepted::Anything),
    ("rope_scaling.long_mscale", Accepted::Anything),
    ("rope_scaling.factor", Accepted::Anything),
    ("rope_parameters.long_factor", Accepted::Anything),
    ("rope_parameters.long_mscale", Accepted::Anything),
    ("rope_parameters.factor", Accepted::Anything),
    ("lm_head_bias", Accepted::Anything),
];

/// `router_jitter_noise` of the published model.
const JITTER: f32 = 0.01;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("feed_forward_length")?;
    let jitter = builder.float_or("router.jitter", JITTER)?;
    let recipe = Recipe {
        scores: RouterScores::SparseMixer { jitter },
        renormalize: Renormalize::No,
        choice_bias: false,
    };
    let options = blocks::moe_options(builder, width, recipe)?;
    if options.top_k != 2 {
        return Err(
            builder.unsupported(format!("{} experts per token; the sparse mixer has 2", options.top_k))
        );
    }
    let rope = long_rope(builder, shape.head_dim)?;
    if rope.divisors != FrequencyDivisors::None {
        let original = builder.dimension("rope.scaling.original_context_length")?;
        frame.trained_context = frame.trained_context.min(original);
        frame.context_limit = Some(original);
    }
    let layers = blocks::layers(builder, &frame, shape, Norms::None, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}

fn long_rope(builder: &mut SpecBuilder<'_>, head_dim: usize) -> Result<RopeSpec, ModelError> {
    let kind = builder.text("rope.scaling.type")?;
    let dimensions = rope::dimensions(builder, head_dim)?;
    let tensor = builder.optional_vector("rope_factors_short.weight", dimensions / 2)?;
    builder.pass_over("rope_factors_long.weight");
    let divisors = match (kind, tensor) {
        (_, Some(tensor)) => FrequencyDivisors::Tensor(tensor),
        (Some("longrope" | "su"), None) => {
            let key = builder.key("rope.short_factors")?;
            let factors = builder.floats("rope.short_factors")?.unwrap_or_default();
            if factors.len() != dimensions / 2 || factors.iter().any(|&factor| factor <= 0.0) {
                let count = factors.len();
                let half = dimensions / 2;
                return Err(builder.bad(format!("{key} has {count} values; wanted are {half} above zero")));
            }
            FrequencyDivisors::Values(factors)
        }
        _ => return rope::rope(builder, RopePairing::HalfSplit, head_dim),
    };
    Ok(RopeSpec {
        pairing: RopePairing::HalfSplit,
        dimensions,
        base: rope::base(builder)?,
        linear_factor: 1.0,
        divisors,
        magnitude: builder.positive("rope.scaling.attn_factor")?,
    })
}
