//! Checkpoints with fewer experts, and with as many of which some are never chosen: one model, stored in two ways.

use super::{Checkpoint, Tensor};

/// Added to the score of an expert, nothing chooses it.
const NEVER: f32 = -1e9;

/// Layers with routed experts, in order.
pub fn routed_layers(checkpoint: &Checkpoint) -> Vec<usize> {
    let mut layers: Vec<usize> = checkpoint
        .tensors
        .iter()
        .filter(|tensor| tensor.name.contains(".experts.") || tensor.name.contains(".switch_mlp."))
        .filter_map(|tensor| layer_of(&tensor.name))
        .collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split_once('.')?.0.parse().ok()
}

/// Number of the expert that a tensor belongs to by its name, with what stands before and behind.
fn expert_of(name: &str) -> Option<(&str, usize, &str)> {
    let (before, rest) = name.split_once(".experts.")?;
    let (expert, behind) = rest.split_once('.')?;
    Some((before, expert.parse().ok()?, behind))
}

/// Whether a tensor has something for each expert along its outermost dimension: routers, their biases, packed experts.
fn is_for_all(name: &str) -> bool {
    let part = name.split('.').skip(3).collect::<Vec<_>>().join(".");
    let routers = [
        "mlp.gate.",
        "mlp.router.",
        "feed_forward.gate.",
        "block_sparse_moe.gate.",
        "mlp.experts.",
        "mlp.switch_mlp.",
    ];
    routers.iter().any(|router| part.starts_with(router))
        || part.ends_with("expert_bias")
        || part.ends_with("e_score_correction_bias")
}

/// Whether a tensor has a number for each expert that decides which are chosen.
fn is_choice(name: &str) -> bool {
    ["expert_bias", "e_score_correction_bias", "router.bias"].iter().any(|ending| name.ends_with(ending))
}

impl Tensor {
    /// The same with these pieces of its outermost dimension.
    pub fn with_pieces(&self, pieces: &[usize]) -> Tensor {
        let piece = self.bytes.len() / self.shape[0] as usize;
        let bytes = pieces.iter().flat_map(|&at| &self.bytes[at * piece..][..piece]).copied();
        let mut shape = self.shape.clone();
        shape[0] = pieces.len() as u64;
        Tensor { bytes: bytes.collect(), shape, ..self.clone() }
    }
}

impl Checkpoint {
    /// With these experts of a layer, in this order; one may be there several times.
    pub fn with_experts(&self, layer: usize, experts: &[usize]) -> Checkpoint {
        let mut tensors = Vec::new();
        for tensor in &self.tensors {
            if layer_of(&tensor.name) != Some(layer) {
                tensors.push(tensor.clone());
            } else if let Some((before, expert, behind)) = expert_of(&tensor.name) {
                let places = experts.iter().enumerate().filter(|&(_, &wanted)| wanted == expert);
                tensors.extend(places.map(|(place, _)| Tensor {
                    name: format!("{before}.experts.{place}.{behind}"),
                    ..tensor.clone()
                }));
            } else if is_for_all(&tensor.name) {
                tensors.push(tensor.with_pieces(experts));
            } else {
                tensors.push(tensor.clone());
            }
        }
        Checkpoint { config: self.config.clone(), tensors, side_files: self.side_files.clone() }
    }

    /// With only these experts of a layer ever chosen.
    pub fn choosing(&self, layer: usize, experts: impl Fn(usize) -> bool) -> Checkpoint {
        let mut checkpoint = self.clone();
        let choices = checkpoint
            .tensors
            .iter_mut()
            .filter(|tensor| layer_of(&tensor.name) == Some(layer) && is_choice(&tensor.name));
        let mut found = 0;
        for tensor in choices {
            tensor.map(|expert, bias| if experts(expert) { bias } else { NEVER });
            found += 1;
        }
        assert_eq!(found, 1, "layer {layer} has one list of biases for the choice");
        checkpoint
    }
}
