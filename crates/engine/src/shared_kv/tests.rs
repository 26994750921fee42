//! Logits of sequences that share pages, or whose pages lie anywhere, are those of a sequence alone, bit for bit.
//!
//! What could go wrong: rows left out where a page is copied, a sequence that sees what another one appended to a common
//! beginning, a page looked up by its place in the pool, a rotation by the wrong position after a fork.

use std::path::{Path, PathBuf};

use coldpress_model::{ForwardEngine, ForwardObserver, LogitsWanted, Segment};
use coldpress_testkit::Random;

use super::*;
use crate::configuration::LoadConfiguration;
use crate::generate::Silent;
use crate::runtime::Runtime;

mod recurrent;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn load(model: &Path, context: u32, positions: u32) -> Runtime {
    let configuration =
        LoadConfiguration::default().context(context).kv_positions(positions).chunk_tokens(512).threads(2);
    let mut runtime = Runtime::load(model, &configuration, &mut Silent).expect("loads");
    runtime.wake().expect("wakes");
    assert!(runtime.ready_kv().expect("the plan has room"));
    runtime
}

/// Ids, the same for the same seed.
fn ids(count: usize, seed: u64, vocabulary: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(vocabulary) as u32).collect()
}

/// Bits of the logits of each segment, row after row.
struct Collected(Vec<Vec<u32>>);

impl ForwardObserver for Collected {
    fn layer_done(&mut self, _layer: usize, _layers: usize) -> bool {
        true
    }

    fn logits(&mut self, segment: usize, _row: usize, logits: &mut [f32]) {
        self.0[segment].extend(logits.iter().map(|value| value.to_bits()));
    }
}

/// Appends tokens to several sequences in one call.
fn forward(runtime: &mut Runtime, parts: &mut [(&mut Sequence, &[u32])]) -> Vec<Vec<u32>> {
    let Runtime { workers, model, kernels, experts, scratch, kv, clock, .. } = runtime;
    let (pool, scratch) = (&mut kv.as_mut().expect("ready").pool, scratch.as_mut().expect("awake"));
    for (sequence, tokens) in parts.iter_mut() {
        pool.extend(sequence, tokens.len()).expect("enough pages");
    }
    let mut segments: Vec<Segment<'_>> = parts
        .iter_mut()
        .map(|(sequence, tokens)| Segment { tokens, sequence, logits: LogitsWanted::All })
        .collect();
    let mut collected = Collected(vec![Vec::new(); segments.len()]);
    workers.enter(|team| {
        let experts = experts.as_mut();
        let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
        model.forward(&mut engine, &mut segments, &mut collected).expect("computes");
    });
    collected.0
}

/// Appends tokens in calls of at most 512; the bits of the last call.
fn append(runtime: &mut Runtime, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    let mut last = Vec::new();
    for tokens in tokens.chunks(512) {
        last = forward(runtime, &mut [(sequence, tokens)]).remove(0);
    }
    last
}

fn pool(runtime: &mut Runtime) -> &mut KvPool {
    &mut runtime.kv.as_mut().expect("ready").pool
}

