//! Several residual streams (hyper-connections): how the halves of layers read them and what they leave in them.
//!
//! A model of `count` streams carries `[rows, count, hidden]` from layer to layer. Before a half, a [`StreamMixer`] makes one
//! row `[hidden]` of them and keeps per row what it needs to put the result back; after it, the result goes into every stream.
//! A row's streams depend on that row alone. A model with one plain stream has no [`StreamsSpec`] and pays nothing.
//! Refuses: knowing what a half computes. Next: `forward.rs` (who calls it), `sinkhorn.rs` (the mixer of DeepSeek-V4).

use std::ops::Range;

use coldpress_kernels::{InputRows, Kernels, MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model};
use crate::low_rank_mixer::{LowRankMixer, LowRankScratch};
use crate::scratch::{Need, Scratch, rows_per_part, scratch_buffer};
use crate::sinkhorn::{SigmoidMixer, SinkhornMixer};
use crate::spec::{ModelSpec, NormSpec};

/// Most streams of a model.
pub const STREAMS_MAX: usize = 8;

/// The residual streams of a model.
#[derive(Clone, Debug)]
pub struct StreamsSpec {
    /// Streams, from 2 to [`STREAMS_MAX`].
    pub count: usize,
    /// Per layer the mixers around attention and around the feed-forward block.
    pub layers: Vec<[StreamMixer; 2]>,
    /// Makes one row of the streams before the output norm.
    pub head: StreamMixer,
}

/// How one row is made of the streams, and how a result goes into them.
#[derive(Clone, Copy, Debug)]
pub enum StreamMixer {
    /// Weights of a sum, factors on the result, and a doubly stochastic matrix on the streams (`sinkhorn.rs`).
    Sinkhorn(SinkhornMixer),
    /// Weights of a sum; nothing is put back.
    Sigmoid(SigmoidMixer),
    /// A weight per element, and factors on the result (`low_rank_mixer.rs`).
    LowRank(LowRankMixer),
}

/// The halves of a layer, as indices into [`StreamsSpec::layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Attention = 0,
    FeedForward = 1,
}

impl StreamMixer {
    /// Numbers that a row's mixing takes: the products that it begins with, then what putting back needs.
    fn numbers(&self, streams: usize) -> usize {
        match self {
            Self::Sinkhorn(_) => SinkhornMixer::numbers(streams),
            Self::Sigmoid(_) | Self::LowRank(_) => streams,
        }
    }
}

/// Sizes of the buffers of [`StreamScratch`].
#[derive(Clone, Copy)]
pub(crate) struct StreamNeeds {
    mixed: Need,
    numbers: Need,
    guess: Need,
    low_rank: Option<[Need; 3]>,
}

impl StreamNeeds {
    /// `None` for a model with one plain stream.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let streams = spec.streams.as_ref()?;
        let mixers = streams.layers.iter().flatten().chain([&streams.head]);
        let numbers = mixers.map(|mixer| mixer.numbers(streams.count)).max().unwrap_or(0);
        let mixers = streams.layers.iter().flatten().chain([&streams.head]);
        let rank = mixers.filter_map(|mixer| match mixer {
            StreamMixer::LowRank(mixer) => Some(mixer.rank),
            _ => None,
        });
        let float = size_of::<f32>();
        Some(Self {
            low_rank: rank.max().map(|rank| LowRankScratch::needs(streams.count * spec.hidden, rank)),
            mixed: Need::block_rows(spec.hidden * float),
            numbers: Need::block_rows(numbers * float),
            guess: Need::fixed((streams.count * spec.hidden + numbers) * float),
        })
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        [self.mixed, self.numbers, self.guess].into_iter().chain(self.low_rank.into_iter().flatten())
    }
}

/// What lies between reading the streams and putting a result back.
pub(crate) struct StreamScratch {
    /// What the current half reads [rows of a block, hidden].
    mixed: Buffer,
    /// What putting its result back needs [rows of a block, numbers of the mixer].
    numbers: Buffer,
    /// Streams of a single row as they will probably be, and the numbers of mixing them.
    guess: Buffer,
    low_rank: Option<LowRankScratch>,
}

impl StreamScratch {
    pub fn new(ledger: &Ledger, needs: StreamNeeds, rows: usize) -> Result<Self, ModelError> {
        let plain = |need: Need| scratch_buffer(ledger, need, rows);
        Ok(Self {
            mixed: plain(needs.mixed)?,
            numbers: plain(needs.numbers)?,
            guess: plain(needs.guess)?,
            low_rank: needs.low_rank.map(|needs| LowRankScratch::new(ledger, needs)).transpose()?,
        })
    }
}

