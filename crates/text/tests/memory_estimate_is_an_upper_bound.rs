//! The plan reserves the tokenizer's memory before it is built. If the estimate were too small, the budget would break
//! at load; if it were far too large, small budgets would be refused for nothing. Measured on vocabularies of the size
//! of Gemma's (262,144 tokens) by the growth of the peak resident set.

use coldpress_text::{ParseSpecial, Tokenizer, TokenizerSource};

const TOKENS: usize = 262_144;

/// A line of /proc/self/status in bytes. Linux only; elsewhere the sizes of the tables are compared alone.
fn status_bytes(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Resident set now, after the peak was set back to it.
fn resident_bytes_after_peak_reset() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    status_bytes("VmRSS:")
}

/// Printable ASCII stands for itself in the byte alphabet and in SentencePiece.
fn letters() -> Vec<char> {
    ('!'..='~').collect()
}

/// All texts of one, two and three letters, up to `count`. Nothing is freed here or in `merges`: freed memory would be
/// used again by the tokenizer, and the growth would look smaller than it is.
fn texts(count: usize) -> Vec<String> {
    let letters = letters();
    let mut texts: Vec<String> = Vec::with_capacity(count);
    texts.extend(letters.iter().map(char::to_string));
    let mut index = 0;
    while texts.len() < count {
        for letter in &letters[..letters.len().min(count - texts.len())] {
            texts.push(format!("{}{letter}", texts[index]));
        }
        index += 1;
    }
    texts
}

/// Every text is made by cutting off its last letter, and the longer ones also by cutting off the first.
fn merges(texts: &[String]) -> Vec<String> {
    let mut merges = Vec::with_capacity(2 * texts.len());
    for text in texts.iter().filter(|text| text.len() > 1) {
        merges.push(format!("{} {}", &text[..text.len() - 1], &text[text.len() - 1..]));
        if text.len() > 2 {
            merges.push(format!("{} {}", &text[..1], &text[1..]));
        }
    }
    merges
}

fn check<'a>(source: impl FnOnce() -> TokenizerSource<'a>, sample: &str) {
    let before = resident_bytes_after_peak_reset();
    let source = source();
    let estimate = source.estimated_bytes();
    let tokenizer = Tokenizer::from_gguf(source).expect("a valid vocabulary");
    let ids = tokenizer.encode(sample, ParseSpecial::Yes);
    let peak = status_bytes("VmHWM:");
    assert!(!ids.is_empty());
    let tables = tokenizer.resident_bytes() as u64;
    assert!(tables <= estimate, "tables {tables}, estimate {estimate}");
    if let (Some(before), Some(peak)) = (before, peak) {
        let grown = peak.saturating_sub(before);
        println!("estimate {estimate}, grown {grown}, tables {tables}");
        assert!(grown <= estimate, "grown {grown}, estimate {estimate}");
    }
    assert!(estimate <= 4 * tables, "the estimate {estimate} is far above the tables {tables}");
}

#[test]
fn the_estimate_covers_what_a_large_vocabulary_takes() {
    let texts = texts(TOKENS);
    let merges = merges(&texts);
    let mut types = vec![1; TOKENS];
    // As many special tokens as Gemma has.
    types[TOKENS - 6_400..].fill(4);
    let sample = "Some words, 1234 numbers; ".repeat(2_000) + &"ñ漢字 ".repeat(500);
    let tokens = || texts.iter().map(String::as_bytes).collect();
    check(
        || TokenizerSource {
            model: "gpt2",
            pre: Some("llama-bpe"),
            tokens: tokens(),
            token_types: types.clone(),
            merges: merges.iter().map(String::as_bytes).collect(),
            ..TokenizerSource::default()
        },
        &sample,
    );
    check(
        || TokenizerSource {
            model: "llama",
            tokens: tokens(),
            token_types: types.clone(),
            scores: (0..TOKENS).map(|id| -(id as f32)).collect(),
            ..TokenizerSource::default()
        },
        &sample,
    );
}
