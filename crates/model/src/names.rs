//! One set of names for both kinds of files.
//!
//! Families ask for numbers and tensors by the names of GGUF, without the architecture's prefix. For a Hugging Face folder
//! this module finds the keys of config.json and the tensors of the safetensors files behind these names, by two tables: that
//! of the family ([`HuggingFace`]) before the usual one below. What a configuration says beyond that must be known to have no
//! effect, or be switched off; everything else is refused by key and value.
//! Refuses: guessing. A name without an entry is a name that the file does not have.

use std::cell::RefCell;
use std::collections::BTreeSet;

use coldpress_formats::{Array, Metadata, Value};

use crate::containers::is_about_codes;
use crate::nested::Nested;

/// How the Hugging Face checkpoints of a family differ from the usual names.
#[derive(Debug)]
pub(crate) struct HuggingFace {
    /// `model_type` of config.json.
    pub model_type: &'static str,
    /// Canonical key and the key of config.json.
    pub keys: &'static [(&'static str, &'static str)],
    /// Canonical tensor and its name. Names of layers (`blk.`) are given without `model.layers.N.`, and `{e}` is the expert.
    /// Both sides are without `.weight` and `.bias`, unless the canonical side has one: then both are whole.
    pub tensors: &'static [(&'static str, &'static str)],
    /// The same for tensors that MLX calls otherwise when it writes a checkpoint. A file has one name or the other.
    pub mlx_tensors: &'static [(&'static str, &'static str)],
    /// Keys with what they may say.
    pub accepted: &'static [(&'static str, Accepted)],
    /// Added to the weights of every RMSNorm.
    pub norm_offset: f32,
    /// What stands before the number of a layer in the names of its tensors.
    pub layers: &'static str,
}

impl HuggingFace {
    /// A family with the usual names.
    pub const fn usual(model_type: &'static str) -> HuggingFace {
        HuggingFace {
            model_type,
            keys: &[],
            tensors: &[],
            mlx_tensors: &[],
            accepted: &[],
            norm_offset: 0.0,
            layers: "model.layers.",
        }
    }
}

/// Two lists as one, for families that add to what others have; `N` is the length of both.
pub(crate) const fn joined<T: Copy, const N: usize>(first: &[T], second: &[T]) -> [T; N] {
    assert!(first.len() + second.len() == N);
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// What a key may say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accepted {
    /// Anything: it has no effect on what is computed here.
    Anything,
    /// This number, or a list of nothing else.
    Integer(u64),
    /// This switch.
    Flag(bool),
    /// One of these texts, or a list of nothing else.
    Text(&'static [&'static str]),
    /// A number of positions that no context reaches, or nothing.
    BeyondContext,
}

/// Canonical key, key of config.json. Several keys may stand for one; they must not contradict each other.
const KEYS: &[(&str, &str)] = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.has_bias", "attention_bias"),
    ("attention.sliding_window", "sliding_window"),
    ("expert_count", "num_experts"),
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base", "rope_parameters.rope_theta"),
    ("rope.partial_factor", "partial_rotary_factor"),
    ("rope.partial_factor", "rope_parameters.partial_rotary_factor"),
    ("rope.scaling.type", "rope_scaling.rope_type"),
    ("rope.scaling.type", "rope_scaling.type"),
    ("rope.scaling.type", "rope_parameters.rope_type"),
    ("rope.scaling.type", "rope_parameters.type"),
    ("rope.scaling.factor", "rope_scaling.factor"),
    ("rope.scaling.factor", "rope_parameters.factor"),
    ("rope.scaling.low_frequency_factor", "rope_scaling.low_freq_factor"),
    ("rope.scaling.low_frequency_factor", "rope_parameters.low_freq_factor"),
    ("rope.scaling.high_frequency_factor", "rope_scaling.high_freq_factor"),
    ("rope.scaling.high_frequency_factor", "rope_parameters.high_freq_factor"),
    ("rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings"),
    ("rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
    ("tied_output", "tie_word_embeddings"),
    ("vocabulary", "vocab_size"),
];

