//! `coldpress disk`: what a disk delivers to cold reads, and the ceiling that it sets for a model.

use std::path::Path;

use anyhow::Result;
use coldpress::{Bytes, DiskFigure, DiskReport, Pattern};

use crate::arguments::DiskArguments;
use crate::load::Bars;
use crate::{Ended, output};

/// Runs the command.
///
/// # Errors
/// The disk has no room or fails, the path does not exist, or standard output failed.
pub fn disk(arguments: &DiskArguments) -> Result<Ended> {
    let target = arguments.path.as_deref().unwrap_or(Path::new("."));
    let report = coldpress::measure_disk(target, &mut Bars::default())?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    Ok(Ended::Done)
}

fn describe(report: &DiskReport) -> String {
    let file = if report.temporary {
        format!("a file of {} written for this and removed", report.file_bytes)
    } else {
        format!("{} ({})", report.file.display(), report.file_bytes)
    };
    let access = match &report.buffered_because {
        None => "past the page cache".to_owned(),
        Some(reason) => format!("through the page cache, pages dropped before and after ({reason})"),
    };
    let mut text = format!("{file}\nread with {}, {access}\n\n", report.reader);
    text.push_str(&format!(
        "  {:<12}{:>10}{:>7}{:>12}{:>12}{:>12}\n",
        "reads", "size", "depth", "GB/s", "p50 us", "p99 us"
    ));
    for figure in &report.figures {
        text.push_str(&row(figure));
    }
    if report.left_out > 0 {
        text.push_str(&format!("  {} more were left out: time was up\n", report.left_out));
    }
    let whose =
        if report.expert_bytes_of_model { "the model's experts have" } else { "experts are taken to have" };
    text.push_str(&format!("\n{whose} {} at most\n", report.expert_bytes));
    if let Some(ceiling) = &report.ceiling {
        text.push_str(&format!(
            "without any expert in memory a token reads {}: at most {:.2} tokens/s at {:.2} GB/s\n\
             the hit rate of a run is not known here; with a share h of hits the ceiling is {:.2} / (1 - h)\n",
            ceiling.expert_bytes_per_token,
            ceiling.tokens_per_second,
            ceiling.bytes_per_second / 1e9,
            ceiling.tokens_per_second
        ));
    }
    text
}

fn row(figure: &DiskFigure) -> String {
    let pattern = match figure.pattern {
        Pattern::Random => "random",
        Pattern::Sequential => "sequential",
    };
    let size = Bytes(figure.read_bytes as u64).to_string();
    let start = format!("  {pattern:<12}{size:>10}{:>7}", figure.depth);
    match (figure.bytes_per_second, figure.latency_us_p50, figure.latency_us_p99) {
        (Some(rate), Some(p50), Some(p99)) => format!("{start}{:>12.3}{p50:>12.0}{p99:>12.0}\n", rate / 1e9),
        _ => format!("{start}  not a figure: {}\n", figure.not_a_figure.as_deref().unwrap_or("unknown")),
    }
}
