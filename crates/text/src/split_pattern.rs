//! Turns the split pattern of a tokenizer file into one without look-ahead.
//!
//! The patterns of GPT-2's descendants end in `\s+(?!\S)|\s+` (tiktoken writes it `\s++$|…|\s+(?!\S)|\s`, with possessive
//! quantifiers). The engine has neither look-ahead nor possessive quantifiers: a run of spaces is matched whole and
//! `pre_tokenizer.rs` gives its last space back. Anything else the engine does not know is refused by the engine itself.

/// Who gets the last space of a run that a word follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastSpace {
    /// The pattern has no such rule.
    Stays,
    /// The word.
    GoesToWord,
    /// The word, except where the run ends a line: an earlier alternative takes runs up to a line break.
    GoesToWordInLine,
}

const LOOK_AHEAD: &str = r"\s+(?!\S)";

/// The pattern for the engine, and what happens to the last space of a run.
pub(crate) fn without_look_ahead(pattern: &str) -> (String, LastSpace) {
    let pattern = without_possessive_quantifiers(pattern);
    let alternatives = alternatives(&pattern);
    let Some(at) = alternatives.iter().position(|alternative| *alternative == LOOK_AHEAD) else {
        return (pattern, LastSpace::Stays);
    };
    // What may come after it matches the white space that is left: one run or one character.
    let rest_is_known = matches!(alternatives[at + 1..], [] | [r"\s+"] | [r"\s"]);
    if !rest_is_known {
        return (pattern, LastSpace::Stays);
    }
    let before = &alternatives[..at];
    let ends_lines =
        |alternative: &&str| alternative.starts_with(r"\s*[\r\n]") || alternative.starts_with("\\s*[\r\n]");
    let rule =
        if before.iter().any(ends_lines) { LastSpace::GoesToWordInLine } else { LastSpace::GoesToWord };
    (before.iter().copied().chain([r"\s+"]).collect::<Vec<_>>().join("|"), rule)
}

/// The alternatives of a pattern outside groups and classes.
fn alternatives(pattern: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut groups = 0usize;
    each_sign(pattern, |at, sign, in_class| match sign {
        _ if in_class => {}
        '(' => groups += 1,
        ')' => groups = groups.saturating_sub(1),
        '|' if groups == 0 => {
            parts.push(&pattern[start..at]);
            start = at + 1;
        }
        _ => {}
    });
    parts.push(&pattern[start..]);
    parts
}

/// `++`, `*+`, `?+` and `}+` without the `+` that forbids giving back. In these patterns nothing that follows a possessive
/// quantifier could use what it would give back.
fn without_possessive_quantifiers(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut start = 0;
    let mut quantifier_end = usize::MAX;
    each_sign(pattern, |at, sign, in_class| {
        if in_class {
            return;
        }
        if sign == '+' && at == quantifier_end {
            out.push_str(&pattern[start..at]);
            start = at + 1;
            quantifier_end = usize::MAX;
        } else if matches!(sign, '+' | '*' | '?' | '}') && at > 0 && !pattern[..at].ends_with('(') {
            quantifier_end = at + 1;
        }
    });
    out.push_str(&pattern[start..]);
    out
}

/// Calls `sign` with every unescaped sign, its position, and whether it stands inside a character class. What an escape
/// begins, such as `\p{L}`, is skipped whole.
fn each_sign(pattern: &str, mut sign: impl FnMut(usize, char, bool)) {
    let mut depth = 0usize;
    let mut characters = pattern.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => {
                let escaped = characters.next().map(|(_, escaped)| escaped);
                let named = escaped.is_some_and(|escaped| "pPxuU".contains(escaped));
                if named && characters.as_str().starts_with('{') {
                    characters.find(|(_, character)| *character == '}');
                }
            }
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => sign(at, character, depth > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LastSpace, without_look_ahead};

    #[test]
    fn the_look_ahead_of_a_run_of_spaces_becomes_a_rule() {
        for (pattern, expected, rule) in [
            (r" ?\p{L}+|\s+(?!\S)|\s+", r" ?\p{L}+|\s+", LastSpace::GoesToWord),
            (
                r"[a|b]+|(?:c|d)|\s*[\r\n]+|\s+(?!\S)|\s+",
                r"[a|b]+|(?:c|d)|\s*[\r\n]+|\s+",
                LastSpace::GoesToWordInLine,
            ),
            (
                r"x?+y++|\p{N}{1,3}+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
                r"x?y+|\p{N}{1,3}|\s+$|\s*[\r\n]|\s+",
                LastSpace::GoesToWordInLine,
            ),
            (r"\p{N}", r"\p{N}", LastSpace::Stays),
            (r"\p{L}+|\x{41}+|[\p{L}]++", r"\p{L}+|\x{41}+|[\p{L}]+", LastSpace::Stays),
            (r"a(?!b)", r"a(?!b)", LastSpace::Stays),
            (r"a\++[+]+", r"a\++[+]+", LastSpace::Stays),
        ] {
            assert_eq!(without_look_ahead(pattern), (expected.to_owned(), rule), "{pattern}");
        }
    }
}
