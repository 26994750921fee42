//! How fast a plan would run: bands for the first token and for each token after it, from sizes and rates.
//!
//! A pure function: nothing is measured, read or remembered here (`forecast.rs` does that). Every rate is a band with an
//! origin, so whoever reads the result sees what was measured and what is only typical. The model of a token:
//!
//! ```text
//! missed  = (1 - hit rate) x bytes of the experts that a token uses
//! reading = missed / disk rate + a wait per layer that missed      arranging = missed / arrange rate (no pack)
//! computing = the longer of bytes used / memory rate and operations / int8 rate, and a cost per layer
//! fastest = the longer of reading and computing + arranging        slowest = their sum
//! ```
//!
//! A prompt is the same with more rows: the experts of a layer are read at most once per chunk.

use serde::Serialize;

/// Hit rate of decode under the default policy by the share of experts in memory, in steps of a tenth from none to all: the
/// lowest and the highest of five texts of one trained model (`docs/streaming.md`).
const HITS_LOWEST: [f64; 11] = [0.0, 0.23, 0.37, 0.51, 0.61, 0.70, 0.78, 0.85, 0.91, 0.97, 1.0];
const HITS_HIGHEST: [f64; 11] = [0.0, 0.34, 0.52, 0.65, 0.76, 0.84, 0.89, 0.93, 0.96, 0.99, 1.0];
/// Other models and texts lie this far outside of the curves, as they are known.
const HITS_MARGIN: f64 = 0.08;
/// The same for a hit rate that was measured for this model at another time.
const HITS_MARGIN_MEASURED: f64 = 0.04;
/// Kernels and whatever else runs reach at least this part of the memory rate.
const MEMORY_SHARE_MIN: f64 = 0.45;
/// Kernels reach at least this part of the int8 rate where they have many rows.
const INT8_SHARE_MIN: f64 = 0.25;
/// Attention scores run in f32: this part of the int8 rate.
const ATTENTION_SHARE: f64 = 1.0 / 16.0;
/// Starting and joining the threads for the operations of a layer, in seconds.
const LAYER_SECONDS: [f64; 2] = [10e-6, 120e-6];
/// Memory of slots is found by the system when it is first touched, bytes per second.
const FIRST_TOUCH_RATE: [f64; 2] = [1.5e9, 8e9];
/// Rows that pass a layer together; where a layer's experts do not fit the slots they are read again for the next ones.
const BLOCK_ROWS: f64 = 512.0;
/// Tokens of an English word.
pub const TOKENS_PER_WORD: f64 = 1.33;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Measured on this machine or for this model.
    Measured,
    /// Typical; nobody looked.
    Assumed,
    /// The caller said so.
    Given,
}

impl Origin {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Assumed => "assumed",
            Self::Given => "given",
        }
    }
}

/// The smallest and the largest value that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// Smallest.
    pub low: f64,
    /// Largest, not below `low`.
    pub high: f64,
}

impl Band {
    /// Both ends, in either order.
    pub fn new(one: f64, other: f64) -> Self {
        Self { low: one.min(other), high: one.max(other) }
    }

    /// A single value.
    pub fn exactly(value: f64) -> Self {
        Self { low: value, high: value }
    }

    /// What to name where one figure is wanted: the geometric mean, because the causes multiply.
    pub fn about(&self) -> f64 {
        if self.low > 0.0 { (self.low * self.high).sqrt() } else { (self.low + self.high) / 2.0 }
    }

    /// Whether `value` lies between the ends.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    fn inverse(self) -> Self {
        Self::new(1.0 / self.low.max(1e-12), 1.0 / self.high.max(1e-12))
    }
}

/// A figure that a prediction rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Its band.
    #[serde(flatten)]
    pub band: Band,
    /// Where it comes from.
    pub origin: Origin,
    /// What exactly was measured or assumed.
    pub basis: String,
}

impl Estimate {
    /// A figure with its origin.
    pub fn new(band: Band, origin: Origin, basis: impl Into<String>) -> Self {
        Self { band, origin, basis: basis.into() }
    }
}

/// The share of requests that find their expert in memory, as the curves of one trained model have it.
pub fn assumed_hit_rate(share: f64) -> Estimate {
    let low = (curve(&HITS_LOWEST, share) - HITS_MARGIN).max(share.clamp(0.0, 1.0));
    let band = Band::new(low.min(1.0), (curve(&HITS_HIGHEST, share) + HITS_MARGIN).min(1.0));
    let band = if share >= 1.0 { Band::exactly(1.0) } else { band };
    Estimate::new(
        band,
        Origin::Assumed,
        "the curves of one trained model; `coldpress tune` measures this model",
    )
}

