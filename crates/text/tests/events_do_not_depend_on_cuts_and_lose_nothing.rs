//! Text comes cut anywhere, and models write anything. Whatever the text: the events are the same for all cuts, every
//! word is in them once, calls that end have valid arguments, nothing panics.

use crate::answers::{events, lines, options};
use coldpress_text::{AnswerEvent, Dialect, ParserOptions};
use proptest::prelude::*;

/// Pieces that make up the calls of a dialect, well-formed ones and the tags in the wrong places.
fn fragments(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Plain | Dialect::Think => &["<tool_call>", "{"],
        Dialect::Hermes => {
            &["<tool_call>", "</tool_call>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {"]
        }
        Dialect::Qwen3Coder => &[
            "<tool_call>",
            "</tool_call>",
            "<function=",
            "<function=get_weather>",
            "</function>",
            "<parameter=",
            "<parameter=city>",
            "<parameter=days>",
            "</parameter>",
            "<tool_call>\n<function=get_time>\n",
            ">",
        ],
        Dialect::Mistral => {
            &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[TOOL_CALLS]f[ARGS]{", "[", "]"]
        }
        Dialect::Llama3 => &[
            "<|python_tag|>",
            "<|python_start|>",
            "<|python_end|>",
            ";",
            "{\"name\": \"get_time\", \"parameters\": {",
        ],
        Dialect::DeepSeekV3 => &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "function",
            "\n```json\n",
            "\n```",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
        ],
        Dialect::DeepSeekDsml => &[
            "<｜DSML｜function_calls>",
            "<｜DSML｜tool_calls>",
            "<|DSML|tool_calls>",
            "<｜DSML｜invoke name=\"",
            "<｜DSML｜invoke name=\"f\">",
            "<｜DSML｜parameter name=\"",
            "<｜DSML｜parameter name=\"a\" string=\"true\">",
            "</｜DSML｜parameter>",
            "</｜DSML｜invoke>",
            "\" string=\"false\">",
            "\">",
            "</｜DSML｜tool_calls>",
            "<invoke name=\"g\">",
            "</invoke>",
        ],
        Dialect::Glm => &[
            "<tool_call>",
            "<tool_call>get_weather\n",
            "<arg_key>",
            "<arg_key>city</arg_key>",
            "<arg_key>days</arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "</tool_call>",
        ],
        Dialect::Kimi => &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
            "functions.",
            ":0",
            "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{",
        ],
        Dialect::Harmony => &[
            "<|start|>",
            "<|start|>assistant",
            "<|channel|>",
            "<|channel|>analysis<|message|>",
            "<|channel|>final<|message|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|constrain|>",
            " to=functions.f",
            " to=",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{",
        ],
        Dialect::MiniMax => &[
            "<minimax:tool_call>",
            "<invoke name=\"",
            "<invoke name=\"get_weather\">",
            "<parameter name=\"",
            "<parameter name=\"city\">",
            "<parameter name=\"days\">",
            "\">",
            "</parameter>",
            "</invoke>",
            "</minimax:tool_call>",
        ],
        _ => &[],
    }
}

/// Pieces for all dialects. The word is replaced by another one each time.
const COMMON: &[&str] = &[
    "WORD",
    "WORD",
    " WORD\n",
    "\"WORD\"",
    "\"WORD\": ",
    "<think>",
    "</think>",
    "{",
    "}",
    "}}",
    "\"name\": ",
    "\"arguments\": ",
    "\"f\"",
    ": ",
    ", ",
    "\"a\": ",
    "1",
    "true",
    "null",
    "[",
    "]",
    "\"",
    "\n",
    "\n\n",
    " ",
    "<",
    "é🙂",
    "▁｜",
    "\\",
    "{\"a\": \"WORD\"}",
    "{\"name\": \"f\", ",
    "\"arguments\": {\"a\": 1}}",
    "{}",
];

