//! Pre-tokenizers: the regular expressions that cut text into pieces before BPE, as a table by GGUF name.
//!
//! A stage cuts every piece of the stage before it into matches and the gaps between them. The patterns are those
//! of the models' own `tokenizer.json` or tiktoken source, as recorded per `tokenizer.ggml.pre` name by llama.cpp
//! (`src/llama-vocab.cpp`, `llm_tokenizer_bpe`). An unknown name is refused: see [`TextError::UnknownPreTokenizer`].
//!
//! The originals end in `\s+(?!\S)|\s+`. A look-ahead needs a backtracking engine, whose step limit a long run of
//! spaces can exhaust; here `\s+` stands alone and [`Spaces`] gives the last space back, which is the same language
//! in linear time.

use std::ops::Range;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

use crate::TextError;

/// Upper bound for the lazily built automaton of one stage, in bytes.
pub(crate) const STAGE_CACHE_BYTES: usize = 1 << 20;

/// What a match that is only white space means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spaces {
    /// Nothing special.
    Kept,
    /// `\s+(?!\S)`: a run of two or more leaves its last character to the word that follows.
    LastGoesToWord,
    /// The same, except for runs that end a line (an earlier alternative `\s*[\r\n]+` took those).
    LastGoesToWordInLine,
}
use Spaces::{Kept, LastGoesToWord, LastGoesToWordInLine};

/// Pattern and meaning of its white-space matches.
type StageRule = (&'static str, Spaces);

struct Family {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    stages: &'static [StageRule],
    /// A piece that is a token is taken whole, without merging.
    whole_pieces_first: bool,
    /// Default of `tokenizer.ggml.add_bos_token`.
    add_bos: bool,
}

const GPT2: StageRule = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", LastGoesToWord);
const SINGLE_NUMBER: StageRule = (r"\p{N}", Kept);
const THREE_NUMBERS: StageRule = (r"\p{N}{1,3}", Kept);
const THREE_DIGITS: StageRule = (r"[0-9][0-9][0-9]", Kept);
const CJK_AND_KANA: StageRule = (r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", Kept);
const HAN_AND_HANGUL: StageRule = (r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", Kept);
const LINE_BREAK: StageRule = (r"[\r\n]", Kept);

const LLAMA3: StageRule = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const QWEN2: StageRule = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const QWEN35: StageRule = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const SEED_CODER: StageRule = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const BAILING: StageRule = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
    LastGoesToWordInLine,
);
const EXAONE_MOE: StageRule = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+",
    LastGoesToWordInLine,
);
const DEEPSEEK_V3: StageRule = (
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
    LastGoesToWordInLine,
);
const O200K: StageRule = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const TEKKEN: StageRule = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);
const KIMI: StageRule = (
    r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    LastGoesToWordInLine,
);

/// Cased letters as the DeepSeek-LLM tokenizer lists them: fewer than today's `\p{LC}`, so the list is literal.
const DEEPSEEK_LETTERS: StageRule = (
    concat!(
        r"\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF",
        r"\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481",
        r"\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF",
        r"\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57",
        r"\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3",
        r"\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126",
        r"\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4",
        r"\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF",
        r"\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3",
        r"\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+",
    ),
    Kept,
);
const DEEPSEEK_PUNCTUATION: StageRule =
    (r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", Kept);

const FAMILIES: &[Family] = &[
    Family {
        names: &["default"],
        stages: &[(r"[\p{P}$+<=>^~|]+", Kept), GPT2, (r"\p{N}+", Kept), THREE_DIGITS],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        stages: &[GPT2],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: &[SINGLE_NUMBER, GPT2],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["falcon"],
        stages: &[(r"[\p{P}$+<=>^~|`]+", Kept), GPT2, THREE_DIGITS],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        stages: &[LLAMA3],
        whole_pieces_first: true,
        add_bos: true,
    },
    Family {
        names: &["glm4", "chatglm-bpe", "dbrx", "smaug-bpe"],
        stages: &[LLAMA3],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "hunyuan",
            "solar-open",
            "stablelm2",
            "megrez",
            "grok-2",
            "kormo",
        ],
        stages: &[QWEN2],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family { names: &["qwen35"], stages: &[QWEN35], whole_pieces_first: false, add_bos: false },
    Family { names: &["seed-coder"], stages: &[SEED_CODER], whole_pieces_first: false, add_bos: false },
    Family {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[BAILING],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family { names: &["exaone-moe"], stages: &[EXAONE_MOE], whole_pieces_first: false, add_bos: false },
    Family {
        names: &["laguna"],
        stages: &[(r"[^\n]+|\n+", Kept), QWEN2],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["deepseek-llm"],
        stages: &[
            LINE_BREAK,
            DEEPSEEK_LETTERS,
            DEEPSEEK_PUNCTUATION,
            (r"\s+$", Kept),
            HAN_AND_HANGUL,
            (r"\p{N}+", Kept),
        ],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["deepseek-coder"],
        stages: &[LINE_BREAK, (r"\s?\p{L}+", Kept), (r"\s?\p{P}+", Kept), HAN_AND_HANGUL, SINGLE_NUMBER],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[THREE_NUMBERS, CJK_AND_KANA, DEEPSEEK_V3],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        stages: &[O200K],
        whole_pieces_first: false,
        add_bos: false,
    },
    Family { names: &["tekken"], stages: &[TEKKEN], whole_pieces_first: true, add_bos: true },
    Family { names: &["kimi-k2"], stages: &[KIMI], whole_pieces_first: false, add_bos: false },
];

/// All names of `tokenizer.ggml.pre` this crate knows, in table order.
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names.iter().copied())
}