/// What mixing computes with besides the mixer itself.
struct Mixing<'a, 'team> {
    model: &'a Model,
    team: &'a Team<'team>,
    kernels: Kernels,
    count: usize,
}

impl Mixing<'_, '_> {
    /// One row of each row's streams into `mixed`; `numbers` keeps what [`Mixing::put`] needs.
    fn take(
        &self,
        mixer: &StreamMixer,
        low_rank: &mut Option<LowRankScratch>,
        streams: &[f32],
        mixed: &mut [f32],
        numbers: &mut [f32],
    ) {
        let Self { model, team, kernels, count } = *self;
        let hidden = model.spec.hidden;
        let epsilon = model.spec.norm_epsilon;
        let width = mixer.numbers(count);
        let weight = match mixer {
            StreamMixer::Sinkhorn(mixer) => mixer.weight,
            StreamMixer::Sigmoid(mixer) => mixer.weight,
            StreamMixer::LowRank(mixer) => {
                let scratch = low_rank.as_mut().expect("a model with such mixers has their scratch");
                let weights = (&model.weights, epsilon);
                return mixer.take((team, kernels), weights, scratch, streams, mixed, numbers);
            }
        };
        let weights = model.weights.matrix(weight);
        let input = InputRows::from_floats(count * hidden, streams);
        matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut *numbers)]);
        let per_part =
            rows_per_part(team, streams.len() / (count * hidden), count * hidden * size_of::<f32>());
        team.for_each_part_mut(numbers, per_part * width, |part, numbers, _worker| {
            let streams = streams[part * per_part * count * hidden..].chunks_exact(count * hidden);
            for (numbers, streams) in numbers.chunks_exact_mut(width).zip(streams) {
                match mixer {
                    StreamMixer::Sinkhorn(mixer) => {
                        mixer.weigh(&model.weights, count, epsilon, streams, numbers);
                    }
                    StreamMixer::Sigmoid(mixer) => {
                        mixer.weigh(&model.weights, epsilon, streams, numbers);
                    }
                    StreamMixer::LowRank(_) => {}
                }
            }
        });
        let numbers = &*numbers;
        team.for_each_part_mut(mixed, per_part * hidden, |part, mixed, _worker| {
            for (row, mixed) in mixed.chunks_exact_mut(hidden).enumerate() {
                let row = part * per_part + row;
                let streams = &streams[row * count * hidden..][..count * hidden];
                sum_of_streams(&numbers[row * width..][..count], streams, mixed);
            }
        });
    }

    /// Puts `results` of a half into the streams.
    fn put(&self, mixer: &StreamMixer, numbers: &[f32], results: &[f32], streams: &mut [f32]) {
        let (hidden, count) = (self.model.spec.hidden, self.count);
        let width = mixer.numbers(count);
        let rows = streams.len() / (count * hidden);
        let per_part = rows_per_part(self.team, rows, count * hidden * size_of::<f32>());
        self.team.for_each_part_mut(streams, per_part * count * hidden, |part, streams, _worker| {
            for (row, streams) in streams.chunks_exact_mut(count * hidden).enumerate() {
                let row = part * per_part + row;
                let result = &results[row * hidden..][..hidden];
                match mixer {
                    StreamMixer::Sinkhorn(_) => {
                        SinkhornMixer::put(&numbers[row * width..][..width], result, streams);
                    }
                    StreamMixer::LowRank(_) => {
                        LowRankMixer::put(&numbers[row * width..][..width], result, streams);
                    }
                    StreamMixer::Sigmoid(_) => {}
                }
            }
        });
    }
}

/// `mixed = sum over streams of weight * stream`, in the order of the streams.
fn sum_of_streams(weights: &[f32], streams: &[f32], mixed: &mut [f32]) {
    mixed.fill(0.0);
    for (weight, stream) in weights.iter().zip(streams.chunks_exact(mixed.len())) {
        mixed.iter_mut().zip(stream).for_each(|(mixed, value)| *mixed += weight * value);
    }
}

impl Model {
    /// Elements that a row carries from layer to layer.
    pub(crate) fn carried(&self) -> usize {
        self.spec.hidden * self.spec.streams.as_ref().map_or(1, |streams| streams.count)
    }

    fn mixing<'a, 'team>(
        &'a self,
        team: &'a Team<'team>,
        kernels: Kernels,
        count: usize,
    ) -> Mixing<'a, 'team> {
        Mixing { model: self, team, kernels, count }
    }

