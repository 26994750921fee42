//! DeepSeek-V4 (`deepseek4`): several residual streams, attention over a window and compressed groups of positions, routers that
//! go by token ids in the first layers, experts with a clamped SwiGLU. Blocks for later tokens (`mtp.`) are passed over.
//!
//! Reference: `modeling_deepseek_v4.py` of transformers; names are those of the published checkpoints.

use coldpress_formats::Value;
use coldpress_kernels::Activation;
use coldpress_kernels::attention::PAGE_POSITIONS;

use super::blocks::{self, Frame, MoeOptions, Recipe, SharedOptions};
use super::{Family, Outline, yarn};
use crate::builder::SpecBuilder;
use crate::compressed::{CompressedSpec, CompressionSpec, CompressorSpec, GroupIndexerSpec};
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::sinkhorn::{SigmoidMixer, SinkhornMixer};
use crate::spec::{
    AttentionKind, FeedForwardSpec, FrequencyDivisors, LayerSpec, Renormalize, RopePairing, RopeSpec,
    RouterScores,
};
use crate::streams::{STREAMS_MAX, StreamMixer, StreamsSpec};

pub(super) const FAMILY: Family = Family {
    gguf: "deepseek4",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        layers: "layers.",
        ..HuggingFace::usual("deepseek_v4")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("attention.compress_ratios", "compress_ratios"),
    ("attention.sparse_rate", "compress_rates.compressed_sparse_attention"),
    ("attention.sparse_rate", "compress_rate_csa"),
    ("attention.heavy_rate", "compress_rates.heavily_compressed_attention"),
    ("attention.heavy_rate", "compress_rate_hca"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.output_group_count", "o_groups"),
    ("attention.output_lora_rank", "o_lora_rank"),
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("rope.partial_factor", "partial_rotary_factor"),
    ("rope.partial_factor", "rope_parameters.main.partial_rotary_factor"),
    ("rope.partial_factor", "rope_parameters.compress.partial_rotary_factor"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base", "rope_parameters.main.rope_theta"),
    ("attention.compress_rope_freq_base", "compress_rope_theta"),
    ("attention.compress_rope_freq_base", "rope_parameters.compress.rope_theta"),
    ("rope.scaling.type", "rope_scaling.type"),
    ("rope.scaling.type", "rope_scaling.rope_type"),
    ("rope.scaling.type", "rope_parameters.compress.rope_type"),
    ("rope.scaling.factor", "rope_scaling.factor"),
    ("rope.scaling.factor", "rope_parameters.compress.factor"),
    ("rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings"),
    ("rope.scaling.original_context_length", "rope_parameters.compress.original_max_position_embeddings"),
    ("rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast"),
    ("rope.scaling.yarn_beta_fast", "rope_parameters.compress.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow"),
    ("rope.scaling.yarn_beta_slow", "rope_parameters.compress.beta_slow"),
    ("rope.scaling.truncate", "rope_parameters.compress.truncate"),
    ("hyper_connection.count", "hc_mult"),
    ("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"),
    ("hyper_connection.epsilon", "hc_eps"),
    ("expert_count", "n_routed_experts"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("feed_forward_kinds", "mlp_layer_types"),
    ("hash_layer_count", "num_hash_layers"),
    ("swiglu_limit", "swiglu_limit"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

const TENSORS: &[(&str, &str)] = &[
    ("token_embd", "embed"),
    ("output_norm", "norm"),
    ("output", "head"),
    ("output_hc_fn.weight", "hc_head_fn"),
    ("output_hc_base.weight", "hc_head_base"),
    ("output_hc_scale.weight", "hc_head_scale"),
    ("blk.hc_attn_fn.weight", "hc_attn_fn"),
    ("blk.hc_attn_base.weight", "hc_attn_base"),
    ("blk.hc_attn_scale.weight", "hc_attn_scale"),
    ("blk.hc_ffn_fn.weight", "hc_ffn_fn"),
    ("blk.hc_ffn_base.weight", "hc_ffn_base"),
    ("blk.hc_ffn_scale.weight", "hc_ffn_scale"),
    ("blk.attn_norm", "attn_norm"),
    ("blk.ffn_norm", "ffn_norm"),
    ("blk.attn_q_a", "attn.wq_a"),
    ("blk.attn_q_a_norm", "attn.q_norm"),
    ("blk.attn_q_b", "attn.wq_b"),
    ("blk.attn_kv", "attn.wkv"),
    ("blk.attn_kv_a_norm", "attn.kv_norm"),
    ("blk.attn_sinks.weight", "attn.attn_sink"),
    ("blk.attn_output_a", "attn.wo_a"),
    ("blk.attn_output_b", "attn.wo_b"),
    ("blk.attn_compressor_kv", "attn.compressor.wkv"),
    ("blk.attn_compressor_gate", "attn.compressor.wgate"),
    ("blk.attn_compressor_ape.weight", "attn.compressor.ape"),
    ("blk.attn_compressor_norm", "attn.compressor.norm"),
    ("blk.indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("blk.indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("blk.indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("blk.indexer_compressor_norm", "attn.indexer.compressor.norm"),
    ("blk.indexer.attn_q_b", "attn.indexer.wq_b"),
    ("blk.indexer.proj", "attn.indexer.weights_proj"),
    ("blk.ffn_gate_inp", "ffn.gate"),
    ("blk.ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),
    ("blk.exp_probs_b.bias", "ffn.gate.bias"),
    ("blk.ffn_gate.{e}", "ffn.experts.{e}.w1"),
    ("blk.ffn_up.{e}", "ffn.experts.{e}.w3"),
    ("blk.ffn_down.{e}", "ffn.experts.{e}.w2"),
    ("blk.ffn_gate_shexp", "ffn.shared_experts.w1"),
    ("blk.ffn_up_shexp", "ffn.shared_experts.w3"),
    ("blk.ffn_down_shexp", "ffn.shared_experts.w2"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Anything),
    ("sliding_window", Accepted::Anything),
    ("scoring_func", Accepted::Text(&["sqrtsoftplus"])),
    ("topk_method", Accepted::Text(&["noaux_tc"])),
    ("norm_topk_prob", Accepted::Flag(true)),
    ("rope_parameters.main.rope_type", Accepted::Text(&["default"])),
    ("rope_parameters.compress.attention_factor", Accepted::Integer(1)),
];

/// Added to the sum that weights are divided by.
const SUM_EPSILON: f32 = 1e-20;
/// GGUF's number for a router with roots of softplus.
const GATING_SQRT_SOFTPLUS: u64 = 4;
/// Most elements of an indexer's key.
const INDEX_DIM_MAX: usize = 512;
/// Ropes of a model: of layers with a window alone, of layers that compress.
const MAIN_ROPE: usize = 0;
const COMPRESS_ROPE: usize = 1;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    // The buffers for compressed rows are made for this many.
    frame.context_limit = Some(frame.trained_context);
    let hidden = frame.hidden;
    let dimensions = Dimensions::read(builder, hidden)?;
    let ropes = ropes(builder, dimensions.rotary)?;
    let rates = rates(builder, frame.layer_count)?;
    let hashed = hashed_layers(builder, frame.layer_count)?;
    let options = options(builder)?;
    let streams = Streams::read(builder)?;
    let head = head_mixer(builder, &streams, hidden)?;
    let (mut layers, mut mixers) = (Vec::new(), Vec::new());
    for (layer, &rate) in rates.iter().enumerate() {
        mixers.push([
            mixer(builder, &streams, hidden, layer, "attn")?,
            mixer(builder, &streams, hidden, layer, "ffn")?,
        ]);
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention: AttentionKind::Compressed(attention(builder, &frame, layer, &dimensions, rate)?),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: mixture(builder, &frame, layer, options, hashed[layer])?,
            feed_forward_result_norm: None,
        });
    }
    frame.streams = Some(StreamsSpec { count: streams.count, layers: mixers, head });
    Ok(Outline { frame, ropes, layers })
}

/// Sizes of attention.
struct Dimensions {
    heads: usize,
    head_dim: usize,
    rotary: usize,
    query_rank: usize,
    window: usize,
    groups: usize,
    group_rank: usize,
}

impl Dimensions {
    fn read(builder: &SpecBuilder<'_>, hidden: usize) -> Result<Self, ModelError> {
        let shape = blocks::head_shape(builder, hidden)?;
        if shape.kv_heads != 1 {
            return Err(builder.unsupported(format!("{} key heads; all heads share one", shape.kv_heads)));
        }
        let head_dim = shape.head_dim;
        let by_factor = builder.optional_float("rope.partial_factor")?;
        let by_factor = by_factor.map(|factor| (head_dim as f32 * factor) as usize);
        let stated = builder.optional_dimension("rope.dimension_count")?;
        let rotary = match (by_factor, stated) {
            (Some(rotary), None) | (None, Some(rotary)) => rotary,
            (Some(rotary), Some(other)) if rotary == other => rotary,
            (found, other) => {
                return Err(builder.bad(format!("rotated elements of a head: {found:?} and {other:?}")));
            }
        };
        if rotary == 0 || rotary % 2 != 0 || rotary > head_dim {
            return Err(
                builder.bad(format!("{rotary} of the {head_dim} elements of a head are to be rotated"))
            );
        }
        let groups = builder.dimension("attention.output_group_count")?;
        if !shape.heads.is_multiple_of(groups) {
            return Err(builder.bad(format!("{} heads are not {groups} equal groups", shape.heads)));
        }
        Ok(Self {
            heads: shape.heads,
            head_dim,
            rotary,
            query_rank: builder.dimension("attention.q_lora_rank")?,
            window: builder.dimension("attention.sliding_window")?,
            groups,
            group_rank: builder.dimension("attention.output_lora_rank")?,
        })
    }
}

/// That of windows and that of compressed rows, which alone is stretched.
fn ropes(builder: &SpecBuilder<'_>, dimensions: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let rope = |base, divisors| RopeSpec {
        pairing: RopePairing::Interleaved,
        dimensions,
        base,
        linear_factor: 1.0,
        divisors,
        magnitude: 1.0,
    };
    let base = builder.positive_or("attention.compress_rope_freq_base", 160_000.0)?;
    let divisors = match builder.text("rope.scaling.type")?.unwrap_or("none") {
        "none" | "default" => FrequencyDivisors::None,
        "yarn" => {
            let factor = f64::from(builder.positive("rope.scaling.factor")?);
            FrequencyDivisors::Values(yarn::divisors(builder, base, dimensions, factor)?)
        }
        other => {
            let key = builder.key("rope.scaling.type")?;
            return Err(builder.unsupported(format!("{key} is '{other}'; none and yarn are supported")));
        }
    };
    let main = builder.positive_or("rope.freq_base", 10_000.0)?;
    Ok(vec![rope(main, FrequencyDivisors::None), rope(base, divisors)])
}

/// Positions of a compressed row, layer by layer; 0 where there is none.
fn rates(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<usize>, ModelError> {
    let sparse = builder.optional_dimension("attention.sparse_rate")?.unwrap_or(4);
    let heavy = builder.optional_dimension("attention.heavy_rate")?.unwrap_or(128);
    let key = builder.key("attention.layer_kinds")?;
    let rates: Vec<usize> = match builder.metadata().opt_string_array(&key)? {
        Some(kinds) => {
            let rate = |kind: &String| match kind.as_str() {
                "sliding_attention" => Ok(0),
                "compressed_sparse_attention" => Ok(sparse),
                "heavily_compressed_attention" => Ok(heavy),
                other => Err(builder.unsupported(format!("{key} has a layer that is '{other}'"))),
            };
            kinds.iter().map(rate).collect::<Result<_, _>>()?
        }
        None => {
            let key = builder.key("attention.compress_ratios")?;
            let Some(Value::Array(list)) = builder.metadata().get(&key) else {
                return Err(builder.bad(format!("{key} is absent, so layers are of no kind")));
            };
            let rates =
                list.integers().map(|rates| rates.map(usize::try_from).collect::<Result<Vec<_>, _>>());
            rates
                .and_then(Result::ok)
                .ok_or_else(|| builder.bad(format!("{key} is not a list of numbers")))?
        }
    };
    // Blocks for later tokens come after the layers.
    let count = rates.len();
    if count < layers {
        return Err(builder.bad(format!("{key} has {count} entries for {layers} layers")));
    }
    let fits =
        |rate: usize| rate == 0 || PAGE_POSITIONS.is_multiple_of(rate) || rate.is_multiple_of(PAGE_POSITIONS);
    match rates.iter().find(|&&rate| !fits(rate)) {
        Some(rate) => Err(builder.unsupported(format!(
            "groups of {rate} positions; their number must divide {PAGE_POSITIONS} or be a multiple of it"
        ))),
        None => Ok(rates[..layers].to_vec()),
    }
}

/// Which layers go by token ids.
fn hashed_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let key = builder.key("feed_forward_kinds")?;
    if let Some(kinds) = builder.metadata().opt_string_array(&key)? {
        if kinds.len() != layers {
            return Err(builder.bad(format!("{key} has {} entries for {layers} layers", kinds.len())));
        }
        let hashed = |kind: &String| match kind.as_str() {
            "hash_moe" => Ok(true),
            "moe" => Ok(false),
            other => Err(builder.unsupported(format!("{key} has a layer that is '{other}'"))),
        };
        return kinds.iter().map(hashed).collect();
    }
    let Some(count) = builder.integer("hash_layer_count")? else {
        let count = builder.key("hash_layer_count")?;
        return Err(builder.bad(format!("neither {count} nor {key} is present")));
    };
    Ok((0..layers as u64).map(|layer| layer < count).collect())
}

fn attention(
    builder: &mut SpecBuilder<'_>,
    frame: &Frame,
    layer: usize,
    dimensions: &Dimensions,
    rate: usize,
) -> Result<CompressedSpec, ModelError> {
    let &Dimensions { heads, head_dim, rotary, query_rank, window, groups, group_rank } = dimensions;
    let hidden = frame.hidden;
    let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
    let width = heads * head_dim;
    let compression = match rate {
        0 => None,
        rate => Some(compression(builder, frame, layer, dimensions, rate)?),
    };
    Ok(CompressedSpec {
        heads,
        head_dim,
        rotary_dim: rotary,
        rope: if compression.is_some() { COMPRESS_ROPE } else { MAIN_ROPE },
        query_down: builder.matrix(&name("q_a"), query_rank, hidden)?,
        query_rank,
        query_norm: builder.rms_norm(&format!("blk.{layer}.attn_q_a_norm"), query_rank)?,
        query_up: builder.matrix(&name("q_b"), width, query_rank)?,
        key: builder.matrix(&name("kv"), head_dim, hidden)?,
        key_norm: builder.rms_norm(&format!("blk.{layer}.attn_kv_a_norm"), head_dim)?,
        sinks: builder.vector(&name("sinks"), heads)?,
        window,
        output_groups: groups,
        output_rank: group_rank,
        output_down: builder.head_matrices(
            &name("output_a"),
            (groups, group_rank),
            0..group_rank,
            width / groups,
            false,
        )?,
        output_up: builder.matrix(&name("output_b"), hidden, groups * group_rank)?,
        scale: 1.0 / (head_dim as f32).sqrt(),
        compression,
    })
}

fn compression(
    builder: &mut SpecBuilder<'_>,
    frame: &Frame,
    layer: usize,
    dimensions: &Dimensions,
    rate: usize,
) -> Result<CompressionSpec, ModelError> {
    // Layers that choose compress two groups into one row.
    let query = format!("blk.{layer}.indexer.attn_q_b.weight");
    let chooses = builder.has(&query);
    let groups_max = frame.trained_context.div_ceil(rate);
    let rows =
        compressor(builder, &format!("blk.{layer}.attn"), frame.hidden, dimensions.head_dim, rate, chooses)?;
    let indexer = match chooses {
        false => None,
        true => {
            let heads = builder.dimension("attention.indexer.head_count")?;
            let dim = builder.dimension("attention.indexer.key_length")?;
            if dim > INDEX_DIM_MAX || dim < dimensions.rotary {
                return Err(builder.unsupported(format!(
                    "keys of {dim} elements in the indexer, of which {} are rotated; at most {INDEX_DIM_MAX}",
                    dimensions.rotary
                )));
            }
            Some(GroupIndexerSpec {
                heads,
                top_k: builder.dimension("attention.indexer.top_k")?,
                compressor: compressor(
                    builder,
                    &format!("blk.{layer}.indexer"),
                    frame.hidden,
                    dim,
                    rate,
                    true,
                )?,
                query: builder.matrix(&query, heads * dim, dimensions.query_rank)?,
                weights: builder.matrix(&format!("blk.{layer}.indexer.proj.weight"), heads, frame.hidden)?,
            })
        }
    };
    let rows_max = indexer.map_or(groups_max, |indexer| indexer.top_k.min(groups_max));
    Ok(CompressionSpec { rate, rows_max, groups_max, rows, indexer })
}

fn compressor(
    builder: &mut SpecBuilder<'_>,
    stem: &str,
    hidden: usize,
    dim: usize,
    rate: usize,
    overlapping: bool,
) -> Result<CompressorSpec, ModelError> {
    let columns = if overlapping { 2 * dim } else { dim };
    Ok(CompressorSpec {
        dim,
        overlapping,
        value: builder.matrix(&format!("{stem}_compressor_kv.weight"), columns, hidden)?,
        gate: builder.matrix(&format!("{stem}_compressor_gate.weight"), columns, hidden)?,
        gate_bias: builder.flat(&format!("{stem}_compressor_ape.weight"), rate, columns)?,
        norm: builder.rms_norm(&format!("{stem}_compressor_norm"), dim)?,
    })
}

/// What all mixtures of a model have in common.
fn options(builder: &SpecBuilder<'_>) -> Result<MoeOptions, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    if builder.by_source(true, false) {
        let key = builder.key("expert_gating_func")?;
        match builder.integer("expert_gating_func")? {
            Some(GATING_SQRT_SOFTPLUS) => {}
            other => {
                return Err(builder.unsupported(format!("{key} is {other:?}, not {GATING_SQRT_SOFTPLUS}")));
            }
        }
        if builder.flag("expert_weights_norm")? == Some(false) {
            return Err(builder.unsupported("weights of experts that are not divided by their sum"));
        }
    }
    let recipe = Recipe {
        scores: RouterScores::SqrtSoftplus,
        renormalize: Renormalize::SumPlus(SUM_EPSILON),
        choice_bias: true,
    };
    let shared_count = builder.integer("expert_shared_count")?.unwrap_or(0).min(1 << 16) as usize;
    let shared = SharedOptions { width: shared_count * width, gated: false };
    Ok(MoeOptions {
        shared: (shared_count > 0).then_some(shared),
        scale: builder.positive_or("expert_weights_scale", 1.0)?,
        ..blocks::moe_options(builder, width, recipe)?
    })
}

fn mixture(
    builder: &mut SpecBuilder<'_>,
    frame: &Frame,
    layer: usize,
    mut options: MoeOptions,
    hashed: bool,
) -> Result<FeedForwardSpec, ModelError> {
    options.recipe.choice_bias = !hashed;
    let mut moe = blocks::moe_block(builder, layer, frame.hidden, options, None)?;
    if hashed {
        let name = format!("blk.{layer}.ffn_gate_tid2eid.weight");
        let (top_k, experts) = (options.top_k, moe.router.experts);
        if moe.router.top_k < top_k {
            return Err(builder.bad(format!("{name} names {top_k} experts of a layer that has {experts}")));
        }
        moe.router.table = Some(builder.table(&name, frame.vocabulary, top_k, experts)?);
    }
    moe.activation = activation(builder, layer, "swiglu_clamp_exp")?;
    if let Some(shared) = &mut moe.shared {
        shared.feed_forward.activation = activation(builder, layer, "swiglu_clamp_shexp")?;
    }
    Ok(FeedForwardSpec::Moe(moe))
}

/// The activation of a layer; GGUF has a limit for each.
fn activation(builder: &SpecBuilder<'_>, layer: usize, list: &str) -> Result<Activation, ModelError> {
    let limit = match builder.by_source(true, false) {
        true => builder.floats(list)?.and_then(|limits| limits.get(layer).copied()),
        false => builder.optional_float("swiglu_limit")?,
    };
    Ok(match limit {
        Some(limit) if limit > 0.0 => Activation::ClampedSwiglu { slope: 1.0, limit, offset: 0.0 },
        _ => Activation::Silu,
    })
}

/// What all mixers of streams have in common.
struct Streams {
    count: usize,
    iterations: usize,
    epsilon: f32,
}

impl Streams {
    fn read(builder: &SpecBuilder<'_>) -> Result<Self, ModelError> {
        let count = builder.dimension("hyper_connection.count")?;
        if !(2..=STREAMS_MAX).contains(&count) {
            return Err(builder
                .unsupported(format!("{count} residual streams; from 2 to {STREAMS_MAX} are supported")));
        }
        let iterations = builder.dimension("hyper_connection.sinkhorn_iterations")?;
        Ok(Self { count, iterations, epsilon: builder.positive_or("hyper_connection.epsilon", 1e-6)? })
    }
}

fn mixer(
    builder: &mut SpecBuilder<'_>,
    streams: &Streams,
    hidden: usize,
    layer: usize,
    half: &str,
) -> Result<StreamMixer, ModelError> {
    let name = |part: &str| format!("blk.{layer}.hc_{half}_{part}.weight");
    let count = streams.count;
    let rows = (2 + count) * count;
    Ok(StreamMixer::Sinkhorn(SinkhornMixer {
        weight: builder.float_matrix(&name("fn"), rows, count * hidden)?,
        scale: builder.vector(&name("scale"), 3)?,
        base: builder.vector(&name("base"), rows)?,
        iterations: streams.iterations,
        epsilon: streams.epsilon,
    }))
}

fn head_mixer(
    builder: &mut SpecBuilder<'_>,
    streams: &Streams,
    hidden: usize,
) -> Result<StreamMixer, ModelError> {
    let count = streams.count;
    Ok(StreamMixer::Sigmoid(SigmoidMixer {
        weight: builder.float_matrix("output_hc_fn.weight", count, count * hidden)?,
        scale: builder.vector("output_hc_scale.weight", 1)?,
        base: builder.vector("output_hc_base.weight", count)?,
        epsilon: streams.epsilon,
    }))
}
