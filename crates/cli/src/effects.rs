//! Flags that change nothing in the command they were given to, and a note for each.
//!
//! Owns: which command uses which setting ([`unused`]); what depends on the model and the plan is in the library's `notes`, and
//! reaches the user with the other notes of a load. A variable is a standing choice for many commands, so that one of them
//! does not use it is no news; a flag was meant for this one.

use coldpress::SettingKey;

use crate::arguments::SamplingArguments;
use crate::choices::Choices;
use crate::flags::Flags;
use crate::output;

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// One answer.
    Run {
        /// Without the chat template.
        raw: bool,
        /// As one object.
        json: bool,
    },
    /// A conversation.
    Chat,
    /// Requests of others.
    Serve,
    /// Nothing; it is about `run` and `chat`.
    Plan,
    /// Teacher-forced logits.
    Logits,
    /// Two teacher-forced runs, compared.
    Eval,
    /// A series of measurements.
    Bench,
    /// A recording of routing.
    Trace {
        /// Without the chat template.
        raw: bool,
    },
    /// Measurements to remember.
    Tune,
}

impl Use {
    /// Whether it starts with what earlier runs used.
    pub fn talks(self) -> bool {
        matches!(self, Self::Run { .. } | Self::Chat | Self::Serve | Self::Plan)
    }

    /// The command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Chat => "chat",
            Self::Serve => "serve",
            Self::Plan => "plan",
            Self::Logits => "logits",
            Self::Eval => "eval",
            Self::Bench => "bench",
            Self::Trace { .. } => "trace",
            Self::Tune => "tune",
        }
    }
}

/// Why a command does not use a setting; `None` where it does.
fn unused(key: SettingKey, used: Use) -> Option<&'static str> {
    match (key, used) {
        (SettingKey::IdleAfter | SettingKey::IdleRelease, Use::Chat | Use::Serve | Use::Plan) => None,
        (SettingKey::IdleAfter | SettingKey::IdleRelease, _) => {
            Some("only `chat` and `serve` wait for a next question")
        }
        (SettingKey::Thinking, Use::Run { raw: true, .. } | Use::Trace { raw: true }) => {
            Some("--raw goes past the chat template")
        }
        (SettingKey::Thinking, Use::Logits | Use::Eval | Use::Bench | Use::Tune) => {
            Some("no chat template is used")
        }
        (SettingKey::PreTokenizer, Use::Logits) => Some("the ids of the tokens are given"),
        (SettingKey::Hotlist, used) if !used.talks() => {
            Some("only `run`, `chat` and `serve` start with the experts of earlier runs")
        }
        (SettingKey::RouteTelemetry, Use::Run { json: true, .. } | Use::Serve | Use::Plan) => None,
        (SettingKey::RouteTelemetry, _) => Some("only `run --json` and `serve` show what was counted"),
        _ => None,
    }
}

/// Notes about flags of a command, and about when packs are written.
pub fn notes(flags: &Flags, choices: &Choices, used: Use) -> Vec<String> {
    let reason = |key| match key {
        SettingKey::Prestack => choices.prestack_unused(),
        _ => unused(key, used),
    };
    let note = |flag: &str, value: &str, reason| format!("--{flag} {value} has no effect here: {reason}");
    let given = flags.0.iter();
    given.filter_map(|given| Some(note(given.row.flag(), &given.value, reason(given.row.key)?))).collect()
}

/// Notes about how tokens are chosen at `temperature`.
pub fn sampling_notes(arguments: &SamplingArguments, temperature: f32) -> Vec<String> {
    if temperature != 0.0 {
        return Vec::new();
    }
    let given = [
        (arguments.top_k != 0, "--top-k"),
        (arguments.top_p != 1.0, "--top-p"),
        (arguments.min_p != 0.0, "--min-p"),
        (arguments.seed != 0, "--seed"),
    ];
    let given: Vec<&str> = given.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag).collect();
    given.iter().map(|flag| greedy(flag)).collect()
}

/// The note about a flag that chooses among tokens where the most likely one is always taken.
pub fn greedy(flag: &str) -> String {
    format!("{flag} has no effect here: a temperature of 0 always takes the most likely token")
}

/// Prints notes.
pub fn tell(notes: &[String]) {
    for note in notes {
        output::line(&format!("note: {note}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::ROWS;
    use crate::flags::Given;

    fn given(flag: &str, value: &str) -> Given {
        let row = ROWS.iter().find(|row| row.flag() == flag).expect("a flag of the table");
        Given { row, value: value.to_owned() }
    }

    fn about(given: Given, used: Use) -> Vec<String> {
        let flags = Flags(vec![given]);
        let choices = Choices::of(&[], &flags, None);
        notes(&flags, &choices, used)
    }

    #[test]
    fn a_flag_that_a_command_does_not_use_is_named_with_the_reason() {
        let (raw, plain) = (Use::Run { raw: true, json: false }, Use::Run { raw: false, json: true });
        for (flag, value, without, with) in [
            ("idle-after", "5", plain, Use::Chat),
            ("idle-release", "all", Use::Bench, Use::Plan),
            ("thinking", "on", raw, plain),
            ("thinking", "on", Use::Logits, Use::Trace { raw: false }),
            ("hotlist", "on", Use::Tune, Use::Chat),
            ("route-telemetry", "on", raw, plain),
            ("pre-tokenizer", "qwen2", Use::Logits, plain),
        ] {
            let notes = about(given(flag, value), without);
            assert_eq!(notes.len(), 1, "{flag} in {without:?}");
            assert!(notes[0].starts_with(&format!("--{flag} {value} has no effect here: ")), "{notes:?}");
            assert!(about(given(flag, value), with).is_empty(), "{flag} in {with:?}");
        }
        assert!(about(given("prestack", "lazy"), plain)[0].contains("--prestack-dir"));
        assert!(about(given("prestack", "off"), plain).is_empty());
    }
}