/// Canonical tensor, tensor of a checkpoint; see [`HuggingFace::tensors`].
const TENSORS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("blk.attn_norm", "input_layernorm"),
    ("blk.attn_q", "self_attn.q_proj"),
    ("blk.attn_k", "self_attn.k_proj"),
    ("blk.attn_v", "self_attn.v_proj"),
    ("blk.attn_output", "self_attn.o_proj"),
    ("blk.attn_q_norm", "self_attn.q_norm"),
    ("blk.attn_k_norm", "self_attn.k_norm"),
    ("blk.ffn_norm", "post_attention_layernorm"),
    ("blk.ffn_gate", "mlp.gate_proj"),
    ("blk.ffn_up", "mlp.up_proj"),
    ("blk.ffn_down", "mlp.down_proj"),
    ("blk.ffn_gate_inp", "mlp.gate"),
    ("blk.ffn_gate.{e}", "mlp.experts.{e}.gate_proj"),
    ("blk.ffn_up.{e}", "mlp.experts.{e}.up_proj"),
    ("blk.ffn_down.{e}", "mlp.experts.{e}.down_proj"),
    ("blk.ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("blk.ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Packed experts, where a family has no other names for them. They end without `weight`.
const PACKED: &[(&str, &str)] = &[
    ("blk.ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("blk.ffn_down_exps.weight", "mlp.experts.down_proj"),
];

/// As [`TENSORS`], for [`HuggingFace::mlx_tensors`]: the matrices of latent attention, one per head.
const MLX_TENSORS: &[(&str, &str)] =
    &[("blk.attn_k_b", "self_attn.embed_q"), ("blk.attn_v_b", "self_attn.unembed_out")];

/// What is accepted in every family that does not say otherwise.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("hidden_act", Accepted::Text(&["silu", "swish"])),
    ("layer_types", Accepted::Text(&["full_attention"])),
    ("sliding_window", Accepted::BeyondContext),
];

/// Keys about training, programs and text, without effect on logits.
const WITHOUT_EFFECT: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eod_token_id",
    "eos_token_id",
    "hidden_dropout",
    "initializer_range",
    "input_jitter_noise",
    "max_window_layers",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
];

/// What further such keys begin with: programs, classes, and blocks that predict later tokens.
const WITHOUT_EFFECT_BEGIN: &[&str] = &["auto_map.", "id2label.", "mtp_", "num_mtp_", "use_mtp"];

/// Which names a file carries.
pub(crate) enum Names {
    /// Those of GGUF, with the architecture's prefix on keys.
    Gguf {
        /// The architecture.
        prefix: String,
    },
    /// Those of Hugging Face.
    HuggingFace {
        /// What the family's checkpoints look like.
        table: &'static HuggingFace,
        /// Keys that something asked for.
        used: RefCell<BTreeSet<&'static str>>,
        /// Where the text model stands in a larger one.
        nested: Option<Nested>,
    },
}

