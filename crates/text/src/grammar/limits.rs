//! What a grammar may cost, so that a hostile one ends with an error and not with the process.
//!
//! All limits count work or things and no wall time: the same grammar is refused on every machine or on none. What they mean in
//! milliseconds and bytes is checked by `tests/hostile_grammars_end_with_an_error.rs`.

use llguidance::api::ParserLimits;

/// Largest text of a regular expression, in bytes.
pub(super) const REGEX_BYTES_MAX: usize = 16 << 10;

/// Largest text of a Lark grammar, in bytes. A chain of as many rules as fit is compiled by recursion.
pub(super) const LARK_BYTES_MAX: usize = 32 << 10;

/// Largest number of JSON values in a schema that are looked at, references counted where they lead to.
pub(super) const SCHEMA_VALUES_MAX: usize = 20_000;

/// Largest total length of names and strings in a schema, in bytes.
pub(super) const SCHEMA_TEXT_BYTES_MAX: usize = 512 << 10;

/// Deepest nesting of schemas in schemas, through references too: the compiler recurses as deep.
pub(super) const SCHEMA_DEPTH_MAX: usize = 100;

/// Most named properties of a whole schema: a sequence of optional properties is compiled by recursion over them.
pub(super) const SCHEMA_PROPERTIES_MAX: usize = 1_000;

/// Largest length and count (`maxLength`, `minItems`).
pub(super) const COUNT_MAX: u64 = (1 << 31) - 1;

/// Integers beyond this are not exact in the compiler's arithmetic.
pub(super) const INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// Address space of the thread that compiles; only what recursion touches becomes memory.
pub(super) const COMPILE_STACK_BYTES: usize = 32 << 20;

/// Attempts to find the part of a schema that the compiler refused.
pub(super) const LOCATE_ATTEMPTS_MAX: usize = 200;

/// Memory that one answer may keep beyond the compiled grammar, in bytes, as estimated from what the parser has added.
pub(super) const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// Longest token that may be part of a constrained answer, in bytes: deeper tries are not built. Longer ones
/// exist (hundreds of spaces), and shorter tokens write the same text.
pub(super) const TOKEN_BYTES_MAX: usize = 256;

/// Largest vocabulary text in bytes: a trie has at most 2^22 nodes.
pub(super) const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 1;

/// Largest number of tokens: a node of a trie has 24 bits for an id.
pub(super) const TOKENS_MAX: usize = (1 << 24) - 1;

/// The limits of the parser.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 6_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
