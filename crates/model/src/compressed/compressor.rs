//! Compressed rows: a group of positions becomes one row, element by element a sum of what the positions say, weighted by the
//! softmax of their gates.
//!
//! Everything is read from the cache, also what the current pass has written, so that a row is the same whichever pass closes
//! its group. Source: the technical report of DeepSeek-V4, and `modeling_deepseek_v4.py` of transformers.

use std::ops::Range;

use coldpress_kernels::attention::KvRows;
use coldpress_kernels::vector;

use super::buffers::WORK_VECTORS;
use super::{CompressedSpec, CompressionSpec, Place, Turn, read, turn};
use crate::forward::{ForwardEngine, Model, Segment};
use crate::spec::{MatrixHandle, VectorHandle};

/// Makes one row of `dim` elements from the positions of a group.
#[derive(Clone, Copy, Debug)]
pub struct CompressorSpec {
    /// Elements of a row.
    pub dim: usize,
    /// Whether a row also takes in the group before: then positions have two series, the first for the next group, the second
    /// for their own.
    pub overlapping: bool,
    /// What a position says, [`CompressorSpec::columns`] rows.
    pub value: MatrixHandle,
    /// How much it counts, as many rows.
    pub gate: MatrixHandle,
    /// Added to the gates, `[rate, columns]`.
    pub gate_bias: VectorHandle,
    /// RMSNorm of the row.
    pub norm: VectorHandle,
}

/// Chooses the compressed rows that a query sees by rows of its own.
#[derive(Clone, Copy, Debug)]
pub struct GroupIndexerSpec {
    /// Query heads.
    pub heads: usize,
    /// Groups that are chosen.
    pub top_k: usize,
    /// Makes the keys.
    pub compressor: CompressorSpec,
    /// From the latent of the queries, `heads * dim` rows.
    pub query: MatrixHandle,
    /// Weights of the heads, from the layer's input.
    pub weights: MatrixHandle,
}

impl GroupIndexerSpec {
    pub(super) fn query_len(&self) -> usize {
        self.heads * self.compressor.dim
    }
}

impl CompressorSpec {
    /// Elements of what a position says.
    pub fn columns(&self) -> usize {
        if self.overlapping { 2 * self.dim } else { self.dim }
    }

    /// Elements of a position in the cache: what it says and how much it counts.
    pub(super) fn inputs(&self) -> usize {
        2 * self.columns()
    }

    /// The positions that a group's row is made of, each with the place of its gate's bias and of its series.
    fn members(&self, rate: usize, group: usize) -> impl Iterator<Item = Member> + Clone + use<> {
        let own = if self.overlapping { self.dim } else { 0 };
        let before = if self.overlapping && group > 0 { (group - 1) * rate } else { group * rate };
        (before..(group + 1) * rate).map(move |position| Member {
            position,
            slot: position % rate,
            series: if position < group * rate { 0 } else { own },
        })
    }
}

struct Member {
    position: usize,
    slot: usize,
    series: usize,
}

impl CompressionSpec {
    /// The positions that hold the row of a group.
    fn holders_of(&self, group: usize) -> Range<usize> {
        let end = (group + 1) * self.rate;
        end - self.holders()..end
    }

    /// Reads what positions hold from element `first` of their index rows on: the row of a group.
    fn read_shares(&self, index: &KvRows<'_>, first: usize, group: usize, out: &mut [f32]) {
        let share = self.share_len(out.len());
        let width = self.layout().width;
        for (position, out) in self.holders_of(group).zip(out.chunks_mut(share)) {
            read(index, width, position, first, out);
        }
    }

    /// The compressed row of a group.
    pub(super) fn read_row(&self, index: &KvRows<'_>, group: usize, out: &mut [f32]) {
        self.read_shares(index, self.layout().share, group, out);
    }

    /// The key of a group by which the indexer chooses.
    pub(super) fn read_index_key(&self, index: &KvRows<'_>, group: usize, out: &mut [f32]) {
        self.read_shares(index, self.layout().indexer_share, group, out);
    }
}

