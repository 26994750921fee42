//! Tool markup that leaks into the text, calls that never arrive and reasoning shown as the answer are what users of
//! other servers report most. Each example is checked at every cut. The formats are those of the models' templates.

use crate::answers::{options, read, read_with};
use coldpress_text::{Dialect, ParserOptions};

#[test]
fn plain_text_is_content() {
    let text = "\n Tags like <think> and <tool_call>{\"name\": \"get_time\"}</tool_call> stay.\n\n";
    assert_eq!(read(Dialect::Plain, text), [format!("content: {text}")]);
}

#[test]
fn newlines_around_reasoning_are_dropped() {
    let expected = ["reasoning: Hm.\n\nWell.", "content: Hello\n\nyou\n"];
    assert_eq!(read(Dialect::Think, "<think>\nHm.\n\nWell.\n</think>\n\nHello\n\nyou\n"), expected);
    assert_eq!(read(Dialect::Hermes, "\n<think>Hm.\n\nWell.</think>Hello\n\nyou\n"), expected);
}

#[test]
fn reasoning_may_have_been_opened_by_the_prompt() {
    let options = ParserOptions { starts_in_reasoning: true, ..options() };
    for dialect in [Dialect::DeepSeekV3, Dialect::Think, Dialect::Plain, Dialect::MiniMax] {
        let expected = ["reasoning: First, 1 < 2.", "content: Yes."];
        assert_eq!(read_with(dialect, &options, "\nFirst, 1 < 2.\n</think>\n\nYes."), expected);
        assert_eq!(read_with(dialect, &options, "<think>\nFirst, 1 < 2.\n</think>\n\nYes."), expected);
        assert_eq!(read_with(dialect, &options, "cut </thin"), ["reasoning: cut </thin"]);
    }
}

#[test]
fn an_answer_may_talk_about_its_markers() {
    let text = "Write <think> first, then </think>.";
    assert_eq!(read(Dialect::Think, text), [format!("content: {text}")]);
    assert_eq!(read(Dialect::Hermes, "</think>\n\nHi"), ["content: Hi"]);
    let text = "Qwen writes <tool_call> before\na call, </tool_call> after it, and {\"name\": 1}.";
    for dialect in [Dialect::Hermes, Dialect::Qwen3Coder, Dialect::Glm, Dialect::Llama3] {
        assert_eq!(read(dialect, text), [format!("content: {text}")]);
    }
}

#[test]
fn tool_text_in_reasoning_is_no_call() {
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let expected = [format!("reasoning: I write {call}"), "call 0 get_time: {}".to_owned()];
    assert_eq!(read(Dialect::Hermes, &format!("<think>I write {call}\n</think>\n\n{call}")), expected);
}

#[test]
fn without_tools_their_markers_are_text() {
    let options = ParserOptions { tools: false, ..options() };
    let text = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(read_with(Dialect::Hermes, &options, text), [format!("content: {text}")]);
}

#[test]
fn hermes_calls_are_objects_in_tags() {
    let text = "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich 🙂\", \"n\": [1, {}]}}\n\
                </tool_call>\n<tool_call>\n{\"arguments\": {\"a\":\"}\"}, \"name\": \"get_time\"}\n</tool_call>\n";
    assert_eq!(
        read(Dialect::Hermes, text),
        [
            "content: Let me look.",
            "call 0 get_weather: {\"city\": \"Zürich 🙂\", \"n\": [1, {}]}",
            "call 1 get_time: {\"a\":\"}\"}",
        ]
    );
}

#[test]
fn hermes_calls_may_be_sloppy_where_the_meaning_is_clear() {
    // No outer brace, no closing tag, arguments as a string, none at all, `null`, a raw line break in a string.
    for (text, expected) in [
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>", "call 0 f: {\"a\": 1}"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "call 0 f: {\"a\": 1}"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
            "call 0 f: {\"a\": 1}",
        ),
        ("<tool_call>{\"name\": \"f\"}</tool_call>", "call 0 f: {}"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "call 0 f: {}"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"1\n2\"}}</tool_call>",
            "call 0 f: {\"a\": \"1\\n2\"}",
        ),
    ] {
        assert_eq!(read(Dialect::Hermes, text), [expected], "{text}");
    }
}

#[test]
fn a_malformed_call_is_content_word_for_word() {
    for text in [
        "a\n<tool_call>\n{\"name\": 12, \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"nom\": \"f\"}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>{\"name\": \"two words\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n{\"name\": \"get_ti",
        "<tool_call>",
        "<tool_ca",
    ] {
        assert_eq!(read(Dialect::Hermes, text), [format!("content: {text}")]);
    }
    for text in [
        "<tool_call>\n<function=f>\nsome words\n</function></tool_call>",
        "<tool_call>\n<function=",
        "<function=a <b>",
    ] {
        assert_eq!(read(Dialect::Qwen3Coder, text), [format!("content: {text}")]);
    }
}

#[test]
fn a_call_inside_a_malformed_one_is_found() {
    let text = "<tool_call>oh <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    assert_eq!(read(Dialect::Hermes, text), ["content: <tool_call>oh ", "call 0 f: {}"]);
}

