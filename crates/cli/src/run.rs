//! `coldpress run`: one prompt, one answer, streamed; then one line about memory and speed.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result, bail};
use coldpress::{FinishReason, GenerateObserver, GenerateOptions, Generation, Message, Runtime, Status};

use crate::arguments::RunArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{Ended, Usage, interrupt, load, output, settings};

/// Runs the command.
///
/// # Errors
/// Loading or generating failed, or standard output did.
pub fn run(arguments: &RunArguments, environment: &Environment) -> Result<Ended> {
    if arguments.prompt.is_none() && std::io::stdin().is_terminal() {
        return Err(Usage(anyhow::anyhow!("no prompt: give one with -p, or pipe it in")).into());
    }
    let used = Use::Run { raw: arguments.raw, json: arguments.json };
    let configuration = load::configuration(&arguments.load, environment, used);
    let (mut runtime, _state) = load::load(&arguments.load.model, &configuration, used.name(), environment)?;
    let prompt = prompt(arguments, runtime.prompt_bytes_max())?;
    let ids = encode(&runtime, arguments, &prompt)?;
    let mut session = runtime.session()?;
    let options = GenerateOptions {
        max_tokens: arguments.sampling.max_tokens,
        sampling: load::sampling(&arguments.sampling, 0.0),
        ignore_eos: arguments.sampling.ignore_eos,
        continuation: arguments.raw,
    };
    let mut screen = Screen::new(!arguments.json);
    let generation = runtime.generate(&mut session, &ids, &options, &mut screen)?;
    screen.end()?;
    load::remember(&runtime);
    let status = runtime.status();
    if arguments.json {
        output::json(&report(&generation, &status))?;
    } else {
        output::line(&final_line(&generation, &status));
    }
    Ok(ended(&generation))
}

/// Whether the answer was cut off by the user.
pub fn ended(generation: &Generation) -> Ended {
    match generation.finish_reason {
        FinishReason::Cancelled => Ended::Interrupted,
        FinishReason::Stop | FinishReason::Length => Ended::Done,
    }
}

/// The prompt; of standard input only a little more than could fit the context is read.
fn prompt(arguments: &RunArguments, bytes_max: usize) -> Result<String> {
    if let Some(prompt) = &arguments.prompt {
        return Ok(prompt.clone());
    }
    let mut bytes = Vec::new();
    let mut input = std::io::stdin().lock().take(bytes_max as u64 + 1);
    interrupt::waiting(|| input.read_to_end(&mut bytes))
        .context("cannot read the prompt from standard input")?;
    // What was cut off may end inside a character; the length alone is refused later.
    if bytes.len() > bytes_max {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            bail!("the prompt on standard input is not UTF-8 (byte {})", error.utf8_error().valid_up_to())
        }
    }
}

fn encode(runtime: &Runtime, arguments: &RunArguments, prompt: &str) -> Result<Vec<u32>> {
    if arguments.raw || !runtime.has_chat_template() {
        if arguments.system.is_some() {
            let reason =
                "--system needs a chat template, and this file has none: put the text into the prompt";
            return Err(Usage(anyhow::anyhow!(reason)).into());
        }
        return Ok(runtime.encode(prompt, arguments.parse_special)?);
    }
    let system = arguments.system.iter().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.chain([Message::new("user", prompt)]).collect();
    Ok(runtime.encode_chat(&messages)?)
}

/// Streams an answer to the terminal, with a bar while the prompt is read.
pub struct Screen {
    visible: bool,
    bar: Option<Progress>,
    ends_in_newline: bool,
    failure: Option<std::io::Error>,
}

impl Screen {
    /// A screen that shows text as it comes, or only progress.
    pub fn new(visible: bool) -> Self {
        Self { visible, bar: None, ends_in_newline: true, failure: None }
    }

    /// Ends the last line.
    ///
    /// # Errors
    /// Standard output could not be written; the generation was stopped for it.
    pub fn end(mut self) -> std::io::Result<()> {
        self.bar = None;
        if let Some(error) = self.failure {
            return Err(error);
        }
        if self.visible && !self.ends_in_newline { output::text("\n") } else { Ok(()) }
    }
}

impl GenerateObserver for Screen {
    fn prefill_progress(&mut self, done: f64, total: usize) {
        let bar = self.bar.get_or_insert_with(|| Progress::new("prompt", Unit::Tokens));
        bar.update(done as u64, total as u64);
        if done >= total as f64 {
            self.bar = None;
        }
    }

    fn text(&mut self, text: &str) {
        if self.visible && self.failure.is_none() {
            self.ends_in_newline = text.ends_with('\n');
            self.failure = output::text(text).err();
        }
    }

