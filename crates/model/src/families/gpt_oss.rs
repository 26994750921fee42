//! gpt-oss (`gpt-oss`): GQA with biases, sinks and, in every second layer, a window; a softmax over the chosen experts with a bias
//! on the router; experts with biases and a clamped SwiGLU of its own; YaRN. Checkpoints hold gate and up in turns in one
//! tensor, transposed floats or MXFP4.
//!
//! Reference: `modeling_gpt_oss.py` of transformers.

use coldpress_experts::GateUp;
use coldpress_kernels::Activation;

use super::blocks::{self, Norms, Recipe};
use super::{Family, Outline, yarn};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{AttentionKind, FeedForwardSpec, LayerSpec, Renormalize, RopePairing, RouterScores};

pub(super) const FAMILY: Family = Family {
    gguf: "gpt-oss",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("gpt_oss")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_used_count", "experts_per_token"),
    ("rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings"),
    ("rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings"),
    ("rope.scaling.original_context_length", "initial_context_length"),
    ("swiglu_limit", "swiglu_limit"),
    ("swiglu_slope", "swiglu_alpha"),
    yarn::KEYS[0],
    yarn::KEYS[1],
    yarn::KEYS[2],
    yarn::KEYS[3],
    yarn::KEYS[4],
    yarn::KEYS[5],
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_sinks.weight", "self_attn.sinks"),
    ("blk.post_attention_norm", "post_attention_layernorm"),
    ("blk.ffn_gate_inp", "mlp.router"),
    ("blk.ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("blk.ffn_gate_up_exps.codes", "mlp.experts.gate_up_proj_blocks"),
    ("blk.ffn_gate_up_exps.exponents", "mlp.experts.gate_up_proj_scales"),
    ("blk.ffn_gate_up_exps.bias", "mlp.experts.gate_up_proj_bias"),
    ("blk.ffn_down_exps.weight", "mlp.experts.down_proj"),
    ("blk.ffn_down_exps.codes", "mlp.experts.down_proj_blocks"),
    ("blk.ffn_down_exps.exponents", "mlp.experts.down_proj_scales"),
    ("blk.ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
];

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_exps", "mlp.experts.gate_proj"),
    ("blk.ffn_up_exps", "mlp.experts.up_proj"),
    ("blk.ffn_down_exps", "mlp.experts.down_proj"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&[WINDOW, "full_attention"])),
    ("sliding_window", Accepted::Anything),
    // Which tensors are MXFP4 is seen by their names.
    ("quantization_config.modules_to_not_convert", Accepted::Anything),
    ("quantization_config.quant_method", Accepted::Text(&["mxfp4"])),
];

const WINDOW: &str = "sliding_attention";

/// The published models, where a file does not say.
const SLOPE: f32 = 1.702;
const LIMIT: f32 = 7.0;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let window = builder.dimension("attention.sliding_window")?;
    let windows = layers_with_window(builder, frame.layer_count)?;
    let slope = builder.positive_or("swiglu_slope", SLOPE)?;
    let limit = builder.positive_or("swiglu_limit", LIMIT)?;
    let (rope, _) = yarn::rope(builder, RopePairing::HalfSplit, shape.head_dim, yarn::Scales::Usual)?;
    let width = builder.by_source("expert_feed_forward_length", "feed_forward_length");
    let width = builder.dimension(width)?;
    let recipe =
        Recipe { scores: RouterScores::SoftmaxOfChosen, renormalize: Renormalize::No, choice_bias: false };
    let options = blocks::moe_options(builder, width, recipe)?;
    let fused = builder.by_source(None, Some(GateUp::InTurns));
    let mut layers = Vec::new();
    for (layer, windowed) in windows.into_iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mut attention = blocks::attention(builder, layer, hidden, shape, Norms::None)?;
        attention.window = windowed.then_some(window);
        attention.sinks = Some(builder.vector(&name("attn_sinks.weight"), shape.heads)?);
        let mut moe = blocks::moe_block(builder, layer, hidden, options, fused)?;
        let experts = moe.router.stored();
        moe.router.bias = Some(builder.vector_of_router(&name("ffn_gate_inp.bias"), layer, experts)?);
        moe.activation = Activation::ClampedSwiglu { slope, limit, offset: 1.0 };
        moe.biases = Some(builder.expert_biases(layer, experts, hidden, width)?);
        layers.push(LayerSpec {
            attention_norm: builder.norm(&name("attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&name("post_attention_norm"), hidden)?,
            feed_forward: FeedForwardSpec::Moe(moe),
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Which layers have a window: those of the list, or every second one from the first on.
fn layers_with_window(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    match builder.metadata().opt_string_array(&builder.key("attention.layer_kinds")?)? {
        Some(kinds) if kinds.len() != layers => {
            Err(builder.bad(format!("layer_types has {} entries for {layers} layers", kinds.len())))
        }
        Some(kinds) => Ok(kinds.iter().map(|kind| kind == WINDOW).collect()),
        // The number of layers is bounded by a dimension's largest value.
        None => Ok((0..layers).map(|layer| layer.is_multiple_of(2)).collect()),
    }
}