#[test]
fn a_call_that_is_cut_off_has_no_end() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b";
    assert_eq!(read(Dialect::Hermes, text), ["call 0 f: {\"a\": \"b .."]);
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oh}}</tool_call>";
    assert_eq!(read(Dialect::Hermes, text), ["call 0 f: {\"a\":  ..", "content: oh}}</tool_call>"]);
    let text = "<tool_call><function=f><parameter=a>\n1\n</parameter></func";
    assert_eq!(read(Dialect::Qwen3Coder, text), ["call 0 f: {\"a\": 1 .."]);
    let text = "<tool_call><function=f><parameter=city>Par";
    assert_eq!(read(Dialect::Qwen3Coder, text), ["call 0 f: {\"city\": Par .."]);
}

#[test]
fn qwen_coder_parameters_are_typed_by_the_schema() {
    let text = "<think>\nx\n</think>\n\nOk.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis \"<b>\"\n\n</parameter>\n\
                <parameter=days>\n3\n</parameter>\n<parameter=units>\nnull\n</parameter>\n<parameter=flags>\n[\"a\", 1]\n\
                </parameter>\n<parameter=code>\n42\n</parameter>\n<parameter=other>\nsome words\n</parameter>\n</function>\n\
                </tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    assert_eq!(
        read(Dialect::Qwen3Coder, text),
        [
            "reasoning: x",
            "content: Ok.",
            "call 0 get_weather: {\"city\": \"Paris \\\"<b>\\\"\\n\", \"days\": 3, \"units\": null, \"flags\": [\"a\", 1], \
             \"code\": \"42\", \"other\": \"some words\"}",
            "call 1 get_time: {}",
        ]
    );
}

#[test]
fn qwen_coder_may_leave_the_outer_tag_away() {
    let text = "Sure.\n<function=get_time>\n</function>\n</tool_call>";
    assert_eq!(read(Dialect::Qwen3Coder, text), ["content: Sure.", "call 0 get_time: {}"]);
}

#[test]
fn mistral_calls_are_a_list_or_a_name() {
    let list = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"x\"}]";
    assert_eq!(read(Dialect::Mistral, list), ["call 0 f: {\"a\": \"]\"}", "call 1 g: {}"]);
    let named = "[THINK]Hm [x].[/THINK]Ok[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}";
    let expected = ["reasoning: Hm [x].", "content: Ok", "call 0 f: {\"a\": 1}", "call 1 g (abc): {}"];
    assert_eq!(read(Dialect::Mistral, named), expected);
    assert_eq!(read(Dialect::Mistral, "[TOOL_CALLS]f{\"a\": 1}"), ["call 0 f: {\"a\": 1}"]);
    assert_eq!(read(Dialect::Mistral, "see [TOOL_CALLS]"), ["content: see [TOOL_CALLS]"]);
}

#[test]
fn llama_calls_may_be_bare_json() {
    let bare = "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Bonn\"}}; \
                {\"name\": \"get_time\", \"parameters\": {}}";
    assert_eq!(
        read(Dialect::Llama3, bare),
        ["call 0 get_weather: {\"city\": \"Bonn\"}", "call 1 get_time: {}"]
    );
    let tagged = "<|python_tag|>{\"name\": \"anything\", \"parameters\": {\"q\": 1}}";
    assert_eq!(read(Dialect::Llama3, tagged), ["call 0 anything: {\"q\": 1}"]);
    for text in [
        // An answer in JSON, a tool nobody offered, JSON after words, Python.
        "{\"name\": \"Bob\", \"age\": 3}",
        "{\"name\": \"get_time\"}",
        "{\"name\": \"unknown\", \"parameters\": {}}",
        "Like {\"name\": \"get_time\", \"parameters\": {}}",
        "<|python_tag|>print(1)",
    ] {
        assert_eq!(read(Dialect::Llama3, text), [format!("content: {text}")]);
    }
}

#[test]
fn deepseek_calls_have_a_separator() {
    let new = "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>\
               <｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let expected = ["content: Ok.", "call 0 get_weather: {\"city\": \"Paris\"}", "call 1 get_time: {}"];
    assert_eq!(read(Dialect::DeepSeekV3, new), expected);
    let old = "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```\
               <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    assert_eq!(read(Dialect::DeepSeekV3, old), expected);
    let empty = "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜>";
    assert_eq!(read(Dialect::DeepSeekV3, empty), ["call 0 get_time: {}"]);
}

