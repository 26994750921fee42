//! Factors on whole matrices: the second scale of NVFP4, which GGUF files hold as a tensor beside the matrix.
//!
//! `NAME.scale` is one f32 for a matrix, and one per expert for stacked experts; products are multiplied by it, as llama.cpp does
//! (`build_lora_mm`, `build_moe_ffn`). `NAME.input_scale` is for activations of few bits, which are not computed with: passed over.
//! Experts with gate and up in one tensor have no factors in llama.cpp; a file that has them is refused by their names.

use super::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{ExpertFactors, VectorHandle};

impl SpecBuilder<'_> {
    /// The factor on the matrix `name`, where a GGUF file has one.
    pub(super) fn factor(&mut self, name: &str) -> Result<Option<VectorHandle>, ModelError> {
        self.factors(name, 1)
    }

    /// The factors on the stacked matrices of the `count` experts of `layer`.
    pub(crate) fn expert_factors(&mut self, layer: usize, count: usize) -> Result<ExpertFactors, ModelError> {
        let mut of = |part: &str| {
            let name = format!("blk.{layer}.ffn_{part}_exps.weight");
            if self.has(&name) { self.factors(&name, count) } else { Ok(None) }
        };
        Ok(ExpertFactors { gate: of("gate")?, up: of("up")?, down: of("down")? })
    }

    fn factors(&mut self, name: &str, count: usize) -> Result<Option<VectorHandle>, ModelError> {
        let Some(stem) = self.by_source(name.strip_suffix("weight"), None) else { return Ok(None) };
        self.pass_over(&format!("{stem}input_scale"));
        self.optional_vector(&format!("{stem}scale"), count)
    }
}
