//! Which tokens end generation.
//!
//! The stop set is the union of the ids the file names (`eos`, `eot`, `eom`) and the control tokens below, found by
//! their text, because files often name only one of several. A token that only opens or closes a part of an
//! answer (`<tool_call>`, `<|tool_calls_section_end|>`, `</think>`) is not a stop: stopping there cuts a tool call
//! in half. A token that hands the turn over is one, also when it does so for a tool (`<|call|>`, `<|eom_id|>`).

/// One rule: `text` is a stop, if the vocabulary has all of `with` and has no group of `without` complete.
struct StopRule {
    text: &'static str,
    with: &'static [&'static str],
    without: &'static [&'static [&'static str]],
}

const fn always(text: &'static str) -> StopRule {
    StopRule { text, with: &[], without: &[] }
}

const RULES: &[StopRule] = &[
    // End of turn.
    always("<|im_end|>"),
    always("<|eot_id|>"),
    always("<|eom_id|>"),
    always("<end_of_turn>"),
    always("<turn|>"),
    always("<end_of_utterance>"),
    always("<EOT>"),
    always("_<EOT>"),
    always("[EOT]"),
    always("[EOS]"),
    always("[e~["),
    // End of document.
    always("<|endoftext|>"),
    always("<|end_of_text|>"),
    always("<｜end▁of▁sentence｜>"),
    always("<eos>"),
    // In a vocabulary with Gemma 4's tool marker, `</s>` is an ordinary HTML tag.
    StopRule { text: "</s>", with: &[], without: &[&["<|tool_response>"]] },
    // Phi ends a turn with it; Harmony and Solar-Open only end a message of a turn, which ends with the ones below.
    StopRule {
        text: "<|end|>",
        with: &[],
        without: &[&["<|return|>", "<|call|>"], &["<|calls|>", "<|flush|>"]],
    },
    StopRule { text: "<|return|>", with: &["<|call|>"], without: &[] },
    StopRule { text: "<|call|>", with: &["<|return|>"], without: &[] },
    StopRule { text: "<|flush|>", with: &["<|calls|>"], without: &[] },
    StopRule { text: "<|calls|>", with: &["<|flush|>"], without: &[] },
    // After a call these models write the header of the tool's turn, which is not theirs to fill.
    StopRule { text: "<|tool_response>", with: &["<turn|>"], without: &[] },
    StopRule { text: "<|observation|>", with: &["<|user|>", "<|assistant|>"], without: &[] },
    StopRule { text: "<|user|>", with: &["<|observation|>", "<|assistant|>"], without: &[] },
];

/// Texts that end a turn or document whatever their type in the file: such a token is made a control token.
pub(crate) fn is_end_marker(text: &str) -> bool {
    RULES.iter().any(|rule| rule.text == text && rule.with.is_empty() && rule.without.is_empty())
}

/// Ids of the tokens that are stops by their text. `control_id` finds a control token by text.
pub(crate) fn stops_by_text(control_id: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let present = |text: &&str| control_id(text).is_some();
    RULES
        .iter()
        .filter(|rule| rule.with.iter().all(present))
        .filter(|rule| !rule.without.iter().any(|group| group.iter().all(present)))
        .filter_map(|rule| control_id(rule.text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::stops_by_text;

    fn stops(vocabulary: &[&str]) -> Vec<String> {
        let find = |text: &str| vocabulary.iter().position(|token| *token == text).map(|id| id as u32);
        let mut texts: Vec<_> =
            stops_by_text(find).into_iter().map(|id| vocabulary[id as usize].to_owned()).collect();
        texts.sort();
        texts
    }

    #[test]
    fn a_marker_inside_an_answer_is_not_a_stop() {
        let qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "</think>"];
        assert_eq!(stops(&qwen), ["<|endoftext|>", "<|im_end|>"]);
    }

    #[test]
    fn the_end_of_a_message_is_a_stop_only_where_turns_have_one_message() {
        assert_eq!(stops(&["<|user|>", "<|assistant|>", "<|end|>"]), ["<|end|>"]);
        assert_eq!(stops(&["<|return|>", "<|call|>", "<|end|>", "<|start|>"]), ["<|call|>", "<|return|>"]);
        assert_eq!(stops(&["<|flush|>", "<|calls|>", "<|end|>"]), ["<|calls|>", "<|flush|>"]);
    }

    #[test]
    fn the_header_of_the_next_turn_is_a_stop_for_glm() {
        let glm = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>"];
        assert_eq!(stops(&glm), ["<|endoftext|>", "<|observation|>", "<|user|>"]);
    }

    #[test]
    fn an_html_tag_is_not_a_stop_for_gemma() {
        assert_eq!(stops(&["</s>", "<turn|>", "<|tool_response>"]), ["<turn|>", "<|tool_response>"]);
        assert_eq!(stops(&["</s>"]), ["</s>"]);
    }
}
