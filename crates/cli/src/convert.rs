//! `coldpress convert`: writes a model as one GGUF file, or its pack with the words of `coldpress pack`.

use std::path::Path;

use anyhow::{Result, anyhow};
use coldpress::{ConvertReport, ConvertTypes, ExpertType, TensorChoice};

use crate::arguments::{ConvertArguments, ConvertTarget, PackArguments};
use crate::environment::Environment;
use crate::load::Bars;
use crate::status::Publication;
use crate::values::named;
use crate::{Ended, Usage, output, pack};

/// Runs the command.
///
/// # Errors
/// Options do not go together, the model cannot be converted, the place cannot be written, or standard output failed.
pub fn convert(arguments: &ConvertArguments, environment: &Environment) -> Result<Ended> {
    match (arguments.to, &arguments.out) {
        (ConvertTarget::Pack, _) => pack::pack(&as_pack(arguments)?, environment),
        (ConvertTarget::Gguf, Some(out)) => to_gguf(arguments, out, environment),
        (ConvertTarget::Gguf, None) => Err(usage("say which file to write with --out")),
    }
}

fn usage(text: &str) -> anyhow::Error {
    Usage(anyhow!("{text}")).into()
}

/// The type that was asked for the experts, one of `table`.
fn experts<T: Copy>(arguments: &ConvertArguments, table: &[(&'static str, T)], default: T) -> Result<T> {
    let Some(text) = &arguments.experts else { return Ok(default) };
    named(table, text).map_err(|wrong| usage(&format!("--experts {text}: {wrong}")))
}

fn as_pack(arguments: &ConvertArguments) -> Result<PackArguments> {
    if arguments.matrices != TensorChoice::KEEP {
        return Err(usage(
            "a pack holds routed experts alone: say what they become with --experts, not --type",
        ));
    }
    Ok(PackArguments {
        model: arguments.model.clone(),
        out: arguments.out.clone(),
        experts: experts(arguments, &ExpertType::ALL, ExpertType::Keep)?,
        budget: arguments.budget,
        verify: false,
        json: arguments.json,
    })
}

fn to_gguf(arguments: &ConvertArguments, out: &Path, environment: &Environment) -> Result<Ended> {
    if arguments.budget.is_some() {
        return Err(usage(
            "--budget is for a pack: a GGUF file is written with some 20 MiB whatever the model",
        ));
    }
    let experts = experts(arguments, &TensorChoice::ALL, arguments.matrices)?;
    let types = ConvertTypes { matrices: arguments.matrices, experts };
    let publication = Publication::begin("convert", &arguments.model, environment);
    let mut bars = Bars::published(&publication);
    let report = coldpress::convert_to_gguf(&arguments.model, out, types, &mut bars)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    Ok(Ended::Done)
}

fn describe(report: &ConvertReport) -> String {
    let ConvertReport { path, file_bytes, tensors, converted, lossless, exceptions } = report;
    let what = match (converted, lossless) {
        (0, _) => format!("all {tensors} tensors as they were"),
        (_, true) => format!("{converted} of {tensors} tensors in another type, every value as it was"),
        (_, false) => format!("{converted} of {tensors} tensors in another type, lossy"),
    };
    let exceptions: String = exceptions.iter().map(|exception| format!("note: {exception}\n")).collect();
    format!("{}  {file_bytes}, {what}\n{exceptions}", path.display())
}
