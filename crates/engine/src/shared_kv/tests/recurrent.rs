//! A model with recurrent layers gives the bits of a straight run, however its sequences are cut, forked, taken back and batched.
//!
//! What could go wrong: a state that belongs to another length or another sequence, one that a failed or left pass has advanced, a
//! kept state that is written later, a slot that nobody has and that is not free. A random walk over sequences of a few fixed
//! texts compares every logit of every pass with those of one run over the text.

use coldpress_model::{KvPool, ModelError};

use super::*;
use crate::service::Serving;

/// Positions of a text.
const LENGTH: usize = 300;
const TEXTS: usize = 3;
const STEPS: usize = 120;
/// Models outside the repository, a file or a folder each.
const FURTHER: [&str; 4] = [
    "oracle/gguf/granitehybrid.gguf",
    "oracle/minimax",
    "oracle/gguf/qwen3next.gguf",
    "oracle/gguf/kimi-linear.gguf",
];

fn load_with_slots(model: &Path) -> Runtime {
    let serving = Serving { parallel: 10, kv_positions: Some(4096), ..Serving::default() };
    let configuration =
        LoadConfiguration::default().context(LENGTH as u32).chunk_tokens(512).threads(2).serving(serving);
    let mut runtime = Runtime::load(model, &configuration, &mut Silent).expect("loads");
    runtime.wake().expect("wakes");
    assert!(runtime.ready_kv().expect("the plan has room"));
    runtime
}

/// A sequence of the first tokens of a text, and the lengths at which it has kept its state.
struct Known {
    sequence: Sequence,
    text: usize,
    kept: Vec<usize>,
}

impl Known {
    fn reachable(&self, length: usize) -> usize {
        let kept = self.kept.iter().copied().filter(|&kept| kept <= length).max().unwrap_or(0);
        if length < self.sequence.len() { kept } else { self.sequence.len() }
    }
}

/// Collects logits, stops the pass after a layer, lets a segment leave after its first one.
struct Watch {
    bits: Vec<Vec<u32>>,
    stops_after: Option<usize>,
    leaves: Option<usize>,
}

impl ForwardObserver for Watch {
    fn layer_done(&mut self, layer: usize, _layers: usize) -> bool {
        self.stops_after != Some(layer)
    }

    fn leaves(&mut self, segment: usize, pool: &mut KvPool, sequence: &mut Sequence) -> bool {
        let leaves = self.leaves == Some(segment);
        if leaves {
            pool.release(std::mem::replace(sequence, Sequence::new(0)));
        }
        leaves
    }

    fn logits(&mut self, segment: usize, _row: usize, logits: &mut [f32]) {
        self.bits[segment].extend(logits.iter().map(|value| value.to_bits()));
    }
}

struct Walk {
    runtime: Runtime,
    texts: Vec<Vec<u32>>,
    /// Of each text, bits of all logits.
    expected: Vec<Vec<u32>>,
    known: Vec<Known>,
    random: Random,
}

