//! The bench as one HTML page: style and drawings inside, no scripts, no links, light or dark as the reader's system is.
//!
//! A page replaces only another page of this kind. Next: `plot.rs` (curves over budgets), `bars.rs` (phases of a token),
//! `timeline.rs` (one token over time), `heat.rs` (uses of experts).

mod bars;
mod heat;
mod plot;
mod timeline;

use std::fmt::Write;
use std::path::Path;

use coldpress::{Bytes, EngineError, Residency, begins_with};

use super::measure::Part;
use super::report::{heading, hits, of_limit, warmth};
use super::summary::{Summaries, Summary};
use super::{Bench, Measured, Measurement};
use crate::output::milliseconds;

/// What every page begins with; files that do not are never replaced.
const OPENING: &str = "<!DOCTYPE html>\n<!-- coldpress bench -->\n";
const STYLE: &str = include_str!("style.css");

/// Colours that differ in lightness too, and read on white and on black.
const COLOURS: [&str; 9] =
    ["#0a84c6", "#d55e00", "#009e73", "#cc79a7", "#8a6fdf", "#c99700", "#7f8790", "#a0604f", "#5fae2e"];

/// Whether a page may be written to `path`, before anything is measured.
///
/// # Errors
/// `path` is something else than an earlier page, or has no folder.
pub fn check(path: &Path) -> Result<(), EngineError> {
    let bad = |reason: &str| EngineError::BadOutput { path: path.to_owned(), reason: reason.to_owned() };
    if !path.exists() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return if folder.is_dir() { Ok(()) } else { Err(bad("its folder does not exist")) };
    }
    if begins_with(path, OPENING.as_bytes()) {
        return Ok(());
    }
    Err(bad("exists and is no bench page of this program: it is not overwritten"))
}

/// Writes the page, replacing at most another one.
///
/// # Errors
/// As [`check`], or the disk refuses.
pub fn write(bench: &Bench, path: &Path) -> Result<(), EngineError> {
    check(path)?;
    std::fs::write(path, page(bench)).map_err(|error| EngineError::BadOutput {
        path: path.to_owned(),
        reason: format!("cannot be written: {error}"),
    })
}

/// One measurement of one configuration, as pictures use it.
struct Point<'a> {
    measured: &'a Measured,
    measurement: &'a Measurement,
    summaries: Summaries<'a>,
}

impl Point<'_> {
    /// What tells this point from the others.
    fn name(&self, bench: &Bench) -> String {
        format!("{} · {}", self.measured.budget_name(""), self.series(bench))
    }

    /// The curve that it belongs to.
    fn series(&self, bench: &Bench) -> String {
        let residency = self.measured.residency_name();
        let depth = self.measurement.depth;
        if bench.depths.len() > 1 { format!("{residency} · depth {depth}") } else { residency }
    }

    fn decode(&self) -> &Summary<'_> {
        &self.summaries.main()[1]
    }

    fn prefill(&self) -> &Summary<'_> {
        &self.summaries.main()[0]
    }
}

fn points(bench: &Bench) -> Vec<Point<'_>> {
    let all = bench.all.iter().flat_map(|measured| {
        measured.measurements.iter().map(move |measurement| Point {
            measured,
            measurement,
            summaries: Summaries::of(bench, measured, measurement),
        })
    });
    all.collect()
}

