//! `coldpress chat`: a conversation in the terminal.
//!
//! Every turn sends the whole history; the session reuses the part that is in its KV cache already. Ctrl-C stops an
//! answer and keeps the conversation; at the prompt it ends the program. When the context is full, the oldest turns go.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::{Context, Result};
use coldpress::{EngineError, FinishReason, GenerateOptions, Message, Runtime};

use crate::arguments::ChatArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::run::{Screen, final_line};
use crate::{Ended, Usage, interrupt, load, output};

/// Temperature when the user does not choose one.
const TEMPERATURE_DEFAULT: f32 = 0.7;

/// Runs the command.
///
/// # Errors
/// Loading or generating failed, the file has no chat template, or standard output failed.
pub fn chat(arguments: &ChatArguments, environment: &Environment) -> Result<Ended> {
    let configuration = load::configuration(&arguments.load, environment, Use::Chat);
    let (mut runtime, _state) =
        load::load(&arguments.load.model, &configuration, Use::Chat.name(), environment)?;
    if !runtime.has_chat_template() {
        let reason = "this file has no chat template: use `run --raw` to continue a text";
        return Err(Usage(anyhow::anyhow!(reason)).into());
    }
    let probed = runtime.probe()?;
    output::line(&format!("ready: one token after {:.1} s, {} held", probed.time.as_secs_f64(), probed.anon));
    let options = GenerateOptions {
        max_tokens: arguments.sampling.max_tokens,
        sampling: load::sampling(&arguments.sampling, TEMPERATURE_DEFAULT),
        ignore_eos: arguments.sampling.ignore_eos,
        continuation: false,
    };
    let mut session = runtime.session()?;
    let system: Vec<Message> = arguments.system.iter().map(|text| Message::new("system", text)).collect();
    let mut turns: Vec<Message> = Vec::new();
    let mut failed = None;
    while let Some(line) = ask(runtime.prompt_bytes_max())? {
        turns.push(Message::new("user", &line));
        match answer(&mut runtime, &mut session, &system, &mut turns, &options) {
            Ok(Some(text)) => turns.push(Message::new("assistant", &text)),
            // The question is taken back, so that a shorter one can be asked.
            Ok(None) => drop(turns.pop()),
            // What went wrong with one question, such as a model file that is gone, may be right for the next one.
            Err(error) if error.downcast_ref::<EngineError>().is_some() => {
                output::line(&format!("coldpress: {}", output::explain(&error)));
                turns.pop();
                failed = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    load::remember(&runtime);
    failed.map_or(Ok(Ended::Done), Err)
}

/// The answer to the last turn; `None` if even that turn alone does not fit the context. Where the conversation does not
/// fit, its oldest turns are dropped, and the user is told.
fn answer(
    runtime: &mut Runtime,
    session: &mut coldpress::Session,
    system: &[Message],
    turns: &mut Vec<Message>,
    options: &GenerateOptions,
) -> Result<Option<String>> {
    let mut dropped = 0;
    let ids = loop {
        let encoded = runtime.encode_chat(&[system, turns].concat());
        let too_long = match encoded {
            Ok(ids) if ids.len() < session.context() => break ids,
            Ok(ids) => EngineError::PromptTooLong { prompt: ids.len(), context: session.context() },
            Err(error @ EngineError::TextTooLong { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        if turns.len() < 3 {
            output::line(&too_long.to_string());
            return Ok(None);
        }
        // A question and its answer.
        turns.drain(..2);
        dropped += 1;
    };
    if dropped > 0 {
        output::line(&format!(
            "note: the {dropped} oldest turns no longer fit the context and are forgotten"
        ));
    }
    let mut screen = Screen::new(true);
    let generation = runtime.generate(session, &ids, options, &mut screen)?;
    screen.end()?;
    match generation.finish_reason {
        FinishReason::Stop => {}
        FinishReason::Length if generation.tokens.len() == options.max_tokens => {
            output::line("note: the answer was cut at --max-tokens");
        }
        FinishReason::Length => output::line("note: the answer was cut at the end of the context"),
        FinishReason::Cancelled => interrupt::clear(),
    }
    output::line(&final_line(&generation, &runtime.status()));
    Ok(Some(generation.text))
}

/// The next question; `None` at the end of input or for an empty line on a terminal. A line is read up to a little more
/// than the context could hold; what is not UTF-8 in it is replaced.
fn ask(bytes_max: usize) -> Result<Option<String>> {
    let terminal = std::io::stdin().is_terminal();
    loop {
        if terminal {
            write!(std::io::stderr(), "\n> ").context("cannot write the prompt")?;
        }
        let mut bytes = Vec::new();
        let mut input = std::io::stdin().lock();
        let mut limited = (&mut input).take(bytes_max as u64 + 1);
        interrupt::waiting(|| limited.read_until(b'\n', &mut bytes)).context("cannot read standard input")?;
        if bytes.is_empty() {
            if terminal {
                output::line("");
            }
            return Ok(None);
        }
        if bytes.len() > bytes_max {
            skip_line(&mut input)?;
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if !line.trim().is_empty() {
            return Ok(Some(line.to_owned()));
        }
        if terminal {
            return Ok(None);
        }
    }
}

/// Reads to the end of the line without keeping it.
fn skip_line(input: &mut impl BufRead) -> Result<()> {
    loop {
        let available = interrupt::waiting(|| input.fill_buf().map(<[u8]>::to_vec))
            .context("cannot read standard input")?;
        let end = available.iter().position(|&byte| byte == b'\n');
        input.consume(end.map_or(available.len(), |end| end + 1));
        if end.is_some() || available.is_empty() {
            return Ok(());
        }
    }
}
