//! A vocabulary of the size of Qwen's, made of syllables: what counts for a mask is the number of tokens and how they share
//! beginnings, not what they mean.

use coldpress_text::{Tokenizer, TokenizerSource};

use super::Random;

pub const TOKENS: usize = 151_669;

/// A SentencePiece vocabulary: three control tokens, all bytes, then words and pieces of words.
pub fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    let mut random = Random::new(7);
    let syllables: Vec<String> = (0..400)
        .map(|_| {
            let letters = |set: &str, random: &mut Random| {
                set.chars().nth(random.below(set.chars().count())).expect("a letter")
            };
            let (first, second) =
                (letters("bcdfghjklmnprstvwz", &mut random), letters("aeiouyäé", &mut random));
            if random.below(3) == 0 {
                format!("{first}{second}{}", letters("nrstl", &mut random))
            } else {
                format!("{first}{second}")
            }
        })
        .collect();
    let signs = [
        "\"",
        "\":",
        "\",",
        "{",
        "}",
        "[",
        "]",
        ",",
        ".",
        ":",
        "=",
        "(",
        ")",
        "▁{",
        "\"}",
        "▁=",
        "0",
        "1",
        "12",
        "▁▁▁▁",
    ];
    let mut add = |token: String, tokens: &mut Vec<String>| {
        if seen.insert(token.clone()) {
            tokens.push(token);
        }
    };
    for sign in signs {
        add(sign.to_owned(), &mut tokens);
    }
    while tokens.len() < TOKENS {
        let mut token = if random.below(2) == 0 { "▁".to_owned() } else { String::new() };
        for _ in 0..1 + random.below(4) {
            token.push_str(&syllables[random.below(syllables.len())]);
        }
        if random.below(12) == 0 {
            token.push_str(signs[random.below(signs.len())]);
        }
        add(token, &mut tokens);
    }
    types.resize(tokens.len(), 1);
    Tokenizer::from_gguf(TokenizerSource {
        model: "llama",
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        tokens: tokens.iter().map(String::as_bytes).collect(),
        token_types: types,
        ..TokenizerSource::default()
    })
    .expect("a valid vocabulary")
}
