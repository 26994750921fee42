//! One answer under a grammar: masks before a token is chosen, and the token that was chosen.
//!
//! Owns the state of one answer. Per token: [`Constraint::mask`], choose, [`Constraint::accept`]. An error ends the constraint,
//! except a token that is not allowed: it changes nothing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;

use super::limits::ANSWER_BYTES_MAX;
use super::reasoning::{Reasoning, Step};
use super::table::TokenTable;
use crate::TextError;

/// Where reasoning ends if the model's dialect names no other marker.
const DEFAULT_MARKER: &str = "</think>";

/// What the parser keeps per item of a row, per row, and per byte of the answer, at most.
const BYTES_PER_ITEM: u64 = 16;
const BYTES_PER_ROW: u64 = 256;
const BYTES_PER_BYTE: u64 = 48;

/// The state of one answer under a grammar. Made by [`crate::GrammarCompiler::compile`].
pub struct Constraint {
    table: Arc<TokenTable>,
    parser: Box<TokenParser>,
    reasoning: Option<Reasoning>,
    /// The text tokens that may come next, once they are known.
    allowed: Option<SimpleVob>,
    may_end: bool,
    ended: bool,
    failed: Option<String>,
    tokens: usize,
    kept_bytes: u64,
}

impl Constraint {
    /// Takes a fresh parser and computes its first mask, so that a grammar nothing satisfies is known at once.
    pub(super) fn new(table: Arc<TokenTable>, mut parser: TokenParser) -> Result<Constraint, TextError> {
        parser.start_without_prompt();
        let mut constraint = Constraint {
            table,
            parser: Box::new(parser),
            reasoning: None,
            allowed: None,
            may_end: false,
            ended: false,
            failed: None,
            tokens: 0,
            kept_bytes: 0,
        };
        constraint.look_ahead()?;
        constraint.require_a_way_on()?;
        Ok(constraint)
    }

    /// The same grammar, from the end of the model's reasoning on: everything but a stop token is allowed until
    /// `marker` (`</think>` if `None`) was written, also if tokens cut it; the next token is the grammar's first.
    /// Space that the marker's last token writes behind it is not part of the grammar's text. An empty marker changes nothing.
    #[must_use]
    pub fn after_reasoning(mut self, marker: Option<&str>) -> Constraint {
        self.reasoning = Reasoning::new(marker.unwrap_or(DEFAULT_MARKER), &self.table);
        self
    }

