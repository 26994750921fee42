//! Renders chat templates for another program to compare: one JSON object per line in, one per line out.
//!
//! In: `{"source": …, "cases": [{"messages": […], "tools": […], "documents": […], "add_generation_prompt": …,
//! "extra": {…}}]}`. Out: a list with `{"text": …}` or `{"error": …}` for each case. The date is 2024-07-26.
//! Used by `tools/check_templates.py`.

use std::io::{BufRead, Write};

use coldpress_text::{ChatTemplate, DateTime, Message, RenderOptions, TextError};
use serde_json::{Value, json};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line?)?;
        let cases = job["cases"].as_array().cloned().unwrap_or_default();
        let template = ChatTemplate::new(job["source"].as_str().unwrap_or_default(), "<s>", "</s>");
        let results: Vec<Value> = cases
            .iter()
            .map(|case| match template.as_ref().map_err(ToString::to_string).and_then(|t| render(t, case)) {
                Ok(text) => json!({ "text": text }),
                Err(error) => json!({ "error": error }),
            })
            .collect();
        serde_json::to_writer(&mut out, &results)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn render(template: &ChatTemplate, case: &Value) -> Result<String, String> {
    let list = |name: &str| case[name].as_array().cloned();
    let messages: Result<Vec<Message>, TextError> =
        list("messages").unwrap_or_default().into_iter().map(Message::from_json).collect();
    let options = RenderOptions {
        continue_last: false,
        add_generation_prompt: case["add_generation_prompt"] == true,
        date: DateTime::from_date(2024, 7, 26),
        tools: list("tools"),
        documents: list("documents"),
        extra: case["extra"].as_object().cloned().unwrap_or_default(),
    };
    messages.and_then(|messages| template.render(&messages, &options)).map_err(|error| error.to_string())
}
