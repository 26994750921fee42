//! Which compressed rows a query sees: all, or the best by the indexer's scores, in the order of their positions.
//!
//! `score(group) = sum over heads of weight * max(0, query . key)`. Of equal scores the earlier group wins.

use coldpress_kernels::vector;

use super::CompressionSpec;
use crate::forward::{ForwardEngine, Model, Segment};
use crate::scratch::{Scratch, rows_per_part};

/// Most elements of an indexer's key.
pub(crate) const INDEX_DIM_MAX: usize = 512;

impl Model {
    /// Fills the order buffer with the groups that row `row` sees of the first `groups`, ascending; returns how many.
    pub(super) fn choose_groups(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        compression: &CompressionSpec,
        segment: &Segment<'_>,
        layer: usize,
        row: usize,
        groups: usize,
    ) -> usize {
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { compressed, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let order = &mut buffers.order.as_mut_slice_of::<u32>()[..groups];
        order.iter_mut().enumerate().for_each(|(group, place)| *place = group as u32);
        let Some(indexer) = compression.indexer.as_ref().filter(|indexer| groups > indexer.top_k) else {
            return groups;
        };
        let dim = indexer.compressor.dim;
        let index = engine.pool.index_rows(layer, segment.sequence);
        let queries =
            &buffers.index_query.as_slice_of::<f32>()[row * indexer.query_len()..][..indexer.query_len()];
        let weights = &buffers.index_weights.as_slice_of::<f32>()[row * indexer.heads..][..indexer.heads];
        let factor = 1.0 / (dim as f32).sqrt() / (indexer.heads as f32).sqrt();
        let scores = &mut buffers.scores.as_mut_slice_of::<f32>()[..groups];
        let per_part = rows_per_part(team, groups, indexer.query_len() * size_of::<f32>());
        team.for_each_part_mut(scores, per_part, |part, scores, _worker| {
            let mut key = [0.0; INDEX_DIM_MAX];
            let key = &mut key[..dim];
            for (at, score) in scores.iter_mut().enumerate() {
                compression.read_index_key(&index, part * per_part + at, key);
                *score = 0.0;
                for (query, weight) in queries.chunks_exact(dim).zip(weights) {
                    *score += weight * factor * vector::dot(kernels, query, key).max(0.0);
                }
            }
        });
        let scores = &*scores;
        let better = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        order.select_nth_unstable_by(indexer.top_k - 1, better);
        order[..indexer.top_k].sort_unstable();
        indexer.top_k
    }
}