    /// Sets the logit of each token that must not come next to negative infinity. `logits` has one entry per token; what lies
    /// beyond the vocabulary is never allowed.
    ///
    /// # Errors
    /// There are fewer logits than tokens, no token is allowed (a vocabulary without stop tokens at the end of the
    /// grammar, too), or the grammar became too expensive.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), TextError> {
        let tokens = self.table.tokens();
        if logits.len() < tokens {
            return Err(TextError::TooFewLogits { found: logits.len(), tokens });
        }
        let (logits, beyond) = logits.split_at_mut(tokens);
        beyond.fill(f32::NEG_INFINITY);
        if let (Some(reasoning), false) = (&self.reasoning, self.ended) {
            reasoning.forbidden(&self.table, |id| logits[id as usize] = f32::NEG_INFINITY);
            return Ok(());
        }
        self.look_ahead()?;
        self.require_a_way_on()?;
        let words = self.allowed.as_ref().map_or(&[][..], SimpleVob::as_slice);
        let stops: Vec<f32> = self.table.stops().iter().map(|&id| logits[id as usize]).collect();
        for (index, block) in logits.chunks_mut(32).enumerate() {
            match words.get(index).copied().unwrap_or(0) {
                0 => block.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                word => {
                    for (bit, logit) in block.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        if self.may_end() {
            for (&id, &logit) in self.table.stops().iter().zip(&stops) {
                logits[id as usize] = logit;
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// The token is not allowed here (the constraint is as it was), or the grammar became too expensive.
    pub fn accept(&mut self, token: u32) -> Result<(), TextError> {
        self.check_failure()?;
        let not_allowed = TextError::TokenNotAllowed {
            id: token,
            text: String::from_utf8_lossy(self.table.written(token)).into_owned(),
        };
        if self.table.is_stop(token) {
            if !self.may_end() {
                return Err(not_allowed);
            }
            self.ended = true;
            return Ok(());
        }
        if token as usize >= self.table.tokens() || self.ended {
            return Err(not_allowed);
        }
        if let Some(reasoning) = &mut self.reasoning {
            let written = self.table.written(token);
            match reasoning.step(written) {
                Step::Open => reasoning.push(written),
                Step::Closed => self.reasoning = None,
                Step::Straddles => return Err(not_allowed),
            }
            self.tokens += 1;
            return Ok(());
        }
        if !self.table.is_text(token) || !self.run(|parser| parser.validate_token(token))? {
            return Err(not_allowed);
        }
        self.consume(token)
    }

    fn consume(&mut self, token: u32) -> Result<(), TextError> {
        let before = self.parser.parser_stats().clone();
        self.allowed = None;
        self.run(|parser| parser.consume_token(token))?;
        self.tokens += 1;
        let added = self.parser.parser_stats().delta(&before);
        self.kept_bytes += BYTES_PER_ITEM * added.all_items as u64
            + BYTES_PER_ROW * added.rows as u64
            + BYTES_PER_BYTE * self.table.written(token).len() as u64;
        if self.kept_bytes > ANSWER_BYTES_MAX {
            let reason = format!("its state is beyond {} MiB", ANSWER_BYTES_MAX >> 20);
            return Err(self.fail(reason));
        }
        self.may_end = self.run(|parser| Ok(parser.is_accepting()))?;
        if self.may_end {
            // Whether anything else may follow is then asked for anyway.
            self.look_ahead()?;
        }
        Ok(())
    }

    /// Whether the answer may end here: exactly then stop tokens are allowed.
    pub fn may_end(&self) -> bool {
        self.ended || (self.reasoning.is_none() && self.may_end)
    }

    /// Whether the answer is complete and nothing but a stop token may follow.
    pub fn must_end(&self) -> bool {
        self.may_end() && (self.ended || self.allowed.as_ref().is_some_and(SimpleVob::is_zero))
    }

    /// Computes the text tokens that may come next, unless they are known.
    fn look_ahead(&mut self) -> Result<(), TextError> {
        self.check_failure()?;
        if self.ended {
            self.allowed = Some(SimpleVob::new());
        }
        if self.allowed.is_some() {
            return Ok(());
        }
        let (mut allowed, may_end) = self.run(|parser| {
            let may_end = parser.is_accepting();
            match parser.compute_mask() {
                Ok(allowed) => Ok((allowed, may_end)),
                // Nothing but a stop token, which llguidance does not know of.
                Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
                    Ok((SimpleVob::new(), may_end))
                }
                Err(error) => Err(error),
            }
        })?;
        if !allowed.is_empty() {
            self.table.keep_text(&mut allowed);
        }
        self.allowed = Some(allowed);
        self.may_end = may_end;
        Ok(())
    }

    fn require_a_way_on(&self) -> Result<(), TextError> {
        let text = self.allowed.as_ref().is_some_and(|allowed| !allowed.is_zero());
        let stop = (self.may_end || self.ended) && !self.table.stops().is_empty();
        // At the end of a grammar the caller sees `must_end`, whether there are stop tokens or not.
        if text || stop || (self.tokens == 0 && self.may_end) {
            Ok(())
        } else {
            Err(TextError::NoTokenAllowed)
        }
    }

    /// Runs llguidance; a panic inside it becomes an error.
    fn run<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T, TextError> {
        let parser = &mut self.parser;
        catch_unwind(AssertUnwindSafe(|| work(parser))).map_err(|error| {
            let reason = super::compiler::plain(&error.to_string());
            self.fail(reason)
        })
    }

    fn fail(&mut self, reason: String) -> TextError {
        self.failed = Some(reason.clone());
        self.allowed = None;
        TextError::GrammarTooExpensive { tokens: self.tokens, reason }
    }

    fn check_failure(&self) -> Result<(), TextError> {
        match &self.failed {
            Some(reason) => {
                Err(TextError::GrammarTooExpensive { tokens: self.tokens, reason: reason.clone() })
            }
            None => Ok(()),
        }
    }
}
