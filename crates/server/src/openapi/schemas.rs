//! Bodies of requests and answers, as JSON schemas.

use serde_json::{Map, Value, json};

use super::reference;

fn object(required: &[&str], properties: Value, closed: bool) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties, "additionalProperties": !closed
    })
}

fn number(least: f64, most: f64) -> Value {
    json!({ "type": ["number", "null"], "minimum": least, "maximum": most })
}

fn integer(least: i64, most: i64) -> Value {
    json!({ "type": ["integer", "null"], "minimum": least, "maximum": most })
}

fn text() -> Value {
    json!({ "type": ["string", "null"] })
}

fn flag() -> Value {
    json!({ "type": ["boolean", "null"] })
}

fn texts() -> Value {
    json!({ "anyOf": [
        { "type": "string", "minLength": 1 },
        { "type": "array", "maxItems": 64, "items": { "type": "string", "minLength": 1 } },
        { "type": "null" }
    ] })
}

/// Accepted, without effect.
fn anything() -> Value {
    json!({ "description": "accepted without effect" })
}

const TOKENS_MAX: i64 = u32::MAX as i64;

/// Sampling fields of OpenAI's requests.
fn drawing() -> Value {
    json!({
        "temperature": number(0.0, 100.0), "top_p": number(0.0, 1.0), "top_k": integer(-1, TOKENS_MAX),
        "min_p": number(0.0, 1.0), "repetition_penalty": number(0.01, 100.0),
        "repeat_penalty": number(0.01, 100.0), "seed": integer(i64::MIN, i64::MAX),
        "frequency_penalty": number(-2.0, 2.0), "presence_penalty": number(-2.0, 2.0),
        "logit_bias": { "type": ["object", "null"], "maxProperties": 4096,
            "propertyNames": { "pattern": "^[0-9]{1,9}$" },
            "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 } }
    })
}

fn common() -> Value {
    let own = json!({
        "model": text(), "max_tokens": integer(1, TOKENS_MAX), "max_completion_tokens": integer(1, TOKENS_MAX),
        "n": integer(1, 16), "stop": texts(), "stream": flag(), "stream_options": stream_options(),
        "coldpress": extension(), "response_format": reference("Format")
    });
    joined([drawing(), own, harmless()])
}

fn stream_options() -> Value {
    json!({ "anyOf": [object(&[], json!({ "include_usage": flag() }), true), { "type": "null" }] })
}

fn extension() -> Value {
    json!({ "anyOf": [object(&[], json!({ "progress": flag() }), true), { "type": "null" }] })
}

fn harmless() -> Value {
    let names = crate::openai::HARMLESS.iter().map(|&name| (name.to_owned(), anything()));
    names.collect::<Map<String, Value>>().into()
}

fn joined(parts: impl IntoIterator<Item = Value>) -> Value {
    let mut all = Map::new();
    for part in parts {
        if let Value::Object(mut fields) = part {
            all.append(&mut fields);
        }
    }
    all.into()
}

/// All schemas by name.
pub fn all() -> Value {
    joined([errors(), shared(), openai_requests(), openai_answers(), anthropic(), ollama(), further()])
}

fn errors() -> Value {
    let openai = object(
        &["message", "type", "param", "code"],
        json!({ "message": { "type": "string" }, "type": { "type": "string" }, "param": text(), "code": text() }),
        true,
    );
    let anthropic = object(
        &["type", "message"],
        json!({ "type": { "type": "string" }, "message": { "type": "string" } }),
        true,
    );
    json!({
        "OpenAiError": object(&["error"], json!({ "error": openai }), true),
        "AnthropicError": object(&["type", "error"], json!({ "type": { "const": "error" }, "error": anthropic }), true),
        "OllamaError": object(&["error"], json!({ "error": { "type": "string" } }), true),
        "Object": { "type": "object" },
        "Text": { "type": "string" },
        "Stream": { "description": "events or lines as the API's own documentation has them" }
    })
}

fn shared() -> Value {
    let parts =
        object(&["type"], json!({ "type": { "type": "string" }, "text": { "type": "string" } }), false);
    let function = object(
        &["name"],
        json!({
            "name": { "type": "string", "pattern": "^[a-zA-Z0-9_.:/-]{1,128}$" }, "description": text(),
            "parameters": { "type": ["object", "null"] }, "strict": flag()
        }),
        true,
    );
    let kinds = ["text", "json_object", "json_schema", "regex", "grammar"];
    json!({
        "Content": { "anyOf": [{ "type": "string" }, { "type": "array", "items": parts }, { "type": "null" }] },
        "ChatMessage": object(&["role"], json!({
            "role": { "enum": ["system", "developer", "user", "assistant", "tool"] },
            "content": reference("Content"), "tool_call_id": text(), "name": text(),
            "reasoning_content": text(), "tool_calls": { "type": ["array", "null"] }
        }), false),
        "Function": function,
        "Tool": object(&["type", "function"], json!({
            "type": { "const": "function" }, "function": reference("Function")
        }), true),
        "Format": { "anyOf": [object(&["type"], json!({
            "type": { "enum": kinds }, "json_schema": { "type": ["object", "null"] }, "schema": { "type": ["object", "null"] },
            "name": text(), "strict": flag(), "description": text(), "pattern": text(),
            "syntax": { "enum": ["lark", "regex", null] }, "definition": text()
        }), true), { "type": "null" }] }
    })
}

fn openai_requests() -> Value {
    let chat = joined([
        common(),
        json!({
            "messages": { "type": "array", "minItems": 1, "items": reference("ChatMessage") },
            "tools": { "type": ["array", "null"], "items": reference("Tool") },
            "tool_choice": { "anyOf": [{ "enum": ["none", "auto", "required"] }, { "type": "object" }, { "type": "null" }] },
            "parallel_tool_calls": flag(), "logprobs": flag(), "top_logprobs": integer(0, 20),
            "reasoning_effort": { "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null] },
            "chat_template_kwargs": { "type": ["object", "null"] }, "enable_thinking": flag(),
            "continue_final_message": flag()
        }),
    ]);
    let ids = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": TOKENS_MAX } });
    let completion = joined([
        common(),
        json!({ "prompt": { "anyOf": [{ "type": "string" }, ids] }, "logprobs": integer(0, 20) }),
    ]);
    let response = joined([
        drawing(),
        harmless(),
        json!({
            "model": text(), "input": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "object" } }] },
            "instructions": text(), "max_output_tokens": integer(1, TOKENS_MAX), "stop": texts(),
            "tools": { "type": ["array", "null"], "items": { "type": "object" } },
            "tool_choice": { "anyOf": [{ "enum": ["none", "auto", "required"] }, { "type": "object" }, { "type": "null" }] },
            "parallel_tool_calls": flag(), "text": { "type": ["object", "null"] }, "top_logprobs": integer(0, 20),
            "reasoning": { "type": ["object", "null"] }, "stream": flag(), "coldpress": extension(),
            "include": texts(), "truncation": { "enum": ["auto", "disabled", null] },
            "max_tool_calls": anything(), "stream_options": anything()
        }),
    ]);
    json!({
        "ChatRequest": object(&["messages"], chat, true),
        "CompletionRequest": object(&["prompt"], completion, true),
        "ResponseRequest": object(&["input"], response, true),
        "EmbeddingRequest": { "type": "object" }
    })
}

