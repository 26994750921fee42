//! Log probabilities in the two shapes of OpenAI: a list of objects (chat), and parallel lists (completions).

use serde_json::{Map, Value, json};

use crate::backend::Backend;
use crate::collect::LoggedToken;

/// The token as chat completions write it: text and exact bytes. Part of a character shows as U+FFFD with its bytes.
fn entry(backend: &dyn Backend, id: u32, logprob: f32) -> Value {
    let bytes = backend.token_bytes(id);
    json!({ "token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes })
}

/// JSON has no infinity; OpenAI writes -9999 for a token that cannot come.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// The list of chat completions.
pub fn chat(backend: &dyn Backend, tokens: &[LoggedToken]) -> Value {
    let one = |(token, _): &LoggedToken| {
        let mut value = entry(backend, token.id, token.logprob);
        let top: Vec<Value> = token.top.iter().map(|&(id, logprob)| entry(backend, id, logprob)).collect();
        value["top_logprobs"] = top.into();
        value
    };
    tokens.iter().map(one).collect::<Vec<Value>>().into()
}

/// The parallel lists of completions; `offset` is the number of characters of text before these tokens, and is moved on.
pub fn legacy(backend: &dyn Backend, tokens: &[LoggedToken], offset: &mut usize) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for (token, text) in tokens {
        texts.push(name(backend, token.id));
        logprobs.push(finite(token.logprob));
        let top: Map<String, Value> =
            token.top.iter().map(|&(id, logprob)| (name(backend, id), finite(logprob).into())).collect();
        tops.push(top);
        offsets.push(*offset);
        *offset += text.chars().count();
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// The token as a key: part of a character is written as its bytes, so that two of them do not fall together.
fn name(backend: &dyn Backend, id: u32) -> String {
    match String::from_utf8(backend.token_bytes(id)) {
        Ok(text) => text,
        Err(error) => {
            let hex = |byte: &u8| format!("\\x{byte:02x}");
            format!("bytes:{}", error.as_bytes().iter().map(hex).collect::<String>())
        }
    }
}
