//! `coldpress convert`: writes a model as one GGUF file, or its pack with the words of `coldpress pack`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use coldpress::{BudgetSpec, ConvertReport, ConvertTypes, ExpertType, TensorChoice};

use crate::arguments::{self, PackArguments};
use crate::environment::Environment;
use crate::load::Bars;
use crate::status::Publication;
use crate::values::named;
use crate::{Ended, Usage, output, pack};

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// Model: a .gguf file, any part of a split set, or a folder that holds one set; for a pack also a Hugging Face folder.
    pub model: PathBuf,
    /// What to write: one GGUF file, or the model's pack (as `coldpress pack`)
    #[arg(long, value_name = "KIND", value_parser = arguments::named(&ConvertTarget::ALL))]
    pub to: ConvertTarget,
    /// The file to write, which must not exist [default for a pack: the cache folder, named by the model's fingerprint]
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// What all matrices become, routers and small vectors apart: keep, f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0,
    /// mxfp4; lossy but for keep and wider floats
    #[arg(long = "type", value_name = "TYPE", default_value = "keep", value_parser = arguments::named(&TensorChoice::ALL))]
    pub matrices: TensorChoice,
    /// What the matrices of routed experts become instead; for a pack q4_k, q4_0, q8_0, mxfp4 or keep [default: as --type]
    #[arg(long, value_name = "TYPE")]
    pub experts: Option<String>,
    /// For a pack: bound on the memory of the process; a GGUF file takes some 20 MiB whatever the model
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<BudgetSpec>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `convert` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTarget {
    /// One GGUF file.
    Gguf,
    /// The pack.
    Pack,
}

impl ConvertTarget {
    /// Both with their names.
    const ALL: [(&'static str, Self); 2] = [("gguf", Self::Gguf), ("pack", Self::Pack)];
}

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