impl Walk {
    fn new(model: &Path, seed: u64) -> Self {
        let mut runtime = load_with_slots(model);
        let vocabulary = runtime.vocabulary();
        let texts: Vec<Vec<u32>> = (0..TEXTS as u64).map(|text| ids(LENGTH, text + 1, vocabulary)).collect();
        let straight = |text: &Vec<u32>| {
            let mut alone = Sequence::new(LENGTH);
            let bits = append(&mut runtime, &mut alone, text);
            pool(&mut runtime).release(alone);
            bits
        };
        let expected = texts.iter().map(straight).collect();
        Self { runtime, texts, expected, known: Vec::new(), random: Random::new(seed) }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 | 1 if self.known.len() < 4 => {
                let text = self.random.below(TEXTS);
                self.known.push(Known { sequence: Sequence::new(LENGTH), text, kept: Vec::new() });
            }
            2 => self.fork(),
            3 => self.truncate(),
            4 if self.known.len() > 2 => {
                let gone = self.known.swap_remove(self.random.below(self.known.len()));
                pool(&mut self.runtime).release(gone.sequence);
            }
            _ => self.pass(),
        }
    }

    fn fork(&mut self) {
        if self.known.is_empty() || self.known.len() == 4 {
            return;
        }
        let known = &self.known[self.random.below(self.known.len())];
        let length = self.random.below(LENGTH);
        let pool = pool(&mut self.runtime);
        assert_eq!(pool.reachable(&known.sequence, length), known.reachable(length));
        let sequence = pool.fork(&known.sequence, length).expect("enough pages");
        assert_eq!(sequence.len(), known.reachable(length));
        let fork = Known { sequence, text: known.text, kept: Vec::new() };
        self.known.push(fork);
    }

    fn truncate(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let which = self.random.below(self.known.len());
        let known = &mut self.known[which];
        let length = self.random.below(LENGTH);
        let there = known.reachable(length);
        pool(&mut self.runtime).truncate(&mut known.sequence, length);
        assert_eq!(known.sequence.len(), there);
        known.kept.retain(|&kept| kept <= there);
    }

    /// Some tokens of some sequences in one call, which may be stopped or left.
    fn pass(&mut self) {
        let mut parts = Vec::new();
        // Each sequence may take a slot for its next state and one for a kept one.
        let pool = &mut self.runtime.kv.as_mut().expect("ready").pool;
        for known in &mut self.known {
            while pool.state_slots_free() < 8 && !known.kept.is_empty() {
                assert!(pool.forget_kept_state(&mut known.sequence));
                known.kept.remove(0);
            }
        }
        for (index, known) in self.known.iter_mut().enumerate() {
            let room = LENGTH - known.sequence.len();
            if self.random.below(4) == 0 {
                let pool = &mut self.runtime.kv.as_mut().expect("ready").pool;
                let length = known.sequence.len();
                if pool.keep_state(&mut known.sequence) && known.kept.last() != Some(&length) {
                    known.kept.push(length);
                }
            }
            let count = match self.random.below(4) {
                0 => 0,
                1 => 1,
                _ => 1 + self.random.below(90),
            };
            let count = count.min(room);
            if count == 0 {
                continue;
            }
            let pool = &mut self.runtime.kv.as_mut().expect("ready").pool;
            pool.extend(&mut known.sequence, count).expect("enough pages and slots");
            let kept = known.sequence.len() + 1 + self.random.below(count);
            let kept = Some(kept)
                .filter(|&kept| self.random.below(2) == 0 && pool.keep_state_at(&mut known.sequence, kept));
            parts.push((index, known.sequence.len(), count, kept));
        }
        if parts.is_empty() {
            return;
        }
        let stops_after = (self.random.below(5) == 0).then(|| self.random.below(2));
        let leaves = (self.random.below(5) == 0).then(|| self.random.below(parts.len()));
        let mut watch = Watch { bits: vec![Vec::new(); parts.len()], stops_after, leaves };
        let completed = self.compute(&parts, &mut watch);
        assert_eq!(completed, stops_after.is_none() && !(leaves.is_some() && parts.len() == 1));
        let row = self.runtime.vocabulary();
        for (segment, &(index, from, count, kept)) in parts.iter().enumerate() {
            let known = &mut self.known[index];
            if leaves == Some(segment) && known.sequence.context() == 0 {
                known.sequence = Sequence::new(LENGTH);
                known.kept.clear();
                continue;
            }
            assert_eq!(known.sequence.len(), if completed { from + count } else { from });
            if completed {
                let expected = &self.expected[known.text][from * row..(from + count) * row];
                assert!(
                    watch.bits[segment] == expected,
                    "text {} from {from} on, {count} tokens",
                    known.text
                );
                known.kept.extend(kept);
            }
        }
    }

    fn compute(&mut self, parts: &[(usize, usize, usize, Option<usize>)], watch: &mut Watch) -> bool {
        let Runtime { workers, model, kernels, experts, scratch, kv, clock, .. } = &mut self.runtime;
        let (pool, scratch) = (&mut kv.as_mut().expect("ready").pool, scratch.as_mut().expect("awake"));
        let mut segments: Vec<Segment<'_>> = Vec::new();
        for (index, known) in self.known.iter_mut().enumerate() {
            let Some(&(_, from, count, _)) = parts.iter().find(|part| part.0 == index) else { continue };
            let tokens = &self.texts[known.text][from..from + count];
            segments.push(Segment { tokens, sequence: &mut known.sequence, logits: LogitsWanted::All });
        }
        let result = workers.enter(|team| {
            let experts = experts.as_mut();
            let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
            model.forward(&mut engine, &mut segments, watch)
        });
        match result {
            Ok(()) => true,
            Err(ModelError::Cancelled) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn any_cuts_forks_truncations_and_failures_give_the_bits_of_a_straight_run() {
    walk(&fixture("lfm2moe.gguf"), 0..2, STEPS);
    let Some(folder) = std::env::var_os("COLDPRESS_SHARED").map(PathBuf::from) else {
        return println!("SKIPPED: models of the shared folder");
    };
    for model in FURTHER.map(|model| folder.join(model)) {
        let copy = tempfile::tempdir().expect("a folder");
        let model = if model.is_dir() { with_tokenizer(&model, copy.path()) } else { &model };
        walk(model, 2..3, STEPS / 2);
    }
}

/// Copies a model whose folder has no tokenizer to `copy`, with one.
fn with_tokenizer<'a>(model: &Path, copy: &'a Path) -> &'a Path {
    let tokenizer = fixture("hugging_face/tokenizer");
    let parts = [model.join("config.json"), model.join("model.safetensors")];
    let names = ["tokenizer.json", "tokenizer_config.json"];
    for from in parts.into_iter().chain(names.map(|name| tokenizer.join(name))) {
        std::fs::copy(&from, copy.join(from.file_name().expect("a file"))).expect("copied");
    }
    copy
}

