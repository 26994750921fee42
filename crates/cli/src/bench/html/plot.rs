//! Four curves over the budget: decode, prefill, hit rate and bytes per token, one curve per residency and depth.
//!
//! Budgets stand in order and evenly spaced, because users try them in factors, and "unlimited" has no place on a scale.

use std::fmt::Write;

use super::{Bench, COLOURS, Point, escaped, step_of_axis, tick};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 504.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 218.0;
/// Labels that have room under a plot.
const LABELS_MAX: usize = 6;

/// A value with its smallest and largest.
type Value = (f64, f64, f64);
/// What a plot shows of a point; nothing where there is nothing to show.
type Figure = fn(&Point<'_>) -> Option<Value>;

/// Title, what is drawn, and the figure.
const PLOTS: [(&str, &str, Figure); 4] = [
    ("Decode", "tokens per second, median; bars from the slowest run to the fastest", |point| {
        let rate = &point.decode().rate;
        Some((rate.median, rate.min, rate.max))
    }),
    ("Prefill", "tokens per second, median; bars from the slowest run to the fastest", |point| {
        let rate = &point.prefill().rate;
        Some((rate.median, rate.min, rate.max))
    }),
    ("Hit rate of decode", "percent of requested experts that were in memory", |point| {
        point.decode().part.hit_rate().map(|rate| (100.0 * rate, 100.0 * rate, 100.0 * rate))
    }),
    ("Read per generated token", "MiB asked of the device", |point| {
        point.decode().part.hit_rate()?;
        let mib = point.decode().part.device_bytes_per_token() / f64::from(1 << 20);
        Some((mib, mib, mib))
    }),
];

/// The plots with their legend.
pub fn section(page: &mut String, bench: &Bench, points: &[Point<'_>]) {
    let mut budgets: Vec<u64> = points.iter().map(|point| budget(point)).collect();
    budgets.sort_unstable();
    budgets.dedup();
    let mut series: Vec<(String, Vec<&Point<'_>>)> = Vec::new();
    for point in points {
        let name = curve(bench, point);
        match series.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    }
    series.iter_mut().for_each(|(_, points)| points.sort_by_key(|point| budget(point)));
    page.push_str("<h2>Speed and reads by budget</h2>\n<div class=\"legend\">\n");
    for (index, (name, _)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(page, "<span><i style=\"background: {colour}\"></i>{}</span>", escaped(name));
    }
    page.push_str("</div>\n<div class=\"plots\">\n");
    // Models without routed experts have no hits and no reads to show.
    for (title, subject, figure) in PLOTS {
        if points.iter().all(|point| figure(point).is_none()) {
            continue;
        }
        draw(page, bench, title, subject, figure, &budgets, &series);
    }
    page.push_str("</div>\n");
}

fn budget(point: &Point<'_>) -> u64 {
    point.measured.status.plan.plan.budget.0
}

/// Points of one residency that was asked for and one depth form a curve.
fn curve(bench: &Bench, point: &Point<'_>) -> String {
    let asked = point.measured.asked.name();
    let depth = point.measurement.depth;
    if bench.depths.len() > 1 { format!("{asked} · depth {depth}") } else { asked.to_owned() }
}

fn draw(
    page: &mut String,
    bench: &Bench,
    title: &str,
    subject: &str,
    figure: Figure,
    budgets: &[u64],
    series: &[(String, Vec<&Point<'_>>)],
) {
    let all = series.iter().flat_map(|(_, points)| points.iter().copied());
    let most = all.filter_map(figure).fold(0.0_f64, |most, (_, _, max)| most.max(max));
    let percent = subject.starts_with("percent");
    let most = if percent { 100.0 } else { most };
    let step = if most > 0.0 { step_of_axis(most) } else { 1.0 };
    let top = if most > 0.0 { (most / step - 1e-9).ceil() * step } else { step };
    let place_y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;
    let room = (RIGHT - LEFT) / budgets.len() as f64;
    let place_x = |budget: u64| {
        let index = budgets.iter().position(|other| *other == budget).unwrap_or(0);
        LEFT + room * (index as f64 + 0.5)
    };
    let _ = writeln!(
        page,
        "<div class=\"plot\"><h3>{title}</h3><p>{subject}</p>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title} by budget\">"
    );
    for index in 0..=(top / step).round() as usize {
        let value = step * index as f64;
        let y = place_y(value);
        let sign = if percent { "%" } else { "" };
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}{sign}</text>",
            LEFT - 8.0,
            y + 4.5,
            tick(value)
        );
    }
    let every = budgets.len().div_ceil(LABELS_MAX);
    for budget in budgets.iter().rev().step_by(every) {
        let name =
            if *budget == u64::MAX { "unlimited".to_owned() } else { coldpress::Bytes(*budget).to_string() };
        let _ = writeln!(
            page,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            place_x(*budget),
            BOTTOM + 21.0
        );
    }
    let _ = writeln!(
        page,
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">memory budget of the process</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 44.0
    );
    for (index, (_, points)) in series.iter().enumerate() {
        // Curves that would cover each other stand a little apart.
        let shift = (index as f64 - (series.len() - 1) as f64 / 2.0) * (room / 12.0).min(7.0);
        let colour = COLOURS[index % COLOURS.len()];
        let placed: Vec<(f64, Value, &Point<'_>)> = points
            .iter()
            .filter_map(|point| Some((place_x(budget(point)) + shift, figure(point)?, *point)))
            .collect();
        let path: Vec<String> =
            placed.iter().map(|(x, value, _)| format!("{x:.1} {:.1}", place_y(value.0))).collect();
        if !path.is_empty() {
            let _ = writeln!(page, "<path class=\"curve\" stroke=\"{colour}\" d=\"M{}\"/>", path.join("L"));
        }
        for (x, (value, min, max), point) in placed {
            let _ = writeln!(
                page,
                "<path class=\"spread\" stroke=\"{colour}\" d=\"M{x:.1} {:.1}V{:.1}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4.5\" fill=\"{colour}\"><title>{}: {}</title></circle>",
                place_y(min),
                place_y(max),
                place_y(value),
                escaped(&point.name(bench)),
                super::figure(value)
            );
        }
    }
    page.push_str("</svg></div>\n");
}
