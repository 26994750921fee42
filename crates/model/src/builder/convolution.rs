//! Weights of convolutions over positions, one filter per channel.

use super::SpecBuilder;
use crate::error::ModelError;
use crate::recurrent::ConvolutionSpec;
use crate::spec::DenseKind;
use crate::spec::VectorHandle;

impl SpecBuilder<'_> {
    /// `{stem}.weight` with `taps` values of each of `channels` channels, with or without the dimension of 1 that checkpoints have
    /// in between, and `{stem}.bias` where present.
    pub fn convolution(
        &mut self,
        stem: &str,
        channels: usize,
        taps: usize,
    ) -> Result<ConvolutionSpec, ModelError> {
        let name = format!("{stem}.weight");
        let between = self.shape(&name)?.len() == 3;
        let shape: &[usize] = if between { &[taps, 1, channels] } else { &[taps, channels] };
        let (info, format) = self.take(&name, shape)?;
        let weight = VectorHandle(self.push(info, format, DenseKind::Vector { length: channels * taps }));
        let bias = self.optional_vector(&format!("{stem}.bias"), channels)?;
        Ok(ConvolutionSpec { weight, bias, channels, taps })
    }
}
