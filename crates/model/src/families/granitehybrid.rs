//! Granite 4 (`granitehybrid`): Mamba-2 in most layers, GQA mostly without positions in the others, each followed by experts
//! as in Granite-MoE and a shared network, or by that network alone; factors on embeddings, attention, residuals and logits.
//!
//! Reference: `modeling_granitemoehybrid.py` of transformers.

use coldpress_formats::Value;
use coldpress_kernels::attention::AttentionShape;
use coldpress_kernels::recurrent::{DecayedShape, StepLimits};

use super::blocks::{self, Frame, MoeOptions, Norms, Recipe, SharedOptions};
use super::{Family, Outline, granitemoe, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::recurrent::{Mamba2Spec, RecurrentSpec};
use crate::spec::{
    AttentionKind, FeedForwardSpec, LayerSpec, LinearSpec, Renormalize, RopePairing, RouterScores,
};

pub(super) const FAMILY: Family = Family {
    gguf: "granitehybrid",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: granitemoe::MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("granitemoehybrid")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("expert_shared_feed_forward_length", "shared_intermediate_size"),
    ("logit_scale", "logits_scaling"),
    ("residual_scale", "residual_multiplier"),
    ("rope.kind", "position_embedding_type"),
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.expansion", "mamba_expand"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.has_bias", "mamba_proj_bias"),
    ("ssm.has_convolution_bias", "mamba_conv_bias"),
    ("ssm.head_length", "mamba_d_head"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.step_limits", "time_step_limit"),
    ("ssm.time_step_rank", "mamba_n_heads"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("blk.ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("blk.ffn_down_exps", "block_sparse_moe.output_linear"),
    ("blk.ffn_gate_up_shexp", "shared_mlp.input_linear"),
    ("blk.ffn_down_shexp", "shared_mlp.output_linear"),
    ("blk.ssm_a", "mamba.A_log"),
    ("blk.ssm_conv1d", "mamba.conv1d"),
    ("blk.ssm_d", "mamba.D"),
    ("blk.ssm_dt.bias", "mamba.dt_bias"),
    ("blk.ssm_in", "mamba.in_proj"),
    ("blk.ssm_norm", "mamba.norm"),
    ("blk.ssm_out", "mamba.out_proj"),
];

/// Kinds of layers.
const ATTENDS: &[&str] = &["attention", "full_attention"];
const HAS_STATE: &[&str] = &["mamba", "linear_attention"];

/// Steps are computed one by one, so the length of the blocks of the reference has no effect.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("init_method", Accepted::Anything),
    ("layer_types", Accepted::Anything),
    ("mamba_chunk_size", Accepted::Anything),
    ("normalization_function", Accepted::Text(&["rmsnorm"])),
    ("position_embedding_type", Accepted::Text(&["rope", "nope"])),
];

/// What transformers writes for steps without bounds.
const UNBOUNDED: &str = r#"[0.0,{"__float__":"Infinity"}]"#;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    frame.embedding_scale = builder.positive_or("embedding_scale", 1.0)?;
    frame.residual_scale = builder.positive_or("residual_scale", 1.0)?;
    // Both kinds of files state what logits are divided by.
    frame.logit_scale = 1.0 / builder.positive_or("logit_scale", 1.0)?;
    let attention_scale = builder.positive("attention.scale")?;
    let attends = attending(builder, frame.layer_count)?;
    let shape = heads(builder, hidden, &attends)?;
    let mixer = mixer(builder, &frame)?;
    let feed_forward = feed_forward(builder)?;
    let pairing = builder.by_source(RopePairing::Interleaved, RopePairing::HalfSplit);
    let rope = rope(builder, pairing, shape.head_dim)?;
    let rotates = match builder.by_source(true, false) {
        true => builder.flag("rope.scaling.finetuned")?.unwrap_or(true),
        false => builder.text("rope.kind")? == Some("rope"),
    };
    let mut layers = Vec::new();
    for (layer, attends) in attends.into_iter().enumerate() {
        let attention = match attends {
            true => {
                let mut attention = blocks::attention(builder, layer, hidden, shape, Norms::None)?;
                attention.scale = attention_scale;
                attention.rope = rotates.then_some(0);
                AttentionKind::Grouped(attention)
            }
            false => AttentionKind::Recurrent(RecurrentSpec::Mamba2(mixer.of_layer(builder, layer)?)),
        };
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: match feed_forward {
                FeedForward::Routed(options) => blocks::moe(builder, layer, hidden, options)?,
                FeedForward::Shared { suffix, width } => {
                    FeedForwardSpec::Dense(blocks::gated(builder, layer, suffix, hidden, width)?)
                }
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Per layer, whether it attends. GGUF files tell it by the number of key heads.
fn attending(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    if builder.by_source(true, false) {
        return match builder.per_layer("attention.head_count_kv", layers)? {
            Some(counts) => Ok(counts.into_iter().map(|count| count > 0).collect()),
            None => Err(builder.bad(format!("{} is missing", builder.key("attention.head_count_kv")?))),
        };
    }
    let key = builder.key("attention.layer_kinds")?;
    let Some(kinds) = builder.metadata().opt_string_array(&key)? else {
        return Err(builder.bad(format!("{key} is missing")));
    };
    if kinds.len() != layers {
        return Err(builder.bad(format!("{key} has {} entries for {layers} layers", kinds.len())));
    }
    let attends = kinds.iter().enumerate().map(|(layer, kind)| match kind {
        kind if ATTENDS.contains(&kind.as_str()) => Ok(true),
        kind if HAS_STATE.contains(&kind.as_str()) => Ok(false),
        kind => Err(builder.unsupported(format!("{key} is '{kind}' in layer {layer}"))),
    });
    attends.collect()
}

/// The heads of layers that attend.
fn heads(builder: &SpecBuilder<'_>, hidden: usize, attends: &[bool]) -> Result<AttentionShape, ModelError> {
    let heads = builder.dimension("attention.head_count")?;
    let counts = builder.per_layer("attention.head_count_kv", attends.len())?;
    let mut counts = counts.into_iter().flatten().zip(attends).filter(|(_, attends)| **attends);
    let first = counts.next().map_or(heads as u64, |(count, _)| count);
    let key = builder.key("attention.head_count_kv")?;
    if counts.any(|(count, _)| count != first) {
        return Err(builder.unsupported(format!("{key} differs between layers that attend")));
    }
    let kv_heads = usize::try_from(first).unwrap_or(0);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || !hidden.is_multiple_of(heads) {
        let what =
            format!("{heads} query heads of {hidden} elements cannot share {kv_heads} key heads evenly");
        return Err(builder.bad(what));
    }
    let head_dim = builder.optional_dimension("attention.key_length")?.unwrap_or(hidden / heads);
    Ok(AttentionShape { heads, kv_heads, head_dim })
}

/// What follows attention.
#[derive(Clone, Copy)]
enum FeedForward {
    Routed(MoeOptions),
    Shared { suffix: &'static str, width: usize },
}

fn feed_forward(builder: &SpecBuilder<'_>) -> Result<FeedForward, ModelError> {
    let shared_width = builder.optional_dimension("expert_shared_feed_forward_length")?;
    let width = builder.dimension("feed_forward_length")?;
    if builder.integer("expert_count")?.unwrap_or(0) == 0 {
        builder.integer("expert_used_count")?;
        // Files call it the network of the layer, checkpoints the shared one.
        let (suffix, width) = builder.by_source(("", width), ("_shexp", shared_width.unwrap_or(width)));
        return Ok(FeedForward::Shared { suffix, width });
    }
    let recipe =
        Recipe { scores: RouterScores::SoftmaxOfChosen, renormalize: Renormalize::No, choice_bias: false };
    Ok(FeedForward::Routed(MoeOptions {
        shared: shared_width.map(|width| SharedOptions { width, gated: false }),
        ..blocks::moe_options(builder, width, recipe)?
    }))
}

/// What all layers with a state have in common.
struct Mixer {
    hidden: usize,
    norm_epsilon: f32,
    shape: DecayedShape,
    taps: usize,
    limits: StepLimits,
    has_bias: bool,
}

fn mixer(builder: &SpecBuilder<'_>, frame: &Frame) -> Result<Mixer, ModelError> {
    let heads = builder.dimension("ssm.time_step_rank")?;
    let key_heads = builder.optional_dimension("ssm.group_count")?.unwrap_or(1);
    let expanded = builder.optional_dimension("ssm.expansion")?.unwrap_or(2).saturating_mul(frame.hidden);
    let inner = builder.optional_dimension("ssm.inner_size")?.unwrap_or(expanded);
    let head_dim = match builder.metadata().get(&builder.key("ssm.head_length")?) {
        // It says "auto" otherwise.
        Some(value) if value.integer().is_some() => builder.dimension("ssm.head_length")?,
        _ => inner / heads,
    };
    if heads.checked_mul(head_dim) != Some(inner) || !heads.is_multiple_of(key_heads) {
        let what = format!("{heads} heads of {head_dim} in {key_heads} groups do not make {inner} channels");
        return Err(builder.bad(what));
    }
    if !head_dim.is_multiple_of(16) {
        return Err(
            builder.unsupported(format!("state space heads of {head_dim} elements, not a multiple of 16"))
        );
    }
    let key_dim = builder.dimension("ssm.state_size")?;
    let shape = DecayedShape { heads, key_heads, key_dim, value_dim: head_dim };
    Ok(Mixer {
        hidden: frame.hidden,
        norm_epsilon: frame.norm_epsilon,
        shape,
        taps: builder.dimension("ssm.conv_kernel")?,
        limits: limits(builder)?,
        has_bias: builder.flag("ssm.has_bias")?.unwrap_or(false),
    })
}

fn limits(builder: &SpecBuilder<'_>) -> Result<StepLimits, ModelError> {
    let key = builder.key("ssm.step_limits")?;
    let unbounded = StepLimits { least: 0.0, most: f32::INFINITY };
    let stated = match builder.metadata().get(&key) {
        None => return Ok(unbounded),
        Some(Value::String(_)) if builder.text("ssm.step_limits")? == Some(UNBOUNDED) => {
            return Ok(unbounded);
        }
        Some(Value::Array(_)) => builder.floats("ssm.step_limits")?,
        Some(_) => None,
    };
    match stated.as_deref() {
        Some(&[least, most]) if (0.0..=most).contains(&least) => Ok(StepLimits { least, most }),
        _ => Err(builder.unsupported(format!("{key} is not two bounds of a step"))),
    }
}

impl Mixer {
    fn of_layer(&self, builder: &mut SpecBuilder<'_>, layer: usize) -> Result<Mamba2Spec, ModelError> {
        let stem = |part: &str| format!("blk.{layer}.ssm_{part}");
        let shape = self.shape;
        let (inner, channels) = (Mamba2Spec::inner_len(shape), Mamba2Spec::channels(shape));
        let groups = builder.by_source(shape.key_heads, 1);
        // Files hold a number per head as a row.
        let (per_head, norm) = match builder.by_source(true, false) {
            true => (vec![1, shape.heads], vec![inner / groups, groups]),
            false => (vec![shape.heads], vec![inner]),
        };
        let spec = Mamba2Spec {
            input: builder.linear(&stem("in"), Mamba2Spec::projected_len(shape), self.hidden)?,
            convolution: builder.convolution_taps(&stem("conv1d"), channels, self.taps)?,
            step_bias: builder.vector(&stem("dt.bias"), shape.heads)?,
            rates: builder.flat_vector(&stem("a"), &per_head)?,
            rates_are_logarithms: builder.by_source(false, true),
            skip: builder.flat_vector(&stem("d"), &per_head)?,
            norm: builder.flat_vector(&format!("{}.weight", stem("norm")), &norm)?,
            norm_epsilon: self.norm_epsilon,
            output: builder.linear(&stem("out"), self.hidden, inner)?,
            hidden: self.hidden,
            shape,
            limits: self.limits,
        };
        self.check_biases(builder, layer, &spec)?;
        Ok(spec)
    }

    /// Biases are there where the configuration says so.
    fn check_biases(
        &self,
        builder: &SpecBuilder<'_>,
        layer: usize,
        spec: &Mamba2Spec,
    ) -> Result<(), ModelError> {
        let has_bias = |linear: &LinearSpec| linear.bias.is_some();
        let convolution = builder.flag("ssm.has_convolution_bias")?;
        let cases = [
            ("ssm.has_bias", self.has_bias, has_bias(&spec.input) && has_bias(&spec.output)),
            ("ssm.has_convolution_bias", convolution.unwrap_or(false), spec.convolution.bias.is_some()),
        ];
        match cases.into_iter().find(|(_, stated, found)| *stated && !found) {
            None => Ok(()),
            Some((name, ..)) => {
                let key = builder.key(name)?;
                Err(builder.bad(format!("{key} is true, but layer {layer} has no such bias")))
            }
        }
    }
}
