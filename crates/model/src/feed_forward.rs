//! The feed-forward half of a layer: dense gated networks, routed experts, the shared expert.
//!
//! Routed experts compute in the order in which the store hands them out (hits first, then as reads land); each result
//! goes to its own place in `pairs`, and the sum runs in router-rank order afterwards. So neither the cache nor the disk
//! can change a bit of the answer.

use std::ops::Range;

use arrayvec::ArrayVec;
use coldpress_experts::{ExpertStore, Guess, RecordRef};
use coldpress_kernels::{GatedJob, Kernels, MatmulJob, gated, matmul, vector};
use coldpress_workers::Team;

use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model};
use crate::route::{Choice, Routing};
use crate::scratch::{BLOCK_ROWS, Scratch, rows_per_part};
use crate::spec::{
    FeedForwardSpec, GatedFeedForwardSpec, MoeSpec, NormedStream, RouterSpec, SharedExpertSpec,
    StreamFactors, TableHandle, VectorHandle,
};
use crate::streams::Half;
use crate::times::Phase;

/// Experts that compute in one parallel region.
const EXPERTS_AT_ONCE: usize = 16;

/// Times that a batch chooses an expert on average, from which on it is certain to need nearly all of them.
const SURE_USES: usize = 16;

/// Which rows of which layer are computed.
struct Place {
    layer: usize,
    block: Range<usize>,
    /// Whether the same layer comes again before the next one.
    more_blocks: bool,
}

/// An expert that is ready to compute: its weights and the rows of `pairs` it fills.
struct Work<'a> {
    record: RecordRef<'a>,
    expert: u32,
    pairs: std::ops::Range<usize>,
}

impl Model {
    /// Adds the feed-forward half of `layer` to the residual stream of the rows of a block; `more_blocks` says whether the
    /// same layer comes again before the next one.
    pub(crate) fn feed_forward(
        &mut self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        block: &Range<usize>,
        more_blocks: bool,
    ) -> Result<(), ModelError> {
        let rows = block.len();
        self.norm_half(engine, self.spec.layers[layer].feed_forward_norm, block, block);
        let mut routing = self.take_routing();
        let result = match &self.spec.layers[layer].feed_forward {
            FeedForwardSpec::Dense(dense) => {
                self.gated(engine, dense, rows);
                Ok(())
            }
            FeedForwardSpec::Moe(moe) => {
                let place = Place { layer, block: block.clone(), more_blocks };
                self.mixture(engine, moe, &mut routing, place)
            }
            FeedForwardSpec::Shortcut { dense, mixture } => {
                let place = Place { layer, block: block.clone(), more_blocks };
                let result = self.mixture(engine, mixture, &mut routing, place);
                self.keep_for_next_layer(engine, block);
                self.gated(engine, dense, rows);
                result
            }
        };
        self.put_routing(routing);
        result?;
        self.add_result(engine, layer, Half::FeedForward, block);
        if layer > 0 && self.spec.layers[layer - 1].has_shortcut() {
            self.add_kept(engine, block);
        }
        Ok(())
    }

    /// Keeps the result of a mixture until the next layer ends.
    fn keep_for_next_layer(&self, engine: &mut ForwardEngine<'_, '_>, block: &Range<usize>) {
        let hidden = self.spec.hidden;
        let Scratch { shortcut, block_out, .. } = &mut *engine.scratch;
        let kept = &mut shortcut.as_mut_slice_of::<f32>()[block.start * hidden..block.end * hidden];
        kept.copy_from_slice(&block_out.as_slice_of::<f32>()[..block.len() * hidden]);
    }

    /// Adds what the layer before has kept.
    fn add_kept(&self, engine: &mut ForwardEngine<'_, '_>, block: &Range<usize>) {
        let rows = block.start * self.spec.hidden..block.end * self.spec.hidden;
        let Scratch { shortcut, residual, .. } = &mut *engine.scratch;
        let residual = &mut residual.as_mut_slice_of::<f32>()[rows.clone()];
        vector::add_assign(engine.team, engine.kernels, residual, &shortcut.as_slice_of::<f32>()[rows]);
    }

