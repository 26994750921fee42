//! The markers of every dialect, as data.
//!
//! Sources: the chat templates of the models' publishers. To add a dialect: a variant in `mod.rs`, its markers here
//! and its rule in `detect.rs`. In one list no marker may begin with another.

use super::Dialect;
use super::envelope::EnvelopeRules;
use super::named::{Header, NamedSyntax};
use super::tagged::TaggedSyntax;

/// The markers of a dialect.
#[derive(Debug)]
pub(super) struct Syntax {
    pub reasoning: Option<ReasoningMarkers>,
    pub markers: &'static [Marker],
}

/// What surrounds reasoning.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReasoningMarkers {
    pub open: &'static str,
    pub close: &'static str,
    /// The markers are control tokens that no one writes as text, so reasoning may open after content too.
    pub anywhere: bool,
}

/// A marker outside reasoning.
#[derive(Debug)]
pub(super) struct Marker {
    pub text: &'static str,
    pub role: Role,
    pub place: Place,
}

/// What a marker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It says nothing by itself and is dropped.
    Skip,
    /// Before an object with name and arguments.
    Envelope(&'static EnvelopeRules),
    /// The opening brace of such an object.
    EnvelopeBrace(&'static EnvelopeRules),
    /// Before such an object, a list of them, or a name.
    EnvelopeOrNamed(&'static EnvelopeRules, &'static NamedSyntax),
    /// Before a name that a separator ends.
    Named(&'static NamedSyntax),
    /// The tag around calls.
    TaggedBlock(&'static TaggedSyntax),
    /// The start of a call's own tag.
    TaggedCall(&'static TaggedSyntax),
}

/// Where a marker counts; elsewhere it is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    /// With nothing but white space since the start, the end of reasoning or of a call.
    Leading,
    /// With nothing but white space since a call or a skipped marker.
    AfterCall,
}

const fn anywhere(text: &'static str, role: Role) -> Marker {
    Marker { text, role, place: Place::Anywhere }
}

const fn leading(text: &'static str, role: Role) -> Marker {
    Marker { text, role, place: Place::Leading }
}

const fn after_call(text: &'static str, role: Role) -> Marker {
    Marker { text, role, place: Place::AfterCall }
}

const THINK: ReasoningMarkers = ReasoningMarkers { open: "<think>", close: "</think>", anywhere: false };

static LOOSE: EnvelopeRules = EnvelopeRules { strict: false };
static STRICT: EnvelopeRules = EnvelopeRules { strict: true };

static MISTRAL_NAMED: NamedSyntax = NamedSyntax { separator: "[ARGS]", close: None, header: Header::Mistral };
static DEEPSEEK: NamedSyntax =
    NamedSyntax {
        separator: "<｜tool▁sep｜>", close: Some("<｜tool▁call▁end｜>"), header: Header::DeepSeek
    };
static KIMI: NamedSyntax = NamedSyntax {
    separator: "<|tool_call_argument_begin|>",
    close: Some("<|tool_call_end|>"),
    header: Header::Kimi,
};

static QWEN_CODER: TaggedSyntax = TaggedSyntax {
    call_open: &["<function="],
    call_close: &["</function>"],
    parameter_open: &["<parameter="],
    parameter_header_close: ">",
    value_open: None,
    value_close: &["</parameter>"],
    quoted: false,
    newlines_around_values: true,
};
static MINIMAX: TaggedSyntax = TaggedSyntax {
    call_open: &["<invoke name=\""],
    call_close: &["</invoke>"],
    parameter_open: &["<parameter name=\""],
    parameter_header_close: ">",
    value_open: None,
    value_close: &["</parameter>"],
    quoted: true,
    newlines_around_values: true,
};
// Models write the bars of DSML as full-width, as ASCII, and leave the word away.
static DSML: TaggedSyntax = TaggedSyntax {
    call_open: &["<｜DSML｜invoke name=\"", "<|DSML|invoke name=\"", "<invoke name=\""],
    call_close: &["</｜DSML｜invoke>", "</|DSML|invoke>", "</invoke>"],
    parameter_open: &["<｜DSML｜parameter name=\"", "<|DSML|parameter name=\"", "<parameter name=\""],
    parameter_header_close: ">",
    value_open: None,
    value_close: &["</｜DSML｜parameter>", "</|DSML|parameter>", "</parameter>"],
    quoted: true,
    newlines_around_values: false,
};
static GLM: TaggedSyntax = TaggedSyntax {
    call_open: &[],
    call_close: &["</tool_call>"],
    parameter_open: &["<arg_key>"],
    parameter_header_close: "</arg_key>",
    value_open: Some("<arg_value>"),
    value_close: &["</arg_value>"],
    quoted: false,
    newlines_around_values: false,
};

static SYNTAX_PLAIN: Syntax = Syntax { reasoning: None, markers: &[] };
static SYNTAX_THINK: Syntax = Syntax { reasoning: Some(THINK), markers: &[] };
static SYNTAX_HERMES: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[anywhere("<tool_call>", Role::Envelope(&LOOSE)), after_call("</tool_call>", Role::Skip)],
};
// The model often leaves the outer tag away.
static SYNTAX_QWEN_CODER: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<tool_call>", Role::TaggedBlock(&QWEN_CODER)),
        anywhere("<function=", Role::TaggedCall(&QWEN_CODER)),
        after_call("</tool_call>", Role::Skip),
    ],
};
static SYNTAX_MISTRAL: Syntax = Syntax {
    reasoning: Some(ReasoningMarkers { open: "[THINK]", close: "[/THINK]", anywhere: true }),
    markers: &[
        anywhere("[TOOL_CALLS]", Role::EnvelopeOrNamed(&LOOSE, &MISTRAL_NAMED)),
        after_call("{", Role::EnvelopeBrace(&LOOSE)),
        after_call(",", Role::Skip),
        after_call("]", Role::Skip),
    ],
};
static SYNTAX_LLAMA3: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<|python_tag|>", Role::Envelope(&LOOSE)),
        anywhere("<|python_start|>", Role::Envelope(&LOOSE)),
        leading("{", Role::EnvelopeBrace(&STRICT)),
        after_call("<|python_end|>", Role::Skip),
        after_call(";", Role::Skip),
    ],
};
static SYNTAX_DEEPSEEK: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<｜tool▁calls▁begin｜>", Role::Skip),
        anywhere("<｜tool▁calls▁end｜>", Role::Skip),
        anywhere("<｜tool▁call▁begin｜>", Role::Named(&DEEPSEEK)),
        after_call("<｜tool▁call▁end｜>", Role::Skip),
        after_call("```", Role::Skip),
    ],
};
static SYNTAX_DSML: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<｜DSML｜function_calls>", Role::TaggedBlock(&DSML)),
        anywhere("<｜DSML｜tool_calls>", Role::TaggedBlock(&DSML)),
        anywhere("<|DSML|function_calls>", Role::TaggedBlock(&DSML)),
        anywhere("<|DSML|tool_calls>", Role::TaggedBlock(&DSML)),
        anywhere("<function_calls>", Role::TaggedBlock(&DSML)),
        anywhere("<｜DSML｜invoke name=\"", Role::TaggedCall(&DSML)),
        anywhere("<|DSML|invoke name=\"", Role::TaggedCall(&DSML)),
        after_call("<invoke name=\"", Role::TaggedCall(&DSML)),
        after_call("</｜DSML｜function_calls>", Role::Skip),
        after_call("</｜DSML｜tool_calls>", Role::Skip),
        after_call("</|DSML|function_calls>", Role::Skip),
        after_call("</|DSML|tool_calls>", Role::Skip),
        after_call("</function_calls>", Role::Skip),
    ],
};
static SYNTAX_GLM: Syntax =
    Syntax { reasoning: Some(THINK), markers: &[anywhere("<tool_call>", Role::TaggedBlock(&GLM))] };
