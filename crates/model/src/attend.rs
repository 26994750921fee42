//! The attention half of a layer, for grouped queries: norm, projections, rotation, cache write, attention, output projection, residual.

use std::ops::Range;

use coldpress_kernels::attention::{Attention, AttentionShape, attention};
use coldpress_kernels::{MatmulJob, matmul, vector};
use coldpress_workers::Team;

use crate::forward::{ForwardEngine, Model, Segment};
use crate::scratch::{Scratch, rows_per_part};
use crate::segments::{SegmentRows, rows_of_segments};
use crate::spec::{AttentionKind, AttentionSpec, VectorHandle};
use crate::streams::Half;
use crate::{attention_gate, query_key, value_heads};

/// Products of a query row, its positions and its width that are computed between two looks at how much memory experts may take.
const WORK_AT_ONCE: usize = 1 << 28;
/// Fewer rows would leave threads without work.
const ROWS_AT_ONCE_MIN: usize = 64;

/// Others may need memory while no expert is being used.
pub(crate) fn follow_memory(engine: &mut ForwardEngine<'_, '_>) {
    if let Some(store) = engine.experts.as_deref_mut() {
        store.follow_between_visits();
    }
}

/// Rotates queries, keys and values for a cache that stores few bits. Products of queries and keys stay what they are, and the
/// sums of values come out rotated.
fn turn_heads(engine: &mut ForwardEngine<'_, '_>, spec: &AttentionSpec, rows: usize) {
    let (team, kernels) = (engine.team, engine.kernels);
    let AttentionShape { head_dim, .. } = spec.shape;
    let (query_width, kv_width) = (spec.shape.query_row_len(), spec.shape.kv_row_len());
    let Scratch { query, key, value, .. } = &mut *engine.scratch;
    for (buffer, width) in [(query, query_width), (key, kv_width), (value, kv_width)] {
        vector::rotate_heads(team, kernels, &mut buffer.as_mut_slice_of::<f32>()[..rows * width], head_dim);
    }
}

/// Takes the rotation of the values out of the attention result.
fn turn_heads_back(engine: &mut ForwardEngine<'_, '_>, spec: &AttentionSpec, rows: usize) {
    let (team, kernels) = (engine.team, engine.kernels);
    let result = engine.scratch.input.floats_mut(rows * spec.shape.query_row_len());
    vector::rotate_heads_back(team, kernels, result, spec.shape.head_dim);
}

impl Model {
    /// Adds the attention of `layer` to the residual stream of the rows of a block and fills the KV cache.
    pub(crate) fn attend(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &mut [Segment<'_>],
        layer: usize,
        block: &Range<usize>,
    ) {
        let rows = block.len();
        let call_rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        let spec = match &self.spec.layers[layer].attention {
            AttentionKind::Grouped(spec) => spec,
            AttentionKind::Latent(spec) => return self.attend_latent(engine, spec, segments, layer, block),
            AttentionKind::Recurrent(spec) => {
                return self.advance_states(engine, spec, segments, layer, block);
            }
            AttentionKind::Compressed(spec) => {
                return self.attend_compressed(engine, spec, segments, layer, block);
            }
        };
        self.project(engine, layer, spec, block);
        if let Some(index) = &spec.sparse {
            self.index_products(engine, index, call_rows, block);
        }
        self.rotate(engine, spec, call_rows, block);
        if engine.pool.kv_type().rotates() {
            turn_heads(engine, spec, rows);
        }
        follow_memory(engine);
        self.attend_segments(engine, spec, segments, layer, block);
        if engine.pool.kv_type().rotates() {
            turn_heads_back(engine, spec, rows);
        }
        follow_memory(engine);

        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, gate, block_out, .. } = &mut *engine.scratch;
        if spec.gated {
            let width = spec.shape.query_row_len();
            let gate = &gate.as_slice_of::<f32>()[..rows * width];
            attention_gate::apply_gates(team, kernels, input.floats_mut(rows * width), width, gate, 1);
        }
        if let Some(values) = spec.values {
            let wide = input.floats_mut(rows * spec.shape.query_row_len());
            value_heads::narrow(wide, values.head_dim, spec.shape.head_dim);
        }
        let width = spec.shape.heads * spec.value_dim();
        input.quantize(team, kernels, rows, width);
        let out = &mut block_out.as_mut_slice_of::<f32>()[..rows * hidden];
        let weights = self.weights.matrix(spec.output.weight);
        matmul(team, kernels, &mut [MatmulJob::new(weights, input.rows(0, rows, width), out)]);
        if let Some(bias) = spec.output.bias {
            self.add_bias(team, bias, out);
        }
        self.add_result(engine, layer, Half::Attention, block);
    }

