//! What each tensor of a file is for.
//!
//! Families ask for tensors by canonical names, and the builder notes which tensor of the file each name led to, so the role of a tensor
//! follows from the name that its family has for it and the table of those names below. What no family asked for gets a role from
//! what checkpoints usually call things, the second table, which is a guess and changes nothing that is computed.
//! Refuses: shapes, types, weights. Next: `builder.rs` (which notes the names).

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Rows of tokens, and tables of n-grams.
    Embedding,
    /// Attention, its indexer and its compressor.
    Attention,
    /// Layers with a state in place of keys: delta rules, Mamba, convolutions.
    Recurrent,
    /// What chooses experts.
    Router,
    /// Gate of routed experts.
    ExpertsGate,
    /// Up of routed experts.
    ExpertsUp,
    /// Down of routed experts.
    ExpertsDown,
    /// Gate and up of routed experts in one tensor.
    ExpertsGateUp,
    /// Experts that every token passes.
    SharedExperts,
    /// Feed-forward networks without experts.
    DenseFeedForward,
    /// Norms.
    Norm,
    /// What mixes the streams of the residual.
    Mixer,
    /// From the hidden state to logits.
    Head,
    /// Blocks that predict tokens after the next; they are skipped.
    LaterTokens,
    /// Pictures, sound; they are not used.
    OtherParts,
    /// None of these, by what is known.
    Unknown,
}

/// Every role with its name, in the order of a page.
const NAMES: &[(Role, &str)] = &[
    (Role::Embedding, "embedding"),
    (Role::Attention, "attention"),
    (Role::Recurrent, "recurrent"),
    (Role::Router, "router"),
    (Role::ExpertsGate, "experts, gate"),
    (Role::ExpertsUp, "experts, up"),
    (Role::ExpertsDown, "experts, down"),
    (Role::ExpertsGateUp, "experts, gate and up"),
    (Role::SharedExperts, "shared experts"),
    (Role::DenseFeedForward, "dense feed-forward"),
    (Role::Norm, "norms"),
    (Role::Mixer, "stream mixers"),
    (Role::Head, "head"),
    (Role::LaterTokens, "next-token blocks, skipped"),
    (Role::OtherParts, "pictures and sound, not used"),
    (Role::Unknown, "unknown"),
];

/// Part of a canonical name without `blk.N.`, and what has it; `^` stands for the beginning. The first that fits counts.
const CANONICAL: &[(&str, Role)] = &[
    ("nextn.", Role::LaterTokens),
    ("^mtp.", Role::LaterTokens),
    ("^v.", Role::OtherParts),
    ("^a.", Role::OtherParts),
    ("^mm.", Role::OtherParts),
    ("^token_embd_norm", Role::Norm),
    ("token_embd", Role::Embedding),
    ("^position_embd", Role::Embedding),
    ("^token_types", Role::Embedding),
    ("^output_norm", Role::Norm),
    ("^output_hc", Role::Mixer),
    ("^output", Role::Head),
    ("_shexp", Role::SharedExperts),
    ("^ffn_gate_inp", Role::Router),
    ("^ffn_gate_tid2eid", Role::Router),
    ("^exp_probs_b", Role::Router),
    ("^ffn_gate_up_exps", Role::ExpertsGateUp),
    ("^ffn_gate_exps", Role::ExpertsGate),
    ("^ffn_up_exps", Role::ExpertsUp),
    ("^ffn_down_exps", Role::ExpertsDown),
    ("^ffn_gate_up.{e}", Role::ExpertsGateUp),
    ("^ffn_gate.{e}", Role::ExpertsGate),
    ("^ffn_up.{e}", Role::ExpertsUp),
    ("^ffn_down.{e}", Role::ExpertsDown),
    ("mixer", Role::Mixer),
    ("^hc_", Role::Mixer),
    ("_norm", Role::Norm),
    ("^ngram", Role::Embedding),
    ("^per_layer", Role::Embedding),
    ("^inp_gate", Role::Embedding),
    ("^ple", Role::Embedding),
    ("^proj.", Role::Embedding),
    ("indexer", Role::Attention),
    ("^attn", Role::Attention),
    ("^rope", Role::Attention),
    ("^ssm", Role::Recurrent),
    ("^shortconv", Role::Recurrent),
    ("^ffn", Role::DenseFeedForward),
];