    fn should_stop(&mut self) -> bool {
        self.failure.is_some() || interrupt::asked()
    }
}

/// The line that ends every answer.
pub fn final_line(generation: &Generation, status: &Status) -> String {
    let [peak, budget] = coldpress::apart([status.peak.rss, status.plan.plan.budget]);
    let budget = match status.plan.plan.budget {
        coldpress::Bytes::MAX => "unlimited budget".to_owned(),
        _ => format!("budget {budget}"),
    };
    let experts = generation.experts.as_ref().map_or_else(String::new, |experts| {
        let looked_up = experts.hits + experts.misses;
        let rate = if looked_up == 0 { 0.0 } else { 100.0 * experts.hits as f64 / looked_up as f64 };
        format!(
            ", experts {} hits ({rate:.0}%) / {} misses / {} read / {} evicted",
            experts.hits,
            experts.misses,
            coldpress::Bytes(experts.bytes_read),
            experts.evictions
        ) + &rows(&experts.rows)
    });
    let lossy = output::lossy(&status.plan.lossy);
    format!(
        "peak {peak} of {budget}, {:.1} tok/s prefill, {:.1} tok/s decode{experts}{lossy}",
        generation.prefill_tokens_per_second(),
        generation.decode_tokens_per_second(),
    )
}

/// Rows of tables on disk, where the model has such tables.
fn rows(rows: &coldpress::RowStatistics) -> String {
    rows.hit_rate().map_or_else(String::new, |rate| {
        let [p50, p99] = [0.5, 0.99].map(|share| rows.latency.quantile_us(share));
        format!(", rows {} read ({:.0}% hits), {p50} us p50, {p99} us p99", rows.misses, 100.0 * rate)
    })
}

/// The object of `--json`.
fn report(generation: &Generation, status: &Status) -> serde_json::Value {
    let plan = &status.plan.plan;
    let experts = generation.experts.unwrap_or_default();
    let disk_wait_ms = experts.disk_wait_us as f64 / 1e3;
    let forward_ms = output::milliseconds(generation.forward_time);
    serde_json::json!({
        "text": generation.text,
        "tokens": generation.tokens,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.tokens.len(),
        "finish_reason": generation.finish_reason,
        "ttft_ms": output::milliseconds(generation.time_to_first_token),
        "prefill_tokens_per_second": generation.prefill_tokens_per_second(),
        "decode_tokens_per_second": generation.decode_tokens_per_second(),
        "residency": status.plan.residency,
        "policy": status.policy,
        "policy_origin": status.plan.policy.origin,
        "prefetch": settings::prefetch_value(status),
        "reader": status.reader,
        "reading": settings::reading_value(status),
        "pack": status.plan.pack,
        "threads": status.plan.threads,
        "isa": status.plan.isa,
        "route_telemetry": status.telemetry,
        "budget_bytes": plan.budget,
        "context": plan.context,
        "chunk_tokens": plan.chunk_tokens,
        "planned": {
            "fixed": plan.fixed,
            "dense": plan.dense,
            "kv": plan.kv,
            "scratch": plan.scratch,
            "read_ring": plan.read_ring,
            "row_cache": plan.row_cache,
            "slots": plan.slots,
        },
        "peak_bytes": {
            "rss": status.peak.rss,
            "anon": status.peak.anon,
            "cgroup": status.peak.cgroup,
        },
        "experts": {
            "hits": experts.hits,
            "misses": experts.misses,
            "evictions": experts.evictions,
            "bytes_read": experts.bytes_read,
            "device_bytes_read": experts.device_bytes_read,
            "reads": experts.reads,
            "lazy_reads": experts.lazy_reads,
            "lazy_writes": experts.lazy_writes,
            "prefetched": experts.prefetched,
            "prefetched_bytes": experts.prefetched_bytes,
            "prefetch_used": experts.prefetch_used,
            "prefetch_used_bytes": experts.prefetch_used_bytes,
        },
        "rows": (!experts.rows.is_empty()).then_some(experts.rows),
        "time_ms": {
            "disk_wait": disk_wait_ms,
            "compute": (forward_ms - disk_wait_ms).max(0.0),
            "host": (output::milliseconds(generation.total_time) - forward_ms).max(0.0),
        },
        "phases_ms": {
            "prefill": output::phases_ms(&generation.prefill_phases),
            "decode": output::phases_ms(&generation.decode_phases),
        },
        "exact": status.plan.lossy.is_empty(),
        "lossy": status.plan.lossy,
    })
}
