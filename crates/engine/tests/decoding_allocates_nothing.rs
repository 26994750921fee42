//! Once an answer is under way, a further token takes nothing from the heap: not in the forward pass, not in the expert
//! store, not in the sampler, not for the text.
//!
//! What could go wrong: a vector made per call in a layer, a file of `/proc` read per token, a string per piece of text. Each
//! costs time, and memory that the budget does not know. The counting allocator sees all threads.
#![allow(unsafe_code)]

#[allow(dead_code)]
mod checkpoint;
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coldpress::{GenerateObserver, GenerateOptions, LoadConfiguration, Residency, Runtime, Sampling};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether the next allocation, of any thread, is to be written down.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static WHO: Mutex<Option<Backtrace>> = Mutex::new(None);
/// Whether that is under way: it takes memory itself.
static IS_WRITING: AtomicBool = AtomicBool::new(false);

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    if IS_WATCHED.load(Ordering::Relaxed) && !IS_WRITING.swap(true, Ordering::Relaxed) {
        IS_WATCHED.store(false, Ordering::Relaxed);
        *WHO.lock().expect("nobody panics with it") = Some(Backtrace::force_capture());
        IS_WRITING.store(false, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations at each token of an answer.
struct CountAtTokens(Vec<u64>);

impl GenerateObserver for CountAtTokens {
    fn token(&mut self, _id: u32) {
        self.0.push(ALLOCATIONS.load(Ordering::Relaxed));
        IS_WATCHED.store(self.0.len() < TOKENS, Ordering::Relaxed);
    }
}

/// Tokens of the measured answer, and of the one before it that warms everything up.
const TOKENS: usize = 96;

fn allocations_per_token(runtime: &mut Runtime, sampling: Sampling) -> Vec<u64> {
    let prompt = runtime.encode("The old house stood at the end of the lane, and", false).expect("a prompt");
    let options = GenerateOptions { max_tokens: TOKENS, sampling, ignore_eos: true, continuation: true };
    let mut session = runtime.session().expect("a session");
    let mut measured = Vec::new();
    for _ in 0..2 {
        session.clear();
        *WHO.lock().expect("nobody panics with it") = None;
        let mut counts = CountAtTokens(Vec::with_capacity(TOKENS));
        let answer = runtime.generate(&mut session, &prompt, &options, &mut counts).expect("an answer");
        assert_eq!(answer.tokens.len(), TOKENS);
        assert!(!answer.text.is_empty());
        measured = counts.0.windows(2).map(|pair| pair[1] - pair[0]).collect();
    }
    measured
}

fn assert_none(counts: &[u64], what: &str) {
    assert_eq!(counts.len(), TOKENS - 1);
    let who = WHO.lock().expect("nobody panics with it");
    assert!(counts.iter().all(|&count| count == 0), "{what}: {counts:?}, the last one by {who:?}");
}

#[test]
fn resident_and_streamed_greedy_and_drawn() {
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        ..Sampling::default()
    };
    let resident = LoadConfiguration::default().residency(Residency::Resident);
    let streamed = LoadConfiguration::default().cold_fraction(0.75);
    // Experts that are read in four parts and have biases; states beside the cache; positions that are chosen; experts without weights.
    let families =
        ["gpt_oss_mxfp4", "granitemoehybrid", "qwen3_next", "glm_moe_dsa", "longcat_flash", "qwen4_exp_text"];
    let references = families.into_iter().filter_map(checkpoint::Reference::open);
    let folders: Vec<_> = references.map(|reference| reference.linked("config.json")).collect();
    let models = std::iter::once(common::demo()).chain(folders.iter().map(|folder| folder.path().to_owned()));
    let kinds = [("resident", resident), ("streamed", streamed)];
    let cases = models.flat_map(|model| kinds.clone().map(|(name, kind)| (model.clone(), name, kind)));
    for (model, name, configuration) in cases {
        let mut runtime = common::load(&model, &configuration.context(256).threads(2));
        for sampling in [Sampling::default(), drawn] {
            let counts = allocations_per_token(&mut runtime, sampling);
            assert_none(&counts, &format!("{} {name}, {sampling:?}", model.display()));
        }
        // Writing a timeline down takes its memory before the first token; what ended has left nothing behind.
        runtime.start_timeline(std::time::Duration::ZERO).expect("there is room");
        let counts = allocations_per_token(&mut runtime, Sampling::default());
        assert_none(&counts, &format!("{} {name}, with a timeline", model.display()));
        assert!(runtime.finish_timeline().is_some());
        let counts = allocations_per_token(&mut runtime, Sampling::default());
        assert_none(&counts, &format!("{} {name}, after a timeline", model.display()));
        let misses = runtime.status().experts.expect("a store").misses;
        assert!(name == "resident" || misses > 100, "{misses} misses");
    }
}
