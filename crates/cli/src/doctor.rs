//! `coldpress doctor`: one line per check with a fix, what was measured, and a verdict; exit code 1 when something blocks.

use std::path::PathBuf;

use anyhow::Result;
use coldpress::{Check, Diagnosis, LoadConfiguration, MachineReport, Verdict};

use crate::arguments::DoctorArguments;
use crate::environment::Environment;
use crate::{Ended, output};

/// Runs the command.
///
/// # Errors
/// The machine cannot run the forced instruction set or tells nothing of its memory, the path does not exist, or standard
/// output failed.
pub fn doctor(arguments: &DoctorArguments, environment: &Environment) -> Result<Ended> {
    let choices = environment.alone();
    let mut configuration = LoadConfiguration::default().pack(choices.pack_use());
    if let Some(isa) = choices.isa {
        configuration = configuration.isa(isa);
    }
    let path = arguments.path.clone().unwrap_or_else(|| default_folder(environment));
    let diagnosis = coldpress::diagnose(&path, &configuration)?;
    if arguments.json {
        output::json(&diagnosis)?;
    } else {
        output::text(&describe(&diagnosis))?;
    }
    Ok(if diagnosis.verdict == Verdict::Block { Ended::Blocked } else { Ended::Done })
}

/// The folder of packs, or the nearest one above it that exists.
fn default_folder(environment: &Environment) -> PathBuf {
    let packs = environment.alone().pack_folder.and_then(|folder| std::path::absolute(folder).ok());
    let existing =
        packs.and_then(|packs| packs.ancestors().find(|folder| folder.is_dir()).map(PathBuf::from));
    existing.unwrap_or_else(|| PathBuf::from("."))
}

fn describe(diagnosis: &Diagnosis) -> String {
    let report = &diagnosis.machine;
    let rows = [
        ("processor", report.processor.clone().unwrap_or_else(|| "tells no name".to_owned())),
        ("threads", report.threads.to_string()),
        ("isa", instruction_sets(report)),
        ("kernels", kernels(report)),
        ("budget", format!("{} when none is named", report.default_budget)),
        ("bandwidth", bandwidth(report)),
        ("int8 peak", int8_peak(report)),
    ];
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect();
    text.push('\n');
    diagnosis.checks.iter().for_each(|check| text.push_str(&line(check)));
    text.push_str(&format!("\nverdict: {}\n", diagnosis.conclusion()));
    text
}

fn line(check: &Check) -> String {
    let fix = check.fix.as_ref().map_or(String::new(), |fix| format!(" -> {fix}"));
    format!("{:<6}{:<16} {}{fix}\n", check.verdict.name(), check.name, check.found)
}

fn instruction_sets(report: &MachineReport) -> String {
    let names = |supported: bool| {
        let sets = report.instruction_sets.iter().filter(|set| set.supported == supported);
        sets.map(|set| set.name).collect::<Vec<_>>().join(" ")
    };
    format!("{} (this machine runs {}; not {})", report.isa, names(true), names(false))
}

/// Formats by the instruction set of their kernel.
fn kernels(report: &MachineReport) -> String {
    let mut sets: Vec<&str> = report.kernels.iter().map(|kernel| kernel.isa).collect();
    sets.dedup();
    let of = |isa: &&str| {
        let formats = report.kernels.iter().filter(|kernel| kernel.isa == *isa);
        format!("{isa}: {}", formats.map(|kernel| kernel.format).collect::<Vec<_>>().join(" "))
    };
    sets.sort_unstable();
    sets.dedup();
    sets.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn bandwidth(report: &MachineReport) -> String {
    let rates = report.bandwidth.iter().map(|rate| by_threads(rate.threads, rate.bytes_per_second, "GB/s"));
    format!("{} (plain read of {})", rates.collect::<Vec<_>>().join(", "), report.bandwidth_probe)
}

fn int8_peak(report: &MachineReport) -> String {
    let rates =
        report.int8_peak.iter().map(|rate| by_threads(rate.threads, rate.operations_per_second, "GOP/s"));
    format!("{} ({} from registers)", rates.collect::<Vec<_>>().join(", "), report.int8_instruction)
}

fn by_threads(threads: usize, rate: f64, unit: &str) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{:.1} {unit} with {threads} thread{plural}", rate / 1e9)
}