/// The same where `tune` measured `hit_rate` for this model with the share `measured_share` of its experts in memory: the place
/// between the curves stays what it was there.
pub fn measured_hit_rate(share: f64, measured_share: f64, hit_rate: f64) -> Estimate {
    let span = |share: f64| (curve(&HITS_LOWEST, share), curve(&HITS_HIGHEST, share));
    let (low, high) = span(measured_share);
    let place = ((hit_rate - low) / (high - low).max(0.01)).clamp(-2.0, 3.0);
    let (low, high) = span(share);
    let hits = low + place * (high - low);
    let clamp = |hits: f64| hits.clamp(0.0, 1.0);
    let band = Band::new(clamp(hits - HITS_MARGIN_MEASURED), clamp(hits + HITS_MARGIN_MEASURED));
    let band = if share >= 1.0 { Band::exactly(1.0) } else { band };
    let basis = format!(
        "{:.0}% of hits with {:.0}% of the experts in memory, by `tune`, carried over to {:.0}%",
        100.0 * hit_rate,
        100.0 * measured_share,
        100.0 * share
    );
    Estimate::new(band, Origin::Measured, basis)
}

/// A curve at any share, 0 to 1.
fn curve(points: &[f64; 11], share: f64) -> f64 {
    let place = if share.is_finite() { share.clamp(0.0, 1.0) * 10.0 } else { 0.0 };
    let first = (place.floor() as usize).min(9);
    points[first] + (place - first as f64) * (points[first + 1] - points[first])
}

/// Rates of a machine. All in bytes per second unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Random reads of an expert.
    pub disk: Estimate,
    /// What a read waits beyond that rate, in seconds.
    pub disk_wait: Estimate,
    /// Plain reads of memory by all threads.
    pub memory: Estimate,
    /// Int8 multiplications and additions per second, all threads.
    pub int8: Estimate,
    /// Making records of what was read from the model file.
    pub arrange: Estimate,
}

/// What a prediction depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictInput {
    /// Decoder layers.
    pub layers: u64,
    /// Of them with routed experts.
    pub moe_layers: u64,
    /// Routed experts of the model.
    pub records: u64,
    /// Of them in memory at the same time.
    pub slots: u64,
    /// Experts of one token, over all layers.
    pub experts_per_token: u64,
    /// Bytes of one expert.
    pub record_bytes: f64,
    /// Dense weights that one token uses.
    pub dense_bytes: f64,
    /// KV cache of one position.
    pub kv_bytes_per_position: f64,
    /// Weights that one token is multiplied with, head left out.
    pub weights_per_token: f64,
    /// Weights of the head.
    pub head_weights: f64,
    /// Query elements of one token, over all layers.
    pub query_elements: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub answer_tokens: u64,
    /// Prompt tokens that pass a layer together.
    pub chunk_tokens: u64,
    /// Whether experts lie in a pack, so that nothing has to be arranged.
    pub packed: bool,
    /// Share of requests that hit in decode.
    pub hit_rate: Estimate,
    /// The machine.
    pub rates: Rates,
}

/// What decides a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Reading missed experts.
    Disk,
    /// Everything that the processor and its memory do.
    Computing,
}

/// One part of a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// `reading`, `arranging`, `computing` or `first_touch`.
    pub name: &'static str,
    /// Seconds.
    pub seconds: Band,
    /// The least certain of the figures that it rests on.
    pub origin: Origin,
}

/// A speed and what it consists of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Seconds: of one token in decode, until the first token for a prompt.
    pub seconds: Band,
    /// Tokens per second.
    pub tokens_per_second: Band,
    /// Bytes of experts read: per token in decode, in all for a prompt.
    pub read_bytes: Band,
    /// The parts.
    pub terms: Vec<Term>,
    /// What decides.
    pub bottleneck: Bottleneck,
}

