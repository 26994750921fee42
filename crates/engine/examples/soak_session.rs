//! Answers prompts from standard input in one process, for soak tests of memory: `tools/soak.py` watches it from outside.
//!
//! usage: soak_session MODEL BUDGET CONTEXT [--residency NAME] [--pack FILE] [--idle-after SECONDS] [--idle-release experts|all]
//! In, one JSON object per line: `{"prompt": TEXT, "max_tokens": N, "prompt_tokens": N}`; the prompt is continued as it is, from an empty
//! session, and cut to `prompt_tokens` if that is there. `{"look": true}` asks for the state and leaves a resting model alone.
//! Out, one JSON object per line: first `{"ready": true, ...}`, then for each prompt its tokens and the state of the
//! runtime. Greedy, and it goes on after the end-of-text token.

use std::error::Error;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use coldpress::{
    GenerateObserver, GenerateOptions, IdleRelease, LoadConfiguration, LoadObserver, PackUse, Residency,
    Runtime, Session, SizeSpec,
};
use serde_json::{Value, json};

/// Says on standard error what happens, as the program does.
struct Told;

impl LoadObserver for Told {
    fn note(&mut self, text: &str) {
        eprintln!("note: {text}");
    }
}

/// Says when the first token is there: from then on the model decodes.
struct FirstToken(bool);

impl GenerateObserver for FirstToken {
    fn token(&mut self, _id: u32) {
        if !std::mem::replace(&mut self.0, true) {
            say(&json!({"decoding": true}));
        }
    }
}

fn say(object: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever listened is gone; the next read ends the program.
    let _ = writeln!(out, "{object}").and_then(|()| out.flush());
}

/// The value of each choice that is there, by its name.
fn configuration(
    budget: &str,
    context: &str,
    choices: &[String],
) -> Result<LoadConfiguration, Box<dyn Error>> {
    let mut configuration =
        LoadConfiguration::default().budget(budget.parse::<SizeSpec>()?).context(context.parse()?);
    for choice in choices.chunks(2) {
        let [name, value] = choice else { return Err(format!("{} needs a value", choice[0]).into()) };
        configuration = match name.as_str() {
            "--residency" => configuration.residency(named(&Residency::ALL, value)?),
            "--pack" => configuration.pack(PackUse::File(PathBuf::from(value))),
            "--idle-after" => configuration.idle_after(Duration::from_secs_f64(value.parse()?)),
            "--idle-release" => configuration.idle_release(named(&IdleRelease::ALL, value)?),
            _ => return Err(format!("unknown choice {name}").into()),
        };
    }
    Ok(configuration)
}

fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| format!("unknown name {name}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, budget, context, choices @ ..] = arguments.as_slice() else {
        return Err("usage: soak_session MODEL BUDGET CONTEXT [--residency NAME] [--pack FILE] ...".into());
    };
    let configuration = configuration(budget, context, choices)?;
    let mut runtime = Runtime::load(Path::new(model), &configuration, &mut Told)?;
    let mut session = runtime.session()?;
    say(&json!({"ready": true, "status": runtime.status()}));
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        if request["look"] == true {
            say(&json!({"live": runtime.handle().status()}));
        } else {
            say(&answer(&mut runtime, &mut session, &request)?);
        }
    }
    Ok(())
}

fn answer(runtime: &mut Runtime, session: &mut Session, request: &Value) -> Result<Value, Box<dyn Error>> {
    let number = |name: &str| request[name].as_u64().and_then(|value| usize::try_from(value).ok());
    let mut ids = runtime.encode(request["prompt"].as_str().ok_or("a prompt is a text")?, false)?;
    if let Some(length) = number("prompt_tokens") {
        // A short text is repeated.
        ids = ids.iter().copied().cycle().take(length).collect();
    }
    session.clear();
    let options = GenerateOptions {
        max_tokens: number("max_tokens").unwrap_or(64),
        ignore_eos: true,
        continuation: true,
        ..GenerateOptions::default()
    };
    let generation = runtime.generate(session, &ids, &options, &mut FirstToken(false))?;
    Ok(json!({
        "tokens": generation.tokens,
        "prompt_tokens": generation.prompt_tokens,
        "decode_tokens_per_second": generation.decode_tokens_per_second(),
        "experts": generation.experts,
        "status": runtime.status(),
        "live": runtime.handle().status(),
    }))
}