    /// Dense gated network of the prepared input into `block_out`.
    fn gated(&self, engine: &mut ForwardEngine<'_, '_>, spec: &GatedFeedForwardSpec, rows: usize) {
        let (hidden, width) = (self.spec.hidden, spec.width);
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, up, inner, block_out, .. } = &mut *engine.scratch;
        let up = &mut up.as_mut_slice_of::<f32>()[..rows * width];
        let (result, blocks) = inner.parts_mut(rows, width);
        let (gate_weights, up_weights) = (self.weights.matrix(spec.gate), self.weights.matrix(spec.up));
        let input = input.rows(0, rows, hidden);
        let job = GatedJob::new(gate_weights, up_weights, input, result, up, blocks);
        gated(team, kernels, &mut [job.with_activation(spec.activation)]);
        let output = &mut block_out.as_mut_slice_of::<f32>()[..rows * hidden];
        let weights = self.weights.matrix(spec.down);
        matmul(team, kernels, &mut [MatmulJob::new(weights, inner.rows(0, rows, width), output)]);
    }

    fn mixture(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        moe: &MoeSpec,
        routing: &mut Routing,
        place: Place,
    ) -> Result<(), ModelError> {
        let rows = place.block.len();
        self.look_at_memory(engine, moe, routing, &place.block);
        self.route(engine, moe, routing, &place.block);
        routing.record(moe.store_layer);
        engine.clock.lap(Phase::Dense);
        let store = engine.experts.take().expect("a model with MoE blocks runs with an expert store");
        let before = store.statistics();
        let result = self.routed(engine, store, moe, routing, &place);
        engine.clock.lap_experts(&before, &store.statistics());
        engine.experts = Some(store);
        result?;
        self.combine(engine, moe, routing, rows);
        engine.clock.lap(Phase::Experts);
        Ok(())
    }

    /// Finds out which experts are in memory, where that counts for the choice.
    fn look_at_memory(
        &self,
        engine: &ForwardEngine<'_, '_>,
        moe: &MoeSpec,
        routing: &mut Routing,
        block: &Range<usize>,
    ) {
        if let Some(store) = engine.experts.as_deref().filter(|_| routing.cache_bias.concerns(block)) {
            let experts = 0..store.geometry().expert_count(moe.store_layer);
            let in_memory = experts.map(|expert| store.is_in_memory(moe.store_layer, expert));
            routing.cache_bias.look(block, in_memory);
        }
    }

    fn route(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        moe: &MoeSpec,
        routing: &mut Routing,
        block: &Range<usize>,
    ) {
        let rows = block.len();
        let Scratch { input, router, .. } = &mut *engine.scratch;
        let logits = &mut router.as_mut_slice_of::<f32>()[..rows * moe.router.experts];
        let weights = self.weights.matrix(moe.router.weight);
        let input = input.rows(0, rows, self.spec.hidden);
        matmul(engine.team, engine.kernels, &mut [MatmulJob::new(weights, input, &mut *logits)]);
        self.add_router_bias(engine.team, &moe.router, logits);
        if let Some(table) = moe.router.table {
            let tokens = std::mem::take(&mut routing.tokens);
            let table = self.weights.table(table);
            let (team, kernels) = (engine.team, engine.kernels);
            routing.route_by_table(team, kernels, &moe.router, table, &tokens[block.clone()], logits);
            routing.tokens = tokens;
            return;
        }
        let bias = moe.router.choice_bias.map(|bias| self.weights.vector(bias));
        routing.route(engine.team, engine.kernels, &moe.router, bias, logits, rows);
    }

    fn add_router_bias(&self, team: &Team<'_>, router: &RouterSpec, logits: &mut [f32]) {
        if let Some(bias) = router.bias {
            self.add_bias(team, bias, logits);
        }
    }

    /// The part of a vector of all experts that belongs to one of them, `width` values.
    fn of_expert(&self, all: VectorHandle, expert: u32, width: usize) -> &[f32] {
        &self.weights.vector(all)[expert as usize * width..][..width]
    }

    /// What a matrix of an expert is multiplied by.
    fn factor_of(&self, all: Option<VectorHandle>, expert: u32) -> f32 {
        all.map_or(1.0, |all| self.weights.vector(all)[expert as usize])
    }

    /// Submits the reads, computes the shared expert while they run, then every routed expert as it lands. What the next
    /// layer will need is named as soon as it can be: all of it by a large batch, the guess for a single row when the hits
    /// have been computed and the device is waited for.
    fn routed(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        store: &mut ExpertStore,
        moe: &MoeSpec,
        routing: &mut Routing,
        place: &Place,
    ) -> Result<(), ModelError> {
        let rows = place.block.len();
        let next = self.next_mixture(place.layer).filter(|_| !place.more_blocks);
        let foreseen = next
            .filter(|_| store.wants_prefetch(Guess::Certain))
            .and_then(|(_, next)| next.router.table.map(|table| (next, table)));
        let next = next.filter(|(_, next)| next.router.table.is_none());
        let guessing = next.filter(|_| rows == 1 && store.wants_prefetch(Guess::Likely));
        let all = next.filter(|(_, next)| {
            rows * next.router.top_k >= SURE_USES * next.router.experts
                && store.wants_prefetch(Guess::Certain)
        });
        let mut visit = store.begin(moe.store_layer, &routing.experts)?;
        if let Some((_, next)) = all {
            visit.prefetch(next.store_layer, 0..next.router.stored() as u32, Guess::Certain);
        }
        if let Some((next, table)) = foreseen {
            self.foresee(routing, table, next.router.top_k);
            visit.prefetch(next.store_layer, routing.foreseen.iter().copied(), Guess::Certain);
        }
        engine.clock.lap(Phase::Experts);
        match &moe.shared {
            Some(shared) => self.shared_expert(engine, shared, rows),
            None => engine.scratch.block_out.as_mut_slice_of::<f32>()[..rows * self.spec.hidden].fill(0.0),
        }
        engine.clock.lap(Phase::Dense);
        routing.computed.clear();
        let mut guessing = guessing;
        loop {
            if visit.is_idle()
                && let Some((layer, next)) = guessing.take()
            {
                if routing.cache_bias.concerns(&place.block) {
                    let experts = 0..visit.expert_count(next.store_layer);
                    let in_memory = experts.map(|expert| visit.is_in_memory(next.store_layer, expert));
                    routing.cache_bias.look(&place.block, in_memory);
                }
                self.guess(engine, (place.layer, moe), (layer, next), routing);
                let stored = next.router.stored() as u32;
                let experts =
                    routing.guess.iter().map(|choice| choice.expert).filter(|&expert| expert < stored);
                visit.prefetch(next.store_layer, experts, Guess::Likely);
            }
            let Some(ready) = visit.next_ready(engine.team)? else { return Ok(()) };
            let mut work: ArrayVec<Work<'_>, EXPERTS_AT_ONCE> = ArrayVec::new();
            let mut work_rows = 0;
            for (index, record) in ready.iter() {
                let pairs = routing.pairs(index);
                if work.is_full() || work_rows + pairs.len() > rows.max(routing.top_k) {
                    self.experts(engine, moe, routing, rows, &work);
                    work.clear();
                    work_rows = 0;
                }
                work_rows += pairs.len();
                routing.computed.push(pairs.start as u32);
                work.push(Work { record, expert: routing.experts[index], pairs });
            }
            self.experts(engine, moe, routing, rows, &work);
        }
    }

    /// What a router that goes by token ids will choose for the first rows of the pass, each expert once.
    fn foresee(&self, routing: &mut Routing, table: TableHandle, top_k: usize) {
        let tokens = std::mem::take(&mut routing.tokens);
        routing.foresee(self.weights.table(table), top_k, &tokens[..tokens.len().min(BLOCK_ROWS)]);
        routing.tokens = tokens;
    }

    /// Asks for the experts of the first layer before anything is computed, where its router goes by token ids.
    pub(crate) fn ask_ahead(&mut self, engine: &mut ForwardEngine<'_, '_>) {
        let mut routing = self.take_routing();
        if let Some(moe) = self.spec.moe_blocks().next()
            && let Some(table) = moe.router.table
            && let Some(store) = engine.experts.as_deref_mut()
            && store.wants_prefetch(Guess::Certain)
        {
            self.foresee(&mut routing, table, moe.router.top_k);
            store.prefetch(moe.store_layer, routing.foreseen.iter().copied());
        }
        self.put_routing(routing);
    }

    /// Notes the token of every row of the pass, where a router goes by them.
    pub(crate) fn note_tokens<'a>(&mut self, tokens: impl Iterator<Item = &'a [u32]>) {
        if self.spec.moe_blocks().any(|moe| moe.router.table.is_some()) {
            let noted = &mut self.routing_mut().tokens;
            noted.clear();
            tokens.for_each(|tokens| noted.extend_from_slice(tokens));
        }
    }

    /// The next layer with routed experts.
    fn next_mixture(&self, layer: usize) -> Option<(usize, &MoeSpec)> {
        let later = self.spec.layers.iter().enumerate().skip(layer + 1);
        later.into_iter().find_map(|(layer, spec)| Some((layer, spec.feed_forward.mixture()?)))
    }

    /// What the router of a later layer would choose if nothing were added to the hidden state of the single row but what
    /// is computed of this layer, `current`: mostly what it does choose, because every layer adds little to the residual stream.
    fn guess(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        (current_layer, current): (usize, &MoeSpec),
        (layer, moe): (usize, &MoeSpec),
        routing: &mut Routing,
    ) {
        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        let norm = self.spec.layers[layer].feed_forward_norm;
        let Scratch { residual, input, block_out, pairs, guess, .. } = &mut *engine.scratch;
        let row = &mut guess.as_mut_slice_of::<f32>()[..hidden];
        // The next norm takes any common factor out.
        let (stream, added) = match &self.spec.normed_stream {
            None => (&residual.as_slice_of::<f32>()[..hidden], self.spec.residual_scale),
            Some(NormedStream { feed_forward: StreamFactors { kept, added }, .. }) => {
                (&*input.floats_mut(hidden), added / kept)
            }
        };
        match self.spec.streams {
            None => row.copy_from_slice(stream),
            Some(_) => row.fill(0.0),
        }
        vector::scale_add(kernels, row, added, &block_out.as_slice_of::<f32>()[..hidden]);
        let results = pairs.as_slice_of::<f32>();
        for (choice, at) in routing.choices.iter().zip(&routing.grouped_at) {
            if routing.computed.contains(at) {
                let at = *at as usize * hidden;
                let weight = added * output_weight(current, choice);
                vector::scale_add(kernels, row, weight, &results[at..at + hidden]);
                self.add_down_bias(kernels, current, choice, row);
            }
        }
        self.guess_through_streams(engine, current_layer, layer);
        let Scratch { guess, gathered, router, .. } = &mut *engine.scratch;
        let row = &guess.as_slice_of::<f32>()[..hidden];
        // Free until the experts compute, and those of a single row do not gather.
        self.norm(team, kernels, norm, row, gathered);
        let logits = &mut router.as_mut_slice_of::<f32>()[..moe.router.experts];
        let weights = self.weights.matrix(moe.router.weight);
        matmul(team, kernels, &mut [MatmulJob::new(weights, gathered.rows(0, 1, hidden), &mut *logits)]);
        self.add_router_bias(team, &moe.router, logits);
        let bias = moe.router.choice_bias.map(|bias| self.weights.vector(bias));
        routing.guess(team, kernels, &moe.router, bias, logits);
    }

    /// The shared expert of the prepared input into `block_out`.
    fn shared_expert(&self, engine: &mut ForwardEngine<'_, '_>, shared: &SharedExpertSpec, rows: usize) {
        self.gated(engine, &shared.feed_forward, rows);
        let Some(gate) = shared.gate else { return };
        let hidden = self.spec.hidden;
        let Scratch { input, up: factors, block_out, .. } = &mut *engine.scratch;
        let factors = &mut factors.as_mut_slice_of::<f32>()[..rows];
        let weights = self.weights.matrix(gate);
        let input = input.rows(0, rows, hidden);
        matmul(engine.team, engine.kernels, &mut [MatmulJob::new(weights, input, &mut *factors)]);
        vector::sigmoid(engine.kernels, factors);
        for (row, factor) in block_out.as_mut_slice_of::<f32>().chunks_exact_mut(hidden).zip(factors) {
            row.iter_mut().for_each(|value| *value *= *factor);
        }
    }

    /// Computes the experts in `work` for their rows, results into `pairs`.
    fn experts(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        moe: &MoeSpec,
        routing: &Routing,
        rows: usize,
        work: &[Work<'_>],
    ) {
        let (hidden, width) = (self.spec.hidden, moe.width);
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, gathered, up, inner, pairs, .. } = &mut *engine.scratch;
        let total: usize = work.iter().map(|work| work.pairs.len()).sum();
        // A single row is the same input for every expert, unless it is weighed.
        let single = rows == 1 && !moe.weigh_input;
        let rotations = &moe.rotations;
        let total_inputs = if single { 1 } else { total };
        if single && rotations.input.is_some() {
            gathered.gather(team, input, hidden, 0, &[0], true);
        }
        if !single {
            let mut at = 0;
            for Work { pairs, record, .. } in work {
                let floats = moe.weigh_input
                    || rotations.input.is_some()
                    || !(record.gate().format().takes_int8() && record.up().format().takes_int8());
                gathered.gather(team, input, hidden, at, &routing.row_of[pairs.clone()], floats);
                at += pairs.len();
            }
        }
        if moe.weigh_input {
            let places = work.iter().flat_map(|work| work.pairs.clone());
            let weights = places.map(|place| routing.weight_at(place));
            let rows = gathered.floats_mut(total * hidden).chunks_exact_mut(hidden);
            for (row, weight) in rows.zip(weights) {
                row.iter_mut().for_each(|value| *value *= weight);
            }
        }
        if let Some(rotation) = &rotations.input {
            rotation.apply(team, kernels, gathered.floats_mut(total_inputs * hidden), hidden);
        }
        if moe.weigh_input || rotations.input.is_some() {
            gathered.quantize(team, kernels, total_inputs, hidden);
        }
        let source = if single && rotations.input.is_none() { &*input } else { &*gathered };
        let mut up_left = &mut up.as_mut_slice_of::<f32>()[..total * width];
        let (mut result_left, mut blocks_left) = inner.parts_mut(total, width);
        let row_blocks = blocks_left.len() / total.max(1);
        let mut jobs: ArrayVec<GatedJob<'_>, EXPERTS_AT_ONCE> = ArrayVec::new();
        let mut at = 0;
        for Work { record, expert, pairs } in work {
            let count = pairs.len();
            let input = source.rows(if single { 0 } else { at }, count, hidden);
            let result = take_front(&mut result_left, count * width);
            let up = take_front(&mut up_left, count * width);
            let blocks = take_front(&mut blocks_left, count * row_blocks);
            let gate = record.gate().with_factor(self.factor_of(moe.factors.gate, *expert));
            let up_matrix = record.up().with_factor(self.factor_of(moe.factors.up, *expert));
            let job = GatedJob::new(gate, up_matrix, input, result, up, blocks);
            let job = job.with_activation(moe.activation);
            jobs.push(match moe.biases {
                None => job,
                Some(biases) => {
                    let of_expert = |all| self.of_expert(all, *expert, width);
                    job.with_biases(of_expert(biases.gate), of_expert(biases.up))
                }
            });
            at += count;
        }
        gated(team, kernels, &mut jobs);
        drop(jobs);
        if let Some(rotation) = &rotations.inner {
            rotation.apply(team, kernels, inner.floats_mut(total * width), width);
            inner.quantize(team, kernels, total, width);
        }

        let mut jobs: ArrayVec<MatmulJob<'_>, EXPERTS_AT_ONCE> = ArrayVec::new();
        let mut at = 0;
        let outputs = pairs.as_mut_slice_of::<f32>();
        for (Work { record, expert, pairs }, output) in work.iter().zip(disjoint(outputs, hidden, work)) {
            let input = inner.rows(at, pairs.len(), width);
            let down = record.down().with_factor(self.factor_of(moe.factors.down, *expert));
            jobs.push(MatmulJob::new(down, input, output));
            at += pairs.len();
        }
        matmul(team, kernels, &mut jobs);
    }

    /// `out += weight * bias of the down product`, where the expert has one.
    fn add_down_bias(&self, kernels: Kernels, moe: &MoeSpec, choice: &Choice, out: &mut [f32]) {
        if let Some(biases) = moe.biases {
            let bias = self.of_expert(biases.down, choice.expert, self.spec.hidden);
            vector::scale_add(kernels, out, output_weight(moe, choice), bias);
        }
    }

    /// `block_out += sum over ranks of weight * expert result`, in rank order; the result of an identity is the input.
    fn combine(&self, engine: &mut ForwardEngine<'_, '_>, moe: &MoeSpec, routing: &Routing, rows: usize) {
        let hidden = self.spec.hidden;
        let top_k = moe.router.top_k;
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { pairs, block_out, input, .. } = &mut *engine.scratch;
        let results = pairs.as_slice_of::<f32>();
        let inputs = input.floats(rows * hidden);
        let out = &mut block_out.as_mut_slice_of::<f32>()[..rows * hidden];
        let rows_per_part = rows_per_part(team, rows, hidden * top_k * size_of::<f32>());
        team.for_each_part_mut(out, rows_per_part * hidden, |part, out, _worker| {
            for (row, out) in out.chunks_exact_mut(hidden).enumerate() {
                let row = part * rows_per_part + row;
                for rank in row * top_k..(row + 1) * top_k {
                    let choice = &routing.choices[rank];
                    let weight = output_weight(moe, choice);
                    if choice.expert as usize >= moe.router.stored() {
                        vector::scale_add(kernels, out, weight, &inputs[row * hidden..][..hidden]);
                        continue;
                    }
                    let at = routing.grouped_at[rank] as usize * hidden;
                    vector::scale_add(kernels, out, weight, &results[at..at + hidden]);
                    self.add_down_bias(kernels, moe, choice, out);
                }
            }
        });
    }
}