impl Names {
    /// The key of the file behind a canonical key, to be read or to be named in a message.
    ///
    /// # Errors
    /// The file has two keys for it, with different values; both are named.
    pub fn key(&self, metadata: &Metadata, name: &str) -> Result<String, String> {
        let (table, used, nested) = match self {
            Names::Gguf { prefix } => return Ok(format!("{prefix}.{name}")),
            Names::HuggingFace { table, used, nested } => (table, used, nested),
        };
        let whole = |key: &str| nested.map_or_else(|| key.to_owned(), |nested| nested.key(metadata, key));
        let own = || table.keys.iter().filter(|(canonical, _)| *canonical == name);
        let usual = KEYS.iter().filter(|(canonical, _)| *canonical == name && own().next().is_none());
        let candidates: Vec<&'static str> = own().chain(usual).map(|&(_, key)| key).collect();
        let mut found: Option<(&'static str, &Value)> = None;
        for key in &candidates {
            let Some(value) = metadata.get(&whole(key)) else { continue };
            used.borrow_mut().insert(key);
            match found {
                Some((first, other)) if !same(other, value) => {
                    let (other, value) = (other.describe(), value.describe());
                    return Err(format!("{first} is {other}, and {key}, which means the same, is {value}"));
                }
                Some(_) => {}
                None => found = Some((key, value)),
            }
        }
        let shown = found.map(|(key, _)| key).or(candidates.first().copied());
        Ok(whole(shown.unwrap_or(name)))
    }

    /// The tensor of the file behind a canonical tensor; `None` where the family has no such tensor. `holds` says whether the file
    /// has a tensor. Where it has none of the names, the first is returned, for a message.
    pub fn tensor(&self, name: &str, holds: impl Fn(&str) -> bool) -> Option<String> {
        let table = match self {
            Names::Gguf { .. } => return Some(name.to_owned()),
            Names::HuggingFace { table, .. } => table,
        };
        let usual = renamed(name, table.layers, &[table.tensors, TENSORS]).map(|name| self.in_file(name));
        if usual.as_deref().is_some_and(&holds) {
            return usual;
        }
        let packed = renamed(name, table.layers, &[PACKED]).map(|name| self.in_file(name));
        if packed.as_deref().is_some_and(&holds) {
            return packed;
        }
        let mlx = renamed(name, table.layers, &[table.mlx_tensors, MLX_TENSORS])
            .or_else(|| stacked_by_mlx(name, table.layers, &[table.tensors, TENSORS]))
            .map(|name| self.in_file(name));
        mlx.filter(|name| usual.is_none() || holds(name)).or(usual)
    }

    /// What names of tensors of layers begin with in the file, up to the number of the layer.
    pub fn layers_begin(&self) -> String {
        match self {
            Names::Gguf { .. } => "blk.".to_owned(),
            Names::HuggingFace { table, .. } => self.in_file(table.layers.to_owned()),
        }
    }

    /// A tensor of a checkpoint of its own as it is named in the file.
    pub fn in_file(&self, name: String) -> String {
        match self {
            Names::HuggingFace { nested: Some(nested), .. } => nested.tensor(name),
            _ => name,
        }
    }

    /// The first key of a configuration that says something that nothing here takes into account, with its value.
    /// What is said about codes has been compared with the tensors where `holds_codes`; without codes it is one more thing that nothing
    /// takes into account.
    pub fn not_understood(&self, metadata: &Metadata, context: u64, holds_codes: bool) -> Option<String> {
        let Names::HuggingFace { table, used, nested } = self else { return None };
        let used = used.borrow();
        let unknown = |(key, value): &(&str, &Value)| {
            let inner = match nested {
                Some(nested) => nested.inner_key(key),
                None => Some(*key),
            };
            let Some(key) = &inner else { return false };
            if holds_codes && is_about_codes(key) {
                return false;
            }
            let accepted = table.accepted.iter().chain(ACCEPTED).find(|(name, _)| name == key);
            match accepted {
                Some((_, accepted)) => !accepts(*accepted, value, context),
                None => !(used.contains(key) || is_off(value) || has_no_effect(key)),
            }
        };
        let (key, value) = metadata.iter().find(unknown)?;
        Some(format!("{key} is {}", value.describe()))
    }
}

/// Lists of canonical tensors with what they are called; the first entry counts.
type Tables<'t> = [&'t [(&'static str, &'static str)]];

fn entry(tables: &Tables<'_>, name: &str) -> Option<&'static str> {
    let mut entries = tables.iter().copied().flatten();
    entries.find(|(canonical, _)| *canonical == name).map(|&(_, theirs)| theirs)
}

/// Number of the layer and the rest of a canonical tensor, as it stands in the tables: `blk.3.ffn_gate.17.weight` is layer 3
/// and `blk.ffn_gate.17.weight`.
fn layer_of(name: &str) -> (Option<&str>, String) {
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (Some(layer), format!("blk.{rest}")),
        None => (None, name.to_owned()),
    }
}

/// What `tables` call a canonical tensor in a checkpoint of its own. `before_layers` stands before the number of a layer.
fn renamed(name: &str, before_layers: &str, tables: &Tables<'_>) -> Option<String> {
    let (layer, canonical) = layer_of(name);
    let theirs = match entry(tables, &canonical) {
        Some(theirs) => theirs.to_owned(),
        None => {
            let (stem, suffix) = canonical.rsplit_once('.')?;
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let theirs = match stem.rsplit_once('.').filter(|(_, last)| is_number(last)) {
                Some((part, expert)) => entry(tables, &format!("{part}.{{e}}"))?.replace("{e}", expert),
                None => entry(tables, stem)?.to_owned(),
            };
            format!("{theirs}.{suffix}")
        }
    };
    Some(match layer {
        Some(layer) => format!("{before_layers}{layer}.{theirs}"),
        None => theirs,
    })
}

/// The module of MLX that holds a projection of all experts, for families whose checkpoints have one module per expert.
fn stacked_by_mlx(name: &str, before_layers: &str, tables: &Tables<'_>) -> Option<String> {
    let (layer, canonical) = layer_of(name);
    let (part, suffix) = canonical.strip_prefix("blk.ffn_")?.split_once("_exps.")?;
    let (before, _) = entry(tables, &format!("blk.ffn_{part}.{{e}}"))?.split_once("experts.{e}.")?;
    Some(format!("{before_layers}{}.{before}switch_mlp.{part}_proj.{suffix}", layer?))
}