/// Bands for a run that starts with nothing in memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Tokens of the prompt that it is about.
    pub prompt_tokens: u64,
    /// Tokens of the answer that it is about.
    pub answer_tokens: u64,
    /// The prompt.
    pub prefill: Stage,
    /// Each token after it.
    pub decode: Stage,
    /// Both: seconds until the answer is complete.
    pub answer_seconds: Band,
    /// Share of requests that hit in decode.
    pub hit_rate: Estimate,
    /// The rates that it rests on.
    pub rates: Rates,
}

/// Predicts how fast a plan runs.
pub fn predict(input: &PredictInput) -> Prediction {
    let (prefill, decode) = (prefill(input), decode(input));
    let further = input.answer_tokens.saturating_sub(1) as f64;
    let answer_seconds = Band {
        low: prefill.seconds.low + further * decode.seconds.low,
        high: prefill.seconds.high + further * decode.seconds.high,
    };
    Prediction {
        prompt_tokens: input.prompt_tokens,
        answer_tokens: input.answer_tokens,
        prefill,
        decode,
        answer_seconds,
        hit_rate: input.hit_rate.clone(),
        rates: input.rates.clone(),
    }
}

fn is_resident(input: &PredictInput) -> bool {
    input.slots >= input.records
}

/// One token in the middle of the answer.
fn decode(input: &PredictInput) -> Stage {
    let rates = &input.rates;
    let used = input.experts_per_token as f64 * input.record_bytes;
    let misses = |hits: f64| if is_resident(input) { 0.0 } else { 1.0 - hits };
    let (few, many) = (misses(input.hit_rate.band.high), misses(input.hit_rate.band.low));
    let read = Band::new(few * used, many * used);
    let per_layer = input.experts_per_token as f64 / input.moe_layers.max(1) as f64;
    // A layer waits when one of its experts is missing.
    let waits = |misses: f64| input.moe_layers as f64 * (1.0 - (1.0 - misses).powf(per_layer));
    let reading = Band::new(
        read.low / rates.disk.band.high + waits(few) * rates.disk_wait.band.low,
        read.high / rates.disk.band.low + waits(many) * rates.disk_wait.band.high,
    );
    let position = input.prompt_tokens as f64 + input.answer_tokens as f64 / 2.0;
    let bytes = input.dense_bytes + used + position * input.kv_bytes_per_position;
    let operations = 2.0 * (input.weights_per_token + input.head_weights);
    let [least, most] = LAYER_SECONDS.map(|seconds| seconds * input.layers as f64);
    let computing = Band::new(
        (bytes / rates.memory.band.high).max(operations / rates.int8.band.high) + least,
        (bytes / (rates.memory.band.low * MEMORY_SHARE_MIN))
            .max(operations / (rates.int8.band.low * INT8_SHARE_MIN))
            + most,
    );
    let arranging = arranging(input, read);
    stage(input, 1.0, read, [reading, arranging, computing, Band::exactly(0.0)])
}

/// The whole prompt, nothing in memory before.
fn prefill(input: &PredictInput) -> Stage {
    let rates = &input.rates;
    let tokens = input.prompt_tokens as f64;
    let chunk = input.chunk_tokens.clamp(1, input.prompt_tokens.max(1)) as f64;
    let chunks = (tokens / chunk).ceil().max(1.0);
    let layers = input.moe_layers.max(1) as f64;
    let (experts, top_k) = (input.records as f64 / layers, input.experts_per_token as f64 / layers);
    // Distinct experts that a chunk asks of a layer: routers agree for neighbours, so chance is the upper end.
    let by_chance =
        if experts > 0.0 { experts * (1.0 - (1.0 - (top_k / experts).min(1.0)).powf(chunk)) } else { 0.0 };
    let distinct = Band::new((by_chance * 0.6).max(top_k.min(experts)), by_chance.max(top_k.min(experts)));
    let chunk_bytes = |distinct: f64| distinct * input.moe_layers as f64 * input.record_bytes;
    let (used_low, used_high) = (chunk_bytes(distinct.low), chunk_bytes(distinct.high));
    // A layer that does not fit the slots is read once per block of rows.
    let again = if (input.slots as f64) < experts { (chunk / BLOCK_ROWS).ceil().max(1.0) } else { 1.0 };
    let kept = input.slots as f64 * input.record_bytes;
    let read = if is_resident(input) {
        Band::exactly(0.0)
    } else {
        let low = used_low + (chunks - 1.0) * (used_low - kept).max(0.0);
        Band::new(low, used_high * chunks * again)
    };
    let waits = if is_resident(input) { 0.0 } else { layers * chunks };
    let reading = Band::new(
        read.low / rates.disk.band.high + waits * rates.disk_wait.band.low,
        read.high / rates.disk.band.low + waits * rates.disk_wait.band.high,
    );
    let operations = 2.0 * (input.weights_per_token * tokens + input.head_weights);
    // Scores and weighted values: each pair of positions costs two multiplications and two additions per element.
    let attention = 4.0 * input.query_elements * tokens * tokens / 2.0;
    let weights = |used: f64| chunks * (input.dense_bytes + used);
    let [least, most] = LAYER_SECONDS.map(|seconds| seconds * input.layers as f64 * chunks);
    let computing = Band::new(
        (operations / rates.int8.band.high).max(weights(used_low) / rates.memory.band.high) + least,
        operations / (rates.int8.band.low * INT8_SHARE_MIN)
            + attention / (rates.int8.band.low * ATTENTION_SHARE)
            + weights(used_high) / (rates.memory.band.low * MEMORY_SHARE_MIN)
            + most,
    );
    let touched = kept.min(read.high);
    let [slow, fast] = FIRST_TOUCH_RATE;
    let first_touch = Band::new(touched.min(read.low) / fast, touched / slow);
    let arranging = arranging(input, read);
    stage(input, tokens, read, [reading, arranging, computing, first_touch])
}

