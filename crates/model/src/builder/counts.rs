//! How many experts a layer has: as many as its tensors say, where those agree with each other.
//!
//! What is stated once for all layers is a default. Pruned checkpoints have fewer, and each layer a number of its own; their
//! configuration may keep the old figure. Router and experts that contradict each other are refused by name, because then nobody knows
//! which row of the router belongs to which expert. What was decided is kept for the notes of the model.

use super::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{GroupScore, RouterGroups, RouterScores, VectorHandle};

/// Most groups that a router tells apart.
const GROUPS_MAX: usize = 64;

/// What layers have instead of what is stated for all of them.
#[derive(Default)]
pub(super) struct Counts {
    /// Layers with routed experts.
    layers: usize,
    /// The stated number, and those of layers with another one.
    stated: usize,
    others: Vec<usize>,
    /// Stated experts per token, and layers with fewer experts.
    stated_uses: usize,
    short: Vec<usize>,
}

/// The experts of a layer, and what its router may do with them.
#[derive(Clone, Copy)]
pub(crate) struct LayerCount {
    /// Experts with weights.
    pub experts: usize,
    /// With those that have none.
    pub scored: usize,
    /// Experts per token.
    pub top_k: usize,
}

impl Counts {
    /// What to tell somebody who knows the stated figures.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let (Some(least), Some(most)) = (self.others.iter().min(), self.others.iter().max()) {
            let found = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let (count, layers) = (self.others.len(), self.layers);
            notes.push(format!(
                "the metadata states {} experts per layer, the tensors of {count} of {layers} routed layers have {found}: each \
                 layer has the experts of its tensors",
                self.stated
            ));
        }
        if let Some(first) = self.short.first() {
            let (count, layers) = (self.short.len(), self.layers);
            notes.push(format!(
                "a token uses {} experts of each layer, and {count} of {layers} routed layers (the first is layer {first}) have \
                 fewer: there it uses all of them",
                self.stated_uses
            ));
        }
        notes
    }
}

