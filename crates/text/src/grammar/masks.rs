//! How a mask is computed: a walk over the trie of tokens with the parser beside it.
//!
//! Inside a string nearly every token is allowed. Tokens of up to [`RUN_MAX`] plain characters are therefore decided at once, by asking
//! whether the lexer's state takes any such run; only the rest is walked. llguidance has this idea too, with fifteen
//! copies of the trie; here there are one and a small one, and its own are made of nothing (see [`Environment`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::derivre::Regex;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{INVALID_TOKEN, SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::table::TokenTable;

/// Longest run of plain characters that is decided at once.
const RUN_MAX: usize = 30;

/// Steps of the comparison of a lexer's state with the run; llguidance's figure.
const COMPARISON_FUEL: u64 = 1_000;

/// A run of characters that stand for themselves in a JSON string.
pub(super) fn run_expression() -> String {
    format!(r#"[^"\\\x00-\x1F\x7F]{{1,{RUN_MAX}}}"#)
}

/// Computes masks over one table of tokens.
pub(super) struct Masks {
    table: Arc<TokenTable>,
    /// Tokens that are such a run.
    runs: SimpleVob,
    /// All other tokens.
    rest: TokTrie,
}

impl Masks {
    pub(super) fn new(table: Arc<TokenTable>) -> anyhow::Result<Masks> {
        let trie = table.tok_trie();
        let mut expression = Regex::new(&run_expression())?;
        let (mut runs, mut others) = (trie.alloc_token_set(), trie.alloc_token_set());
        for id in 0..trie.vocab_size() as u32 {
            let is_run = expression.is_match_bytes(trie.token(id));
            if is_run { runs.allow_token(id) } else { others.allow_token(id) }
        }
        let rest = trie.filter(&others);
        Ok(Masks { table, runs, rest })
    }
}

impl BiasComputer for Masks {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut allowed = self.trie().alloc_token_set();
        let state = recognizer.lexer_state();
        let takes_runs = start.is_empty() && {
            let lexer = recognizer.lexer_mut();
            lexer.subsume_possible(state)
                && lexer.check_subsume(state, 0, COMPARISON_FUEL, None).unwrap_or(false)
        };
        if takes_runs {
            allowed.or(&self.runs);
            self.rest.add_bias(recognizer, &mut allowed, start);
        } else {
            self.trie().add_bias(recognizer, &mut allowed, start);
        }
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.table.tok_trie()
    }
}

/// The tokens as parsers see them. Until it is opened it shows no tokens: llguidance's factory copies what it is shown, for masks of
/// its own that are never asked for.
pub(super) struct Environment {
    table: Arc<TokenTable>,
    nothing: TokTrie,
    open: AtomicBool,
}

impl Environment {
    pub(super) fn closed(table: Arc<TokenTable>) -> Environment {
        let nothing = TokTrie::from(&TokRxInfo::new(1, INVALID_TOKEN), &[Vec::new()]);
        Environment { table, nothing, open: AtomicBool::new(false) }
    }

    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        if self.open.load(Ordering::Acquire) { self.table.tok_trie() } else { &self.nothing }
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.tok_trie().greedy_tokenize(text)
    }

    /// No: masks allow every way to write the text, and the model chooses.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
