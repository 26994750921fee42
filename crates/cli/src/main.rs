//! The `coldpress` program: turns a command line into calls of the library and prints what comes back.
//!
//! Text and JSON go to standard output, everything else to standard error. Exit codes: 0 ok, 1 failed, 2 bad usage,
//! 3 does not fit the budget or the memory that can be had, 4 bad model file, 130 stopped by Ctrl-C. A reader that closes standard output ends the
//! program quietly. This is the only crate that prints or reads the environment.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod chat;
mod choices;
mod convert;
mod disk;
mod doctor;
mod effects;
mod environment;
mod eval;
mod flags;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod npy;
mod output;
mod pack;
mod plan;
mod progress;
mod pull;
mod run;
mod serve;
mod settings;
mod simulate;
mod status;
mod trace;
mod tune;
mod values;

use std::process::ExitCode;

use clap::Parser;
use coldpress::EngineError;
use coldpress_hub::HubError;

use crate::arguments::{Arguments, Command};
use crate::environment::Environment;

/// Exit codes of the program.
mod exit {
    pub const FAILED: u8 = 1;
    pub const BAD_USAGE: u8 = 2;
    pub const DOES_NOT_FIT: u8 = 3;
    pub const BAD_MODEL: u8 = 4;
    pub const INTERRUPTED: u8 = 130;
}

/// How a command ended when it did not fail.
pub enum Ended {
    /// It did what was asked.
    Done,
    /// It looked, and found what keeps runs from working.
    Blocked,
    /// Ctrl-C or a termination signal stopped it.
    Interrupted,
}

fn main() -> ExitCode {
    coldpress::share_one_heap_under_a_limit();
    let arguments = Arguments::parse();
    let json = arguments.command.json();
    match dispatch(arguments) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Blocked) => ExitCode::from(exit::FAILED),
        Ok(Ended::Interrupted) => ExitCode::from(exit::INTERRUPTED),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if is_cancelled(&error) => ExitCode::from(exit::INTERRUPTED),
        Err(error) => {
            let code = exit_code(&error);
            if json {
                // Whoever reads the object learns of a failure the same way; if nobody does, the exit code is left.
                let _ = output::json(&failure(&error, code));
            }
            output::line(&format!("coldpress: {}", output::explain(&error)));
            ExitCode::from(code)
        }
    }
}

fn dispatch(arguments: Arguments) -> anyhow::Result<Ended> {
    let environment = Environment::read().map_err(Usage)?;
    for note in &environment.notes {
        output::line(&format!("note: {note}"));
    }
    interrupt::watch()?;
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments, &environment),
        Command::Chat(arguments) => chat::chat(&arguments, &environment),
        Command::Serve(arguments) => serve::serve(&arguments, &environment),
        Command::Plan(arguments) => plan::plan(&arguments, &environment),
        Command::Pack(arguments) => pack::pack(&arguments, &environment),
        Command::Convert(arguments) => convert::convert(&arguments, &environment),
        Command::Pull(arguments) => pull::pull(&arguments),
        Command::Inspect(arguments) => inspect::inspect(&arguments),
        Command::Logits(arguments) => logits::logits(&arguments, &environment),
        Command::Eval(arguments) => eval::eval(&arguments, &environment),
        Command::Bench(arguments) => bench::bench(&arguments, &environment),
        Command::Doctor(arguments) => doctor::doctor(&arguments, &environment),
        Command::Trace(arguments) => trace::trace(&arguments, &environment),
        Command::Tune(arguments) => tune::tune(&arguments, &environment),
        Command::Simulate(arguments) => simulate::simulate(&arguments),
        Command::Disk(arguments) => disk::disk(&arguments),
        Command::Status(arguments) => status::status(&arguments, &environment),
    }
}

/// A mistake in what the user typed or set, found after parsing.
#[derive(Debug)]
pub struct Usage(pub anyhow::Error);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:#}", self.0)
    }
}

impl std::error::Error for Usage {}

/// The object of `--json` for a command that failed.
fn failure(error: &anyhow::Error, code: u8) -> serde_json::Value {
    let refusal = match error.downcast_ref() {
        Some(EngineError::DoesNotFit(refusal)) => serde_json::to_value(refusal).ok(),
        _ => None,
    };
    serde_json::json!({ "error": { "message": output::explain(error), "exit_code": code, "does_not_fit": refusal } })
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Cancelled))
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() || error.downcast_ref().is_some_and(HubError::is_usage) {
        return exit::BAD_USAGE;
    }
    match error.downcast_ref::<EngineError>() {
        Some(EngineError::DoesNotFit(_) | EngineError::NotAvailable(_)) => exit::DOES_NOT_FIT,
        Some(EngineError::BadOption(_) | EngineError::BadOutput { .. }) => exit::BAD_USAGE,
        Some(error) if error.is_bad_model() => exit::BAD_MODEL,
        _ => exit::FAILED,
    }
}