fn family(name: Option<&str>) -> Option<&'static Family> {
    name.and_then(|name| FAMILIES.iter().find(|family| family.names.contains(&name)))
}

/// Number of patterns of a pre-tokenizer; 0 if it is not known.
pub(crate) fn stage_count(name: Option<&str>) -> usize {
    family(name).map_or(0, |family| family.stages.len())
}

/// What becomes of the matches of a stage, and of the text between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// Each match and each gap is a piece.
    MatchesAndGaps,
    /// Gaps are dropped.
    MatchesOnly,
    /// Matches are dropped.
    GapsOnly,
    /// A match belongs to the gap before it.
    MatchEndsPiece,
    /// A match belongs to the gap after it.
    MatchBeginsPiece,
}

/// One step of cutting.
pub(crate) struct Stage {
    regex: Regex,
    spaces: Spaces,
    pieces: Pieces,
}

impl Stage {
    /// Compiles a pattern that a file brings; `Err` says why it is refused. The originals' `\s+(?!\S)` is understood as in
    /// the table above, any other look-around is refused.
    pub(crate) fn from_pattern(pattern: &str, pieces: Pieces) -> Result<Stage, String> {
        if pattern.len() > PATTERN_LIMIT_BYTES {
            return Err(format!("it is {} bytes long; the limit is {PATTERN_LIMIT_BYTES}", pattern.len()));
        }
        let (pattern, spaces) = crate::split_pattern::without_look_ahead(pattern);
        let regex = compile(&pattern).map_err(|error| error.to_string())?;
        let spaces = match spaces {
            crate::split_pattern::LastSpace::Stays => Kept,
            crate::split_pattern::LastSpace::GoesToWord => LastGoesToWord,
            crate::split_pattern::LastSpace::GoesToWordInLine => LastGoesToWordInLine,
        };
        Ok(Stage { regex, spaces, pieces })
    }

    /// The pattern that GPT-2 cuts with.
    pub(crate) fn gpt2() -> Stage {
        Stage::from_rule(GPT2)
    }

    fn from_rule((pattern, spaces): StageRule) -> Stage {
        let regex = compile(pattern).expect("every pattern of the table compiles: a test builds them all");
        Stage { regex, spaces, pieces: Pieces::MatchesAndGaps }
    }
}

/// Longest pattern of a file; the longest known ones are around 1,200 bytes.
const PATTERN_LIMIT_BYTES: usize = 16 << 10;

/// Most memory of a compiled pattern of a file, in bytes; real ones take up to 0.5 MiB.
const PATTERN_PROGRAM_LIMIT_BYTES: usize = 8 << 20;

fn compile(pattern: &str) -> Result<Regex, Box<regex_automata::meta::BuildError>> {
    let limits = Regex::config()
        .hybrid_cache_capacity(STAGE_CACHE_BYTES)
        .nfa_size_limit(Some(PATTERN_PROGRAM_LIMIT_BYTES));
    Regex::builder().configure(limits).build(pattern).map_err(Box::new)
}

pub(crate) struct PreTokenizer {
    stages: Vec<Stage>,
    pub(crate) whole_pieces_first: bool,
    pub(crate) add_bos: bool,
}

impl PreTokenizer {
    pub(crate) fn for_name(name: Option<&str>) -> Result<PreTokenizer, TextError> {
        let Some(family) = family(name) else {
            return Err(TextError::UnknownPreTokenizer {
                found: name.map(str::to_owned),
                known: known_pre_tokenizers().collect::<Vec<_>>().join(", "),
            });
        };
        let stages = family.stages.iter().map(|&rule| Stage::from_rule(rule)).collect();
        Ok(PreTokenizer { stages, whole_pieces_first: family.whole_pieces_first, add_bos: family.add_bos })
    }

