//! Schemas and grammars come from whoever may send a request. None may panic, overflow a small stack, or keep a mask busy
//! for long: each is an answer or an error.

mod grammar_support;

use std::time::{Duration, Instant};

use coldpress_text::{GrammarSource, TextError};
use grammar_support::{Random, demo_compiler, demo_tokenizer};
use serde_json::{Map, Value, json};

/// A bound in time that holds in an unoptimised build on a busy machine; the limits themselves count work.
const COMPILE_MAX: Duration = Duration::from_secs(20);
const MASK_MAX: Duration = Duration::from_secs(2);

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({ "type": "integer" }), |inner, _| wrap(inner))
}

fn chain_of_references(length: usize) -> Value {
    let definitions = (0..length).map(|index| {
        (
            format!("d{index}"),
            json!({ "type": "array", "items": { "$ref": format!("#/$defs/d{}", (index + 1) % length) } }),
        )
    });
    json!({ "$ref": "#/$defs/d0", "$defs": Value::Object(definitions.collect::<Map<_, _>>()) })
}

fn properties(count: usize) -> Value {
    let members = (0..count).map(|index| (format!("p{index}"), json!({ "type": "integer" })));
    json!({ "type": "object", "properties": Value::Object(members.collect::<Map<_, _>>()) })
}

fn schemas() -> Vec<Value> {
    let long = "é".repeat(200);
    vec![
        nested(2_000, |inner| json!({ "items": inner })),
        nested(95, |inner| json!({ "type": "array", "items": inner })),
        nested(90, |inner| json!({ "anyOf": [inner, { "type": "string" }] })),
        nested(12, |inner| json!({ "allOf": [inner.clone(), inner] })),
        nested(10, |inner| json!({ "anyOf": [inner.clone(), inner], "minimum": 1 })),
        nested(45, |inner| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] })),
        chain_of_references(90),
        chain_of_references(3_000),
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "allOf": [{ "$ref": "#" }], "type": "object" }),
        json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }),
        json!({ "properties": { "a": { "$ref": "#/properties/a" } }, "required": ["a"] }),
        json!({ "$ref": "#/$defs/$ref/x" }),
        properties(1_000),
        properties(100_000),
        json!({ "enum": (0..15_000).map(|index| format!("{index:x}-value")).collect::<Vec<_>>() }),
        json!({ "enum": [long.clone()], "type": [long.clone()] }),
        json!({ "minimum": long }),
        json!({ "type": "string", "minLength": 2_000_000_000u64 }),
        json!({ "type": "string", "maxLength": 2_000_000_000u64 }),
        json!({ "type": "string", "maxLength": u64::MAX }),
        json!({ "type": "array", "minItems": 2_000_000_000u64 }),
        json!({ "type": "array", "maxItems": 2_000_000_000u64, "items": { "type": "object" } }),
        json!({ "type": "object", "maxProperties": 2_000_000_000u64 }),
        json!({ "type": "string", "pattern": "(((((a{100}){100}){100}){100}){100})" }),
        json!({ "type": "string", "pattern": "(".repeat(3_000) }),
        json!({ "type": "string", "pattern": format!("{}a{}", "(".repeat(3_000), ")".repeat(3_000)) }),
        json!({ "type": "string", "pattern": "(a*)*(b|a*)*c(a|b|ab|ba)*x{0,900}", "minLength": 400 }),
        json!({ "type": "string", "pattern": "^(?:.{0,300}a){0,300}$" }),
        json!({ "patternProperties": { "^a.*": {}, "a$": {}, "(x+x+)+y": {} } }),
        json!({ "type": "number", "multipleOf": 1e-9, "minimum": 1e-9, "maximum": 1e15 }),
        json!({ "type": "number", "multipleOf": 0.000_123 }),
        json!({ "type": "integer", "multipleOf": 60_000 }),
        json!({ "type": "number", "minimum": 5e-324, "maximum": 1e-320 }),
        json!({ "type": "integer", "minimum": -9_007_199_254_740_991i64, "maximum": 9_007_199_254_740_991i64 }),
        json!({ "const": "x".repeat(200_000) }),
        json!({ "const": nested(2_000, |inner| json!([inner])) }),
        json!({ "required": (0..900).map(|index| format!("r{index}")).collect::<Vec<_>>() }),
        json!({ "prefixItems": vec![json!({ "type": "integer" }); 3_000] }),
        json!({ "anyOf": vec![properties(40); 60] }),
        json!({ "allOf": vec![properties(30); 60] }),
        json!({ "oneOf": vec![properties(10); 200] }),
    ]
}

