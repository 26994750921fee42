//! Encodes texts with the tokenizer of a folder, for another program to compare.
//!
//! usage: encode_texts FOLDER [PRE_TOKENIZER]. In: one JSON string per line. Out: for each, a JSON object with `plain` (the ids
//! with special tokens parsed, nothing added), `prompt` (with start and end tokens) and `text` (the plain ids decoded with
//! control tokens). Used by `tools/check_tokenizers.py`.

use std::io::{BufRead, Write};
use std::path::Path;

use coldpress_text::{DecodeOptions, ParseSpecial, TokenizerFolder};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: encode_texts FOLDER [PRE_TOKENIZER]")?;
    let folder = TokenizerFolder::open(Path::new(&folder))?;
    let tokenizer = folder.tokenizer(arguments.next().as_deref())?;
    folder.chat_template()?;
    let decode = DecodeOptions { show_control: true, ..DecodeOptions::default() };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let plain = tokenizer.encode(&text, ParseSpecial::Yes);
        let prompt = tokenizer.encode_prompt(&text, ParseSpecial::Yes);
        let decoded = tokenizer.decode_with(&plain, decode);
        writeln!(out, "{}", json!({ "plain": plain, "prompt": prompt, "text": decoded }))?;
    }
    Ok(())
}
