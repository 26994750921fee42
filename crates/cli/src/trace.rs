//! `coldpress trace`: answers prompts and records which experts their tokens choose.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use coldpress::{Bytes, FinishReason, GenerateOptions, Message, RoutingTrace, Runtime, Sampling};

use crate::arguments::TraceArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::run::Screen;
use crate::{Ended, Usage, effects, interrupt, load, output};

/// Runs the command. A stop keeps what was recorded.
///
/// # Errors
/// There is no prompt, loading or generating failed, the model has no routed experts, or the file cannot be written.
pub fn trace(arguments: &TraceArguments, environment: &Environment) -> Result<Ended> {
    if arguments.prompt.is_empty() && arguments.prompt_file.is_empty() {
        return Err(Usage(anyhow::anyhow!("no prompt: give -p or --prompt-file")).into());
    }
    let used = Use::Trace { raw: arguments.raw };
    let configuration =
        load::configuration(&arguments.load, environment, used).recording(Runtime::TRACE_BYTES);
    if arguments.temperature == 0.0 && arguments.seed != 0 {
        effects::tell(&[effects::greedy("--seed")]);
    }
    let (mut runtime, _state) = load::load(&arguments.load.model, &configuration, used.name(), environment)?;
    runtime.start_trace()?;
    let options = GenerateOptions {
        max_tokens: arguments.gen_tokens,
        sampling: Sampling {
            temperature: arguments.temperature,
            seed: arguments.seed,
            ..Sampling::default()
        },
        ignore_eos: arguments.ignore_eos,
        continuation: arguments.raw,
    };
    let files = arguments.prompt_file.iter().map(|path| read(path, runtime.prompt_bytes_max()));
    let prompts: Vec<String> =
        arguments.prompt.iter().cloned().map(Ok).chain(files).collect::<Result<_>>()?;
    let mut session = runtime.session()?;
    let mut ended = Ended::Done;
    for prompt in &prompts {
        session.clear();
        let ids = encode(&runtime, prompt, arguments.raw)?;
        let mut screen = Screen::new(false);
        let answer = runtime.generate(&mut session, &ids, &options, &mut screen)?;
        screen.end()?;
        if answer.finish_reason == FinishReason::Cancelled {
            ended = Ended::Interrupted;
            break;
        }
    }
    let trace = runtime.finish_trace().expect("recording was started above");
    report(arguments, &trace, coldpress::write_trace(&trace, &arguments.out)?)?;
    Ok(ended)
}

/// A prompt file; only a little more than could fit the context is read.
pub fn read(path: &Path, bytes_max: usize) -> Result<String> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mut bytes = Vec::new();
    interrupt::waiting(|| file.take(bytes_max as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {name}"))?;
    // What was cut off may end inside a character; the length alone is refused later.
    if bytes.len() > bytes_max {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))
}

/// Ids of a prompt as text to go on with, or as a question.
///
/// # Errors
/// The text is too long, or the chat template refuses it.
pub fn encode(runtime: &Runtime, prompt: &str, raw: bool) -> Result<Vec<u32>> {
    if raw || !runtime.has_chat_template() {
        return Ok(runtime.encode(prompt, false)?);
    }
    Ok(runtime.encode_chat(&[Message::new("user", prompt)])?)
}

fn report(arguments: &TraceArguments, trace: &RoutingTrace, file_bytes: u64) -> Result<()> {
    let passes = trace.passes().len();
    let decode = trace.passes().filter(|pass| pass.rows == 1).count();
    if arguments.json {
        return output::json(&serde_json::json!({
            "path": arguments.out,
            "file_bytes": file_bytes,
            "fingerprint": trace.fingerprint().to_string(),
            "layers": trace.expert_counts().len(),
            "records": trace.record_count(),
            "experts_per_token": trace.top_k(),
            "tokens": trace.tokens(),
            "passes": passes,
            "decode_passes": decode,
            "cut": trace.is_cut(),
        }));
    }
    let cut = if trace.is_cut() { "; the recording is full and ends before the text does" } else { "" };
    output::text(&format!(
        "{}  {}, {} tokens in {passes} passes ({decode} of one token), {} layers, {} of {} experts per token and layer{cut}\n",
        arguments.out.display(),
        Bytes(file_bytes),
        trace.tokens(),
        trace.expert_counts().len(),
        trace.top_k(),
        trace.expert_counts().iter().max().unwrap_or(&0),
    ))?;
    Ok(())
}
