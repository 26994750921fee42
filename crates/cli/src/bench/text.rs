//! The text that `bench` reads: English prose, because routing depends on what a text says.
//!
//! Forty paragraphs on different things, more than four thousand tokens before the first one comes again. Longer texts take
//! them in another order at each pass, so that a very long prompt is no loop of a short one. The same bytes on every machine and in every run.

use anyhow::Result;
use coldpress::Runtime;

/// Paragraphs with an empty line between them.
const ENGLISH: &str = include_str!("english.txt");

/// Distances between one paragraph and the next of a pass. They share no divisor with the number of paragraphs, so every
/// pass has each of them once.
const STRIDES: [usize; 8] = [1, 3, 7, 9, 11, 13, 17, 19];

/// The first `bytes` bytes of the endless text, fewer only to end with a whole character.
fn english(bytes: usize) -> String {
    let paragraphs: Vec<&str> = ENGLISH.split("\n\n").map(str::trim).collect();
    let mut text = String::with_capacity(bytes.min(1 << 20) + 1024);
    for pass in 0.. {
        for index in 0..paragraphs.len() {
            if text.len() >= bytes {
                text.truncate(text.floor_char_boundary(bytes));
                return text;
            }
            text.push_str(paragraphs[(pass + index * STRIDES[pass % STRIDES.len()]) % paragraphs.len()]);
            text.push_str("\n\n");
        }
    }
    text
}

/// The first `count` token ids of the text, at most the context of `runtime`.
///
/// # Errors
/// The model's vocabulary cannot say `count` tokens of English within the bytes that its longest tokens would fill.
pub fn ids(runtime: &Runtime, count: usize) -> Result<Vec<u32>> {
    // As many bytes as the longest tokens could fill always hold enough tokens; a few per token mostly do.
    let bytes_max = runtime.prompt_bytes_max();
    let mut bytes = count.saturating_mul(6).min(bytes_max);
    loop {
        let mut ids = runtime.encode(&english(bytes), false)?;
        if ids.len() >= count {
            ids.truncate(count);
            return Ok(ids);
        }
        anyhow::ensure!(bytes < bytes_max, "{bytes} bytes of English are only {} tokens", ids.len());
        bytes = bytes.saturating_mul(2).min(bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn passes_differ_and_have_every_paragraph() {
        let count = ENGLISH.split("\n\n").count();
        assert_eq!(count, 40);
        let pass_bytes = ENGLISH.trim().len() + 2;
        let text = english(8 * pass_bytes);
        let all: Vec<&str> = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty()).collect();
        let mut pairs = HashSet::new();
        for (pass, paragraphs) in all.chunks_exact(count).enumerate() {
            assert_eq!(paragraphs.iter().collect::<HashSet<_>>().len(), count, "pass {pass}");
            pairs.extend(paragraphs.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert!(pairs.len() > 200, "only {} different neighbours", pairs.len());
        assert_eq!(english(10).len(), 10);
    }

    #[test]
    fn four_thousand_tokens_are_no_repetition() {
        // Byte-pair vocabularies of a hundred thousand tokens and more make one token of most words and one of each mark.
        let marks = ENGLISH.chars().filter(|c| c.is_ascii_punctuation() && *c != '\'').count();
        let tokens = ENGLISH.split_whitespace().count() + marks;
        assert!(tokens > 4096, "{tokens} tokens");
        let sentences: Vec<&str> = ENGLISH.split_inclusive(['.', '?', '!']).map(str::trim).collect();
        assert_eq!(sentences.iter().collect::<HashSet<_>>().len(), sentences.len());
    }
}
