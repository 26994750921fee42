//! What the tests of grammars share: the tokenizer of the bundled model, and answers drawn at random from the masks.

#![allow(dead_code, reason = "each test file uses a part of this module")]

pub mod large;

use std::path::Path;
use std::sync::OnceLock;

use coldpress_formats::ModelFile;
use coldpress_text::{Constraint, GrammarCompiler, Tokenizer, TokenizerSource};

/// The tokenizer of `models/demo.gguf`: 8,192 tokens of byte-level BPE with the control tokens of ChatML.
pub fn demo_tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
        let file = ModelFile::open(path).expect("the bundled model");
        let metadata = file.metadata();
        let strings = |key: &str| -> Vec<&[u8]> {
            let strings = metadata.opt_byte_string_array(key).expect("strings");
            strings.map(|strings| strings.iter().collect()).unwrap_or_default()
        };
        Tokenizer::from_gguf(TokenizerSource {
            model: "gpt2",
            pre: metadata.opt_string("tokenizer.ggml.pre").expect("a name"),
            tokens: strings("tokenizer.ggml.tokens"),
            token_types: metadata
                .opt_i32_array("tokenizer.ggml.token_type")
                .expect("types")
                .unwrap_or_default(),
            merges: strings("tokenizer.ggml.merges"),
            eos_id: metadata.opt_u32("tokenizer.ggml.eos_token_id").expect("an id"),
            ..TokenizerSource::default()
        })
        .expect("a valid vocabulary")
    })
}

/// The compiler for the bundled tokenizer.
pub fn demo_compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| GrammarCompiler::new(demo_tokenizer()).expect("a compiler"))
}

/// Numbers that repeat with their seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
}

/// The tokens a constraint allows now, ascending.
pub fn allowed(constraint: &mut Constraint, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut logits = vec![0.0f32; tokenizer.vocab_size()];
    constraint.mask(&mut logits).expect("a mask");
    (0..logits.len() as u32).filter(|&id| logits[id as usize] == 0.0).collect()
}

/// The bytes of tokens.
pub fn written(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect()
}

/// Tokens drawn from the masks until the answer ends; `None` if it is not at its end after `tokens_max`. `choose` gets the
/// allowed tokens and may leave the mask.
pub fn draw_with(
    mut constraint: Constraint,
    tokenizer: &Tokenizer,
    tokens_max: usize,
    choose: &mut dyn FnMut(&[u32], usize) -> u32,
) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    while !constraint.must_end() {
        let choices = allowed(&mut constraint, tokenizer);
        let stop = choices.iter().any(|id| tokenizer.stop_tokens().contains(id));
        assert_eq!(stop, constraint.may_end(), "stop tokens are allowed exactly where the grammar may end");
        let id = choose(&choices, ids.len());
        if tokenizer.stop_tokens().contains(&id) {
            break;
        }
        constraint.accept(id).expect("an allowed token");
        ids.push(id);
        if ids.len() == tokens_max {
            return None;
        }
    }
    Some(ids)
}

/// Draws an answer. All tokens are as likely, with two exceptions that let answers end: single bytes that close something are
/// preferred the more the longer the answer is, and stop tokens are taken half of the time.
pub fn draw(constraint: Constraint, tokenizer: &Tokenizer, seed: u64, tokens_max: usize) -> Option<Vec<u32>> {
    let mut random = Random::new(seed);
    draw_with(constraint, tokenizer, tokens_max, &mut |choices, length| {
        let stops: Vec<u32> =
            choices.iter().copied().filter(|id| tokenizer.stop_tokens().contains(id)).collect();
        if !stops.is_empty() && random.below(2) == 0 {
            return stops[random.below(stops.len())];
        }
        let closing: Vec<u32> = choices
            .iter()
            .copied()
            .filter(|&id| {
                matches!(
                    tokenizer.token_bytes(id),
                    [b'"' | b'}' | b']' | b':' | b',' | b'@' | b'.' | b';' | b')'] | b"\"}" | b"\":"
                )
            })
            .collect();
        if !closing.is_empty() && random.below(60) < 10 + length {
            return closing[random.below(closing.len())];
        }
        choices[random.below(choices.len())]
    })
}
