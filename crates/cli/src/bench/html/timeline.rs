//! One generated token over time: what the processor did, and under it every expert on its way into memory.
//!
//! The colours of the processor's lane are those of the bars. Reads are packed into as few lanes as hold them. A read is drawn
//! until the store took it back from the reader: the device may have been done earlier, and the text says so.

use std::fmt::Write;
use std::ops::Range;

use coldpress::{Bytes, PhaseStretch, ReadEnd, ReadSpan, TokenTimeline};

use super::bars::PHASES;
use super::{Bench, Measured, escaped, figure, step_of_axis, tick};
use crate::bench::typical_token;
use crate::output::milliseconds;

const WIDTH: f64 = 1060.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 14.0;
/// Room for the numbers of layers.
const TOP: f64 = 24.0;
const PROCESSOR: f64 = 40.0;
const READS_TOP: f64 = TOP + PROCESSOR + 12.0;
const LANE: f64 = 13.0;
const BAR: f64 = 10.0;
/// Least distance of two numbers of layers.
const NUMBERS: f64 = 24.0;
/// What is too narrow to be seen is not drawn.
const NARROW: f64 = 0.04;
/// A token of more layers than this is drawn a second time, this many layers of it enlarged.
const LAYERS_WIDE: usize = 8;
const LAYERS_ENLARGED: usize = 4;

/// The drawing of one configuration's token with its legend and what it says in words.
pub fn section(page: &mut String, bench: &Bench, measured: &Measured, timeline: &TokenTimeline) {
    if timeline.wall_us == 0 {
        return;
    }
    page.push_str("<h2>One token over time</h2>\n");
    let _ = writeln!(page, "<p>{}</p>\n<div class=\"legend\">", escaped(&caption(bench, measured, timeline)));
    for (colour, name) in PHASES {
        let _ = writeln!(page, "<span><i style=\"background: {colour}\"></i>{name}</span>");
    }
    page.push_str(
        "<span><i class=\"read needed\"></i>read that is needed</span>\n\
         <span><i class=\"read ahead\"></i>read ahead</span>\n\
         <span><i class=\"read forgotten\"></i>read ahead for nothing</span>\n\
         <span><i class=\"read landing\"></i>arrived, not yet usable</span>\n</div>\n",
    );
    drawing(page, timeline, 0..timeline.wall_us, "Timeline of one token");
    let layers = layer_starts(timeline);
    if layers.len() > LAYERS_WIDE {
        let first = (layers.len() - LAYERS_ENLARGED) / 2;
        let window = layers[first].1..layers[first + LAYERS_ENLARGED].1;
        let _ = writeln!(
            page,
            "<p class=\"enlarged\">The same, layers {} to {} enlarged:</p>",
            layers[first].0,
            layers[first + LAYERS_ENLARGED - 1].0
        );
        drawing(page, timeline, window, "Timeline of one token, enlarged");
    }
}

