//! `coldpress inspect`: what is inside a model file.

use anyhow::Result;
use coldpress::Inspection;

use crate::arguments::InspectArguments;
use crate::{Ended, output};

/// Runs the command.
///
/// # Errors
/// The file is not readable or malformed, or standard output failed.
pub fn inspect(arguments: &InspectArguments) -> Result<Ended> {
    let inspection = coldpress::inspect(&arguments.file)?;
    if arguments.json {
        output::json(&inspection)?;
    } else {
        output::text(&describe(&inspection))?;
    }
    Ok(Ended::Done)
}

fn describe(inspection: &Inspection) -> String {
    let mut text = String::new();
    for file in &inspection.files {
        text.push_str(&format!("{}  {}\n", printable(&file.path), file.bytes));
    }
    text.push_str(&format!("\n{} metadata keys\n", inspection.metadata.len()));
    let width = inspection.metadata.keys().map(|key| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &inspection.metadata {
        text.push_str(&format!("  {:<width$}  {}\n", printable(key), one_line(value)));
    }
    text.push_str(&format!("\n{} tensors, {}\n", inspection.tensors.len(), inspection.tensor_bytes));
    let width =
        inspection.tensors.iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0).min(48);
    for tensor in &inspection.tensors {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        text.push_str(&format!("  {:<width$}  {:<8} {shape}\n", printable(&tensor.name), tensor.tensor_type));
    }
    for note in &inspection.notes {
        text.push_str(&format!("\nnote: {}\n", printable(note)));
    }
    match &inspection.not_runnable {
        None => text.push_str("\ncoldpress can run this model\n"),
        Some(reason) => text.push_str(&format!("\ncoldpress cannot run this model: {}\n", printable(reason))),
    }
    text
}

/// A value in one line of bounded length.
fn one_line(value: &serde_json::Value) -> String {
    const CHARACTERS: usize = 100;
    let text = match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Object(array) => {
            let field = |name: &str| array.get(name).map(ToString::to_string).unwrap_or_default();
            format!("{} {}: {}", field("length"), field("array").trim_matches('"'), field("first"))
        }
        other => other.to_string(),
    };
    let text = printable(&text);
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Text from a file without characters that could steer the terminal.
fn printable(text: &str) -> String {
    output::printable(text, ' ')
}
