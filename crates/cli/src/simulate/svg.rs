//! Hit-rate curves as one SVG file: no scripts, no fonts, no links; follows the reader's light or dark scheme.

use std::fmt::Write;
use std::path::Path;

use coldpress::{EngineError, ReplayCounts, Simulation, begins_with};

/// What every drawing begins with; files that do not are never replaced.
const OPENING: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\"";

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 44.0;
const PLOT_WIDTH: f64 = 560.0;
const PLOT_HEIGHT: f64 = 370.0;

/// Colours that differ in lightness too, and read on white and on black.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c564b", "#bcbd22"];

/// Writes the drawing, replacing at most another drawing.
///
/// # Errors
/// `path` is something else, or cannot be written.
pub fn write(simulation: &Simulation, path: &Path) -> Result<(), EngineError> {
    let bad = |reason: String| EngineError::BadOutput { path: path.to_owned(), reason };
    if path.exists() && !begins_with(path, OPENING.as_bytes()) {
        return Err(bad("exists and is no drawing of this program: it is not overwritten".to_owned()));
    }
    std::fs::write(path, draw(simulation)).map_err(|error| bad(format!("cannot be written: {error}")))
}

fn draw(simulation: &Simulation) -> String {
    let mut svg = format!(
        "{OPENING} viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Hit rate by cache size\">\n\
         <style>\n\
         svg {{ background: #ffffff; font: 13px system-ui, sans-serif; }}\n\
         text {{ fill: #222222; }} .grid {{ stroke: #dddddd; }} .optimum {{ stroke: #222222; stroke-dasharray: 5 4; }}\n\
         path, .optimum {{ fill: none; stroke-width: 2; }}\n\
         @media (prefers-color-scheme: dark) {{\n\
         svg {{ background: #16181c; }} text {{ fill: #e6e6e6; }} .grid {{ stroke: #3a3d44; }} .optimum {{ stroke: #e6e6e6; }}\n\
         }}\n\
         </style>\n\
         <text x=\"{LEFT}\" y=\"24\">Hit rate by cache size, all requests: {} tokens, {} layers, {} experts</text>\n",
        simulation.tokens, simulation.layers, simulation.records
    );
    for step in 0..=10 {
        let share = f64::from(step) / 10.0;
        let (x, y) = (place_x(share), place_y(share));
        let (right, bottom) = (place_x(1.0), place_y(0.0));
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right:.1}M{x:.1} {TOP}V{bottom:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}%</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}%</text>",
            LEFT - 8.0,
            y + 4.0,
            step * 10,
            bottom + 20.0,
            step * 10
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">experts in memory</text>",
        LEFT + PLOT_WIDTH / 2.0,
        HEIGHT - 20.0
    );
    for (index, curve) in simulation.policies.iter().enumerate() {
        let stroke = format!("stroke=\"{}\"", COLOURS[index % COLOURS.len()]);
        line(&mut svg, simulation, index, curve.policy, &curve.counts, &stroke);
    }
    let index = simulation.policies.len();
    line(&mut svg, simulation, index, "belady", &simulation.belady, "class=\"optimum\"");
    svg.push_str("</svg>\n");
    svg
}

fn line(
    svg: &mut String,
    simulation: &Simulation,
    index: usize,
    name: &str,
    counts: &[ReplayCounts],
    look: &str,
) {
    let mut points: Vec<(f64, f64)> = simulation
        .slots
        .iter()
        .zip(counts)
        .map(|(slots, counts)| (*slots as f64 / simulation.records as f64, counts.hit_rate()))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let path: Vec<String> =
        points.iter().map(|(share, rate)| format!("{:.1} {:.1}", place_x(*share), place_y(*rate))).collect();
    let (x, y) = (LEFT + PLOT_WIDTH + 30.0, TOP + 12.0 + 24.0 * index as f64);
    let _ = writeln!(
        svg,
        "<path {look} d=\"M{}\"/><path {look} d=\"M{x} {y}h28\"/><text x=\"{}\" y=\"{}\">{name}</text>",
        path.join("L"),
        x + 36.0,
        y + 4.0
    );
}

fn place_x(share: f64) -> f64 {
    LEFT + PLOT_WIDTH * share
}

fn place_y(rate: f64) -> f64 {
    TOP + PLOT_HEIGHT * (1.0 - rate)
}