/// What the result of a chosen expert is multiplied by.
fn output_weight(moe: &MoeSpec, choice: &Choice) -> f32 {
    if moe.weigh_input { 1.0 } else { choice.weight }
}

/// Takes the first `count` elements off a slice.
fn take_front<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let (front, rest) = std::mem::take(slice).split_at_mut(count);
    *slice = rest;
    front
}

/// The part of `outputs` that belongs to each piece of work. Pieces come in any order but never overlap.
fn disjoint<'a>(
    outputs: &'a mut [f32],
    hidden: usize,
    work: &[Work<'_>],
) -> ArrayVec<&'a mut [f32], EXPERTS_AT_ONCE> {
    let mut order: ArrayVec<usize, EXPERTS_AT_ONCE> = (0..work.len()).collect();
    order.sort_unstable_by_key(|&index| work[index].pairs.start);
    let mut parts: ArrayVec<(usize, &'a mut [f32]), EXPERTS_AT_ONCE> = ArrayVec::new();
    let mut rest = outputs;
    let mut consumed = 0;
    for index in order {
        let pairs = &work[index].pairs;
        let (_, from) = rest.split_at_mut((pairs.start - consumed) * hidden);
        let (part, after) = from.split_at_mut(pairs.len() * hidden);
        parts.push((index, part));
        rest = after;
        consumed = pairs.end;
    }
    parts.sort_unstable_by_key(|&(index, _)| index);
    parts.into_iter().map(|(_, part)| part).collect()
}
