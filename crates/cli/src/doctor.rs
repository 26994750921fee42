//! `coldpress doctor`: what this machine offers, and the two bounds that speeds are to be read against.

use anyhow::Result;
use coldpress::MachineReport;

use crate::arguments::DoctorArguments;
use crate::environment::Environment;
use crate::{Ended, output};

/// Runs the command.
///
/// # Errors
/// The machine cannot run the forced instruction set or tells nothing of its memory, or standard output failed.
pub fn doctor(arguments: &DoctorArguments, environment: &Environment) -> Result<Ended> {
    let report = coldpress::examine(environment.isa)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    Ok(Ended::Done)
}

fn describe(report: &MachineReport) -> String {
    let memory = &report.memory;
    let limit = match memory.cgroup_limit {
        Some(limit) => format!("control group limit {limit}"),
        None => "no control group limit".to_owned(),
    };
    let reader = match (&report.reader.notice, report.reader.io_uring) {
        (Some(notice), _) => format!("{}: {notice}", report.reader.chosen),
        (None, true) => report.reader.chosen.to_owned(),
        (None, false) => format!("{}: this system has no io_uring", report.reader.chosen),
    };
    let rows = [
        ("processor", report.processor.clone().unwrap_or_else(|| "tells no name".to_owned())),
        ("threads", report.threads.to_string()),
        ("isa", instruction_sets(report)),
        ("kernels", kernels(report)),
        (
            "memory",
            format!(
                "{} usable of {} installed, {limit}, {} available now",
                memory.usable, memory.physical, memory.available
            ),
        ),
        ("budget", format!("{} when none is named", report.default_budget)),
        ("reader", reader),
        ("bandwidth", bandwidth(report)),
        ("int8 peak", int8_peak(report)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
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
