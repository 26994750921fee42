//! Splitting a model's answer into reasoning, content and tool calls, while it is written.
//!
//! A [`Dialect`] is how a model marks these parts. It is chosen by a table from the chat template and the vocabulary
//! (`detect.rs`) and is [`Dialect::Plain`] if nothing fits. Except for Harmony, whose whole answer is framed, all
//! dialects share one machine (`marked.rs`): text passes through until a marker of `table.rs` comes; a marker that
//! opens a call hands over to one of three readers, `envelope.rs` (`{"name": .., "arguments": ..}`), `named.rs` (a
//! name, a separator, a JSON object) or `tagged.rs` (one tag per parameter).
//!
//! Rules, the same for all:
//! - The machines see one character after the other, so events cannot depend on how the text was cut. Neighbouring
//!   events of one kind may be joined or split; their text is the same.
//! - Held back is only what may still become a marker, the white space before it, the header of one call (at most
//!   64 KiB), and one value of a tagged parameter that is not a string (at most 256 KiB, then it is a string).
//! - A call begins when its header is whole. What breaks off or is malformed before that is content, word for word.
//!   Afterwards its arguments are streamed. A call has an end event only if its arguments are one whole JSON object;
//!   if they stop (the token limit) or stop being JSON, there is no end event, and text that does not belong to the
//!   arguments is content again.
//! - Arguments are the model's own JSON text, except that a raw line break or other control character inside a JSON
//!   string, which JSON forbids and models write, is escaped. Tagged parameters become a JSON object; which of them
//!   are strings comes from the tool's schema (`parameters.rs`).
//! - In reasoning only its end marker counts: tool text there is no call. Reasoning opens only before any content,
//!   or after a call, so that an answer may talk about `<think>`.
//! - Newlines at both ends of reasoning, before the content that follows it, and white space around calls are dropped.
//!
//! The end of the text ends an answer. The tokens that do so (`stop.rs`) are not part of the text: `<|im_end|>`
//! (Hermes, Qwen, Kimi), `</s>` (Mistral), `<|eot_id|>` and `<|eom_id|>` (Llama, the latter after a call),
//! `<｜end▁of▁sentence｜>` (DeepSeek), `<|user|>` and `<|observation|>` (GLM, the latter after a call), `<|return|>`
//! and `<|call|>` (Harmony, the latter after a call), `[e~[` (MiniMax). No marker of `table.rs` is a stop.

mod call;
mod detect;
mod envelope;
mod harmony;
mod marked;
mod matching;
mod named;
mod object;
mod parameters;
mod parser;
mod table;
mod tagged;

pub use call::AnswerEvent;
pub use parameters::ToolSignature;
pub use parser::{AnswerParser, ParserOptions};

/// How a model writes reasoning and tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Everything is content.
    Plain,
    /// `<think>..</think>` before the content, no tool calls.
    Think,
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>` (Hermes, Qwen 2.5 and 3, and many others).
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` (Qwen3-Coder, Qwen 3.5).
    Qwen3Coder,
    /// `[TOOL_CALLS][{..}]` or `[TOOL_CALLS]name[ARGS]{..}`, and `[THINK]..[/THINK]`.
    Mistral,
    /// `<|python_tag|>{..}` or a bare `{"name": .., "parameters": ..}` (Llama 3.1 to 4).
    Llama3,
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` (DeepSeek R1, V3, V3.1).
    DeepSeekV3,
    /// `<｜DSML｜invoke name="..">` with `<｜DSML｜parameter ..>` (DeepSeek V3.2, V4).
    DeepSeekDsml,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` (GLM 4.5 and later).
    Glm,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>` (Kimi K2).
    Kimi,
    /// `<|channel|>analysis<|message|>..` (gpt-oss).
    Harmony,
    /// `<minimax:tool_call><invoke name=".."><parameter name="..">..` (MiniMax M2).
    MiniMax,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 12] = [
        Dialect::Plain,
        Dialect::Think,
        Dialect::Hermes,
        Dialect::Qwen3Coder,
        Dialect::Mistral,
        Dialect::Llama3,
        Dialect::DeepSeekV3,
        Dialect::DeepSeekDsml,
        Dialect::Glm,
        Dialect::Kimi,
        Dialect::Harmony,
        Dialect::MiniMax,
    ];

    /// The dialect that the chat template teaches; without a template, the one whose control tokens the vocabulary
    /// has. `has_token` says whether a text is one token. [`Dialect::Plain`] if nothing fits.
    pub fn detect(template_source: Option<&str>, has_token: &dyn Fn(&str) -> bool) -> Dialect {
        detect::detect(template_source, has_token)
    }

    /// A short name for logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Plain => "plain",
            Dialect::Think => "think",
            Dialect::Hermes => "hermes",
            Dialect::Qwen3Coder => "qwen3-coder",
            Dialect::Mistral => "mistral",
            Dialect::Llama3 => "llama3",
            Dialect::DeepSeekV3 => "deepseek-v3",
            Dialect::DeepSeekDsml => "deepseek-dsml",
            Dialect::Glm => "glm",
            Dialect::Kimi => "kimi",
            Dialect::Harmony => "harmony",
            Dialect::MiniMax => "minimax",
        }
    }

    /// Whether the model writes tool calls that the parser can find.
    pub fn has_tools(self) -> bool {
        !matches!(self, Dialect::Plain | Dialect::Think)
    }

    /// The texts that open and close reasoning. For Harmony the first is the header of the analysis channel.
    pub fn reasoning_markers(self) -> Option<(&'static str, &'static str)> {
        match self {
            Dialect::Plain => None,
            Dialect::Harmony => Some(("<|channel|>analysis<|message|>", "<|end|>")),
            _ => table::syntax(self).reasoning.map(|reasoning| (reasoning.open, reasoning.close)),
        }
    }

    /// Whether a rendered prompt (or its last lines) ends inside reasoning, so that the answer goes on there: the
    /// value of [`ParserOptions::starts_in_reasoning`].
    pub fn prompt_opens_reasoning(self, prompt: &str) -> bool {
        self.reasoning_markers().is_some_and(|(open, _)| prompt.trim_end().ends_with(open))
    }

    /// A parser for one answer.
    pub fn parser(self, options: ParserOptions) -> AnswerParser {
        AnswerParser::new(self, options)
    }
}