fn openai_answers() -> Value {
    let usage = object(
        &["prompt_tokens", "completion_tokens", "total_tokens"],
        json!({
            "prompt_tokens": { "type": "integer" }, "completion_tokens": { "type": "integer" },
            "total_tokens": { "type": "integer" }, "prompt_tokens_details": { "type": "object" },
            "completion_tokens_details": { "type": "object" }, "coldpress": { "type": ["object", "null"] }
        }),
        true,
    );
    let completion = |object_name: &str| {
        object(
            &["id", "object", "created", "model", "choices", "usage"],
            json!({
                "id": { "type": "string" }, "object": { "const": object_name }, "created": { "type": "integer" },
                "model": { "type": "string" }, "choices": { "type": "array", "minItems": 1 },
                "usage": reference("Usage")
            }),
            false,
        )
    };
    json!({
        "Usage": usage,
        "ChatCompletion": completion("chat.completion"),
        "Completion": completion("text_completion"),
        "Response": object(&["id", "object", "status", "output"], json!({
            "id": { "type": "string" }, "object": { "const": "response" },
            "status": { "enum": ["completed", "incomplete"] }, "output": { "type": "array" }
        }), false),
        "Model": object(&["id", "object"], json!({ "id": { "type": "string" }, "object": { "const": "model" } }), false),
        "ModelList": object(&["object", "data"], json!({
            "object": { "const": "list" }, "data": { "type": "array", "items": reference("Model") }
        }), false)
    })
}

