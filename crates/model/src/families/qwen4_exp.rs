//! Qwen4-Exp (`qwen4_exp_text`), the text model: several residual streams, Gated DeltaNet in most layers, in the others gated GQA that
//! attends to blocks of positions chosen by an indexer; before some layers embeddings of n-grams, whose tables stay on disk;
//! softmax router, a shared expert behind a sigmoid gate. There are no norms but those of the streams.
//!
//! Sections of the rotary embedding are all the same for text. Checkpoints store weights of norms as differences from 1.
//! Reference: `modeling_qwen4_exp.py` of transformers 5.24. GGUF files are refused: there is no reference for them.

use coldpress_formats::Value;
use coldpress_kernels::recurrent::{GateActivation, KeyHeads};

use super::blocks::{self, Norms};
use super::layer_kinds::texts;
use super::qwen3_next::{DELTA_KEYS, DELTA_TENSORS, delta_shape, gated_delta, moe_options};
use super::{Family, Outline, rope::rope};
use crate::block_sparse::BlockIndexSpec;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::low_rank_mixer::LowRankMixer;
use crate::names::{Accepted, HuggingFace, joined};
use crate::ngram::{NGRAM_MAX, NgramShape, NgramSpec};
use crate::ple::{PleNorms, PleSpec};
use crate::recurrent::{GatedDeltaSpec, RecurrentSpec};
use crate::spec::{AttentionKind, AttentionSpec, LayerSpec, NormSpec, RopePairing, VectorHandle};
use crate::streams::{STREAMS_MAX, StreamMixer, StreamsSpec};

pub(super) const FAMILY: Family = Family {
    gguf: "qwen4exp",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        norm_offset: 1.0,
        ..HuggingFace::usual("qwen4_exp_text")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &joined::<_, 24>(
    DELTA_KEYS,
    &[
        ("ssm.gate", "output_gate_type"),
        ("streams.count", "hc_count"),
        ("streams.rank", "hc_lowrank"),
        ("indexer.heads", "indexer_n_heads"),
        ("indexer.key_heads", "indexer_kv_heads"),
        ("indexer.key_length", "indexer_head_dim"),
        ("indexer.budget", "indexer_budget"),
        ("indexer.block", "indexer_compress_ratio"),
        ("ngram.layers", "ple_layer_ids"),
        ("ngram.width", "ple_embed_dim"),
        ("ngram.taps", "ple_conv_kernel_size"),
        ("ngram.size", "ngram_size"),
        ("ngram.heads", "heads_per_ngram"),
        ("ngram.rows", "ngram_vocab_size_base"),
        ("ngram.rows_multiple", "make_ngram_vocab_size_divisible_by"),
        ("ngram.seed", "seed"),
        ("ngram.shards", "split_ngram_parts"),
        ("ngram.end_of_text", "eos_token_id"),
    ],
);

const TENSORS: &[(&str, &str)] = &joined::<_, 35>(
    DELTA_TENSORS,
    &[
        ("blk.attn_mixer_norm", "attn_hyper_connection.hc_norm"),
        ("blk.attn_mixer_down", "attn_hyper_connection.input_mix_weight_down"),
        ("blk.attn_mixer_up", "attn_hyper_connection.input_mix_weight_up"),
        ("blk.attn_mixer_inject", "attn_hyper_connection.block_inject_weight"),
        ("blk.ffn_mixer_norm", "mlp_hyper_connection.hc_norm"),
        ("blk.ffn_mixer_down", "mlp_hyper_connection.input_mix_weight_down"),
        ("blk.ffn_mixer_up", "mlp_hyper_connection.input_mix_weight_up"),
        ("blk.ffn_mixer_inject", "mlp_hyper_connection.block_inject_weight"),
        ("output_mixer_norm", "model.hyper_connection_mixer.hc_norm"),
        ("output_mixer_down", "model.hyper_connection_mixer.input_mix_weight_down"),
        ("output_mixer_up", "model.hyper_connection_mixer.input_mix_weight_up"),
        ("blk.indexer_qk", "self_attn.indexer.index_qk_proj"),
        ("blk.indexer_q_norm", "self_attn.indexer.q_layernorm"),
        ("blk.indexer_k_norm", "self_attn.indexer.k_layernorm"),
        ("blk.ngram_rows.{e}", "ple.ple_embedding.ngram_embedding.shard_{e}"),
        ("blk.ngram_multipliers", "ple.ple_embedding.layer_multipliers"),
        ("blk.ngram_sizes", "ple.ple_embedding.ngram_heads_vocab_sizes"),
        ("blk.ngram_offsets", "ple.ple_embedding.ngram_heads_offsets"),
        ("blk.ngram_key", "ple.key_proj"),
        ("blk.ngram_value", "ple.value_proj"),
        ("blk.ngram_conv", "ple.conv1d"),
        ("blk.ngram_norm_key", "ple.norm_key"),
        ("blk.ngram_norm_query", "ple.norm_query"),
        ("blk.ngram_norm_conv", "ple.norm_conv"),
    ],
);

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["linear_attention", "full_attention", "indexed_attention"])),
    // All positions of a text are the same in each section.
    ("rope_parameters.mrope_section", Accepted::Anything),
    ("rope_parameters.mrope_interleaved", Accepted::Anything),
    // There are no dense layers.
    ("intermediate_size", Accepted::Anything),
    // Follows from the layers that have embeddings of n-grams.
    ("number_of_conv_states", Accepted::Anything),
];

