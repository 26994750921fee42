//! Weights of convolutions over positions, one filter per channel.

use coldpress_kernels::recurrent::CONVOLUTION_TAPS_MAX;

use super::SpecBuilder;
use crate::error::ModelError;
use crate::recurrent::{ConvolutionSpec, ConvolutionTaps};
use crate::spec::{DenseKind, Picked, VectorHandle};

impl SpecBuilder<'_> {
    /// The shape of a convolution's weights: without a dimension of 1, with one between (as PyTorch has it) or innermost (as MLX
    /// has it). The bytes are the same.
    fn shape_of_taps(&self, name: &str, channels: usize, taps: usize) -> Result<Vec<usize>, ModelError> {
        Ok(match self.shape(name)? {
            [1, length, _] if *length == taps as u64 => vec![1, taps, channels],
            [_, _, _, ..] => vec![taps, 1, channels],
            _ => vec![taps, channels],
        })
    }

    /// Whether MLX has written a convolution over several positions.
    pub fn is_convolution_of_mlx(&self, stem: &str) -> bool {
        matches!(self.shape(&format!("{stem}.weight")), Ok([1, taps, _]) if *taps > 1)
    }

    /// `{stem}.weight` with `taps` values of each of `channels` channels, with or without the dimension of 1 that checkpoints have
    /// in between, and `{stem}.bias` where present.
    pub fn convolution(
        &mut self,
        stem: &str,
        channels: usize,
        taps: usize,
    ) -> Result<ConvolutionSpec, ModelError> {
        let name = format!("{stem}.weight");
        let shape = self.shape_of_taps(&name, channels, taps)?;
        let (info, format) = self.take(&name, &shape)?;
        let weight = VectorHandle(self.push(info, format, DenseKind::Vector { length: channels * taps }));
        let bias = self.optional_vector(&format!("{stem}.bias"), channels)?;
        Ok(ConvolutionSpec { weight, bias, channels, taps })
    }

    /// The same with the weights tap by tap.
    pub fn convolution_taps(
        &mut self,
        stem: &str,
        channels: usize,
        taps: usize,
    ) -> Result<ConvolutionTaps, ModelError> {
        let name = format!("{stem}.weight");
        if taps > CONVOLUTION_TAPS_MAX {
            return Err(self.unsupported(format!(
                "{name} reaches over {taps} positions; convolutions over at most {CONVOLUTION_TAPS_MAX} are computed"
            )));
        }
        let shape = self.shape_of_taps(&name, channels, taps)?;
        let (info, format) = self.take(&name, &shape)?;
        if !format.is_float() {
            return Err(self.unsupported(format!("tensor {} is {format}", info.name)));
        }
        let first = VectorHandle(self.tensors.len());
        for tap in 0..taps {
            let at = self.push(info, format, DenseKind::Vector { length: channels });
            self.tensors[at].picked = Picked { first: tap, step: taps };
        }
        let bias = self.optional_vector(&format!("{stem}.bias"), channels)?;
        Ok(ConvolutionTaps { first, bias, channels, taps })
    }
}
