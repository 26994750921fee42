//! Where the time of a generated token goes: one bar per configuration and depth, cut into phases, with its limit.

use std::fmt::Write;

use super::{Bench, Point, escaped, figure, step_of_axis, tick};
use crate::output::milliseconds;

const WIDTH: f64 = 1060.0;
/// Room for the figures beside the longest bar.
const FIGURES: f64 = 240.0;
const RIGHT: f64 = WIDTH - FIGURES;
/// Most room for names, and what a character of them takes.
const NAMES_MAX: f64 = 380.0;
const CHARACTER: f64 = 7.6;
const TOP: f64 = 8.0;
const ROW: f64 = 34.0;
const BAR: f64 = 22.0;

/// Colour and name of each phase, in the order of `PhaseTimes::named`.
pub(super) const PHASES: [(&str, &str); 7] = [
    ("#3f7cb8", "attention"),
    ("#2f9e77", "experts"),
    ("#d9a400", "arrange (records of what was read)"),
    ("#8a6fdf", "dense feed-forward, router"),
    ("#9a7260", "head"),
    ("#d9534a", "disk wait"),
    ("#9aa2ab", "host (sampling, text)"),
];

/// The bars with their legend.
pub fn section(page: &mut String, bench: &Bench, points: &[Point<'_>]) {
    page.push_str(
        "<h2>Where the time of a generated token goes</h2>\n<p>Milliseconds per token of the run in the middle. The mark is the \
         limit: the longer of computing alone and reading what was missed.</p>\n<div class=\"legend\">\n",
    );
    for (colour, name) in PHASES {
        let _ = writeln!(page, "<span><i style=\"background: {colour}\"></i>{name}</span>");
    }
    page.push_str("<span><i class=\"mark\"></i>limit</span>\n</div>\n");
    let bottom = TOP + ROW * points.len() as f64;
    let _ = writeln!(
        page,
        "<div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Phases of a generated token\">",
        bottom + 48.0
    );
    let longest = |point: &Point<'_>| {
        let decode = point.decode();
        let wall = decode.part.wall.max(decode.limit.time());
        milliseconds(wall) / decode.part.tokens.max(1) as f64
    };
    let most = points.iter().map(longest).fold(1e-6, f64::max);
    let step = step_of_axis(most);
    let longest_name = points.iter().map(|point| point.name(bench).chars().count()).max().unwrap_or(0);
    let left = (CHARACTER * longest_name as f64 + 20.0).min(NAMES_MAX);
    let scale = (RIGHT - left) / most;
    for index in 0..=(most / step).floor() as usize {
        let value = step * index as f64;
        let x = left + scale * value;
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            tick(value)
        );
    }
    let _ = writeln!(
        page,
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">milliseconds per token</text>",
        (left + RIGHT) / 2.0,
        bottom + 40.0
    );
    for (index, point) in points.iter().enumerate() {
        bar(page, bench, point, TOP + ROW * index as f64, left, scale);
    }
    page.push_str("</svg></div>\n");
}

fn bar(page: &mut String, bench: &Bench, point: &Point<'_>, y: f64, left: f64, scale: f64) {
    let decode = point.decode();
    let tokens = decode.part.tokens.max(1) as f64;
    let (text_y, bar_y) = (y + ROW / 2.0 + 4.5, y + (ROW - BAR) / 2.0);
    let name = escaped(&point.name(bench));
    let _ = writeln!(page, "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>", left - 12.0);
    let mut x = left;
    for ((colour, phase), (_, time)) in PHASES.iter().zip(decode.part.phases.named()) {
        let per_token = milliseconds(time) / tokens;
        let width = per_token * scale;
        let _ = writeln!(
            page,
            "<rect x=\"{x:.2}\" y=\"{bar_y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{colour}\">\
             <title>{name}: {phase} {per_token:.3} ms</title></rect>"
        );
        x += width;
    }
    let limit = left + scale * milliseconds(decode.limit.time()) / tokens;
    let (mark_top, mark_bottom) = (bar_y - 4.0, bar_y + BAR + 4.0);
    let _ = writeln!(page, "<path class=\"limit\" d=\"M{limit:.1} {mark_top}V{mark_bottom}\"/>");
    let wall = milliseconds(decode.part.wall) / tokens;
    let _ = writeln!(
        page,
        "<text x=\"{}\" y=\"{text_y}\">{} ms</text><text class=\"soft\" x=\"{}\" y=\"{text_y}\">{:.0}% of limit{}</text>",
        x.max(limit) + 10.0,
        figure(wall),
        x.max(limit) + 76.0,
        decode.limit.percent(),
        if decode.limit.reading().is_some() { "" } else { ", disk unknown" }
    );
}
