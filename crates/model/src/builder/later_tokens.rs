//! Blocks that predict later tokens (MTP, "nextn"): recognised, passed over, never planned or read.
//!
//! GGUF files count them among the layers, checkpoints number them behind the last one or keep them under names of their own. A block is
//! one because the file states it or because it has the projection that joins an embedding with a hidden state, which no layer has.
//! Refuses further blocks without either: they may be layers that somebody forgot to count.

use std::collections::BTreeSet;

use super::SpecBuilder;
use crate::error::ModelError;
use crate::roles::Role;

/// More such blocks are no model.
const BLOCKS_MAX: u64 = 64;
/// What every such block has, and no layer.
const JOINING: &str = "eh_proj.";
/// Names of their own in checkpoints.
const APART: &[&str] = &["mtp.", "model.mtp.", "model.mtp_"];

impl SpecBuilder<'_> {
    /// How many of `blocks` stated blocks are layers; what predicts later tokens is taken for used.
    ///
    /// # Errors
    /// More blocks predict later tokens than there are, or none is a layer.
    pub(crate) fn layers_among(&mut self, blocks: usize) -> Result<usize, ModelError> {
        let stated = self.integer("nextn_predict_layers")?.unwrap_or(0);
        let counted = self.by_source(blocks as u64, u64::MAX);
        if stated > BLOCKS_MAX || stated >= counted {
            let key = self.key("nextn_predict_layers")?;
            return Err(self.bad(format!(
                "{key} is {stated} of {blocks} blocks; at most {BLOCKS_MAX}, and not all, predict later tokens"
            )));
        }
        let joining = self.joining_blocks();
        // Files of some converters do not state the key.
        let mut trailing = stated as usize;
        while self.by_source(true, false)
            && trailing + 1 < blocks
            && joining.contains(&(blocks - 1 - trailing))
        {
            trailing += 1;
        }
        // Beside the layers of a checkpoint there may be more of them than layers.
        let layers = if self.by_source(true, false) { blocks - trailing } else { blocks };
        let is_later =
            |block: usize| block >= layers && (block < layers + trailing || joining.contains(&block));
        let beginning = self.names.layers_begin();
        let file = self.file;
        let names = file.tensors().map(|tensor| tensor.name.as_str());
        for name in names.filter(|name| block_of(name, &beginning).is_some_and(|(block, _)| is_later(block)))
        {
            self.used.insert(name);
            self.roles.borrow_mut().insert(name, Role::LaterTokens);
        }
        if self.by_source(false, true) {
            APART.iter().for_each(|apart| self.pass_over_all(apart));
        }
        self.later_blocks = trailing.max(joining.range(layers..).count());
        Ok(layers)
    }

    /// Whether a list with this many entries has one for each of `layers` layers, or for each block.
    pub(crate) fn is_per_layer(&self, entries: usize, layers: usize) -> bool {
        entries == layers || entries == layers + self.later_blocks
    }

    /// Blocks with a projection that joins an embedding with a hidden state.
    fn joining_blocks(&self) -> BTreeSet<usize> {
        let beginning = self.names.layers_begin();
        let blocks = self.file.tensors().filter_map(|tensor| block_of(&tensor.name, &beginning));
        let joining =
            blocks.filter(|(_, part)| part.strip_prefix("nextn.").unwrap_or(part).starts_with(JOINING));
        joining.map(|(block, _)| block).collect()
    }
}

/// Number of the block that a tensor belongs to, and the rest of its name.
fn block_of<'n>(name: &'n str, beginning: &str) -> Option<(usize, &'n str)> {
    let (block, part) = name.strip_prefix(beginning)?.split_once('.')?;
    Some((block.parse().ok()?, part))
}
