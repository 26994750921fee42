//! The ledger reserves what grammars take before they are made. A counting allocator sees what the tables of a large vocabulary
//! and the most expensive constraints really take, at their peak.
#![allow(unsafe_code)]

mod grammar_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use coldpress_text::{GrammarCompiler, GrammarSource, Tokenizer};
use grammar_support::{Random, large};
use serde_json::{Map, Value, json};

struct Counting;

static NOW: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size() as u64, Ordering::Relaxed) + layout.size() as u64;
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs something; gives its result, what it left on the heap and its peak above what was there, in bytes.
fn measured<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    let kept = NOW.load(Ordering::Relaxed).saturating_sub(before);
    (result, kept, PEAK.load(Ordering::Relaxed) - before)
}

/// Draws tokens until the answer ends, fails or is long; gives the number of tokens.
fn follow(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    source: &GrammarSource,
    tokens_max: usize,
) -> usize {
    let mut constraint = match compiler.compile(source) {
        Ok(constraint) => constraint,
        Err(error) => {
            println!("refused: {error}");
            return 0;
        }
    };
    let mut random = Random::new(3);
    let mut logits = vec![0.0f32; tokenizer.vocab_size()];
    for token in 0..tokens_max {
        logits.fill(0.0);
        if let Err(error) = constraint.mask(&mut logits) {
            println!("{error}");
            return token;
        }
        let from = random.below(logits.len());
        let mut ids = (from..logits.len()).chain(0..from);
        let stops = tokenizer.stop_tokens();
        let Some(id) = ids.find(|&id| logits[id] == 0.0 && !stops.contains(&(id as u32))) else {
            return token;
        };
        if let Err(error) = constraint.accept(id as u32) {
            println!("{error}");
            return token;
        }
    }
    tokens_max
}

fn many_properties(count: usize) -> Value {
    let members =
        (0..count).map(|index| (format!("property_{index}"), json!({ "type": "string", "maxLength": 40 })));
    json!({ "type": "object", "properties": Value::Object(members.collect::<Map<_, _>>()) })
}

#[test]
fn grammar_memory_is_within_its_estimate() {
    let tokenizer = large::tokenizer();
    let estimate = GrammarCompiler::bytes(&tokenizer);
    let (compiler, kept, peak) = measured(|| GrammarCompiler::new(&tokenizer).expect("a compiler"));
    println!("compiler: estimate {estimate}, peak {peak}, kept {kept}");
    assert!(peak <= estimate, "peak {peak}, estimate {estimate}");
    assert!(estimate <= 3 * peak, "the estimate {estimate} is far above the peak {peak}");

    let sources = [
        ("json object", GrammarSource::JsonObject),
        ("many properties", GrammarSource::JsonSchema(many_properties(1_000))),
        ("many states", GrammarSource::Regex("(?:(?:a|b|c)*a(?:a|b|c){40})".to_owned())),
        ("unicode", GrammarSource::Regex("(?:\\w{1,300}\\W{1,300}){1,300}".to_owned())),
        (
            "unlike",
            GrammarSource::JsonSchema(
                json!({ "type": "string", "maxLength": 20_000, "pattern": "^(\\w+[, ]?)*x\\w{30}$" }),
            ),
        ),
        ("ambiguous", GrammarSource::Lark("start: a\na: a a | /[a-z]/ | /[a-z ]/\n".to_owned())),
        ("right recursion", GrammarSource::Lark("start: /[a-z ]/ start | /[a-z ]/\n".to_owned())),
        ("left recursion", GrammarSource::Lark("start: start /[a-z ]/ | /[a-z ]/\n".to_owned())),
    ];
    for (name, source) in sources {
        let (tokens, kept, peak) = measured(|| follow(&compiler, &tokenizer, &source, 300));
        println!("{name}: {tokens} tokens, peak {peak}, kept {kept}");
        assert!(peak <= GrammarCompiler::CONSTRAINT_BYTES_MAX, "{name}: peak {peak}");
    }
}
