//! What grammars cost over a vocabulary of Qwen's size: prints the time to build the tables, to compile, and of one mask.
//!
//!     cargo test --release -p coldpress-text --test all -- grammar_figures --ignored --nocapture

use std::time::{Duration, Instant};

use crate::grammar_support::{Random, large};
use coldpress_text::{GrammarCompiler, GrammarSource};
use serde_json::json;

fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part) as usize]
}

#[test]
#[ignore = "a measurement"]
fn figures() {
    let tokenizer = large::tokenizer();
    let begin = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer).expect("a compiler");
    println!("{} tokens: tables in {:?}", tokenizer.vocab_size(), begin.elapsed());
    let schema = json!({ "type": "object", "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 200 }, "age": { "type": "integer", "minimum": 0, "maximum": 130 },
            "tags": { "type": "array", "items": { "enum": ["red", "green", "blue"] }, "maxItems": 8 },
            "address": { "type": "object", "properties": { "street": { "type": "string" }, "zip": { "type": "string", "pattern": "^[0-9]{5}$" } },
                "required": ["street", "zip"], "additionalProperties": false } },
        "required": ["name", "age", "tags", "address"], "additionalProperties": false });
    for (name, source) in [
        ("json object", GrammarSource::JsonObject),
        ("schema", GrammarSource::JsonSchema(schema)),
        ("regex", GrammarSource::Regex("[A-Z][a-z]+( [a-z]+){2,40}\\.".to_owned())),
        ("free text", GrammarSource::Regex("(?s:.)*".to_owned())),
    ] {
        let (mut compiling, mut masks) = (Vec::new(), Vec::new());
        for seed in 0..10 {
            let begin = Instant::now();
            let mut constraint = compiler.compile(&source).expect("a constraint");
            compiling.push(begin.elapsed());
            let mut random = Random::new(seed);
            let mut logits = vec![0.0f32; tokenizer.vocab_size()];
            for _ in 0..100 {
                if constraint.must_end() {
                    break;
                }
                logits.fill(0.0);
                // What follows a token belongs to its mask: where the answer may end, accepting looks ahead.
                let begin = Instant::now();
                constraint.mask(&mut logits).expect("a mask");
                let mask = begin.elapsed();
                let from = random.below(logits.len());
                let stops = tokenizer.stop_tokens();
                let mut ids = (from..logits.len()).chain(0..from);
                let Some(id) = ids.find(|&id| logits[id] == 0.0 && !stops.contains(&(id as u32))) else {
                    break;
                };
                let begin = Instant::now();
                constraint.accept(id as u32).expect("an allowed token");
                masks.push(mask + begin.elapsed());
            }
        }
        println!(
            "{name}: compile {:?} (longest {:?}); mask and accept {:?} (p99 {:?}, longest {:?}) over {} tokens",
            quantile(&mut compiling, 0.5),
            quantile(&mut compiling, 1.0),
            quantile(&mut masks, 0.5),
            quantile(&mut masks, 0.99),
            quantile(&mut masks, 1.0),
            masks.len()
        );
    }
}