fn arranging(input: &PredictInput, read: Band) -> Band {
    if input.packed {
        return Band::exactly(0.0);
    }
    let rate = input.rates.arrange.band;
    Band::new(read.low / rate.high, read.high / rate.low)
}

/// Puts the parts of a time together.
fn stage(
    input: &PredictInput,
    tokens: f64,
    read: Band,
    [reading, arranging, computing, first_touch]: [Band; 4],
) -> Stage {
    let working =
        Band { low: computing.low + arranging.low, high: computing.high + arranging.high + first_touch.high };
    let seconds = Band { low: working.low.max(reading.low), high: working.high + reading.high };
    let rates = &input.rates;
    let hits = input.hit_rate.origin;
    let parts = [
        ("reading", reading, [rates.disk.origin, hits]),
        ("arranging", arranging, [rates.arrange.origin, hits]),
        ("computing", computing, [rates.memory.origin, rates.int8.origin]),
        ("first_touch", first_touch, [Origin::Assumed; 2]),
    ];
    let terms = parts
        .into_iter()
        .filter(|(_, seconds, _)| seconds.high > 0.0)
        .map(|(name, seconds, origins)| Term { name, seconds, origin: least_certain(origins) });
    Stage {
        seconds,
        tokens_per_second: Band {
            low: tokens * seconds.inverse().low,
            high: tokens * seconds.inverse().high,
        },
        read_bytes: read,
        terms: terms.collect(),
        bottleneck: if reading.about() > working.about() { Bottleneck::Disk } else { Bottleneck::Computing },
    }
}

