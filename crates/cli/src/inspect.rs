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
    let inspection = coldpress::inspect(&arguments.file, arguments.fingerprint)?;
    if arguments.json {
        output::json(&inspection)?;
    } else {
        output::text(&page(&inspection, arguments))?;
    }
    Ok(Ended::Done)
}

/// Groups of layers and files that a page shows; models have a handful.
const LINES_SHOWN: usize = 24;

fn page(inspection: &Inspection, arguments: &InspectArguments) -> String {
    let mut text = files(inspection);
    text.push_str(&facts(inspection));
    text.push_str(&by_role(inspection));
    text.push_str(&layers(inspection));
    if arguments.metadata {
        text.push_str(&metadata(inspection));
    }
    if arguments.tensors {
        text.push_str(&tensors(inspection));
    }
    for note in &inspection.notes {
        text.push_str(&format!("\nnote: {}\n", printable(note)));
    }
    for problem in &inspection.problems {
        text.push_str(&format!("\nproblem: {}\n", printable(problem)));
    }
    match inspection.not_runnable {
        None => text.push_str("\ncoldpress can run this model\n"),
        Some(_) => text.push_str("\ncoldpress cannot run this model\n"),
    }
    text
}

fn files(inspection: &Inspection) -> String {
    let mut text = String::new();
    for file in inspection.files.iter().take(LINES_SHOWN) {
        text.push_str(&format!("{}  {}\n", printable(&file.path), file.bytes));
    }
    if let Some(more) = inspection.files.len().checked_sub(LINES_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("and {more} more files\n"));
    }
    text
}

/// What the model is.
fn facts(inspection: &Inspection) -> String {
    let mut text = format!("\n{}", printable(&inspection.container));
    if let (Some(family), Some([layers, hidden, vocabulary, context])) =
        (inspection.family, inspection.dimensions)
    {
        text.push_str(&format!(
            "; {family}, {layers} layers of hidden size {hidden}, {vocabulary} tokens, context {context}"
        ));
    }
    text.push('\n');
    if let Some(experts) = &inspection.experts {
        let span =
            |[least, most]: [String; 2]| if least == most { most } else { format!("{least} to {most}") };
        text.push_str(&format!(
            "experts: {} in each of {} layers, {} per token, {} each\n",
            span(experts.per_layer.map(|count| count.to_string())),
            experts.layers,
            experts.per_token,
            span(experts.bytes.map(|bytes| bytes.to_string())),
        ));
    }
    if let Some(fingerprint) = &inspection.fingerprint {
        text.push_str(&format!("fingerprint: {fingerprint}\n"));
    }
    text
}

/// What the tensors are for, and those without a place.
fn by_role(inspection: &Inspection) -> String {
    const NAMES_SHOWN: usize = 8;
    let mut text = format!("\n{} tensors, {}\n", inspection.tensors.len(), inspection.tensor_bytes);
    let all = inspection.tensor_bytes.0.max(1) as f64;
    for share in &inspection.roles {
        let percent = share.bytes.0 as f64 * 100.0 / all;
        let bytes = share.bytes.to_string();
        text.push_str(&format!(
            "  {:<28}  {:<8} {:>6}  {bytes:>10}  {percent:>5.1} %\n",
            share.role, share.tensor_type, share.tensors
        ));
    }
    if !inspection.without_place.is_empty() {
        text.push_str(&format!("\nwithout a place: {} tensors\n", inspection.without_place.len()));
        for name in inspection.without_place.iter().take(NAMES_SHOWN) {
            text.push_str(&format!("  {}\n", printable(name)));
        }
    }
    text
}

/// Layers that are alike as one, with the bytes of each.
fn layers(inspection: &Inspection) -> String {
    let mut text = String::new();
    for group in inspection.layers.iter().take(LINES_SHOWN) {
        let numbers = match group.last - group.first {
            0 => format!("layer {}", group.first),
            _ => format!("layers {} to {}, each", group.first, group.last),
        };
        let bytes: u64 = group.each.iter().map(|share| share.bytes.0).sum();
        text.push_str(&format!("\n{numbers}: {}\n", coldpress::Bytes(bytes)));
        for share in &group.each {
            let bytes = share.bytes.to_string();
            text.push_str(&format!(
                "  {:<28}  {:<8} {:>6}  {bytes:>10}\n",
                share.role, share.tensor_type, share.tensors
            ));
        }
    }
    if let Some(more) = inspection.layers.len().checked_sub(LINES_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("\nand {more} more groups of layers; --tensors lists all\n"));
    }
    text
}

fn metadata(inspection: &Inspection) -> String {
    let mut text = format!("\n{} metadata keys\n", inspection.metadata.len());
    let width = inspection.metadata.keys().map(|key| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &inspection.metadata {
        text.push_str(&format!("  {:<width$}  {}\n", printable(key), one_line(value)));
    }
    text
}

fn tensors(inspection: &Inspection) -> String {
    let mut text = String::from("\n");
    let width =
        inspection.tensors.iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0).min(48);
    for tensor in &inspection.tensors {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        text.push_str(&format!("  {:<width$}  {:<8} {shape}\n", printable(&tensor.name), tensor.tensor_type));
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
    cut(output::printable(&text, ' '), CHARACTERS)
}

/// Text from a file, of bounded length and without characters that could steer the terminal.
fn printable(text: &str) -> String {
    const CHARACTERS: usize = 500;
    cut(output::printable(text, ' '), CHARACTERS)
}

fn cut(text: String, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
