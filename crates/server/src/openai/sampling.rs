//! Sampling fields of OpenAI's requests, with the further ones that local servers have made common.

use serde_json::Value;

use crate::errors::ApiError;
use crate::fields::Fields;
use crate::prepare::Common;
use crate::settings::ServerSettings;

/// Most tokens an answer may ask for; the context is the real bound.
const TOKENS_MAX: i64 = u32::MAX as i64;
/// Most likely tokens told beside the chosen one.
const TOP_LOGPROBS_MAX: i64 = 20;

/// Fields that change nothing in the answer here: accepted, and named in a header.
pub const HARMLESS: [&str; 14] = [
    "metadata",
    "store",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
    "cache_prompt",
    "id_slot",
    "slot_id",
    "timings_per_token",
    "add_generation_prompt",
];

/// Reads what chat completions and completions have in common, `stream` and log probabilities excepted.
///
/// # Errors
/// If a field is out of range.
pub fn read_common(fields: &mut Fields, settings: &ServerSettings) -> Result<Common, ApiError> {
    let mut common = Common::new(1.0, 0, 1.0);
    read_drawing(fields, &mut common)?;
    if let Some(number) = fields.integer("max_tokens", 1, TOKENS_MAX)? {
        common.max_tokens = usize::try_from(number).ok();
    }
    if let Some(number) = fields.integer("max_completion_tokens", 1, TOKENS_MAX)? {
        common.max_tokens = usize::try_from(number).ok();
    }
    if let Some(number) = fields.integer("n", 1, settings.choices_max as i64)? {
        common.choices = usize::try_from(number).unwrap_or(1);
    }
    let stop = fields.strings("stop")?;
    common.set_stop("stop", stop)?;
    fields.ignore(&HARMLESS);
    Ok(common)
}

/// Reads how tokens are chosen.
///
/// # Errors
/// If a field is out of range.
pub fn read_drawing(fields: &mut Fields, common: &mut Common) -> Result<(), ApiError> {
    let sampling = &mut common.sampling;
    if let Some(value) = fields.number("temperature", 0.0, 100.0)? {
        sampling.temperature = value;
    }
    if let Some(value) = fields.number("top_p", 0.0, 1.0)? {
        // 0 keeps one token, which the smallest positive share does as well.
        sampling.top_p = value.max(f32::MIN_POSITIVE);
    }
    if let Some(value) = fields.integer("top_k", -1, i64::from(u32::MAX))? {
        sampling.top_k = usize::try_from(value).unwrap_or(0);
    }
    if let Some(value) = fields.number("min_p", 0.0, 1.0)? {
        sampling.min_p = value;
    }
    for name in ["repetition_penalty", "repeat_penalty"] {
        if let Some(value) = fields.number(name, 0.01, 100.0)? {
            sampling.repetition_penalty = value;
        }
    }
    if let Some(value) = fields.integer("seed", i64::MIN, i64::MAX)? {
        sampling.seed = value.cast_unsigned();
    }
    if let Some(value) = fields.number("frequency_penalty", -2.0, 2.0)? {
        common.sampling.frequency_penalty = value;
    }
    if let Some(value) = fields.number("presence_penalty", -2.0, 2.0)? {
        common.sampling.presence_penalty = value;
    }
    common.logit_bias = read_bias(fields)?;
    Ok(())
}

fn read_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    const WANTED: &str = "must be an object of token ids with numbers from -100 to 100";
    const TOKENS_MAX: usize = 4096;
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(entries) = value else { return Err(fields.error("logit_bias", WANTED)) };
    if entries.len() > TOKENS_MAX {
        return Err(
            fields.error("logit_bias", &format!("names {} tokens; at most {TOKENS_MAX}", entries.len()))
        );
    }
    let entry = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| bias.abs() <= 100.0)?;
        Some((id.parse().ok()?, bias as f32))
    };
    let read: Option<Vec<(u32, f32)>> = entries.iter().map(entry).collect();
    read.ok_or_else(|| fields.error("logit_bias", WANTED))
}

/// `logprobs: true` with `top_logprobs`, as chat completions have it.
///
/// # Errors
/// If one is out of range, or there is the second without the first.
pub fn read_chat_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)?;
    match (wanted, top) {
        (true, top) => Ok(usize::try_from(top.unwrap_or(0)).ok()),
        (false, Some(1..)) => Err(fields.error("top_logprobs", "needs logprobs to be true")),
        (false, _) => Ok(None),
    }
}

/// `stream` and `stream_options.include_usage`.
///
/// # Errors
/// If they are something else.
pub fn read_stream(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        include_usage = options.flag("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
        fields.ignored.extend(options.finish()?);
        if !stream {
            return Err(fields.error("stream_options", "needs stream to be true"));
        }
    }
    Ok((stream, include_usage))
}

/// `coldpress: {"progress": true}`: our own field.
///
/// # Errors
/// If it is something else.
pub fn read_extension(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(mut extension) = fields.object("coldpress")? else { return Ok(false) };
    let progress = extension.flag("progress")?.unwrap_or(false);
    extension.finish()?;
    Ok(progress)
}