fn least_certain(origins: [Origin; 2]) -> Origin {
    let certainty = |origin: &Origin| match origin {
        Origin::Assumed => 0,
        Origin::Measured => 1,
        Origin::Given => 2,
    };
    origins.into_iter().min_by_key(certainty).unwrap_or(Origin::Assumed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(value: f64) -> Estimate {
        Estimate::new(Band::exactly(value), Origin::Given, "test")
    }

    /// 12 layers of 64 experts of 5 MB, 8 per token, on a machine of round figures.
    fn input() -> PredictInput {
        PredictInput {
            layers: 12,
            moe_layers: 12,
            records: 768,
            slots: 192,
            experts_per_token: 96,
            record_bytes: 5e6,
            dense_bytes: 60e6,
            kv_bytes_per_position: 6000.0,
            weights_per_token: 480e6,
            head_weights: 4e6,
            query_elements: 3072.0,
            prompt_tokens: 512,
            answer_tokens: 256,
            chunk_tokens: 512,
            packed: true,
            hit_rate: given(0.5),
            rates: Rates {
                disk: given(1e9),
                disk_wait: given(0.0),
                memory: given(40e9),
                int8: given(900e9),
                arrange: given(4e9),
            },
        }
    }

    #[test]
    fn decode_lies_between_the_longer_part_and_the_sum() {
        let stage = predict(&input()).decode;
        // 96 experts of 5 MB, half of them missed, at 1 GB/s; 541.6 MB used + 640 positions of KV at 40 GB/s.
        let reading = 0.5 * 96.0 * 5e6 / 1e9;
        assert_eq!(stage.read_bytes, Band::exactly(0.5 * 96.0 * 5e6));
        assert_eq!(stage.seconds.low, reading);
        assert!(stage.seconds.high > reading + (540e6 + 640.0 * 6000.0) / 40e9, "{stage:?}");
        assert!((stage.tokens_per_second.high - 1.0 / stage.seconds.low).abs() < 1e-9);
        assert_eq!(stage.bottleneck, Bottleneck::Disk);
        let names: Vec<&str> = stage.terms.iter().map(|term| term.name).collect();
        assert_eq!(names, ["reading", "computing"]);
    }

    #[test]
    fn a_faster_disk_more_slots_and_a_pack_help_and_residency_reads_nothing() {
        let about = |input: &PredictInput| predict(input).decode.tokens_per_second.about();
        let base = about(&input());
        let mut faster = input();
        faster.rates.disk = given(3e9);
        assert!(about(&faster) > base);
        let unpacked = PredictInput { packed: false, ..input() };
        assert!(about(&unpacked) < base);
        assert!(predict(&unpacked).decode.terms.iter().any(|term| term.name == "arranging"));
        let resident = predict(&PredictInput { slots: 768, hit_rate: assumed_hit_rate(1.0), ..input() });
        for stage in [resident.decode, resident.prefill] {
            assert_eq!(stage.read_bytes, Band::exactly(0.0));
            assert_eq!((stage.terms.len(), stage.bottleneck), (1, Bottleneck::Computing));
        }
    }

    #[test]
    fn a_prompt_reads_an_expert_once_per_chunk_at_most() {
        let all = 768.0 * 5e6;
        let one = predict(&input()).prefill.read_bytes;
        assert!(one.high <= all && one.high > 0.99 * all, "{one:?}");
        let four = PredictInput { prompt_tokens: 2048, ..input() };
        assert!(predict(&four).prefill.read_bytes.high <= 4.0 * all);
        let single = PredictInput { prompt_tokens: 1, chunk_tokens: 1, ..input() };
        let read = predict(&single).prefill.read_bytes;
        assert!((read.high - 96.0 * 5e6).abs() < 1.0, "a single token reads its own experts: {read:?}");
    }

    #[test]
    fn the_curves_rise_and_end_where_everything_fits() {
        let mut before = Band::exactly(0.0);
        for step in 0..=100 {
            let now = assumed_hit_rate(f64::from(step) / 100.0).band;
            assert!(now.low >= before.low && now.high >= before.high, "{step}");
            assert!(
                (0.0..=1.0).contains(&now.low) && now.high <= 1.0 && now.low <= now.high,
                "{step}: {now:?}"
            );
            before = now;
        }
        assert_eq!(before, Band::exactly(1.0));
        // What was measured comes out where it was measured.
        let same = measured_hit_rate(0.25, 0.25, 0.52);
        assert!((same.band.about() - 0.52).abs() < 0.01, "{same:?}");
        assert_eq!(same.origin, Origin::Measured);
        assert!(measured_hit_rate(0.5, 0.25, 0.52).band.low > same.band.high);
    }

    #[test]
    fn no_figure_is_ever_not_a_number() {
        let extremes = [0.0, 1.0, 1e-300, 1e300, f64::INFINITY, f64::NAN];
        for value in extremes {
            for hits in [assumed_hit_rate(value), measured_hit_rate(value, value, value)] {
                assert!(
                    value.is_nan() || (hits.band.low.is_finite() && hits.band.high.is_finite()),
                    "{hits:?}"
                );
            }
        }
        for count in [0, 1, u64::MAX] {
            let mut odd =
                PredictInput { records: count, slots: 0, moe_layers: count.min(1 << 20), ..input() };
            (odd.prompt_tokens, odd.answer_tokens, odd.chunk_tokens) = (count, count, count);
            let prediction = predict(&odd);
            for stage in [&prediction.decode, &prediction.prefill] {
                for figure in [stage.seconds, stage.tokens_per_second, stage.read_bytes] {
                    assert!(figure.low.is_finite() && figure.high.is_finite(), "{count}: {stage:?}");
                    assert!(figure.low <= figure.high && figure.low >= 0.0, "{count}: {stage:?}");
                }
            }
        }
    }
}
