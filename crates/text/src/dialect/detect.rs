//! Which dialect a model speaks, as a table: the first rule that fits is taken.
//!
//! A template teaches the model its dialect, so it decides if there is one. Without a template only control tokens
//! that belong to one dialect alone decide.

use super::Dialect;

struct Rule {
    dialect: Dialect,
    /// Texts that the template must have, all of them.
    template: &'static [&'static str],
    /// Texts that the template must not have.
    without: &'static [&'static str],
    /// Tokens that the vocabulary must have, all of them, if there is no template. Empty: no decision.
    tokens: &'static [&'static str],
}

const fn rule(dialect: Dialect, template: &'static [&'static str], tokens: &'static [&'static str]) -> Rule {
    Rule { dialect, template, without: &[], tokens }
}

const RULES: &[Rule] = &[
    rule(Dialect::Harmony, &["<|channel|>", "<|message|>"], &["<|channel|>", "<|message|>", "<|call|>"]),
    rule(Dialect::DeepSeekDsml, &["DSML", "invoke name="], &["｜DSML｜"]),
    rule(
        Dialect::Kimi,
        &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
        &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    ),
    rule(
        Dialect::DeepSeekV3,
        &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
        &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
    ),
    rule(Dialect::MiniMax, &["<minimax:tool_call>", "<invoke name="], &["<minimax:tool_call>"]),
    rule(Dialect::Glm, &["<arg_key>", "<arg_value>"], &["<arg_key>", "<arg_value>"]),
    // Other models use these tags inside blocks of another name.
    Rule {
        dialect: Dialect::Qwen3Coder,
        template: &["<tool_call>", "<function=", "<parameter="],
        without: &["<seed:tool_call>"],
        tokens: &[],
    },
    rule(Dialect::Mistral, &["[TOOL_CALLS]"], &["[TOOL_CALLS]"]),
    rule(Dialect::Hermes, &["<tool_call>", "</tool_call>", "arguments"], &[]),
    rule(Dialect::Llama3, &["<|start_header_id|>", "\"parameters\": "], &["<|python_tag|>", "<|eom_id|>"]),
    rule(Dialect::Llama3, &["<|header_start|>", "\"parameters\": "], &[]),
    rule(Dialect::Think, &["</think>"], &[]),
    rule(Dialect::Think, &["<think>"], &[]),
];

/// See [`Dialect::detect`].
pub(super) fn detect(template: Option<&str>, has_token: &dyn Fn(&str) -> bool) -> Dialect {
    let fits = |rule: &&Rule| match template {
        Some(source) => {
            rule.template.iter().all(|text| source.contains(text))
                && !rule.without.iter().any(|text| source.contains(text))
        }
        None => !rule.tokens.is_empty() && rule.tokens.iter().all(|token| has_token(token)),
    };
    RULES.iter().find(fits).map_or(Dialect::Plain, |rule| rule.dialect)
}