fn page(bench: &Bench) -> String {
    let points = points(bench);
    let mut page = format!(
        "{OPENING}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>coldpress bench: {}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escaped(bench.model_name())
    );
    header(&mut page, bench);
    cards(&mut page, bench, &points);
    plot::section(&mut page, bench, &points);
    bars::section(&mut page, bench, &points);
    for measured in &bench.all {
        if let Some(timeline) = &measured.timeline {
            timeline::section(&mut page, bench, measured, timeline);
        }
    }
    table(&mut page, &points);
    if let Some(routing) = bench.all.iter().find_map(|measured| measured.routing.as_ref()) {
        heat::section(&mut page, routing);
    }
    method(&mut page, bench);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn header(page: &mut String, bench: &Bench) {
    let model = &bench.model;
    let plan = &bench.all[0].status.plan;
    let experts = match model.moe_layers {
        0 => "no routed experts".to_owned(),
        layers => {
            format!("{layers} MoE layers of {} experts, {} per token", model.experts, model.experts_per_token)
        }
    };
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<header>\n<h1>{}</h1>\n<p>{}, {} layers, {experts}. {} prompt tokens, {} generated, {} runs of each.<br>\n\
         {}, {} threads, {}, {} usable memory; coldpress {}.<br>\n<code>{}</code></p>\n</header>\n",
        escaped(bench.model_name()),
        escaped(&model.family),
        model.layers,
        bench.sizes.prompt,
        bench.sizes.generated,
        bench.repeat,
        escaped(coldpress::processor_name().as_deref().unwrap_or("unnamed processor")),
        plan.threads,
        plan.isa,
        plan.usable,
        env!("CARGO_PKG_VERSION"),
        escaped(&bench.rerun),
    );
}

