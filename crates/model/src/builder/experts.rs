//! The routed experts of a layer as three matrices: stacked tensors, gate and up together, one tensor per expert.
//!
//! Owns where each expert's matrices lie. Experts that share a tensor whose matrices are transposed are in `fused.rs`, matrices of codes
//! in `scaled.rs`; how many experts there are is in `counts.rs`.

use coldpress_experts::{ExpertOffsets, ExpertPlace, GateUp, LayerExperts, Projection};
use coldpress_kernels::WeightFormat;

use super::SpecBuilder;
use super::scaled::ExpertMatrix;
use crate::error::ModelError;
use crate::spec::ExpertRotations;

impl SpecBuilder<'_> {
    /// The routed experts of layer `layer`: stacked tensors `ffn_{gate,up,down}_exps`, gate and up together in
    /// `ffn_gate_up_exps` (gate first), or one tensor per expert. Returns the layer number of the expert store.
    pub fn experts(
        &mut self,
        layer: usize,
        count: usize,
        hidden: usize,
        width: usize,
    ) -> Result<usize, ModelError> {
        let together = format!("blk.{layer}.ffn_gate_up_exps.weight");
        if self.is_transposed(layer, hidden, width)? {
            return self.fused_experts(layer, count, hidden, width, GateUp::Halves);
        }
        let [gate, up] = if self.has(&together) {
            let both = self.stacked(&together, count, 2 * width, hidden)?;
            self.halves(&both)?
        } else {
            let gate = self.projection(layer, "gate", count, width, hidden)?;
            [gate, self.projection(layer, "up", count, width, hidden)?]
        };
        let down = self.projection(layer, "down", count, hidden, width)?;
        self.push_matrices(count, [gate, up, down])
    }

    /// Whether a checkpoint holds the packed matrices of experts with a row per input, `[expert, hidden, 2 * width]`, as Llama 4 and
    /// published Qwen3-VL have them, instead of a row per output. One of the two tensors may be square; both never are, so the shapes
    /// always say it.
    ///
    /// # Errors
    /// One tensor has a row per input, the other a row per output.
    fn is_transposed(&self, layer: usize, hidden: usize, width: usize) -> Result<bool, ModelError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let lies = |part: &str, columns: usize, rows: usize| {
            let shape = self.find(&name(part))?.shape.get(..2)?;
            let is = |first: usize, second: usize| *shape == [first as u64, second as u64];
            (columns != rows && (is(columns, rows) || is(rows, columns))).then(|| is(rows, columns))
        };
        if self.by_source(true, !self.has(&name("gate_up"))) {
            return Ok(false);
        }
        match (lies("gate_up", hidden, 2 * width), lies("down", width, hidden)) {
            (Some(together), Some(down)) if together != down => Err(self.bad(format!(
                "layer {layer}: gate_up_proj of the experts has a row per {}, down_proj a row per {}",
                input_or_output(together),
                input_or_output(down)
            ))),
            (together, down) => Ok(together.or(down).unwrap_or(false)),
        }
    }

    /// Layer number of the expert store that `experts` get.
    pub(super) fn push_experts(&mut self, experts: LayerExperts) -> usize {
        self.experts.push(experts);
        self.rotations.push(ExpertRotations::default());
        self.experts.len() - 1
    }

    /// What the inputs of the experts with this layer number of the expert store go through.
    pub fn rotations(&self, store_layer: usize) -> ExpertRotations {
        self.rotations[store_layer].clone()
    }

    /// One tensor with the matrices of all experts.
    fn stacked(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<ExpertMatrix, ModelError> {
        if let Some(found) = self.find_scaled(name, rows, columns, Some(count))? {
            return Ok(self.stacked_scaled(&found, count, rows, columns));
        }
        let big_endian = self.file.big_endian();
        let (info, format) = self.take(name, &[columns, rows, count])?;
        let offsets = ExpertOffsets::Stride { first: info.offset, stride: info.byte_len / count as u64 };
        Ok((Projection { format, rows, columns, file: info.file, offsets, big_endian }, None))
    }

    fn projection(
        &mut self,
        layer: usize,
        part: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<ExpertMatrix, ModelError> {
        let stacked = format!("blk.{layer}.ffn_{part}_exps.weight");
        let apart = |expert: usize| format!("blk.{layer}.ffn_{part}.{expert}.weight");
        if self.has(&stacked) || (!self.has(&apart(0)) && self.by_source(true, false)) {
            return self.stacked(&stacked, count, rows, columns);
        }
        if self.find_codes(&apart(0)).is_some() {
            let all = (0..count).map(|expert| self.find_scaled(&apart(expert), rows, columns, None));
            let all = all.collect::<Result<Vec<_>, _>>()?;
            if all.iter().all(Option::is_some) {
                let all: Vec<_> = all.into_iter().flatten().collect();
                return self.apart_scaled(&all, rows, columns);
            }
        }
        let mut places = Vec::with_capacity(count);
        let mut common: Option<WeightFormat> = None;
        for expert in 0..count {
            let (info, format) = self.take(&apart(expert), &[columns, rows])?;
            let first = *common.get_or_insert(format);
            if first != format {
                return Err(self.unsupported(format!(
                    "{} is {format}, expert 0 of its layer is {first}; convert the model again with one type for all \
                     experts of a layer",
                    info.name
                )));
            }
            places.push(ExpertPlace { file: info.file, offset: info.offset });
        }
        let (format, file) = match (common, places.first()) {
            (Some(format), Some(place)) => (format, place.file),
            _ => return Err(self.bad(format!("layer {layer} has no experts"))),
        };
        let offsets = ExpertOffsets::Places(places);
        let big_endian = self.file.big_endian();
        Ok((Projection { format, rows, columns, file, offsets, big_endian }, None))
    }
}

fn input_or_output(transposed: bool) -> &'static str {
    if transposed { "input" } else { "output" }
}