    fn project(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        spec: &AttentionSpec,
        block: &Range<usize>,
    ) {
        let rows = block.len();
        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        self.norm_half(engine, self.spec.layers[layer].attention_norm, block, block);
        let Scratch { input, query, key, value, .. } = &mut *engine.scratch;
        let input = input.rows(0, rows, hidden);
        let query = &mut query.as_mut_slice_of::<f32>()[..rows * spec.projected_len()];
        let key = &mut key.as_mut_slice_of::<f32>()[..rows * spec.shape.kv_row_len()];
        let value_width = spec.shape.kv_heads * spec.value_dim();
        let value = &mut value.as_mut_slice_of::<f32>()[..rows * value_width];
        matmul(
            team,
            kernels,
            &mut [
                MatmulJob::new(self.weights.matrix(spec.query.weight), input, &mut *query),
                MatmulJob::new(self.weights.matrix(spec.key.weight), input, &mut *key),
                MatmulJob::new(self.weights.matrix(spec.value.weight), input, &mut *value),
            ],
        );
        for (linear, out) in [(spec.query, query), (spec.key, key), (spec.value, value)] {
            if let Some(bias) = linear.bias {
                self.add_bias(team, bias, out);
            }
        }
        if spec.gated {
            let Scratch { query, gate, .. } = &mut *engine.scratch;
            let query = &mut query.as_mut_slice_of::<f32>()[..rows * spec.projected_len()];
            let gate = &mut gate.as_mut_slice_of::<f32>()[..rows * spec.shape.query_row_len()];
            attention_gate::take_gates(team, query, gate, spec.shape.head_dim);
        }
        if let Some(values) = spec.values {
            let wide = &mut engine.scratch.value.as_mut_slice_of::<f32>()[..rows * spec.shape.kv_row_len()];
            value_heads::widen(wide, values.head_dim, spec.shape.head_dim, values.scale);
        }
    }

    /// Adds a bias to each row of `out`.
    pub(crate) fn add_bias(&self, team: &Team<'_>, bias: VectorHandle, out: &mut [f32]) {
        let bias = self.weights.vector(bias);
        let rows_per_part = rows_per_part(team, out.len() / bias.len(), size_of_val(bias));
        team.for_each_part_mut(out, rows_per_part * bias.len(), |_part, rows, _worker| {
            for row in rows.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        });
    }

    /// Norms and rotary embedding of queries and keys. `call_rows` counts the rows of the whole call.
    fn rotate(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &AttentionSpec,
        call_rows: usize,
        block: &Range<usize>,
    ) {
        let Some(rope) = spec.rope else { return self.norm_queries_and_keys(engine, spec, block.len()) };
        let angles = self.angles(rope, call_rows, block);
        let after = spec.norms.is_some_and(|norms| norms.after_rotation);
        if !after {
            self.norm_queries_and_keys(engine, spec, block.len());
        }
        let Scratch { query, key, cosines, sines, .. } = &mut *engine.scratch;
        let rotation = self.rotation(rope, spec.shape.head_dim, angles, (&*cosines, &*sines));
        let widths = [spec.shape.query_row_len(), spec.shape.kv_row_len()];
        for (buffer, width) in [query, key].into_iter().zip(widths) {
            let values = &mut buffer.as_mut_slice_of::<f32>()[..block.len() * width];
            rotation.apply(engine.team, engine.kernels, values);
            if spec.unit_heads {
                query_key::unit_heads(engine.team, values, spec.shape.head_dim, self.spec.norm_epsilon);
            }
        }
        if after {
            self.norm_queries_and_keys(engine, spec, block.len());
        }
    }