fn cards(page: &mut String, bench: &Bench, points: &[Point<'_>]) {
    let best = |rate: fn(&Point<'_>) -> f64| points.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    page.push_str("<div class=\"cards\">\n");
    let mut card = |label: &str, figure: &str, of: &str| {
        let _ = writeln!(
            page,
            "<div class=\"card\"><span>{label}</span><b>{}</b><span>{}</span></div>",
            escaped(figure),
            escaped(of)
        );
    };
    if let Some(point) = best(|point| point.decode().rate.median) {
        card("fastest decode", &format!("{} tok/s", figure(point.decode().rate.median)), &point.name(bench));
    }
    if let Some(point) = best(|point| point.prefill().rate.median) {
        card(
            "fastest prefill",
            &format!("{} tok/s", figure(point.prefill().rate.median)),
            &point.name(bench),
        );
    }
    if let Some(measured) = bench.all.iter().min_by_key(|measured| measured.status.peak.rss) {
        let of = format!("{} · {}", measured.budget_name("of "), measured.residency_name());
        card("smallest memory peak", &measured.status.peak.rss.to_string(), &of);
    }
    let (answer, of) = match bench.same_tokens() {
        true => ("the same", "in all runs of all configurations"),
        false => ("NOT the same", "in all runs: this is a bug, please report it"),
    };
    card("generated tokens", answer, of);
    page.push_str("</div>\n");
}

const COLUMNS: [&str; 15] = [
    "depth",
    "part",
    "runs",
    "tok/s",
    "min – max",
    "first<br>third",
    "last<br>third",
    "hit<br>rate",
    "read per<br>token",
    "read ahead,<br>used",
    "disk wait<br>ms",
    "compute<br>ms",
    "host<br>ms",
    "wall<br>ms",
    "of limit,<br>bound",
];

fn table(page: &mut String, points: &[Point<'_>]) {
    page.push_str(
        "<h2>All figures</h2>\n<p>Rates are medians; times are those of the run in the middle. The wall time of prefill is the \
         time to the first token. Thirds: rates in tok/s of the first and the last third of the answer.</p>\n\
         <div class=\"table\"><table>\n<tr>",
    );
    for (index, column) in COLUMNS.iter().enumerate() {
        let class = if (1..3).contains(&index) { " class=\"name\"" } else { "" };
        let _ = write!(page, "<th{class}>{column}</th>");
    }
    page.push_str("</tr>\n");
    let mut last: Option<&Measured> = None;
    for point in points {
        if last.is_none_or(|last| !std::ptr::eq(last, point.measured)) {
            let span = COLUMNS.len();
            let settings = match crate::settings::describe(&point.measured.status) {
                words if words.is_empty() => words,
                words => format!("; {words}"),
            };
            let _ = writeln!(
                page,
                "<tr class=\"head\"><td colspan=\"{span}\">{}{}{}; {} tokens</td></tr>",
                escaped(&heading(point.measured)),
                escaped(&settings),
                if point.measured.asked == Residency::Auto { "; residency chosen by auto" } else { "" },
                if point.measured.same_tokens { "the same" } else { "DIFFERENT" }
            );
            last = Some(point.measured);
        }
        for summary in point.summaries.all() {
            row(page, point, summary);
        }
    }
    page.push_str("</table></div>\n");
}

fn row(page: &mut String, point: &Point<'_>, summary: &Summary<'_>) {
    let part: &Part = summary.part;
    let third = |index: usize| part.thirds.map_or("–".to_owned(), |thirds| figure(thirds[index].rate()));
    let experts = &part.experts;
    let phases = &part.phases;
    let computing = phases.sum() - phases.disk_wait - phases.host;
    let ahead = match experts.prefetched_bytes {
        0 => "–".to_owned(),
        bytes => format!("{}, {}", Bytes(bytes), Bytes(experts.prefetch_used_bytes)),
    };
    let ms = |time| format!("{:.1}", milliseconds(time));
    let cells = [
        point.measurement.depth.to_string(),
        summary.name.to_owned(),
        format!("{} {}", summary.runs, warmth(summary.cold)),
        figure(summary.rate.median),
        match summary.runs {
            1 => "–".to_owned(),
            _ => format!("{} – {}", figure(summary.rate.min), figure(summary.rate.max)),
        },
        third(0),
        third(2),
        hits(part),
        Bytes(part.device_bytes_per_token() as u64).to_string(),
        ahead,
        ms(phases.disk_wait),
        ms(computing),
        ms(phases.host),
        ms(part.wall),
        of_limit(summary),
    ];
    page.push_str(if summary.cold { "<tr class=\"cold\">" } else { "<tr>" });
    for (index, cell) in cells.iter().enumerate() {
        let class = if (1..3).contains(&index) { " class=\"name\"" } else { "" };
        let _ = write!(page, "<td{class}>{}</td>", escaped(cell));
    }
    page.push_str("</tr>\n");
}

fn method(page: &mut String, bench: &Bench) {
    page.push_str("<h2>How to read it</h2>\n");
    for line in bench.limits.lines() {
        let _ = writeln!(page, "<p>Measured {}.</p>", escaped(&line));
    }
    page.push_str(
        "<p>The limit of a run is the longer of two times: computing alone (wall time without waiting for the disk and without \
         making records of what was read, of the resident configuration at the same depth where there is one and it is shorter, \
         else of the run itself), and reading the experts that were missed at the measured rate of the disk. Both are taken to \
         overlap completely, and misses to be unavoidable. A run above 100 % read faster than the disk did when it was \
         measured. Where reads go through the page cache, memory may answer, and only computing bounds.</p>\n\
         <p>The cold run is the first one after a load; all others are warm. The text is the same in every run.</p>\n",
    );
}

/// A figure with about three digits.
fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Text that cannot end an element or an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The least of 1, 2, 2.5 and 5 times a power of ten that reaches `most` in at most five steps.
fn step_of_axis(most: f64) -> f64 {
    let power = 10.0_f64.powf((most.max(1e-9) / 5.0).log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    factors.into_iter().map(|factor| factor * power).find(|step| step * 5.0 >= most).unwrap_or(10.0 * power)
}

/// A tick of an axis, without digits that say nothing.
fn tick(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_few_round_steps() {
        for most in [0.003, 0.9, 1.0, 7.0, 42.0, 99.0, 101.0, 12345.0] {
            let step = step_of_axis(most);
            assert!(step * 5.0 >= most && step * 2.0 <= most * 1.01, "{step} for {most}");
        }
        assert_eq!((tick(0.5), tick(20.0), tick(0.0)), ("0.5".to_owned(), "20".to_owned(), "0".to_owned()));
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("<b a=\"x\">&"), "&lt;b a=&quot;x&quot;&gt;&amp;");
    }
}