impl Model {
    /// Computes the rows of all groups whose last positions are among the rows of `place`.
    pub(super) fn close_groups(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        compression: &CompressionSpec,
        segment: &Segment<'_>,
        place: &Place,
    ) {
        let layout = compression.layout();
        let rate = compression.rate;
        let groups = place.position / rate..(place.position + place.rows.len()) / rate;
        for group in groups {
            let compressors = [
                Some((&compression.rows, 0, layout.share)),
                compression
                    .indexer
                    .as_ref()
                    .map(|indexer| (&indexer.compressor, layout.indexer_inputs, layout.indexer_share)),
            ];
            for (compressor, inputs, share) in compressors.into_iter().flatten() {
                self.compress(engine, spec, compression, compressor, inputs, segment, place.layer, group);
                let row = &engine.scratch.compressed.as_ref().expect("its scratch is there").work;
                let row = &row.as_slice_of::<f32>()[..compressor.dim];
                let holders = compression.holders_of(group);
                let shares = row.chunks(compression.share_len(compressor.dim));
                for (position, numbers) in holders.zip(shares) {
                    engine.pool.write_index_part(place.layer, segment.sequence, position, share, numbers);
                }
            }
        }
    }

    /// The row of one group into the first work vector.
    #[allow(clippy::too_many_arguments)]
    fn compress(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        compression: &CompressionSpec,
        compressor: &CompressorSpec,
        inputs: usize,
        segment: &Segment<'_>,
        layer: usize,
        group: usize,
    ) {
        let (dim, columns, width) = (compressor.dim, compressor.columns(), compression.layout().width);
        let (team, kernels) = (engine.team, engine.kernels);
        let index = engine.pool.index_rows(layer, segment.sequence);
        let buffers = engine.scratch.compressed.as_mut().expect("its scratch is there");
        let work = &mut buffers.work.as_mut_slice_of::<f32>()[..WORK_VECTORS * dim];
        let mut vectors = work.chunks_exact_mut(dim);
        let [Some(sum), Some(weights), Some(largest), Some(gate), Some(value)] =
            std::array::from_fn(|_| vectors.next())
        else {
            return;
        };
        let bias = self.weights.vector(compressor.gate_bias);
        let read_gate = |member: &Member, gate: &mut [f32]| {
            read(&index, width, member.position, inputs + columns + member.series, gate);
            let bias = &bias[member.slot * columns + member.series..][..dim];
            gate.iter_mut().zip(bias).for_each(|(gate, bias)| *gate += bias);
        };
        let members = compressor.members(compression.rate, group);
        largest.fill(f32::NEG_INFINITY);
        for member in members.clone() {
            read_gate(&member, gate);
            largest.iter_mut().zip(&*gate).for_each(|(largest, gate)| *largest = largest.max(*gate));
        }
        sum.fill(0.0);
        weights.fill(0.0);
        for member in members {
            read_gate(&member, gate);
            gate.iter_mut().zip(&*largest).for_each(|(gate, largest)| *gate -= largest);
            vector::exp(kernels, gate);
            read(&index, width, member.position, inputs + member.series, value);
            for (((sum, total), weight), value) in
                sum.iter_mut().zip(weights.iter_mut()).zip(&*gate).zip(&*value)
            {
                *sum += weight * value;
                *total += weight;
            }
        }
        sum.iter_mut().zip(&*weights).for_each(|(sum, total)| *sum /= total);
        let norm = self.weights.vector(compressor.norm);
        vector::rms_norm_in_place(team, kernels, sum, norm, self.spec.norm_epsilon);
        let frequencies = &self.inverse_frequencies[spec.rope];
        let magnitude = self.spec.ropes[spec.rope].magnitude;
        let pairs = frequencies.len();
        // Both are free now, and a row has at least as many elements as angles.
        let (cosines, sines) = (&mut gate[..pairs], &mut value[..pairs]);
        vector::rope_table(frequencies, magnitude, group * compression.rate, cosines, sines);
        turn(&mut sum[dim - 2 * pairs..], cosines, sines, Turn::Forward);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlapping_row_takes_in_the_group_before() {
        let compressor = |overlapping| CompressorSpec {
            dim: 8,
            overlapping,
            value: MatrixHandle(0),
            gate: MatrixHandle(0),
            gate_bias: VectorHandle(0),
            norm: VectorHandle(0),
        };
        let members = |overlapping, group| -> Vec<(usize, usize, usize)> {
            let members = compressor(overlapping).members(2, group);
            members.map(|member| (member.position, member.slot, member.series)).collect()
        };
        assert_eq!(members(false, 3), [(6, 0, 0), (7, 1, 0)]);
        assert_eq!(members(true, 0), [(0, 0, 8), (1, 1, 8)]);
        assert_eq!(members(true, 3), [(4, 0, 0), (5, 1, 0), (6, 0, 8), (7, 1, 8)]);
    }
}