/// vllm-project/vllm #53227 and others: markup in the answer where one bar or tag differed.
#[test]
fn dsml_calls_say_which_values_are_strings() {
    for (bar, block) in [
        ("｜DSML｜", "function_calls"),
        ("｜DSML｜", "tool_calls"),
        ("|DSML|", "function_calls"),
        ("", "function_calls"),
    ] {
        let text = format!(
            "Ok.\n\n<{bar}{block}>\n<{bar}invoke name=\"get_weather\">\n<{bar}parameter name=\"days\" string=\"true\">3\n</{bar}parameter>\n\
             <{bar}parameter name=\"city\" string=\"false\">[\"a\"]</{bar}parameter>\n</{bar}invoke>\n\
             <{bar}invoke name=\"get_time\">\n</{bar}invoke>\n</{bar}{block}>"
        );
        assert_eq!(
            read(Dialect::DeepSeekDsml, &text),
            [
                "content: Ok.",
                "call 0 get_weather: {\"days\": \"3\\n\", \"city\": [\"a\"]}",
                "call 1 get_time: {}"
            ]
        );
    }
    let json = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n{\"a\": 1}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    assert_eq!(read(Dialect::DeepSeekDsml, json), ["call 0 f: {\"a\": 1}"]);
    let cut = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜para";
    assert_eq!(read(Dialect::DeepSeekDsml, cut), ["call 0 f: {\"a\": \"x</｜DSML｜para .."]);
}

#[test]
fn glm_calls_have_keys_and_values() {
    let old = "\n<think>t</think>\nOk.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>New York</arg_value>\n\
               <arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>";
    let new = "<think>t</think>Ok.<tool_call>get_weather<arg_key>city</arg_key><arg_value>New York</arg_value>\
               <arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>get_time</tool_call>";
    for text in [old, new] {
        assert_eq!(
            read(Dialect::Glm, text),
            [
                "reasoning: t",
                "content: Ok.",
                "call 0 get_weather: {\"city\": \"New York\", \"days\": 2}",
                "call 1 get_time: {}"
            ]
        );
    }
}

#[test]
fn kimi_calls_keep_their_ids() {
    let text = "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}\
                <|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|> {} <|tool_call_end|>\
                <|tool_call_begin|>plain<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>";
    assert_eq!(
        read(Dialect::Kimi, text),
        [
            "content: Ok.",
            "call 0 get_weather (functions.get_weather:0): {\"city\": \"Oslo\"}",
            "call 1 get_time (functions.get_time:1): {}",
            "call 2 plain: {}",
        ]
    );
}

#[test]
fn harmony_messages_go_where_their_channel_says() {
    let text = "<|channel|>analysis<|message|>Think\n<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
                <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rom\"}<|call|>\
                <|start|>assistant<|channel|>final<|message|>Fine.";
    assert_eq!(
        read(Dialect::Harmony, text),
        [
            "reasoning: Think\n",
            "content: I look.",
            "call 0 get_weather: {\"city\": \"Rom\"}",
            "content: Fine."
        ]
    );
}

#[test]
fn harmony_calls_end_with_the_answer_and_may_name_the_tool_first() {
    for text in [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|> {\"a\": 1} ",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{\"a\": 1}",
        " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}",
        "<|start|>assistant to=functions.f<|channel|>analysis<|message|>{\"a\": 1}<|call|>",
    ] {
        assert_eq!(read(Dialect::Harmony, text), ["call 0 f: {\"a\": 1}"], "{text}");
    }
    let empty = "<|channel|>commentary to=functions.f<|message|><|call|>";
    assert_eq!(read(Dialect::Harmony, empty), ["call 0 f: {}"]);
}

#[test]
fn harmony_text_without_its_frame_is_content() {
    assert_eq!(read(Dialect::Harmony, "Hello to=you"), ["content: Hello to=you"]);
    assert_eq!(read(Dialect::Harmony, "to=you"), ["content: to=you"]);
    assert_eq!(read(Dialect::Harmony, "<|channel|>final<|message|>a <| b"), ["content: a <| b"]);
    // A header that never became whole says nothing to a reader, unless it names something.
    assert_eq!(read(Dialect::Harmony, "<|channel|>anal"), [] as [String; 0]);
    let cut = "<|channel|>commentary to=functions.get";
    assert_eq!(read(Dialect::Harmony, cut), [format!("content: {cut}")]);
    let python = "<|channel|>analysis to=python code<|message|>print(1)";
    assert_eq!(read(Dialect::Harmony, python), [format!("content: {python}")]);
    let options = ParserOptions { starts_in_reasoning: true, ..options() };
    assert_eq!(
        read_with(Dialect::Harmony, &options, "go on<|end|><|start|>assistant<|channel|>final<|message|>x"),
        ["reasoning: go on", "content: x"]
    );
}

#[test]
fn minimax_calls_are_invocations_in_a_block() {
    let text = "<think>\nt\n</think>\n\nOk.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n\
                <parameter name=\"days\">4</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n</minimax:tool_call>";
    assert_eq!(
        read(Dialect::MiniMax, text),
        [
            "reasoning: t",
            "content: Ok.",
            "call 0 get_weather: {\"city\": \"Paris\", \"days\": 4}",
            "call 1 get_time: {}"
        ]
    );
}

#[test]
fn a_value_too_long_to_hold_is_a_string() {
    let long = "[".repeat(300 << 10);
    let text = format!("<function=f>\n<parameter=a>\n{long}\n</parameter>\n</function>");
    let mut parser = Dialect::Qwen3Coder.parser(options());
    let mut events = Vec::new();
    parser.push(&text, &mut events);
    parser.finish(&mut events);
    assert_eq!(crate::answers::lines(&events), [format!("call 0 f: {{\"a\": \"{long}\"}}")]);
}