/// Whole calls of a dialect, with words and with raw line breaks.
fn calls(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Plain | Dialect::Think => &["<think>WORD\n</think>\nWORD"],
        Dialect::Hermes => &[
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"WORD\n\", \"b\": [1, {\"c\": null}]}}\n</tool_call>",
            "<tool_call>\n{\"arguments\": {\"a\": -1.5e3}, \"name\": \"WORD\"}\n</tool_call>",
        ],
        Dialect::Qwen3Coder => &[
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nWORD\n\n\"</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>",
        ],
        Dialect::Mistral => &[
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"WORD\"}}, {\"name\": \"WORD\", \"arguments\": {}}]",
            "[TOOL_CALLS]f[ARGS]{\"a\": \"WORD\n\"}",
        ],
        Dialect::Llama3 => &[
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"WORD\"}}; {\"name\": \"get_time\", \"parameters\": {}}",
            "<|python_tag|>{\"name\": \"WORD\", \"parameters\": {\"a\": [true]}}",
        ],
        Dialect::DeepSeekV3 => &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"WORD\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>WORD\n```json\n{\"a\": \"WORD\n\"}\n```<｜tool▁call▁end｜>",
        ],
        Dialect::DeepSeekDsml => &[
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"WORD\" string=\"true\">WORD\n</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "<｜DSML｜invoke name=\"WORD\">\n{\"a\": \"WORD\"}\n</｜DSML｜invoke>",
        ],
        Dialect::Glm => &[
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>WORD\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ],
        Dialect::Kimi => &[
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.WORD:0<|tool_call_argument_begin|>{\"a\": \"WORD\"}<|tool_call_end|><|tool_calls_section_end|>",
        ],
        Dialect::Harmony => &[
            "<|channel|>analysis<|message|>WORD<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"WORD\n\"}<|call|>",
        ],
        Dialect::MiniMax => &[
            "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">WORD\n</parameter>\n<parameter name=\"days\">7</parameter>\n</invoke>\n</minimax:tool_call>",
        ],
        _ => &[],
    }
}

/// A dialect and a text in it, with the words it holds, no two the same. A few characters outside the words are
/// deleted, so that calls are nearly whole.
fn answer() -> impl Strategy<Value = (Dialect, String, Vec<String>)> {
    let dialect = prop::sample::select(&Dialect::ALL[..]);
    dialect.prop_flat_map(|dialect| {
        let own = prop::sample::select(fragments(dialect));
        let fragment = prop_oneof![
            2 => own.boxed(),
            2 => prop::sample::select(COMMON).boxed(),
            1 => prop::sample::select(calls(dialect)).boxed(),
        ];
        let deleted = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
        (prop::collection::vec(fragment, 0..10), deleted).prop_map(move |(fragments, deleted)| {
            let mut text = String::new();
            let mut words = Vec::new();
            for part in fragments.concat().split_inclusive("WORD") {
                match part.strip_suffix("WORD") {
                    Some(before) => {
                        let word = format!("w{}x", words.len());
                        text.push_str(before);
                        text.push_str(&word);
                        words.push(word);
                    }
                    None => text.push_str(part),
                }
            }
            let marks: Vec<usize> =
                text.char_indices().filter(|(_, mark)| !mark.is_alphanumeric()).map(|(at, _)| at).collect();
            for index in deleted.iter().filter(|_| !marks.is_empty()) {
                // A space in its place keeps words apart and later places right.
                let at = marks[index.index(marks.len())];
                if text.as_bytes()[at].is_ascii() {
                    text.replace_range(at..=at, " ");
                }
            }
            (dialect, text, words)
        })
    })
}

/// The text cut at these places, as far as they are between characters.
fn cut<'a>(text: &'a str, places: &[usize]) -> Vec<&'a str> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (text.len() + 1)).collect();
    places.retain(|place| text.is_char_boundary(*place));
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Words of Harmony's headers, which are structure and not part of the answer.
fn words_of_headers(text: &str) -> String {
    let mut found = String::new();
    let mut rest = text;
    while let Some(end) = rest.find("<|message|>") {
        let before = &rest[..end];
        let starts =
            ["<|start|>", "<|channel|>", "to="].map(|marker| before.find(marker).unwrap_or(before.len()));
        found.push_str(&before[starts.into_iter().min().unwrap_or(0)..]);
        rest = &rest[end + "<|message|>".len()..];
    }
    found
}

