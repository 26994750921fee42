//! Whether what was measured lies inside the band that `plan` predicts.
//!
//! The forecast is made before the model is loaded, with the bench's prompt and answer; the disk, the memory and the processor
//! are measured for it then. Compared are the first prompt after the load and the decode rate at depth 0, cold or warm.

use anyhow::Result;
use coldpress::{Band, ForecastRequest, LoadConfiguration, Prediction};
use serde_json::{Value, json};

use super::summary::Summaries;
use super::{Bench, Measured};
use crate::arguments::BenchArguments;
use crate::load::Bars;

/// The prediction for a configuration that is about to be measured.
///
/// # Errors
/// As [`coldpress::forecast`].
pub fn of(arguments: &BenchArguments, configuration: &LoadConfiguration) -> Result<Prediction> {
    let request = ForecastRequest {
        prompt_tokens: arguments.prompt_tokens as u64,
        answer_tokens: arguments.gen_tokens as u64,
        ..ForecastRequest::default()
    };
    Ok(coldpress::forecast(&arguments.model, configuration, &request, &mut Bars::default())?.prediction)
}

/// A predicted band beside the measured figure.
struct Compared {
    name: &'static str,
    unit: &'static str,
    band: Band,
    measured: f64,
}

impl Compared {
    fn verdict(&self) -> &'static str {
        if self.band.contains(self.measured) { "inside" } else { "outside" }
    }
}

/// What can be compared: nothing where the bench has no measurement at depth 0.
fn compared(bench: &Bench, measured: &Measured) -> Vec<Compared> {
    let Some(measurement) = measured.measurements.iter().find(|measurement| measurement.depth == 0) else {
        return Vec::new();
    };
    let summaries = Summaries::of(bench, measured, measurement);
    let prediction = &measured.prediction;
    let first = summaries.cold.as_ref().map(|[prefill, _]| Compared {
        name: "first token",
        unit: "s",
        band: prediction.prefill.seconds,
        measured: prefill.part.wall.as_secs_f64(),
    });
    let [_, decode] = summaries.main();
    let rate = decode.rate.median;
    let decode =
        Compared { name: "decode", unit: "tok/s", band: prediction.decode.tokens_per_second, measured: rate };
    first.into_iter().chain([decode]).collect()
}

/// One line; empty where nothing can be compared.
pub fn line(bench: &Bench, measured: &Measured) -> String {
    let parts = compared(bench, measured).into_iter().map(|one| {
        let Band { low, high } = one.band;
        format!(
            "{} {low:.2} to {high:.2} {}, measured {:.2}: {}",
            one.name,
            one.unit,
            one.measured,
            one.verdict()
        )
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { String::new() } else { format!("  prediction: {}\n", parts.join("; ")) }
}

/// For the JSON object.
pub fn value(bench: &Bench, measured: &Measured) -> Value {
    let compared = compared(bench, measured).into_iter().map(|one| {
        json!({ "name": one.name, "unit": one.unit, "predicted": one.band, "measured": one.measured, "verdict": one.verdict() })
    });
    json!({ "compared": compared.collect::<Vec<_>>(), "of": measured.prediction })
}