fn texts() -> Vec<GrammarSource> {
    let rules: String = (0..2_000).map(|index| format!("r{index}: r{}\n", index + 1)).collect();
    let terminals: String = (0..2_000).map(|index| format!("T{index}: T{}\n", index + 1)).collect();
    let regex = |text: &str| GrammarSource::Regex(text.to_owned());
    let lark = |text: &str| GrammarSource::Lark(text.to_owned());
    vec![
        regex("((((((a{100}){100}){100}){100}){100}){100})"),
        regex(&"(".repeat(16_000)),
        regex(&format!("{}a{}", "(".repeat(8_000), ")".repeat(8_000))),
        regex(&"(a|b)*".repeat(2_000)),
        regex("(?:a|b)*a(?:a|b){60}"),
        regex(&"\\w".repeat(8_000)),
        regex("(\\w{1,1000}\\s){1,1000}"),
        regex(&"x?".repeat(5_000)),
        lark(&format!("start: r0\n{rules}r2000: \"x\"\n")),
        lark(&format!("start: T0\n{terminals}T2000: \"x\"\n")),
        lark(&format!("start: {}\"a\"{}\n", "(".repeat(15_000), ")".repeat(15_000))),
        lark("start: start start | \"a\" | \n"),
        lark("start: a\na: b\nb: a | \"x\"\n"),
        lark("start: \"a\"{1000000000}\n"),
        lark("start: (\"a\"{1000}){1000}{1000}\n"),
        lark("start: %json {\"type\": \"object\", \"properties\": 3}\n"),
        lark("start: %regex {\"substring_words\": \"a b c d e f g\"}\n"),
        lark("start: %llguidance {\n"),
        lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: /[\\x00-\\xff]*/\n"),
        lark("start: <[*]> <[0-8191]>\n"),
        lark("start: @other\n"),
        lark("start: text \"x\"\ntext[stop=\"y\"]: /.*/\n"),
        lark("start: text\ntext[max_tokens=3]: /.*/\n"),
        lark("start: /(?P<stop>a)/\n"),
        lark("start: \"\\xff\\xfe\"\n"),
        lark("start[capture]: \"a\" /b/ i\n"),
        lark("\u{0}start: \"a\" | \u{202e}\n"),
    ]
}

/// Compiles and follows a grammar for some tokens; the longest mask.
fn follow(source: &GrammarSource) -> Result<Duration, TextError> {
    let tokenizer = demo_tokenizer();
    let mut constraint = demo_compiler().compile(source)?;
    let mut random = Random::new(5);
    let mut longest = Duration::ZERO;
    let mut logits = vec![0.0f32; tokenizer.vocab_size()];
    for _ in 0..120 {
        if constraint.must_end() {
            break;
        }
        logits.fill(0.0);
        let begin = Instant::now();
        constraint.mask(&mut logits)?;
        longest = longest.max(begin.elapsed());
        let from = random.below(logits.len());
        let mut ids = (from..logits.len()).chain(0..from);
        let Some(id) = ids.find(|&id| logits[id] == 0.0) else { break };
        if tokenizer.stop_tokens().contains(&(id as u32)) {
            break;
        }
        constraint.accept(id as u32)?;
    }
    Ok(longest)
}

#[test]
fn hostile_grammars_end_with_an_error() {
    let run = || {
        let (mut answered, mut refused) = (0, 0);
        for source in schemas().into_iter().map(GrammarSource::JsonSchema).chain(texts()) {
            let shown: String = format!("{source:?}").chars().take(120).collect();
            let begin = Instant::now();
            let outcome = on_a_stack(1 << 20, || follow(&source));
            let whole = begin.elapsed();
            match &outcome {
                Ok(longest) => {
                    println!("answered in {whole:?}, longest mask {longest:?}: {shown}");
                    assert!(*longest < MASK_MAX, "{longest:?} for a mask: {shown}");
                    answered += 1;
                }
                Err(error) => {
                    let message = error.to_string();
                    println!("refused in {whole:?}: {message}: {shown}");
                    // A path is as long as the schema is deep.
                    assert!(message.len() < 2_000 && !message.contains("panic"), "{message}: {shown}");
                    refused += 1;
                }
            }
            assert!(whole < COMPILE_MAX, "{whole:?}: {shown}");
        }
        assert!(answered > 15 && refused > 15, "{answered} answered, {refused} refused");
    };
    // Making, printing and dropping the values of this test recurses, too.
    on_a_stack(256 << 20, run);
}

/// Masks are computed on the engine's thread, which has a stack of its own size.
fn on_a_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work).expect("a thread");
        thread.join().expect("no panic")
    })
}