impl SpecBuilder<'_> {
    /// The experts of `layer`, of which `stated` are stated, beside `identities` without weights; a token is to use `uses` of them.
    ///
    /// # Errors
    /// The router and the matrices of the experts are for different numbers of experts.
    pub(crate) fn layer_count(
        &mut self,
        layer: usize,
        stated: usize,
        identities: usize,
        uses: usize,
    ) -> Result<LayerCount, ModelError> {
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        let rows = self.outermost(&router, 2);
        let experts = match (self.matrices_of_experts(layer, rows)?, rows) {
            (Some(experts), _) => experts,
            // Nothing tells: what is missing is named when it is looked for.
            (None, Some(rows)) => rows.saturating_sub(identities).max(1),
            (None, None) => stated,
        };
        let scored = experts + identities;
        if let Some(rows) = rows.filter(|&rows| rows != scored) {
            let with =
                if identities > 0 { format!(" and {identities} without weights") } else { String::new() };
            return Err(self.bad(format!(
                "layer {layer} has {experts} experts{with}, and its router {} has rows for {rows}: which row belongs to which \
                 expert is not known; the checkpoint is incomplete, or was pruned in one place only",
                self.in_file(&router)
            )));
        }
        let top_k = uses.min(scored);
        let counts = &mut self.counts;
        counts.layers += 1;
        counts.stated = stated;
        counts.stated_uses = uses;
        counts.others.extend((experts != stated).then_some(experts));
        counts.short.extend((top_k < uses).then_some(layer));
        Ok(LayerCount { experts, scored, top_k })
    }

    /// Refuses routers that cannot do with fewer experts per token than stated, and groups that do not divide the experts.
    ///
    /// # Errors
    /// As said, with the layer and the numbers.
    pub(crate) fn check_choice(
        &self,
        layer: usize,
        count: LayerCount,
        uses: usize,
        scores: RouterScores,
        groups: Option<RouterGroups>,
    ) -> Result<(), ModelError> {
        let LayerCount { scored, top_k, .. } = count;
        if top_k < uses && matches!(scores, RouterScores::SparseMixer { .. }) {
            return Err(self.unsupported(format!(
                "layer {layer} has {scored} experts for the {uses} of each token, and this router weighs each by those that \
                 are left"
            )));
        }
        let Some(RouterGroups { count: groups, kept, score }) = groups else { return Ok(()) };
        let least = match score {
            GroupScore::Best => 1,
            GroupScore::SumOfBestTwo => 2,
        };
        let size = scored / groups;
        if groups > GROUPS_MAX
            || !scored.is_multiple_of(groups)
            || size < least
            || kept > groups
            || uses > kept * size
        {
            return Err(self.bad(format!(
                "layer {layer}: {uses} of {scored} experts cannot be chosen from {kept} of {groups} groups of equal size"
            )));
        }
        Ok(())
    }

    /// One value for each expert that the router of `layer` scores.
    pub(crate) fn vector_of_router(
        &mut self,
        name: &str,
        layer: usize,
        scored: usize,
    ) -> Result<VectorHandle, ModelError> {
        let shape = self.shape(name)?;
        if shape.iter().product::<u64>() != scored as u64 {
            let name = self.in_file(name);
            return Err(self.bad(format!(
                "layer {layer}: {name} has shape {shape:?}, and the router scores {scored} experts"
            )));
        }
        self.vector(name, scored)
    }

    /// What to say of the experts of all layers that were read.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.counts.notes()
    }

    /// How many experts the matrices of `layer` are for; `None` where there are none.
    fn matrices_of_experts(&self, layer: usize, rows: Option<usize>) -> Result<Option<usize>, ModelError> {
        let mut found: Option<(String, usize)> = None;
        for part in ["gate_up", "gate", "up", "down"] {
            for ending in ["weight", "codes"] {
                let name = format!("blk.{layer}.ffn_{part}_exps.{ending}");
                let Some(count) = self.outermost(&name, 3) else { continue };
                match &found {
                    Some((other, others)) if *others != count => {
                        let (name, other) = (self.in_file(&name), self.in_file(other));
                        return Err(self.bad(format!(
                            "layer {layer}: {other} is for {others} experts, {name} for {count}"
                        )));
                    }
                    _ => found = Some((name, count)),
                }
            }
        }
        if let Some((name, count)) = found {
            return match count {
                0 => Err(self.bad(format!("{} is for no expert", self.in_file(&name)))),
                count => Ok(Some(count)),
            };
        }
        // Experts that give back their input may have a gate and an up matrix, which nothing is computed with.
        let down = |expert: usize| format!("blk.{layer}.ffn_down.{expert}.weight");
        let count = (0..).take_while(|&expert| self.has(&down(expert))).count();
        // A gap: all that are behind it would be tensors without a place.
        let behind = (count + 1..rows.unwrap_or(0)).find(|&expert| self.has(&down(expert)));
        match behind {
            Some(behind) => Err(self.bad(format!(
                "layer {layer} has an expert {behind} ({}), but none with the number {count}: experts are counted without gaps; \
                 the checkpoint is incomplete",
                self.in_file(&down(behind))
            ))),
            None => Ok((count > 0).then_some(count)),
        }
    }

    /// The outermost dimension of a tensor that has `dimensions` of them; 1 where it has fewer. `None` where there is no such tensor.
    fn outermost(&self, name: &str, dimensions: usize) -> Option<usize> {
        let shape = match self.find_codes(name) {
            Some(codes) => &codes.shape,
            None => &self.find(name)?.shape,
        };
        let last = shape.get(dimensions - 1..).and_then(<[u64]>::last).copied().unwrap_or(1);
        Some(usize::try_from(last).unwrap_or(usize::MAX))
    }

    fn in_file(&self, name: &str) -> String {
        self.name_in_file(name).unwrap_or_else(|| name.to_owned())
    }
}