/// Rows that a table may have: their numbers have 32 bits.
const TABLE_ROWS_MAX: u64 = 1 << 32;
/// Heads of all lengths together, and taps of a convolution.
const NGRAM_HEADS_MAX: usize = 256;
const TAPS_MAX: usize = 16;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    if builder.by_source(true, false) {
        return Err(builder.unsupported("Qwen4-Exp in a GGUF file; give the Hugging Face folder"));
    }
    let mut frame = blocks::frame_without_norm(builder)?;
    let (hidden, layer_count) = (frame.hidden, frame.layer_count);
    let shape = blocks::head_shape(builder, hidden)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let recurrent = texts(builder, "attention.layer_kinds", "linear_attention", layer_count)?;
    let recurrent = recurrent.unwrap_or_else(|| (0..layer_count).map(|layer| (layer + 1) % 4 != 0).collect());
    let delta = delta_shape(builder, KeyHeads::Grouped)?;
    let taps = builder.dimension("ssm.conv_kernel")?;
    let gate = delta_gate(builder)?;
    let options = moe_options(builder)?;
    let streams = Streams::read(builder, hidden)?;
    let mut layers = Vec::new();
    let mut mixers = Vec::new();
    for (layer, is_recurrent) in recurrent.iter().enumerate() {
        let attention = match is_recurrent {
            true => {
                let mixer = gated_delta(builder, layer, hidden, delta, taps)?;
                let mixer =
                    GatedDeltaSpec { rule: crate::recurrent::DeltaRuleSpec { gate, ..mixer.rule }, ..mixer };
                AttentionKind::Recurrent(RecurrentSpec::GatedDelta(mixer))
            }
            false => {
                let attention = blocks::gated_attention(builder, layer, hidden, shape, Norms::PerHead)?;
                let sparse = Some(indexer(builder, layer, hidden, rope.dimensions)?);
                AttentionKind::Grouped(AttentionSpec { sparse, ..attention })
            }
        };
        let around = |builder: &mut SpecBuilder<'_>, half: &str| {
            streams.mixer(builder, &format!("blk.{layer}.{half}_mixer"), true)
        };
        mixers.push([around(builder, "attn")?, around(builder, "ffn")?]);
        layers.push(LayerSpec {
            attention_norm: NormSpec::None,
            attention,
            attention_result_norm: None,
            feed_forward_norm: NormSpec::None,
            feed_forward: blocks::moe(builder, layer, hidden, options)?,
            feed_forward_result_norm: None,
        });
    }
    let head = streams.mixer(builder, "output_mixer", false)?;
    frame.streams = Some(StreamsSpec { count: streams.count, layers: mixers, head });
    frame.ple = embeddings(builder, &frame, &recurrent, streams.count)?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Activation of the gate within a DeltaNet: that of the networks where nothing else is said.