fn walk(model: &Path, seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        let mut walk = Walk::new(model, seed);
        let free = |walk: &mut Walk| {
            let pool = pool(&mut walk.runtime);
            (pool.pages_free(), pool.state_slots_free(), pool.state_slots())
        };
        let before = free(&mut walk);
        assert!(before.2 == 32 && before.1 == before.2, "{before:?}");
        (0..steps).for_each(|_| walk.step());
        for known in std::mem::take(&mut walk.known) {
            pool(&mut walk.runtime).release(known.sequence);
        }
        assert_eq!(free(&mut walk), before);
    }
}

/// A state on the way may be kept at any row of a pass, on and off the borders of its blocks and pieces.
#[test]
fn a_state_is_kept_at_any_row_of_a_pass() {
    let mut runtime = load_with_slots(&fixture("lfm2moe.gguf"));
    let text = ids(LENGTH, 9, runtime.vocabulary());
    let mut straight = Sequence::new(LENGTH);
    let expected = append(&mut runtime, &mut straight, &text);
    let row = runtime.vocabulary();
    pool(&mut runtime).release(straight);
    for length in [1, 2, 127, 128, 129, 255, 256, 257, 298, 299] {
        let mut sequence = Sequence::new(LENGTH);
        pool(&mut runtime).extend(&mut sequence, LENGTH).expect("free");
        assert!(pool(&mut runtime).keep_state_at(&mut sequence, length));
        assert!(!pool(&mut runtime).keep_state_at(&mut sequence, length), "lengths come in order");
        // Extending once more would forget what was asked for.
        let mut watch = Watch { bits: vec![Vec::new()], stops_after: None, leaves: None };
        let Runtime { workers, model, kernels, experts, scratch, kv, clock, .. } = &mut runtime;
        let (kv_pool, scratch) = (&mut kv.as_mut().expect("ready").pool, scratch.as_mut().expect("awake"));
        workers.enter(|team| {
            let experts = experts.as_mut();
            let mut engine =
                ForwardEngine { team, kernels: *kernels, experts, pool: kv_pool, scratch, clock };
            let segment = Segment { tokens: &text, sequence: &mut sequence, logits: LogitsWanted::All };
            model.forward(&mut engine, &mut [segment], &mut watch).expect("computes");
        });
        assert!(watch.bits[0] == expected, "a state kept after {length}");
        pool(&mut runtime).truncate(&mut sequence, length);
        assert_eq!(sequence.len(), length);
        let rest = append(&mut runtime, &mut sequence, &text[length..]);
        assert!(rest == expected[length * row..], "from the state after {length}");
        pool(&mut runtime).release(sequence);
    }
}