static SYNTAX_KIMI: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<|tool_calls_section_begin|>", Role::Skip),
        anywhere("<|tool_calls_section_end|>", Role::Skip),
        anywhere("<|tool_call_begin|>", Role::Named(&KIMI)),
        after_call("<|tool_call_end|>", Role::Skip),
    ],
};
static SYNTAX_MINIMAX: Syntax = Syntax {
    reasoning: Some(THINK),
    markers: &[
        anywhere("<minimax:tool_call>", Role::TaggedBlock(&MINIMAX)),
        after_call("<invoke name=\"", Role::TaggedCall(&MINIMAX)),
        after_call("</minimax:tool_call>", Role::Skip),
    ],
};

/// The markers of a dialect. Harmony has none here: `harmony.rs` reads it.
pub(super) fn syntax(dialect: Dialect) -> &'static Syntax {
    match dialect {
        Dialect::Plain | Dialect::Harmony => &SYNTAX_PLAIN,
        Dialect::Think => &SYNTAX_THINK,
        Dialect::Hermes => &SYNTAX_HERMES,
        Dialect::Qwen3Coder => &SYNTAX_QWEN_CODER,
        Dialect::Mistral => &SYNTAX_MISTRAL,
        Dialect::Llama3 => &SYNTAX_LLAMA3,
        Dialect::DeepSeekV3 => &SYNTAX_DEEPSEEK,
        Dialect::DeepSeekDsml => &SYNTAX_DSML,
        Dialect::Glm => &SYNTAX_GLM,
        Dialect::Kimi => &SYNTAX_KIMI,
        Dialect::MiniMax => &SYNTAX_MINIMAX,
    }
}

/// The reasoning markers of a prompt that ends inside reasoning, whatever the dialect says.
pub(super) fn reasoning_or_default(syntax: &Syntax) -> ReasoningMarkers {
    syntax.reasoning.unwrap_or(THINK)
}

#[cfg(test)]
mod tests {
    use super::{Dialect, syntax};

    #[test]
    fn no_marker_begins_with_another() {
        for dialect in Dialect::ALL {
            let syntax = syntax(dialect);
            let reasoning = syntax.reasoning.iter().flat_map(|markers| [markers.open, markers.close]);
            let all: Vec<_> = syntax.markers.iter().map(|marker| marker.text).chain(reasoning).collect();
            for (at, one) in all.iter().enumerate() {
                for (other_at, other) in all.iter().enumerate() {
                    assert!(at == other_at || !one.starts_with(other), "{dialect:?}: {one} and {other}");
                }
            }
        }
    }
}