    /// The norms of queries and keys, where the layer has any.
    fn norm_queries_and_keys(&self, engine: &mut ForwardEngine<'_, '_>, spec: &AttentionSpec, rows: usize) {
        let Some(norms) = spec.norms else { return };
        let Scratch { query, key, .. } = &mut *engine.scratch;
        let widths = [spec.shape.query_row_len(), spec.shape.kv_row_len()];
        for ((buffer, width), norm) in [query, key].into_iter().zip(widths).zip([norms.query, norms.key]) {
            let values = &mut buffer.as_mut_slice_of::<f32>()[..rows * width];
            let weight = self.weights.vector(norm);
            vector::rms_norm_in_place(engine.team, engine.kernels, values, weight, self.spec.norm_epsilon);
        }
    }

    fn attend_segments(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &AttentionSpec,
        segments: &mut [Segment<'_>],
        layer: usize,
        block: &Range<usize>,
    ) {
        let query_width = spec.shape.query_row_len();
        let kv_width = spec.shape.kv_row_len();
        for SegmentRows { segment, rows, first_position, .. } in rows_of_segments(segments, block) {
            let rows = rows.start - block.start..rows.end - block.start;
            let Scratch { input, query, key, value, attention: scratch, .. } = &mut *engine.scratch;
            if let Some(temperature) = spec.temperature {
                let queries = rows.start * query_width..rows.end * query_width;
                let queries = &mut query.as_mut_slice_of::<f32>()[queries];
                query_key::temper(temperature, first_position, query_width, queries);
            }
            let kv = rows.start * kv_width..rows.end * kv_width;
            let keys = &key.as_slice_of::<f32>()[kv.clone()];
            let values = &value.as_slice_of::<f32>()[kv];
            let sequence = &*segment.sequence;
            engine.pool.write(engine.team, engine.kernels, layer, sequence, first_position, keys, values);
            let mut dense = rows.clone();
            if let Some(index) = &spec.sparse {
                dense.end = rows.start + index.dense_rows(rows.len(), first_position);
            }
            // A row's result does not depend on the rows beside it.
            let at_once =
                (WORK_AT_ONCE / ((first_position + rows.len()) * query_width)).max(ROWS_AT_ONCE_MIN);
            for first in dense.clone().step_by(at_once) {
                if first > rows.start
                    && let Some(store) = engine.experts.as_deref_mut()
                {
                    store.follow_between_visits();
                }
                let end = dense.end.min(first + at_once);
                let queries = first * query_width..end * query_width;
                let first_position = first_position + (first - rows.start);
                attention(
                    engine.team,
                    engine.kernels,
                    Attention {
                        shape: spec.shape,
                        query: &query.as_slice_of::<f32>()[queries.clone()],
                        first_position,
                        cache: engine.pool.rows(layer, sequence),
                        window: spec.window,
                        chunk: spec.chunk,
                        sinks: spec.sinks.map(|sinks| self.weights.vector(sinks)),
                        scale: spec.scale,
                        out: &mut input.floats_mut(queries.end)[queries],
                        scratch: scratch.as_mut_slice_of::<f32>(),
                    },
                );
            }
            if let Some(index) = &spec.sparse {
                self.write_index_keys(engine, index, layer, sequence, &rows, first_position);
                let position = first_position + dense.len();
                self.attend_sparse_rows(
                    engine,
                    (spec, index),
                    layer,
                    sequence,
                    dense.end..rows.end,
                    position,
                );
            }
        }
    }
}
