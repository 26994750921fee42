//! A wrong dialect loses calls or takes prose for calls, so it comes from what the template teaches, and is plain when
//! unsure. The excerpts hold what the publishers' templates say about calls, shortened.

use coldpress_text::Dialect;

fn detect(template: &str) -> Dialect {
    Dialect::detect(Some(template), &|_| panic!("a template decides alone"))
}

#[test]
fn the_template_decides() {
    for (dialect, template) in [
        (
            Dialect::Plain,
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        ),
        (
            Dialect::Think,
            "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}",
        ),
        (Dialect::Think, "{{ '<|assistant|>\\n<think>\\n' }}"),
        (
            Dialect::Hermes,
            r#"{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }} {{ '</think>' }}"#,
        ),
        (
            Dialect::Qwen3Coder,
            "{{- '<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n</function>\\n</tool_call>' }}{{ arguments }}",
        ),
        (Dialect::Mistral, "{{- \"[TOOL_CALLS][\" }}{{- '{\"name\": \"' }}"),
        (
            Dialect::Llama3,
            r#"<|start_header_id|>system<|end_header_id|>Respond in the format {"name": function name, "parameters": dictionary}. {{- '"parameters": ' }}"#,
        ),
        (Dialect::Llama3, r#"<|header_start|>ipython<|header_end|> {{- '"parameters": ' }}"#),
        (
            Dialect::DeepSeekV3,
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>' + args + '<｜tool▁call▁end｜>'}}</think>",
        ),
        (
            Dialect::DeepSeekDsml,
            "{%- set dsml_token = \"｜DSML｜\" -%}<{{ dsml_token }}function_calls><{{ dsml_token }}invoke name=\"$FUNCTION_NAME\">",
        ),
        (
            Dialect::Glm,
            "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>{{ tc.arguments }}",
        ),
        (
            Dialect::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
        ),
        (Dialect::Harmony, "{{- \"<|start|>assistant<|channel|>analysis<|message|>\" }} <|call|>"),
        (
            Dialect::MiniMax,
            "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<invoke name=\"tool-name-1\">\n<parameter name=\"param-key-1\">",
        ),
        // Marked like a known dialect, but not it.
        (Dialect::Plain, "<seed:tool_call><function=f><parameter=p> {{ '<tool_call>' }}"),
        (Dialect::Plain, "<tool_calls>[{{ calls }}]</tool_calls>"),
        (Dialect::Plain, "<|start_header_id|>user<|end_header_id|>"),
    ] {
        assert_eq!(detect(template), dialect, "{template}");
    }
}

#[test]
fn without_a_template_only_control_tokens_of_one_dialect_decide() {
    let with =
        |tokens: &'static [&'static str]| Dialect::detect(None, &move |text: &str| tokens.contains(&text));
    assert_eq!(with(&["<|channel|>", "<|message|>", "<|call|>"]), Dialect::Harmony);
    assert_eq!(with(&["<think>", "</think>", "｜DSML｜", "<｜User｜>"]), Dialect::DeepSeekDsml);
    assert_eq!(with(&["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"]), Dialect::DeepSeekV3);
    assert_eq!(with(&["<|tool_calls_section_begin|>", "<|tool_call_begin|>"]), Dialect::Kimi);
    assert_eq!(with(&["[TOOL_CALLS]"]), Dialect::Mistral);
    // Shared by several dialects.
    assert_eq!(with(&["<tool_call>", "</tool_call>", "<think>", "</think>"]), Dialect::Plain);
    assert_eq!(with(&[]), Dialect::Plain);
}

#[test]
fn names_are_unique() {
    let mut names = Dialect::ALL.map(Dialect::name).to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Dialect::ALL.len());
}

#[test]
fn a_prompt_that_ends_inside_reasoning_is_seen() {
    for (dialect, prompt, opens) in [
        (Dialect::Hermes, "<|im_start|>assistant\n<think>\n", true),
        (Dialect::Hermes, "<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
        (Dialect::DeepSeekV3, "<｜Assistant｜><think>", true),
        (Dialect::DeepSeekV3, "<｜Assistant｜></think>", false),
        (Dialect::Mistral, "[THINK]", true),
        (Dialect::Harmony, "<|start|>assistant", false),
        (Dialect::Harmony, "<|start|>assistant<|channel|>analysis<|message|>", true),
        (Dialect::Plain, "<think>", false),
    ] {
        assert_eq!(dialect.prompt_opens_reasoning(prompt), opens, "{prompt}");
    }
}
