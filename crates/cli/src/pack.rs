//! `coldpress pack`: writes a model's pack, or checks it against the model file.

use std::path::PathBuf;

use anyhow::Result;
use coldpress::PackReport;

use crate::arguments::PackArguments;
use crate::environment::Environment;
use crate::load::Bars;
use crate::status::Publication;
use crate::{Ended, Usage, choices, output};

/// Runs the command.
///
/// # Errors
/// Packing or checking failed, there is no place for the pack, or standard output failed.
pub fn pack(arguments: &PackArguments, environment: &Environment) -> Result<Ended> {
    let place = place(arguments, environment)?;
    let publication = Publication::begin("pack", &arguments.model, environment);
    let mut bars = Bars::published(&publication);
    let budget = arguments.budget.and_then(|budget| choices::size(budget, &arguments.model));
    let report = if arguments.verify {
        coldpress::verify_pack_as(&arguments.model, &place, arguments.experts, budget, &mut bars)?
    } else {
        coldpress::pack_model_as(&arguments.model, &place, arguments.experts, budget, &mut bars)?
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report, arguments.verify))?;
    }
    Ok(Ended::Done)
}

fn place(arguments: &PackArguments, environment: &Environment) -> Result<PathBuf> {
    match (&arguments.out, environment.alone().pack_folder) {
        (Some(out), _) => Ok(out.clone()),
        (None, Some(folder)) => Ok(folder),
        (None, None) => {
            let reason = "no cache folder is known (HOME is not set): say where with --out";
            Err(Usage(anyhow::anyhow!(reason)).into())
        }
    }
}

fn describe(report: &PackReport, verified: bool) -> String {
    let PackReport { path, file_bytes, records, records_written, lossy, exceptions } = report;
    let what = match (verified, *records_written) {
        (true, _) if lossy.is_some() => format!("all {records} records are what the model file gives"),
        (true, _) => format!("all {records} records equal the model file"),
        (false, 0) => format!("complete already, {records} records"),
        (false, written) if written == *records => format!("{records} records written"),
        (false, written) => format!("{written} records written, {} were there", records - written),
    };
    let lossy = lossy.as_ref().map_or(String::new(), |words| format!("lossy: {words}\n"));
    let exceptions: String = exceptions.iter().map(|exception| format!("note: {exception}\n")).collect();
    format!("{}  {file_bytes}, {what}\n{lossy}{exceptions}", path.display())
}
