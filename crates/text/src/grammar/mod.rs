//! Grammar masks: which tokens may come next, so that an answer is JSON of a schema, matches a regular expression or
//! follows a grammar.
//!
//! Owns what is allowed in a grammar and what a grammar may cost. Parsing is llguidance's; its masks are computed over
//! our own tokens. Refuses what would not be enforced to the letter, by name: a schema with a keyword that has no effect is
//! an error and not another schema. Control tokens are never part of a constrained answer, and stop tokens are
//! allowed exactly where the grammar may end.
//! Start with [`GrammarCompiler`]; then `constraint.rs` (one answer), `schema.rs` (what of JSON Schema is enforced),
//! `limits.rs` (what hostile grammars may cost), `table.rs` (tokens
//! as llguidance sees them), `masks.rs` (the walk).

mod compiler;
mod constraint;
mod format;
mod limits;
mod locate;
mod masks;
mod pattern;
mod reasoning;
mod schema;
mod table;
mod values;

pub use compiler::{GrammarCompiler, GrammarSource};
pub use constraint::Constraint;