/// Microseconds as milliseconds to read.
fn ms(us: u64) -> String {
    figure(us as f64 / 1000.0)
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// What the drawing shows, in words.
fn caption(bench: &Bench, measured: &Measured, timeline: &TokenTimeline) -> String {
    let wall = timeline.wall_us;
    let phases = timeline.phases();
    let waited = phases.disk_wait.as_micros() as u64;
    let arranged = phases.arrange.as_micros() as u64;
    let depth = measured.measurements.last().expect("at least one depth");
    let mut text = format!(
        "{} · {}, depth {}: generated token {} of one further run, of {} the one whose time is nearest to that of the run in \
         the middle ({} ms). It took {} ms: the processor waited for the disk for {} ms ({:.0} %), checked or arranged what \
         was read for {} ms, and computed or sampled for {} ms. ",
        measured.budget_name(""),
        measured.residency_name(),
        depth.depth,
        timeline.token,
        timeline.recorded,
        figure(milliseconds(typical_token(depth))),
        ms(wall),
        ms(waited),
        percent(waited, wall),
        ms(arranged),
        ms(wall.saturating_sub(waited + arranged)),
    );
    let experts = &timeline.experts;
    let reading = timeline.reading_us();
    let _ = write!(
        text,
        "Reads were on their way during {} ms of it ({:.0} %), so that the device had nothing to do for {} ms or more: an \
         arrival is noticed only when the processor looks. ",
        ms(reading),
        percent(reading, wall),
        ms(wall - reading.min(wall))
    );
    if let Ok(device) = bench.limits.reading(&bench.model_path, measured, experts.device_bytes_read) {
        let device = device.as_micros() as u64;
        let _ = write!(
            text,
            "At the measured rate of the disk, the {} asked of it take {} ms ({:.0} %). ",
            Bytes(experts.device_bytes_read),
            ms(device),
            percent(device, wall)
        );
    }
    let forgotten = timeline.reads.iter().filter(|read| read.end == ReadEnd::Forgotten).count();
    let _ = write!(text, "{} of {} experts had to be read, ", experts.misses, experts.hits + experts.misses);
    let _ = match (experts.prefetch_used, forgotten) {
        (0, 0) => write!(text, "none of them begun ahead."),
        (used, 0) => write!(text, "{used} of them begun ahead, and nothing was begun ahead in vain."),
        (used, _) => {
            write!(text, "{used} of them begun ahead; begun ahead for nothing: {forgotten}.")
        }
    };
    if timeline.cut_off {
        text.push_str(" There was no room to write down everything: some of it is missing in the drawing.");
    }
    text
}

/// The longest waits, for those who do not see the drawing.
fn description(timeline: &TokenTimeline) -> String {
    let waits = || timeline.stretches.iter().filter(|stretch| stretch.phase == coldpress::Phase::DiskWait);
    let length = |stretch: &PhaseStretch| stretch.end_us - stretch.begin_us;
    match waits().max_by_key(|stretch| length(stretch)) {
        None => format!("In {} ms the processor never waits for the disk.", ms(timeline.wall_us)),
        Some(longest) => format!(
            "In {} ms the processor waits {} times for the disk, {} ms in all; the longest wait takes {} ms, in layer {}.",
            ms(timeline.wall_us),
            waits().count(),
            ms(waits().map(length).sum()),
            ms(length(longest)),
            longest.layer.map_or("-".to_owned(), |layer| layer.to_string())
        ),
    }
}

/// Every layer with the moment of its first stretch.
fn layer_starts(timeline: &TokenTimeline) -> Vec<(u32, u64)> {
    let mut starts: Vec<(u32, u64)> =
        timeline.stretches.iter().filter_map(|stretch| Some((stretch.layer?, stretch.begin_us))).collect();
    starts.dedup_by_key(|(layer, _)| *layer);
    starts
}

/// From microseconds to places in the drawing.
struct Scale {
    window: Range<u64>,
}

impl Scale {
    fn x(&self, us: u64) -> f64 {
        let us = us.clamp(self.window.start, self.window.end) - self.window.start;
        LEFT + (RIGHT - LEFT) * us as f64 / (self.window.end - self.window.start).max(1) as f64
    }

    fn has(&self, begin_us: u64, end_us: u64) -> bool {
        begin_us < self.window.end && end_us > self.window.start
    }
}

fn drawing(page: &mut String, timeline: &TokenTimeline, window: Range<u64>, label: &str) {
    let scale = Scale { window };
    let end = |read: &ReadSpan| read.landed_us.unwrap_or(timeline.wall_us);
    let reads: Vec<&ReadSpan> =
        timeline.reads.iter().filter(|read| scale.has(read.begun_us, end(read))).collect();
    let (lanes, lane_count) = packed(reads.iter().map(|read| (read.begun_us, end(read))));
    let bottom = READS_TOP + LANE * lane_count.max(1) as f64 + 2.0;
    let _ = writeln!(
        page,
        "<div class=\"plot wide\"><svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{label}\"><desc>{}</desc>",
        bottom + 44.0,
        description(timeline)
    );
    axis(page, &scale, bottom);
    layers(page, timeline, &scale, bottom);
    for (name, y) in [("processor", TOP + PROCESSOR / 2.0 + 4.5), ("reads", (READS_TOP + bottom) / 2.0 + 4.5)]
    {
        let x = LEFT - 10.0;
        let _ = writeln!(page, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>");
    }
    for stretch in merged(&timeline.stretches) {
        work(page, &stretch, &scale);
    }
    for (read, lane) in reads.into_iter().zip(lanes) {
        bar(page, read, &scale, READS_TOP + LANE * lane as f64, timeline.wall_us);
    }
    page.push_str("</svg></div>\n");
}

fn axis(page: &mut String, scale: &Scale, bottom: f64) {
    let from = scale.window.start as f64 / 1000.0;
    let to = scale.window.end as f64 / 1000.0;
    // A second half step keeps a wide drawing readable.
    let step = step_of_axis(to - from) / 2.0;
    let mut value = (from / step).ceil() * step;
    while value <= to {
        let x = scale.x((value * 1000.0).round() as u64);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            tick(value)
        );
        value += step;
    }
    let _ = writeln!(
        page,
        "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">milliseconds since the token began</text>",
        (LEFT + RIGHT) / 2.0,
        bottom + 38.0
    );
}

/// A tick where each layer begins, and as many numbers as there is room for.
fn layers(page: &mut String, timeline: &TokenTimeline, scale: &Scale, bottom: f64) {
    let mut free_from = LEFT;
    let _ = writeln!(
        page,
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">layer</text>",
        LEFT - 10.0,
        TOP - 8.0
    );
    for (layer, begin_us) in layer_starts(timeline) {
        if !scale.has(begin_us, begin_us + 1) {
            continue;
        }
        let x = scale.x(begin_us);
        let _ = write!(page, "<path class=\"layer\" d=\"M{x:.2} {}V{bottom:.1}\"/>", TOP - 5.0);
        if x >= free_from {
            let _ = write!(page, "<text class=\"soft\" x=\"{:.1}\" y=\"{}\">{layer}</text>", x, TOP - 8.0);
            free_from = x + NUMBERS;
        }
        page.push('\n');
    }
}

/// Neighbours of one phase and layer in one.
fn merged(stretches: &[PhaseStretch]) -> Vec<PhaseStretch> {
    let mut merged: Vec<PhaseStretch> = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        match merged.last_mut() {
            Some(last) if (last.phase, last.layer) == (stretch.phase, stretch.layer) => {
                last.end_us = stretch.end_us;
            }
            _ => merged.push(*stretch),
        }
    }
    merged
}

