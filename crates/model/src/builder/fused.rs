//! Experts whose gate and up lie in one tensor, as checkpoints of gpt-oss and Llama 4 have them, and the biases of experts.
//!
//! The fused tensor is `ffn_gate_up_exps`: floats `[expert, hidden, 2 * inner]`, in turns or as halves, or MXFP4 as `ffn_gate_up_exps.codes` and
//! `.exponents` with rows of outputs; `ffn_down_exps` is stored in the same way.

use coldpress_experts::{ExpertBytes, ExpertOffsets, GateUp, LayerExperts, Projection, Stored};
use coldpress_formats::{TensorInfo, TensorType};
use coldpress_kernels::WeightFormat;

use super::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{DenseKind, ExpertBiases, Picked, VectorHandle};

/// Elements of an MXFP4 block, and bytes of their codes.
const BLOCK_ELEMENTS: usize = 32;
const CODE_BYTES: usize = 16;

impl SpecBuilder<'_> {
    /// The routed experts of layer `layer`, gate and up in one tensor. Returns the layer number of the expert store.
    pub fn fused_experts(
        &mut self,
        layer: usize,
        count: usize,
        hidden: usize,
        width: usize,
        gate_up: GateUp,
    ) -> Result<usize, ModelError> {
        let name = |part: &str, ending: &str| format!("blk.{layer}.ffn_{part}_exps{ending}");
        let projection = |format, rows, columns, (file, offsets)| Projection {
            format,
            rows,
            columns,
            file,
            offsets,
            big_endian: false,
        };
        if self.has(&name("gate_up", ".codes")) {
            let both = self.codes(&name("gate_up", ""), count, 2 * width, hidden)?;
            let down = self.codes(&name("down", ""), count, hidden, width)?;
            let gate = projection(WeightFormat::Mxfp4, width, hidden, both.0);
            let down_projection = projection(WeightFormat::Mxfp4, hidden, width, down.0);
            let stored = Stored::Codes { gate_up_exponents: both.1, down_exponents: down.1 };
            let up = gate.clone();
            let (gate, down) = (gate, down_projection);
            return Ok(self.push_experts(LayerExperts {
                expert_count: count,
                gate,
                up,
                down,
                stored,
                quantised: None,
            }));
        }
        let (both, format) =
            self.floats_of_experts(&name("gate_up", ".weight"), [2 * width, hidden, count])?;
        let gate = projection(format, width, hidden, both);
        let (down, format) = self.floats_of_experts(&name("down", ".weight"), [hidden, width, count])?;
        let down = projection(format, hidden, width, down);
        let (up, stored) = (gate.clone(), Stored::Transposed(gate_up));
        Ok(self.push_experts(LayerExperts { expert_count: count, gate, up, down, stored, quantised: None }))
    }

    /// Where the transposed matrices of all experts lie.
    fn floats_of_experts(
        &mut self,
        name: &str,
        shape: [usize; 3],
    ) -> Result<((usize, ExpertOffsets), WeightFormat), ModelError> {
        let (info, format) = self.take(name, &shape)?;
        if !format.is_float() {
            return Err(self.unsupported(format!("tensor {} is {format}, and transposed", info.name)));
        }
        Ok(((info.file, each_of(info, shape[2])), format))
    }

    /// Where the codes and the exponents of MXFP4 matrices lie.
    fn codes(
        &mut self,
        stem: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<((usize, ExpertOffsets), ExpertBytes), ModelError> {
        if !columns.is_multiple_of(BLOCK_ELEMENTS) {
            return Err(self.bad(format!("{stem}: rows of {columns} are not whole blocks of MXFP4")));
        }
        let blocks = columns / BLOCK_ELEMENTS;
        let codes = self.take_bytes(&format!("{stem}.codes"), &[CODE_BYTES, blocks, rows, count])?;
        let codes = (codes.file, each_of(codes, count));
        let exponents = self.take_bytes(&format!("{stem}.exponents"), &[blocks, rows, count])?;
        Ok((codes, ExpertBytes { file: exponents.file, offsets: each_of(exponents, count) }))
    }

    /// A tensor of bytes, of exactly this shape.
    fn take_bytes(&mut self, name: &str, shape: &[usize]) -> Result<&TensorInfo, ModelError> {
        let info = self.require(name)?;
        let name = &info.name;
        if !info.shape.iter().map(|&dimension| dimension as usize).eq(shape.iter().copied()) {
            let found = &info.shape;
            return Err(
                self.bad(format!("tensor {name} has shape {found:?}, the metadata asks for {shape:?}"))
            );
        }
        if info.tensor_type != TensorType::I8 {
            let found = info.tensor_type.name();
            return Err(self.bad(format!("tensor {name} has type {found}; codes and exponents are bytes")));
        }
        self.used.insert(name.as_str());
        Ok(info)
    }

    /// The biases of all experts of layer `layer`: of gate and up apart (`ffn_gate_exps.bias`), or in turns.
    pub fn expert_biases(
        &mut self,
        layer: usize,
        count: usize,
        hidden: usize,
        width: usize,
    ) -> Result<ExpertBiases, ModelError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.bias");
        let down = self.vectors_of_experts(&name("down"), [hidden, count], Picked::ALL)?;
        let together = name("gate_up");
        if self.has(&together) {
            let mut half =
                |first| self.vectors_of_experts(&together, [2 * width, count], Picked { first, step: 2 });
            return Ok(ExpertBiases { gate: half(0)?, up: half(1)?, down });
        }
        let gate = self.vectors_of_experts(&name("gate"), [width, count], Picked::ALL)?;
        let up = self.vectors_of_experts(&name("up"), [width, count], Picked::ALL)?;
        Ok(ExpertBiases { gate, up, down })
    }

    /// One vector per expert in one tensor, or the picked ones of their values; held as f32.
    fn vectors_of_experts(
        &mut self,
        name: &str,
        shape: [usize; 2],
        picked: Picked,
    ) -> Result<VectorHandle, ModelError> {
        let (info, format) = self.take(name, &shape)?;
        if !format.is_float() && picked != Picked::ALL {
            return Err(self.unsupported(format!("tensor {} is {format}", info.name)));
        }
        let length = shape[0] * shape[1] / picked.step;
        let at = self.push(info, format, DenseKind::Vector { length });
        self.tensors[at].picked = picked;
        Ok(VectorHandle(at))
    }
}

fn each_of(info: &TensorInfo, count: usize) -> ExpertOffsets {
    ExpertOffsets::Stride { first: info.offset, stride: info.byte_len / count as u64 }
}