fn delta_gate(builder: &SpecBuilder<'_>) -> Result<GateActivation, ModelError> {
    match builder.text("ssm.gate")? {
        None | Some("silu") => Ok(GateActivation::Silu),
        Some("sigmoid") => Ok(GateActivation::Sigmoid),
        Some(other) => {
            let key = builder.key("ssm.gate")?;
            Err(builder.unsupported(format!("{key} is {other}")))
        }
    }
}

/// Sizes of the mixers of streams.
struct Streams {
    count: usize,
    rank: usize,
    hidden: usize,
}

impl Streams {
    fn read(builder: &SpecBuilder<'_>, hidden: usize) -> Result<Self, ModelError> {
        let (count, rank) = (builder.dimension("streams.count")?, builder.dimension("streams.rank")?);
        if !(2..=STREAMS_MAX).contains(&count) {
            let key = builder.key("streams.count")?;
            return Err(
                builder.unsupported(format!("{key} is {count}; 2 to {STREAMS_MAX} streams are computed"))
            );
        }
        Ok(Self { count, rank, hidden })
    }

    fn mixer(
        &self,
        builder: &mut SpecBuilder<'_>,
        stem: &str,
        puts_back: bool,
    ) -> Result<StreamMixer, ModelError> {
        let carried = self.count * self.hidden;
        let inject = format!("{stem}_inject.weight");
        Ok(StreamMixer::LowRank(LowRankMixer {
            norm: builder.rms_norm(&format!("{stem}_norm"), carried)?,
            down: builder.matrix(&format!("{stem}_down.weight"), self.rank, carried)?,
            up: builder.matrix(&format!("{stem}_up.weight"), carried, self.rank)?,
            inject: if puts_back { Some(builder.matrix(&inject, self.count, carried)?) } else { None },
            rank: self.rank,
        }))
    }
}

/// The indexer of layer `layer`; `rotated` elements of a head of attention are rotated.
fn indexer(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    rotated: usize,
) -> Result<BlockIndexSpec, ModelError> {
    let heads = builder.dimension("indexer.heads")?;
    let head_dim = builder.dimension("indexer.key_length")?;
    let (budget, block) = (builder.dimension("indexer.budget")?, builder.dimension("indexer.block")?);
    let key_heads = builder.dimension("indexer.key_heads")?;
    if key_heads != 1 {
        let key = builder.key("indexer.key_heads")?;
        return Err(
            builder.unsupported(format!("{key} is {key_heads}; an indexer with one key head is computed"))
        );
    }
    if !budget.is_multiple_of(block) {
        return Err(builder.bad(format!("an indexer that chooses {budget} positions in blocks of {block}")));
    }
    if rotated > head_dim {
        return Err(
            builder.bad(format!("{rotated} elements of an index head of {head_dim} would be rotated"))
        );
    }
    let name = |part: &str| format!("blk.{layer}.indexer_{part}");
    let (both, query_rows) = ((heads + 1) * head_dim, heads * head_dim);
    let mut part = |rows| builder.head_matrices(&name("qk.weight"), (1, both), rows, hidden, false);
    let (query, key) = (part(0..query_rows)?.first, part(query_rows..both)?.first);
    Ok(BlockIndexSpec {
        heads,
        head_dim,
        query,
        key,
        query_norm: builder.rms_norm(&name("q_norm"), head_dim)?,
        key_norm: builder.rms_norm(&name("k_norm"), head_dim)?,
        block,
        chosen: budget / block,
        rope: 0,
    })
}

