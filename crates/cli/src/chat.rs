//! `coldpress chat`: a conversation in the terminal.
//!
//! Every turn sends the whole history; the session reuses the part that is in its KV cache already. Ctrl-C stops an
//! answer and keeps the conversation; at the prompt it ends the program.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use coldpress::{EngineError, FinishReason, GenerateOptions, Message, Runtime};

use crate::arguments::ChatArguments;
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
    let configuration = load::configuration(&arguments.load, environment);
    let mut runtime = load::load(&arguments.load, &configuration)?;
    if !runtime.has_chat_template() {
        let reason = "this file has no chat template: use `run --raw` to continue a text";
        return Err(Usage(anyhow::anyhow!(reason)).into());
    }
    let options = GenerateOptions {
        max_tokens: arguments.sampling.max_tokens,
        sampling: load::sampling(&arguments.sampling, TEMPERATURE_DEFAULT),
        ignore_eos: arguments.sampling.ignore_eos,
    };
    let mut session = runtime.session()?;
    let mut messages: Vec<Message> =
        arguments.system.iter().map(|text| Message::new("system", text)).collect();
    while let Some(line) = ask()? {
        messages.push(Message::new("user", &line));
        let answer = answer(&mut runtime, &mut session, &messages, &options);
        match answer {
            Ok(text) => messages.push(Message::new("assistant", &text)),
            // The question is taken back, so that a shorter one can be asked.
            Err(error) if matches!(error.downcast_ref(), Some(EngineError::PromptTooLong { .. })) => {
                messages.pop();
                output::line(&format!("{error:#}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ended::Done)
}

fn answer(
    runtime: &mut Runtime,
    session: &mut coldpress::Session,
    messages: &[Message],
    options: &GenerateOptions,
) -> Result<String> {
    let ids = runtime.encode_chat(messages)?;
    let mut screen = Screen::new(true);
    let generation = runtime.generate(session, &ids, options, &mut screen)?;
    screen.end()?;
    if generation.finish_reason == FinishReason::Cancelled {
        interrupt::clear();
    }
    output::line(&final_line(&generation, &runtime.status()));
    Ok(generation.text)
}

/// The next question; `None` at the end of input or for an empty line on a terminal.
fn ask() -> Result<Option<String>> {
    let terminal = std::io::stdin().is_terminal();
    loop {
        if terminal {
            write!(std::io::stderr(), "\n> ").context("cannot write the prompt")?;
        }
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
        if read == 0 || interrupt::asked() {
            return Ok(None);
        }
        let line = line.trim_end_matches(['\n', '\r']);
        if !line.trim().is_empty() {
            return Ok(Some(line.to_owned()));
        }
        if terminal {
            return Ok(None);
        }
    }
}