fn has_no_effect(key: &str) -> bool {
    WITHOUT_EFFECT.contains(&key) || WITHOUT_EFFECT_BEGIN.iter().any(|beginning| key.starts_with(beginning))
}

fn accepts(accepted: Accepted, value: &Value, context: u64) -> bool {
    match accepted {
        Accepted::Anything => true,
        Accepted::Integer(wanted) => match value {
            Value::Array(list) => {
                list.integers().is_some_and(|mut all| all.all(|found| found == wanted.into()))
            }
            value => number(value) == Some(wanted as f64),
        },
        Accepted::Flag(wanted) => *value == Value::Bool(wanted),
        Accepted::BeyondContext => {
            is_off(value) || value.integer().is_some_and(|value| value >= context.into())
        }
        Accepted::Text(wanted) => {
            let is_wanted = |text: &[u8]| wanted.iter().any(|wanted| wanted.as_bytes() == text);
            match value {
                Value::String(text) => is_wanted(text.as_bytes()),
                Value::Array(Array::String(texts)) => texts.iter().all(is_wanted),
                _ => is_off(value),
            }
        }
    }
}

/// Whether a value says that something is not there: false, zero, nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Float32(value) => *value == 0.0,
        Value::Float64(value) => *value == 0.0,
        Value::String(text) => text.as_bytes().is_empty(),
        Value::Array(array) => array.is_empty(),
        number => number.integer() == Some(0),
    }
}

/// Equal, whatever the width of the numbers.
fn same(a: &Value, b: &Value) -> bool {
    a == b || number(a).is_some_and(|a| Some(a) == number(b))
}

/// A number of any type.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Float32(value) => Some(f64::from(*value)),
        Value::Float64(value) => Some(*value),
        other => other.integer().map(|value| value as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: HuggingFace = HuggingFace {
        tensors: &[
            ("blk.ffn_up.{e}", "moe.{e}.w3"),
            ("blk.exp_probs_b.bias", "gate.correction"),
            ("blk.ffn_gate_up_exps", "moe.both"),
            ("blk.ffn_down_exps", "moe.down"),
        ],
        mlx_tensors: &[("blk.ffn_down_exps", "moe.mlx_down")],
        ..HuggingFace::usual("test")
    };

    #[test]
    fn tensors_get_their_layer_expert_and_ending() {
        let names = Names::HuggingFace { table: &TABLE, used: RefCell::default(), nested: None };
        let tensor = |name: &str| names.tensor(name, |_| false).unwrap_or_default();
        assert_eq!(tensor("output.weight"), "lm_head.weight");
        assert_eq!(tensor("blk.12.attn_q.bias"), "model.layers.12.self_attn.q_proj.bias");
        assert_eq!(tensor("blk.3.ffn_gate.17.weight"), "model.layers.3.mlp.experts.17.gate_proj.weight");
        assert_eq!(tensor("blk.3.ffn_up.17.weight"), "model.layers.3.moe.17.w3.weight");
        assert_eq!(tensor("blk.3.exp_probs_b.bias"), "model.layers.3.gate.correction");
        assert_eq!(tensor("blk.3.ffn_gate_up_exps.weight"), "model.layers.3.moe.both.weight");
        assert_eq!(tensor("blk.3.ffn_gate_exps.weight"), "model.layers.3.mlp.switch_mlp.gate_proj.weight");
        assert_eq!(tensor("blk.3.ffn_up_exps.weight"), "");
        assert_eq!(Names::Gguf { prefix: "x".into() }.tensor("a.b", |_| false), Some("a.b".to_owned()));
    }

    #[test]
    fn the_name_that_the_file_has_counts() {
        let names = Names::HuggingFace { table: &TABLE, used: RefCell::default(), nested: None };
        let tensor = |there: &str| names.tensor("blk.3.ffn_down_exps.weight", |name| name == there);
        let usual = "model.layers.3.moe.down.weight";
        assert_eq!(tensor("").as_deref(), Some(usual));
        assert_eq!(tensor(usual).as_deref(), Some(usual));
        let mlx = "model.layers.3.moe.mlx_down.weight";
        assert_eq!(tensor(mlx).as_deref(), Some(mlx));
    }
}