fn check(
    dialect: Dialect,
    options: &ParserOptions,
    text: &str,
    words: &[String],
    places: &[usize],
) -> Result<(), TestCaseError> {
    let whole = events(dialect, options, [text]);
    let expected = lines(&whole);
    prop_assert_eq!(&lines(&events(dialect, options, cut(text, places))), &expected);
    prop_assert_eq!(&lines(&events(dialect, options, text.split_inclusive(|_| true))), &expected);

    let joined = expected.join("\n");
    let headers = if dialect == Dialect::Harmony { words_of_headers(text) } else { String::new() };
    for word in words {
        // An id repeats the name it was made from.
        let allowed = if dialect == Dialect::Kimi { 1..=2 } else { 1..=1 };
        let count = joined.matches(word.as_str()).count();
        prop_assert!(
            allowed.contains(&count) || headers.contains(word.as_str()),
            "{} is there {} times: {:?}",
            word,
            count,
            expected
        );
    }

    let mut arguments = String::new();
    for event in &whole {
        match event {
            AnswerEvent::ToolCallBegin { .. } => arguments.clear(),
            AnswerEvent::ToolCallArguments { json, .. } => arguments.push_str(json),
            AnswerEvent::ToolCallEnd { .. } => {
                let value = serde_json::from_str::<serde_json::Value>(&arguments);
                prop_assert!(value.is_ok_and(|value| value.is_object()), "{}", arguments);
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fragments_of_calls_in_any_order(
        (dialect, text, words) in answer(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        starts_in_reasoning in any::<bool>(),
        tools in prop::bool::weighted(0.9),
    ) {
        let places: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
        let options = ParserOptions { starts_in_reasoning, tools, ..options() };
        check(dialect, &options, &text, &words, &places)?;
    }

    /// In text without markers nothing changes but the white space.
    #[test]
    fn any_text_at_all(
        text in prop_oneof![any::<String>(), "[<|>/\\[\\]{}\"a-z= \n｜▁]{0,40}"],
        dialect in prop::sample::select(&Dialect::ALL[..]),
        places in prop::collection::vec(0usize..400, 0..8),
    ) {
        check(dialect, &options(), &text, &[], &places)?;
        let visible = |text: &str| text.chars().filter(|character| !character.is_whitespace()).collect::<String>();
        let mut joined = String::new();
        for event in events(dialect, &options(), [text.as_str()]) {
            match event {
                AnswerEvent::Content(piece) => joined.push_str(&piece),
                other => prop_assert!(false, "no marker is in {:?}, and there came {:?}", text, other),
            }
        }
        prop_assert_eq!(visible(&joined), visible(&text));
        if dialect == Dialect::Plain {
            prop_assert_eq!(joined, text);
        }
    }
}

/// What is still held of an endless text that always looks like a marker or the header of a call.
#[test]
fn no_more_is_held_back_than_a_marker_or_a_header() {
    let starts = [
        "",
        "<tool_call>",
        "<tool_call>{\"name\": \"",
        "<tool_call>{\"arguments\": {\"a\": \"",
        "[TOOL_CALLS]",
        "<function=",
        "<|channel|>",
    ];
    for dialect in Dialect::ALL {
        for start in starts.iter().chain(fragments(dialect)) {
            for unit in ["<", " ", "a", "<tool_call>", "to="] {
                let mut parser = dialect.parser(options());
                let mut events = Vec::new();
                parser.push(start, &mut events);
                parser.push(&unit.repeat(80_000 / unit.len()), &mut events);
                events.clear();
                parser.finish(&mut events);
                let left: usize = events
                    .iter()
                    .map(|event| match event {
                        AnswerEvent::Content(text) | AnswerEvent::Reasoning(text) => text.len(),
                        _ => 0,
                    })
                    .sum();
                assert!(
                    left <= (64 << 10) + 64,
                    "{dialect:?}: {left} bytes of {start:?} and {unit:?} were held"
                );
            }
        }
    }
}

/// A header that never ends is given up and read again as text: that must not take quadratic time.
#[test]
fn openers_upon_openers_are_read_in_linear_time() {
    let start = std::time::Instant::now();
    for dialect in Dialect::ALL {
        for fragment in fragments(dialect) {
            let text = fragment.repeat(200_000 / fragment.len());
            let mut parser = dialect.parser(options());
            let mut events = Vec::new();
            parser.push(&text, &mut events);
            parser.finish(&mut events);
        }
    }
    // 18 MB of text; quadratic time would be hours.
    assert!(start.elapsed().as_secs() < 60, "took {:?}", start.elapsed());
}