    /// Makes one row of the streams of every row of a block, for a half of a layer.
    pub(crate) fn take_from_streams(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        half: Half,
        block: &Range<usize>,
    ) {
        let Some(streams) = &self.spec.streams else { return };
        self.mix_rows(engine, &streams.layers[layer][half as usize], streams.count, block);
    }

    /// As [`Model::take_from_streams`], before the output norm.
    pub(crate) fn take_for_head(&self, engine: &mut ForwardEngine<'_, '_>, rows: &Range<usize>) {
        let Some(streams) = &self.spec.streams else { return };
        self.mix_rows(engine, &streams.head, streams.count, rows);
    }

    fn mix_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        mixer: &StreamMixer,
        count: usize,
        rows: &Range<usize>,
    ) {
        let (hidden, carried) = (self.spec.hidden, self.carried());
        let Scratch { residual, streams: scratch, .. } = &mut *engine.scratch;
        let scratch = scratch.as_mut().expect("a model of several streams has their scratch");
        self.mixing(engine.team, engine.kernels, count).take(
            mixer,
            &mut scratch.low_rank,
            &residual.as_slice_of::<f32>()[rows.start * carried..rows.end * carried],
            &mut scratch.mixed.as_mut_slice_of::<f32>()[..rows.len() * hidden],
            &mut scratch.numbers.as_mut_slice_of::<f32>()[..rows.len() * mixer.numbers(count)],
        );
    }

    /// The norm of what a half of a layer reads, for rows `first..first + count` of `block`, into [`Scratch::input`] from row 0 on.
    pub(crate) fn norm_half(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        norm: NormSpec,
        block: &Range<usize>,
        rows: &Range<usize>,
    ) {
        let hidden = self.spec.hidden;
        let Scratch { residual, input, streams, .. } = &mut *engine.scratch;
        let read = match streams {
            None => &residual.as_slice_of::<f32>()[rows.start * hidden..rows.end * hidden],
            Some(streams) => {
                let rows = rows.start - block.start..rows.end - block.start;
                &streams.mixed.as_slice_of::<f32>()[rows.start * hidden..rows.end * hidden]
            }
        };
        self.norm(engine.team, engine.kernels, norm, read, input);
    }

    /// Puts the result of a half of a layer, in [`Scratch::block_out`], into the streams of the rows of a block. `false` for a
    /// model with one plain stream.
    pub(crate) fn put_into_streams(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        half: Half,
        block: &Range<usize>,
    ) -> bool {
        let Some(streams) = &self.spec.streams else { return false };
        let mixer = &streams.layers[layer][half as usize];
        let (hidden, carried) = (self.spec.hidden, self.carried());
        let Scratch { residual, block_out, streams: scratch, .. } = &mut *engine.scratch;
        let scratch = scratch.as_mut().expect("a model of several streams has their scratch");
        self.mixing(engine.team, engine.kernels, streams.count).put(
            mixer,
            &scratch.numbers.as_slice_of::<f32>()[..block.len() * mixer.numbers(streams.count)],
            &block_out.as_slice_of::<f32>()[..block.len() * hidden],
            &mut residual.as_mut_slice_of::<f32>()[block.start * carried..block.end * carried],
        );
        true
    }

    /// What the feed-forward block of layer `later` would read of a single row if the one of `layer` added the result in the guess
    /// buffer and nothing else came between; it takes the place of that result.
    pub(crate) fn guess_through_streams(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        later: usize,
    ) {
        let Some(streams) = &self.spec.streams else { return };
        let (hidden, carried) = (self.spec.hidden, self.carried());
        let Scratch { residual, guess, streams: scratch, .. } = &mut *engine.scratch;
        let scratch = scratch.as_mut().expect("a model of several streams has their scratch");
        let [of_layer, of_later] =
            [layer, later].map(|layer| &streams.layers[layer][Half::FeedForward as usize]);
        let (copy, numbers) = scratch.guess.as_mut_slice_of::<f32>().split_at_mut(carried);
        copy.copy_from_slice(&residual.as_slice_of::<f32>()[..carried]);
        let row = &mut guess.as_mut_slice_of::<f32>()[..hidden];
        let mixing = self.mixing(engine.team, engine.kernels, streams.count);
        let taken = &scratch.numbers.as_slice_of::<f32>()[..of_layer.numbers(streams.count)];
        mixing.put(of_layer, taken, row, copy);
        mixing.take(
            of_later,
            &mut scratch.low_rank,
            copy,
            row,
            &mut numbers[..of_later.numbers(streams.count)],
        );
    }
}
