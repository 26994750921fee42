//! Which experts the text uses: one row per routed layer, one cell per expert, darker or lighter by uses.

use std::fmt::Write;

use coldpress::RoutingTrace;

const WIDTH: f64 = 1060.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 6.0;
/// Shades beside that of an unused expert.
const SHADES: usize = 10;

/// The map of one recorded run.
pub fn section(page: &mut String, routing: &RoutingTrace) {
    let counts = routing.expert_counts();
    let mut uses: Vec<Vec<u64>> = counts.iter().map(|count| vec![0; *count]).collect();
    for pass in routing.passes() {
        for (layer, uses) in uses.iter_mut().enumerate() {
            for &expert in pass.layer(layer) {
                uses[usize::from(expert)] += 1;
            }
        }
    }
    let most = uses.iter().flatten().copied().max().unwrap_or(0);
    let widest = counts.iter().copied().max().unwrap_or(0);
    if most == 0 || widest == 0 {
        return;
    }
    let cell_width = (WIDTH - LEFT) / widest as f64;
    let cell_height = (420.0 / uses.len() as f64).clamp(5.0, 22.0);
    let bottom = TOP + cell_height * uses.len() as f64;
    let _ = writeln!(
        page,
        "<h2>Which experts the text uses</h2>\n<p>Uses of each expert in {} tokens of one further run, prompt and answer: from \
         empty (never) to full (the most used one: {most} times), by the root of the uses.</p>\n\
         <div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {:.1}\" role=\"img\" aria-label=\"Uses of experts by layer\">",
        routing.tokens(),
        bottom + 44.0
    );
    // One path per shade keeps the page small for models of ten thousands of experts.
    let mut shades = vec![String::new(); SHADES + 1];
    for (layer, uses) in uses.iter().enumerate() {
        let y = TOP + cell_height * layer as f64;
        for (expert, &uses) in uses.iter().enumerate() {
            let shade = ((uses as f64 / most as f64).sqrt() * SHADES as f64).ceil() as usize;
            let x = LEFT + cell_width * expert as f64;
            let (width, height) = (cell_width * 0.94, cell_height * 0.92);
            let _ = write!(shades[shade], "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
        }
    }
    for (shade, path) in shades.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let opacity = 0.05 + 0.95 * shade as f64 / SHADES as f64;
        let _ = writeln!(page, "<path class=\"heat\" fill-opacity=\"{opacity:.2}\" d=\"{path}\"/>");
    }
    let every = (16.0 / cell_height).ceil() as usize;
    for layer in (0..uses.len()).step_by(every.max(1)) {
        let y = TOP + cell_height * (layer as f64 + 0.5) + 4.5;
        let _ = writeln!(
            page,
            "<text class=\"soft\" x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{layer}</text>",
            LEFT - 8.0
        );
    }
    let every = widest.div_ceil(16);
    for expert in (0..widest).step_by(every) {
        let x = LEFT + cell_width * (expert as f64 + 0.47);
        let _ = writeln!(
            page,
            "<text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{expert}</text>",
            bottom + 17.0
        );
    }
    let middle = (TOP + bottom) / 2.0;
    let _ = writeln!(
        page,
        "<text class=\"soft\" x=\"12\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 12 {middle:.1})\">layer</text>\
         <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">expert</text>\n</svg></div>",
        (LEFT + WIDTH) / 2.0,
        bottom + 38.0
    );
}
