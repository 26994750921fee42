//! From a source (JSON Schema, regular expression, Lark grammar) to the constraint of one answer.
//!
//! Owns the checks on size before anything is parsed, and the thread with a known stack on which grammars are compiled: the
//! compiler recurses, and a stack that overflows is not an error that can be caught. Panics inside it are.

use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Value, json};

use super::constraint::Constraint;
use super::limits::{COMPILE_STACK_BYTES, LARK_BYTES_MAX, REGEX_BYTES_MAX, parser_limits};
use super::locate::locate;
use super::masks::{Environment, Masks, run_expression};
use super::schema::{Refusal, enforceable};
use super::table::TokenTable;
use crate::{TextError, Tokenizer};

/// What an answer has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under this schema (drafts 4 to 2020-12); what cannot be enforced is refused.
    JsonSchema(Value),
    /// Text that matches this regular expression of the Rust syntax from its first to its last byte.
    Regex(String),
    /// A context-free grammar in llguidance's Lark syntax, from its rule `start` on.
    Lark(String),
}

/// Makes constraints for the tokens of one tokenizer. Made once per model, shared between threads.
pub struct GrammarCompiler {
    table: Arc<TokenTable>,
    factory: ParserFactory,
    masks: Arc<Masks>,
}

impl GrammarCompiler {
    /// Builds the tables of the tokenizer's tokens.
    ///
    /// # Errors
    /// The vocabulary is larger than a trie of it can be.
    pub fn new(tokenizer: &Tokenizer) -> Result<GrammarCompiler, TextError> {
        let table = Arc::new(TokenTable::new(tokenizer)?);
        let environment = Arc::new(Environment::closed(table.clone()));
        let built = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let environment: TokEnv = environment.clone();
            let factory =
                ParserFactory::new(&environment, InferenceCapabilities::default(), &[run_expression()])?;
            Ok((factory, Masks::new(table.clone())?))
        }));
        let (mut factory, masks) = built.map_err(|error| refused("vocabulary", &error.to_string()))?;
        environment.open();
        *factory.limits_mut() = parser_limits();
        factory.quiet();
        Ok(GrammarCompiler { table, factory, masks: Arc::new(masks) })
    }

    /// Upper bound of the memory that [`GrammarCompiler::new`] adds to a process, in bytes, including what is freed after it.
    pub fn bytes(tokenizer: &Tokenizer) -> u64 {
        TokenTable::bytes(tokenizer)
    }

    /// Upper bound of the memory of one constraint, in bytes, for the ledger: the compiled grammar, its lexer's states, and
    /// the parser's state of an answer. Their numbers are limited; this covers the largest measured with room to spare.
    pub const CONSTRAINT_BYTES_MAX: u64 = 128 << 20;

    /// Compiles a grammar for one answer.
    ///
    /// # Errors
    /// The source is too large, malformed, asks for something that would not be enforced (a schema: with the path of it), or
    /// nothing satisfies it.
    pub fn compile(&self, source: &GrammarSource) -> Result<Constraint, TextError> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(COMPILE_STACK_BYTES);
            match thread.spawn_scoped(scope, || self.compile_here(source)) {
                Ok(compiling) => compiling.join().unwrap_or_else(|_| Err(refused("grammar", "it panicked"))),
                Err(error) => Err(refused("grammar", &format!("no thread to compile it on: {error}"))),
            }
        })
    }

    fn compile_here(&self, source: &GrammarSource) -> Result<Constraint, TextError> {
        match source {
            GrammarSource::JsonObject => self.schema(&json!({ "type": "object" })),
            GrammarSource::JsonSchema(schema) => self.schema(schema),
            GrammarSource::Regex(pattern) => {
                check_size("regular expression", pattern, REGEX_BYTES_MAX)?;
                check_regex(pattern)?;
                let grammar = if pattern.is_empty() {
                    TopLevelGrammar::from_lark("start: \"\"".to_owned())
                } else {
                    TopLevelGrammar::from_regex(pattern)
                };
                self.constraint(grammar, |reason| refused("regular expression", &reason))
            }
            GrammarSource::Lark(grammar) => {
                check_size("Lark grammar", grammar, LARK_BYTES_MAX)?;
                let grammar = TopLevelGrammar::from_lark(grammar.clone());
                self.constraint(grammar, |reason| refused("Lark grammar", &reason))
            }
        }
    }

    fn schema(&self, schema: &Value) -> Result<Constraint, TextError> {
        let refused = |Refusal { path, reason }| TextError::SchemaRefused { path, reason };
        let document = enforceable(schema).map_err(refused)?;
        let grammar = TopLevelGrammar::from_json_schema(document);
        self.constraint(grammar, |reason| refused(locate(schema, reason, |part| self.refusal(part))))
    }

    fn constraint(
        &self,
        grammar: TopLevelGrammar,
        refused: impl Fn(String) -> TextError,
    ) -> Result<Constraint, TextError> {
        let parser = self.parser(grammar).map_err(&refused)?;
        Constraint::new(self.table.clone(), parser).map_err(|error| match error {
            TextError::GrammarTooExpensive { reason, .. } => refused(reason),
            TextError::NoTokenAllowed => refused("nothing satisfies it".to_owned()),
            other => other,
        })
    }

    fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        let mut parser = self.factory.create_parser(grammar).map_err(|error| plain(&format!("{error:#}")))?;
        parser.bias_computer = self.masks.clone();
        Ok(parser)
    }

    /// Why the compiler refuses a schema, if it does.
    fn refusal(&self, document: Value) -> Option<String> {
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(document));
        let checked = catch_unwind(std::panic::AssertUnwindSafe(|| {
            grammar.to_internal(Some(self.factory.tok_env().clone()), parser_limits()).map(drop)
        }));
        checked.err().map(|error| plain(&format!("{error:#}")))
    }
}

fn check_size(kind: &'static str, text: &str, limit: usize) -> Result<(), TextError> {
    let bytes = text.len();
    if bytes > limit { Err(TextError::GrammarTooLarge { kind, bytes, limit }) } else { Ok(()) }
}

/// What llguidance would take for something else: it drops a backslash at the end, and a group named `stop` is its look-ahead.
fn check_regex(pattern: &str) -> Result<(), TextError> {
    const KIND: &str = "regular expression";
    regex_automata::util::syntax::parse(pattern).map_err(|error| refused(KIND, &error.to_string()))?;
    if pattern.contains("<stop>") {
        return Err(refused(KIND, "a group cannot be named \"stop\""));
    }
    Ok(())
}

fn refused(kind: &'static str, reason: &str) -> TextError {
    TextError::GrammarRefused { kind, reason: plain(reason) }
}

/// The words of an error of llguidance without its dumps of state.
pub(super) fn plain(message: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    let end = ["\n<", "\n  while"].iter().filter_map(|mark| message.find(mark)).min();
    let message = message[..end.unwrap_or(message.len())].trim();
    let message = message.strip_prefix("panic: ").unwrap_or(message);
    match message.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}