fn work(page: &mut String, stretch: &PhaseStretch, scale: &Scale) {
    let x = scale.x(stretch.begin_us);
    let width = scale.x(stretch.end_us) - x;
    if width < NARROW {
        return;
    }
    let (colour, phase) = PHASES[stretch.phase as usize];
    let place = stretch.layer.map_or(String::new(), |layer| format!(", layer {layer}"));
    let _ = writeln!(
        page,
        "<rect class=\"work\" x=\"{x:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{PROCESSOR}\" fill=\"{colour}\">\
         <title>{phase}{place}: {} ms, from {:.3} ms</title></rect>",
        ms(stretch.end_us - stretch.begin_us),
        stretch.begin_us as f64 / 1000.0
    );
}

fn bar(page: &mut String, read: &ReadSpan, scale: &Scale, y: f64, wall_us: u64) {
    let landed = read.landed_us.unwrap_or(wall_us);
    let arrived = read.arrived_us.unwrap_or(landed).min(landed);
    let asked = read.needed_us.unwrap_or(landed).clamp(read.begun_us, arrived.max(read.begun_us));
    let (how, parts) = match read.end {
        ReadEnd::Forgotten => {
            ("begun ahead for nothing", [("forgotten", read.begun_us, landed), ("", 0, 0), ("", 0, 0)])
        }
        _ => (
            if read.ahead { "begun ahead" } else { "needed" },
            [
                ("ahead", read.begun_us, asked),
                ("needed", asked, arrived),
                ("landing", arrived.max(asked), landed),
            ],
        ),
    };
    let at = |us: u64| format!("{:.3}", us as f64 / 1000.0);
    let mut title = format!(
        "expert {} of layer {}, {how}: {}, begun at {}",
        read.key.expert,
        read.key.layer,
        Bytes(read.bytes),
        at(read.begun_us)
    );
    if let Some(needed) = read.needed_us.filter(|_| read.ahead) {
        let _ = write!(title, ", asked for at {}", at(needed));
    }
    if let Some(arrived) = read.arrived_us {
        let _ = write!(title, ", arrived by {}", at(arrived));
    }
    if let Some(landed) = read.landed_us.filter(|_| read.end == ReadEnd::Used) {
        let _ = write!(title, ", usable at {}", at(landed));
    }
    let _ = write!(page, "<g><title>{title} ms</title>");
    for (class, begin_us, end_us) in parts {
        let x = scale.x(begin_us);
        let width = scale.x(end_us) - x;
        if width >= NARROW {
            let _ = write!(
                page,
                "<rect class=\"read {class}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{BAR}\"/>"
            );
        }
    }
    page.push_str("</g>\n");
}

/// The lane of each span, in the given order, so that no two in a lane overlap; and how many lanes that takes. Spans come in
/// the order in which they begin.
fn packed(spans: impl Iterator<Item = (u64, u64)>) -> (Vec<usize>, usize) {
    let mut ends: Vec<u64> = Vec::new();
    let lanes = spans.map(|(begin, end)| {
        let lane = ends.iter().position(|taken| *taken <= begin).unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(end);
        } else {
            ends[lane] = end;
        }
        lane
    });
    let lanes: Vec<usize> = lanes.collect();
    (lanes, ends.len())
}

#[cfg(test)]
mod tests {
    use coldpress::Phase;

    use super::*;

    #[test]
    fn reads_share_lanes_without_touching_each_other() {
        let spans = [(0, 10), (0, 4), (4, 6), (5, 12), (10, 11), (12, 13)];
        let (lanes, count) = packed(spans.into_iter());
        assert_eq!((lanes, count), (vec![0, 1, 1, 2, 0, 0], 3));
        assert_eq!(packed(std::iter::empty()), (Vec::new(), 0));
    }

    #[test]
    fn neighbours_of_one_phase_are_one() {
        let stretch = |phase, layer, begin_us, end_us| PhaseStretch { phase, layer, begin_us, end_us };
        let stretches = [
            stretch(Phase::Experts, Some(0), 0, 3),
            stretch(Phase::Experts, Some(0), 3, 5),
            stretch(Phase::Experts, Some(1), 5, 6),
            stretch(Phase::Host, None, 6, 9),
        ];
        let merged = merged(&stretches);
        let ends: Vec<(u64, u64)> = merged.iter().map(|stretch| (stretch.begin_us, stretch.end_us)).collect();
        assert_eq!(ends, [(0, 5), (5, 6), (6, 9)]);
    }
}