    /// The stages of a file.
    pub(crate) fn from_stages(stages: Vec<Stage>, whole_pieces_first: bool) -> PreTokenizer {
        PreTokenizer { stages, whole_pieces_first, add_bos: false }
    }

    /// Calls `piece` with each piece of `text`, in order. Together the pieces are `text`, unless a stage drops some.
    pub(crate) fn split<'t>(&self, text: &'t str, piece: &mut dyn FnMut(&'t str)) {
        split_stages(&self.stages, text, piece);
    }
}

fn split_stages<'t>(stages: &[Stage], text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let Some((stage, later)) = stages.split_first() else {
        if !text.is_empty() {
            piece(text);
        }
        return;
    };
    let mut start = 0;
    // Where the search goes on; behind `start` while a match waits for the gap after it.
    let mut at = 0;
    while let Some(found) = find_next(&stage.regex, text, at, stage.spaces) {
        let end = found.end - given_back(text, &text[found.clone()], found.end, stage.spaces);
        if end == found.start {
            // An empty match cuts nothing; go on behind the next character.
            let Some(next) = text[end..].chars().next() else { break };
            at = end + next.len_utf8();
            continue;
        }
        match stage.pieces {
            Pieces::MatchesAndGaps => {
                split_stages(later, &text[start..found.start], piece);
                split_stages(later, &text[found.start..end], piece);
                start = end;
            }
            Pieces::MatchesOnly => {
                split_stages(later, &text[found.start..end], piece);
                start = end;
            }
            Pieces::GapsOnly => {
                split_stages(later, &text[start..found.start], piece);
                start = end;
            }
            Pieces::MatchEndsPiece => {
                split_stages(later, &text[start..end], piece);
                start = end;
            }
            Pieces::MatchBeginsPiece => {
                split_stages(later, &text[start..found.start], piece);
                start = found.start;
            }
        }
        at = end;
    }
    if stage.pieces != Pieces::MatchesOnly {
        split_stages(later, &text[start..], piece);
    }
}

/// The first match from `start` on.
fn find_next(regex: &Regex, text: &str, start: usize, spaces: Spaces) -> Option<Range<usize>> {
    let input = Input::new(text).range(start..);
    // Word patterns match nearly everywhere, and an anchored search is several times faster.
    if spaces != Kept
        && let Some(found) = regex.search(&input.clone().anchored(Anchored::Yes))
    {
        return Some(found.range());
    }
    regex.search(&input).map(|found| found.range())
}

/// Bytes at the end of the match that belong to the word after it.
fn given_back(text: &str, matched: &str, end: usize, spaces: Spaces) -> usize {
    if spaces == Kept || end == text.len() {
        return 0;
    }
    let mut characters = matched.chars();
    let Some(last) = characters.next_back().filter(|last| last.is_whitespace()) else { return 0 };
    let line_ended = spaces == LastGoesToWordInLine && matches!(last, '\r' | '\n');
    let more_than_one = characters.next_back().is_some_and(char::is_whitespace);
    let only_spaces = more_than_one && characters.all(char::is_whitespace);
    // The match is greedy, so what follows it is not white space.
    if only_spaces && !line_ended { last.len_utf8() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{PreTokenizer, known_pre_tokenizers};

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let pre = PreTokenizer::for_name(Some(name)).expect("a known name");
        pre.split(text, &mut |piece| out.push(piece.to_owned()));
        out
    }

    #[test]
    fn every_pattern_of_the_table_compiles_and_loses_nothing() {
        let text = "I'M  here\r\n\r\n\tline 1234,５６ naïve 漢字かな 한국어 ـية x\u{301} 🏳️‍🌈\u{3000}end  \n ";
        for name in known_pre_tokenizers() {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
            assert!(pieces(name, "").is_empty(), "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = known_pre_tokenizers().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_last_space_of_a_run_goes_to_the_word() {
        assert_eq!(pieces("gpt-2", "a   b\n\nc  "), ["a", "  ", " b", "\n", "\n", "c", "  "]);
        assert_eq!(pieces("qwen2", "a   b\n\nc \n d  "), ["a", "  ", " b", "\n\n", "c", " \n", " d", "  "]);
        assert_eq!(pieces("qwen2", "\u{3000}\u{3000}1"), ["\u{3000}", "\u{3000}", "1"]);
    }

    #[test]
    fn a_long_run_of_spaces_is_cheap() {
        let text = " ".repeat(2_000_000) + "x";
        assert_eq!(pieces("llama3", &text).len(), 2);
    }
}