/// The embeddings of n-grams, with their tables.
fn embeddings(
    builder: &mut SpecBuilder<'_>,
    frame: &blocks::Frame,
    recurrent: &[bool],
    streams: usize,
) -> Result<Vec<PleSpec>, ModelError> {
    let layers = embedded_layers(builder, recurrent)?;
    if layers.is_empty() {
        return Ok(Vec::new());
    }
    let (hidden, carried) = (frame.hidden, frame.hidden * streams);
    let shape = NgramShape {
        size: builder.dimension("ngram.size")?,
        heads_per_length: builder.dimension("ngram.heads")?,
        rows_at_least: builder.dimension("ngram.rows")? as u64,
        vocabulary: frame.vocabulary,
        seed: builder.integer("ngram.seed")?.unwrap_or(1234),
        end_of_text: end_of_text(builder)?,
    };
    let heads = shape.size.saturating_sub(1).saturating_mul(shape.heads_per_length);
    let width = builder.optional_dimension("ngram.width")?.unwrap_or(hidden);
    let taps = builder.dimension("ngram.taps")?;
    if !(2..=NGRAM_MAX).contains(&shape.size) || heads > NGRAM_HEADS_MAX || taps > TAPS_MAX {
        let size = shape.size;
        return Err(builder.unsupported(format!(
            "n-grams of {size} tokens with {heads} heads and {taps} taps; at most {NGRAM_MAX}, {NGRAM_HEADS_MAX} and {TAPS_MAX} \
             are computed"
        )));
    }
    if !width.is_multiple_of(heads) {
        return Err(builder.bad(format!("{width} values of n-grams cannot come from {heads} heads evenly")));
    }
    let multiple = builder.dimension("ngram.rows_multiple")? as u64;
    let shards = builder.dimension("ngram.shards")?;
    let mut embeddings = Vec::new();
    for (number, layer) in layers.into_iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.ngram_{part}");
        let ngram = NgramSpec::new(&shape, number);
        let rows = ngram.rows().next_multiple_of(multiple);
        if rows >= TABLE_ROWS_MAX {
            return Err(
                builder.unsupported(format!("a table of {rows} n-grams; fewer than 2^32 rows are looked up"))
            );
        }
        let shard = |index: usize| name(&format!("rows.{index}.weight"));
        let table = builder.row_table(
            &format!("the n-grams of layer {layer}"),
            rows,
            width / heads,
            shards,
            shard,
        )?;
        // These follow from the configuration.
        ["multipliers", "sizes", "offsets"].iter().for_each(|derived| builder.pass_over(&name(derived)));
        let mut norm = |part: &str| builder.rms_norm(&name(part), carried);
        let norms =
            PleNorms { key: norm("norm_key")?, query: norm("norm_query")?, convolved: norm("norm_conv")? };
        embeddings.push(PleSpec {
            layer,
            table,
            ngram,
            width,
            key: builder.matrix(&name("key.weight"), carried, width)?,
            value: builder.matrix(&name("value.weight"), hidden, width)?,
            norms,
            filters: filters(builder, &name("conv"), carried, taps)?,
            taps,
            dilation: shape.size,
        });
    }
    Ok(embeddings)
}

/// `[channels, 1, taps]` of a file as one vector.
fn filters(
    builder: &mut SpecBuilder<'_>,
    stem: &str,
    channels: usize,
    taps: usize,
) -> Result<VectorHandle, ModelError> {
    Ok(builder.convolution(stem, channels, taps)?.weight)
}

/// The layers with embeddings, which are counted from 1 in the file. They must be recurrent, as in the reference.
fn embedded_layers(builder: &SpecBuilder<'_>, recurrent: &[bool]) -> Result<Vec<usize>, ModelError> {
    let key = builder.key("ngram.layers")?;
    let listed = match builder.metadata().get(&key) {
        // JSON does not say what an empty list would be of.
        Some(Value::Array(list)) if list.is_empty() => None,
        _ => builder.metadata().opt_u32_array(&key)?,
    };
    let mut layers: Vec<usize> = listed.unwrap_or_default().into_iter().map(|layer| layer as usize).collect();
    layers.sort_unstable();
    layers.dedup();
    match layers.iter().find(|&&layer| layer == 0 || recurrent.get(layer - 1) != Some(&true)) {
        Some(layer) => {
            Err(builder.bad(format!("{key} has layer {layer}, which is no layer of linear attention")))
        }
        None => Ok(layers.into_iter().map(|layer| layer - 1).collect()),
    }
}

/// The token that ends a text: the first one where there are several.
fn end_of_text(builder: &SpecBuilder<'_>) -> Result<u32, ModelError> {
    let key = builder.key("ngram.end_of_text")?;
    let first = match builder.metadata().get(&key) {
        Some(Value::Array(list)) => list.integers().and_then(|mut all| all.next()),
        Some(value) => value.integer(),
        None => None,
    };
    let token = first.and_then(|token| u32::try_from(token).ok());
    token.ok_or_else(|| builder.bad(format!("{key} names no token, and n-grams end at one")))
}