/// As [`CANONICAL`], of names of checkpoints that no family asked for.
const USUAL: &[(&str, Role)] = &[
    ("visual.", Role::OtherParts),
    ("vision", Role::OtherParts),
    ("audio", Role::OtherParts),
    ("mm_projector", Role::OtherParts),
    ("multi_modal", Role::OtherParts),
    ("mtp", Role::LaterTokens),
    ("eh_proj", Role::LaterTokens),
    ("nextn", Role::LaterTokens),
    ("embed_tokens", Role::Embedding),
    ("wte.", Role::Embedding),
    ("^embed.", Role::Embedding),
    ("word_embeddings", Role::Embedding),
    ("lm_head", Role::Head),
    ("^head.", Role::Head),
    ("shared_expert", Role::SharedExperts),
    ("shared_mlp", Role::SharedExperts),
    ("experts.gate_up", Role::ExpertsGateUp),
    ("experts.gate_proj", Role::ExpertsGate),
    ("experts.up_proj", Role::ExpertsUp),
    ("experts.down_proj", Role::ExpertsDown),
    ("experts.{e}.gate", Role::ExpertsGate),
    ("experts.{e}.w1", Role::ExpertsGate),
    ("experts.{e}.up", Role::ExpertsUp),
    ("experts.{e}.w3", Role::ExpertsUp),
    ("experts.{e}.down", Role::ExpertsDown),
    ("experts.{e}.w2", Role::ExpertsDown),
    ("switch_mlp.gate", Role::ExpertsGate),
    ("switch_mlp.up", Role::ExpertsUp),
    ("switch_mlp.down", Role::ExpertsDown),
    ("norm", Role::Norm),
    ("router", Role::Router),
    (".gate.", Role::Router),
    ("correction_bias", Role::Router),
    ("linear_attn", Role::Recurrent),
    ("mamba", Role::Recurrent),
    ("ssm", Role::Recurrent),
    ("conv", Role::Recurrent),
    ("attn", Role::Attention),
    ("attention", Role::Attention),
    ("mlp", Role::DenseFeedForward),
    ("feed_forward", Role::DenseFeedForward),
    ("ffn", Role::DenseFeedForward),
];

impl Role {
    /// Every role, in the order of a page.
    pub fn all() -> impl Iterator<Item = Role> {
        NAMES.iter().map(|&(role, _)| role)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Whether it is a matrix of routed experts.
    pub fn is_expert(self) -> bool {
        matches!(self, Role::ExpertsGate | Role::ExpertsUp | Role::ExpertsDown | Role::ExpertsGateUp)
    }

    /// The role of a canonical name.
    pub(crate) fn of_canonical(name: &str) -> Role {
        let part = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((_, part)) => part,
            None => name.strip_prefix("blk.").unwrap_or(name),
        };
        look_up(CANONICAL, &without_numbers(part)).unwrap_or(Role::Unknown)
    }

    /// The likely role of a name in a file that no family asked for.
    pub fn of_any(name: &str) -> Role {
        match Role::of_canonical(name) {
            Role::Unknown => look_up(USUAL, &without_numbers(name)).unwrap_or(Role::Unknown),
            role => role,
        }
    }
}

fn look_up(table: &[(&str, Role)], name: &str) -> Option<Role> {
    let fits = |pattern: &str| match pattern.strip_prefix('^') {
        Some(beginning) => name.starts_with(beginning),
        None => name.contains(pattern),
    };
    table.iter().find(|(pattern, _)| fits(pattern)).map(|&(_, role)| role)
}

/// The name with `{e}` in place of numbers between dots.
fn without_numbers(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "{e}" } else { part }).collect();
    parts.join(".")
}

/// What one tensor is for, and whether the model takes it into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRole {
    /// What it is for.
    pub role: Role,
    /// Whether its family has a place for it, also where it is skipped.
    pub has_place: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_are_in_the_order_of_the_enum() {
        for (position, role) in Role::all().enumerate() {
            assert_eq!(role as usize, position);
        }
    }

    #[test]
    fn names_of_both_kinds_of_files_have_a_role() {
        assert_eq!(Role::of_canonical("blk.3.ffn_gate_exps.weight"), Role::ExpertsGate);
        assert_eq!(Role::of_canonical("blk.3.ffn_down.17.weight"), Role::ExpertsDown);
        assert_eq!(Role::of_canonical("blk.3.ffn_down.weight"), Role::DenseFeedForward);
        assert_eq!(Role::of_canonical("blk.3.ffn_gate_inp_shexp.weight"), Role::SharedExperts);
        assert_eq!(Role::of_any("model.layers.3.mlp.experts.17.up_proj.weight"), Role::ExpertsUp);
        assert_eq!(Role::of_any("model.layers.3.mlp.gate.weight"), Role::Router);
        assert_eq!(Role::of_any("model.visual.blocks.0.attn.qkv.weight"), Role::OtherParts);
        assert_eq!(Role::of_any("a.thing"), Role::OtherParts);
        assert_eq!(Role::of_any("something"), Role::Unknown);
    }

    #[test]
    fn no_tensor_of_a_runnable_model_is_of_an_unknown_role() {
        let Some(shared) = std::env::var_os("COLDPRESS_SHARED") else {
            eprintln!("skipped: COLDPRESS_SHARED names no folder");
            return;
        };
        let oracle = std::path::Path::new(&shared).join("oracle");
        let entries = |folder: std::path::PathBuf| {
            let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
            found.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let mut runnable = 0;
        for path in ["", "gguf", "mlx", "jang"].iter().flat_map(|folder| entries(oracle.join(folder))) {
            let Ok(file) = coldpress_formats::ModelFile::open(&path) else { continue };
            let (spec, roles) = crate::describe_with_roles(&file);
            assert_eq!(roles.len(), file.tensors().len(), "{}", path.display());
            if spec.is_err() {
                continue;
            }
            runnable += 1;
            for (tensor, role) in file.tensors().zip(roles) {
                let told = format!("{}: {} is {role:?}", path.display(), tensor.name);
                assert!(role.role != Role::Unknown && role.has_place, "{told}");
                assert_ne!(role.role, Role::OtherParts, "{told}");
            }
        }
        assert!(runnable > 40, "{runnable} models");
    }
}