fn check_forks(model: &Path) {
    let mut runtime = load(model, 256, 4096);
    let vocabulary = runtime.vocabulary();
    let (prompt, more) = (ids(140, 1, vocabulary), [ids(70, 2, vocabulary), ids(3, 3, vocabulary)]);
    let mut base = Sequence::new(256);
    append(&mut runtime, &mut base, &prompt);
    let free = pool(&mut runtime).pages_free();
    for length in [0, 1, 2, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130, 140] {
        let mut expected = Vec::new();
        for more in &more {
            let mut alone = Sequence::new(256);
            append(&mut runtime, &mut alone, &prompt[..length]);
            expected.push(append(&mut runtime, &mut alone, more));
            pool(&mut runtime).release(alone);
        }
        let mut forks = [0, 1].map(|_| pool(&mut runtime).fork(&base, length).expect("free"));
        let [one, two] = &mut forks;
        // One by one, then taken back and both in one call with the sequence they came from.
        assert!(append(&mut runtime, one, &more[0]) == expected[0], "{length} alone");
        pool(&mut runtime).truncate(one, length);
        let mut third = pool(&mut runtime).fork(&base, 140).expect("free");
        let parts = &mut [(one, &more[0][..]), (&mut third, &more[1][..]), (two, &more[1][..])];
        let batch = forward(&mut runtime, parts);
        assert!(batch[0] == expected[0] && batch[2] == expected[1], "{length} in a batch");
        for sequence in forks.into_iter().chain([third]) {
            pool(&mut runtime).release(sequence);
        }
        assert_eq!(pool(&mut runtime).pages_free(), free);
    }
    // What the sequence had at first is as it was: nobody wrote into its pages.
    let mut alone = Sequence::new(256);
    append(&mut runtime, &mut alone, &prompt);
    let expected = append(&mut runtime, &mut alone, &more[0]);
    assert!(append(&mut runtime, &mut base, &more[0]) == expected);
}

#[test]
fn a_fork_goes_on_like_a_sequence_of_its_own() {
    check_forks(&fixture("qwen3moe.gguf"));
}

#[test]
fn so_does_a_fork_of_quantised_weights_and_of_a_shared_expert() {
    check_forks(&fixture("qwen2moe.gguf"));
    check_forks(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf"));
}

#[test]
fn a_truncated_fork_does_not_change_what_it_shares() {
    let mut runtime = load(&fixture("qwen3moe.gguf"), 256, 2048);
    let vocabulary = runtime.vocabulary();
    let (prompt, other, more) = (ids(128, 4, vocabulary), ids(60, 5, vocabulary), ids(9, 6, vocabulary));
    let mut base = Sequence::new(256);
    append(&mut runtime, &mut base, &prompt);
    for length in [1, 63, 64, 65, 100, 127] {
        let mut fork = pool(&mut runtime).fork(&base, 128).expect("nothing is copied");
        pool(&mut runtime).truncate(&mut fork, length);
        let mut alone = Sequence::new(256);
        append(&mut runtime, &mut alone, &prompt[..length]);
        assert!(
            append(&mut runtime, &mut fork, &other) == append(&mut runtime, &mut alone, &other),
            "{length}"
        );
        pool(&mut runtime).release(fork);
        pool(&mut runtime).release(alone);
        let mut again = pool(&mut runtime).fork(&base, 128).expect("nothing is copied");
        let mut alone = Sequence::new(256);
        append(&mut runtime, &mut alone, &prompt);
        assert!(
            append(&mut runtime, &mut again, &more) == append(&mut runtime, &mut alone, &more),
            "{length}"
        );
        pool(&mut runtime).release(again);
        pool(&mut runtime).release(alone);
    }
}

#[test]
fn pages_may_lie_in_any_order() {
    let mut runtime = load(&fixture("qwen3moe.gguf"), 1500, 6000);
    let vocabulary = runtime.vocabulary();
    let (prompt, more) = (ids(1300, 7, vocabulary), ids(40, 8, vocabulary));
    let mut expected = Vec::new();
    for seed in 0..3 {
        let mut sequence = Sequence::new(1500);
        let mut bits = append(&mut runtime, &mut sequence, &prompt[..600]);
        bits.extend(append(&mut runtime, &mut sequence, &prompt[600..1100]));
        bits.extend(append(&mut runtime, &mut sequence, &prompt[1100..]));
        bits.extend(append(&mut runtime, &mut sequence, &more));
        let in_order = sequence.pages().is_sorted();
        assert_eq!(in_order, seed == 0, "{:?}", sequence.pages());
        if seed == 0 {
            expected = bits;
        } else {
            assert!(bits == expected, "{:?}", sequence.pages());
        }
        let pool = pool(&mut runtime);
        pool.release(sequence);
        let all: Vec<u32> = (0..pool.pages()).map(|_| pool.take().expect("free")).collect();
        for place in Random::new(seed).distinct(all.len(), all.len()) {
            pool.release_page(all[place as usize]);
        }
    }
}
