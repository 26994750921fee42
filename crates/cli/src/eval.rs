//! `coldpress eval`: reads a text with exact settings and with the ones asked for, and says what the difference is.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use coldpress::{Bytes, Comparison, ComparisonObserver, KvType, Runtime, SettingKey, Status};

use crate::arguments::EvalArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::progress::{Progress, Unit};
use crate::{Ended, Usage, interrupt, load, output};

/// Runs the command.
///
/// # Errors
/// There is nothing to compare, the text is unusable or too short, loading or computing failed, standard output did.
pub fn eval(arguments: &EvalArguments, environment: &Environment) -> Result<Ended> {
    let configuration =
        load::configuration(&arguments.load, environment, Use::Eval).comparing(arguments.exact_kv);
    if !configuration.differs_from_exact() {
        let kv_types = KvType::ALL.into_iter().filter(|(_, kv_type)| kv_type.is_lossy());
        let routing = ["--experts-per-token N", "--cache-bias X"].map(str::to_owned);
        let lossy: Vec<String> = kv_types.map(|(name, _)| format!("--kv {name}")).chain(routing).collect();
        return Err(Usage(anyhow::anyhow!(
            "nothing to compare: both runs would be exact and the same; name what is to be measured: {}",
            lossy.join(" or ")
        ))
        .into());
    }
    let text = text(&arguments.text, Runtime::comparison_text_bytes(arguments.tokens)).map_err(Usage)?;
    let (mut runtime, _state) =
        load::load(&arguments.load.model, &configuration, Use::Eval.name(), environment)?;
    let comparison = runtime.compare(&text, arguments.tokens, &mut Bar::default())?;
    let status = runtime.status();
    if arguments.json {
        output::json(&object(arguments, &comparison, &status))?;
    } else {
        output::text(&table(&comparison, configuration.origin(SettingKey::Kv).name()))?;
        let [peak, budget] = coldpress::apart([status.peak.rss, status.plan.plan.budget]);
        let budget =
            if status.plan.plan.budget == Bytes::MAX { "no budget".to_owned() } else { budget.to_string() };
        output::line(&format!("peak {peak} of {budget}"));
    }
    Ok(Ended::Done)
}

/// The text, of which no more is read than can be compared. What is cut off ends before the last whole character.
fn text(path: &Path, bytes_max: usize) -> Result<String> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open --text {name}"))?;
    let mut bytes = Vec::new();
    interrupt::waiting(|| file.take(bytes_max as u64).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read --text {name}"))?;
    let cut = bytes.len() == bytes_max;
    let text = String::from_utf8(bytes).or_else(|error| {
        let whole = error.utf8_error().valid_up_to();
        if cut && error.utf8_error().error_len().is_none() {
            let mut bytes = error.into_bytes();
            bytes.truncate(whole);
            return Ok(String::from_utf8(bytes).unwrap_or_default());
        }
        Err(anyhow::anyhow!(
            "--text {name} is not UTF-8 (byte {whole}): give plain text, such as a book or a page"
        ))
    })?;
    if text.trim().is_empty() {
        anyhow::bail!("--text {name} is empty: give some pages of text like that of later runs");
    }
    Ok(text)
}

/// Shows how far the comparison is.
#[derive(Default)]
struct Bar(Option<Progress>);

impl ComparisonObserver for Bar {
    fn progress(&mut self, done: f64, total: usize) {
        let bar = self.0.get_or_insert_with(|| Progress::new("eval", Unit::Tokens));
        bar.update(done as u64, total as u64);
        if done >= total as f64 {
            self.0 = None;
        }
    }

    fn should_stop(&mut self) -> bool {
        interrupt::asked()
    }
}

fn table(comparison: &Comparison, origin: &str) -> String {
    let Comparison { exact, asked, .. } = comparison;
    let mut text = format!(
        "{} tokens in {} windows of up to {}: kv {} (exact) and kv {} ({origin})\n",
        comparison.tokens, comparison.windows, comparison.window_tokens, exact.kv_type, asked.kv_type
    );
    if asked.experts_per_token > 0 {
        text.push_str(&format!(
            "{} experts per token (exact) and {}\n",
            exact.experts_per_token, asked.experts_per_token
        ));
    }
    let rows = [
        ("mean KL", format!("{:.6} nats per token", comparison.kl_mean)),
        ("p99 KL", format!("{:.6}", comparison.kl_p99)),
        ("largest KL", format!("{:.6}", comparison.kl_max)),
        ("same best token", format!("{:.2} %", 100.0 * comparison.top1_agreement)),
        ("perplexity", format!("{:.4} exact, {:.4} as asked", exact.perplexity, asked.perplexity)),
        (
            "keys and values",
            format!(
                "{} bytes per token exact, {} as asked",
                exact.kv_bytes_per_token, asked.kv_bytes_per_token
            ),
        ),
    ];
    for (name, value) in rows {
        text.push_str(&format!("  {name:<16} {value}\n"));
    }
    if comparison.cache_bias > 0.0 {
        let per_token = Bytes(asked.expert_bytes_read / comparison.tokens.max(1) as u64);
        text.push_str(&format!(
            "  {:<16} {per_token} per token as asked, one token at a time\n",
            "experts read"
        ));
    }
    if !comparison.lossy.is_empty() {
        text.push_str(&format!("  {}\n", output::lossy(&comparison.lossy).trim_start_matches([',', ' '])));
    }
    text
}

/// The object of `--json`.
fn object(arguments: &EvalArguments, comparison: &Comparison, status: &Status) -> serde_json::Value {
    let mut object = serde_json::to_value(comparison).unwrap_or_default();
    object["model"] = serde_json::json!(arguments.load.model);
    object["text"] = serde_json::json!(arguments.text);
    object["budget_bytes"] = serde_json::json!(status.plan.plan.budget);
    object["peak_bytes"] = serde_json::json!(status.peak);
    object
}