fn anthropic() -> Value {
    let chat = json!({
        "model": text(), "messages": { "type": "array", "items": { "type": "object" } },
        "system": reference("Content"), "tools": { "type": ["array", "null"], "items": { "type": "object" } },
        "tool_choice": { "type": ["object", "null"] }, "thinking": { "type": ["object", "null"] },
        "temperature": number(0.0, 2.0), "top_p": number(0.0, 1.0), "top_k": integer(0, TOKENS_MAX),
        "stop_sequences": texts(), "output_config": { "type": ["object", "null"] }, "metadata": anything(),
        "service_tier": anything(), "cache_control": anything(), "context_management": anything()
    });
    let answered = joined([
        chat.clone(),
        json!({
            "max_tokens": { "type": "integer", "minimum": 1, "maximum": TOKENS_MAX }, "stream": flag(),
            "coldpress": extension()
        }),
    ]);
    json!({
        "MessageRequest": object(&["messages", "max_tokens"], answered, true),
        "CountRequest": object(&["messages"], chat, true),
        "Message": object(&["id", "type", "role", "content", "stop_reason", "usage"], json!({
            "id": { "type": "string" }, "type": { "const": "message" }, "role": { "const": "assistant" },
            "content": { "type": "array", "items": { "type": "object" } },
            "stop_reason": { "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"] },
            "usage": { "type": "object" }
        }), false),
        "TokenCount": object(&["input_tokens"], json!({ "input_tokens": { "type": "integer" } }), true)
    })
}

fn ollama() -> Value {
    let head = json!({
        "model": { "type": "string" }, "stream": flag(), "options": { "type": ["object", "null"] },
        "format": { "anyOf": [{ "enum": ["json", ""] }, { "type": "object" }, { "type": "null" }] },
        "think": { "enum": [true, false, "low", "medium", "high", "max", null] }, "keep_alive": anything(),
        "logprobs": flag(), "top_logprobs": integer(0, 20)
    });
    let chat = joined([
        head.clone(),
        json!({
            "messages": { "type": ["array", "null"], "items": { "type": "object" } },
            "tools": { "type": ["array", "null"], "items": reference("Tool") }
        }),
    ]);
    let generate = joined([head, json!({ "prompt": text(), "system": text(), "raw": flag() })]);
    json!({
        "OllamaChat": object(&["model"], chat, true),
        "OllamaGenerate": object(&["model"], generate, true),
        "OllamaShow": object(&[], json!({ "model": text(), "name": text(), "verbose": anything() }), true),
        "OllamaAnswer": object(&["model", "created_at", "done"], json!({
            "model": { "type": "string" }, "created_at": { "type": "string" }, "done": { "const": true }
        }), false),
        "OllamaModels": object(&["models"], json!({ "models": { "type": "array", "minItems": 1 } }), true)
    })
}

fn further() -> Value {
    json!({
        "Health": object(&["status"], json!({
            "status": { "enum": ["loading", "probing", "ready", "failed"] }, "reason": { "type": "string" }
        }), true),
        "TokenizeRequest": object(&[], json!({
            "content": text(), "prompt": text(), "text": text(), "parse_special": flag(), "with_pieces": flag(),
            "model": anything(), "add_special": anything()
        }), true),
        "Tokens": object(&["tokens", "count"], json!({
            "tokens": { "type": "array" }, "count": { "type": "integer" }, "max_model_len": { "type": "integer" }
        }), true),
        "DetokenizeRequest": object(&["tokens"], json!({
            "tokens": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": TOKENS_MAX } },
            "model": anything()
        }), true)
    })
}
