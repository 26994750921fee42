//! A prompt that differs by one space from what the model was trained with makes it answer worse, without an error.
//! Expected texts are those of Jinja2 set up as transformers does (`fixtures/make_template_references.py`).

use coldpress_text::{ChatTemplate, DateTime, Message, RenderOptions, TextError};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct StoredTemplate {
    name: String,
    source: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Value>,
    extra: Map<String, Value>,
    add_generation_prompt: bool,
    text: Option<String>,
    refused: Option<String>,
}

#[test]
fn every_stored_case_is_equal_byte_for_byte() {
    let templates: Vec<StoredTemplate> =
        serde_json::from_str(include_str!("fixtures/templates.json")).expect("the fixture is valid");
    let mut count = 0;
    for template in &templates {
        let compiled = ChatTemplate::new(&template.source, "<s>", "</s>").expect("the template parses");
        for case in &template.cases {
            let messages: Vec<Message> = case
                .messages
                .iter()
                .map(|message| Message::from_json(message.clone()).expect("an object"))
                .collect();
            let options = RenderOptions {
                add_generation_prompt: case.add_generation_prompt,
                date: DateTime::from_date(2024, 7, 26),
                extra: case.extra.clone(),
                ..RenderOptions::default()
            };
            match (compiled.render(&messages, &options), &case.text, &case.refused) {
                (Ok(text), Some(expected), _) => assert_eq!(&text, expected, "{}", template.name),
                (Err(TextError::TemplateRefused { message, line }), _, Some(expected)) => {
                    assert_eq!(&message, expected, "{}", template.name);
                    assert!(line > 0);
                }
                (other, ..) => panic!("{}: {other:?}", template.name),
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

fn render(source: &str) -> Result<String, TextError> {
    ChatTemplate::new(source, "", "")?.render(&[Message::new("user", "hi")], &RenderOptions::default())
}

#[test]
fn a_failure_names_the_line_and_gives_no_prompt() {
    let error = render("one\ntwo\n{{ messages[0].nothing.more }}").unwrap_err();
    assert!(matches!(error, TextError::TemplateRender { line: 3, .. }), "{error:?}");
    let error = render("\r\n\r\n{{ unknown_function() }}").unwrap_err();
    assert!(matches!(error, TextError::TemplateRender { line: 3, .. }), "{error:?}");
    let error = render("one\n{% if %}").unwrap_err();
    assert!(matches!(error, TextError::TemplateSyntax { line: 2, .. }), "{error:?}");
    let error = render("{%- generation\n%}\n{% endgeneration %}\n{{ raise_exception('no') }}").unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRefused { line: 4, message } if message == "no"),
        "{error:?}"
    );
}

#[test]
fn the_date_comes_from_the_caller() {
    let template = ChatTemplate::new("{{ strftime_now('%Y') }}", "", "").unwrap();
    let message = [Message::new("user", "hi")];
    assert!(matches!(
        template.render(&message, &RenderOptions::default()),
        Err(TextError::TemplateRender { .. })
    ));
    let options = RenderOptions { date: Some(DateTime::from_unix_seconds(0)), ..RenderOptions::default() };
    assert_eq!(template.render(&message, &options).unwrap(), "1970");
}

#[test]
fn a_template_gets_the_form_of_calls_it_writes() {
    let call = |arguments: Value| {
        let call = serde_json::json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        Message::from_json(serde_json::json!({"role": "assistant", "content": null, "tool_calls": [call]}))
            .unwrap()
    };
    let (object, text) = (serde_json::json!({"a": [1, "é"]}), Value::from("{\"a\":[1,\"é\"]}"));
    let loops = |body: &str| {
        format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{body}{{% endfor %}}{{% endfor %}}"
        )
    };
    for (source, from_object, from_text) in [
        // Written with tojson: always an object.
        (loops("{{ c.function.arguments | tojson }}"), "{\"a\": [1, \"é\"]}", "{\"a\": [1, \"é\"]}"),
        // Read field by field.
        (
            loops("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"),
            "a=[1, 'é']",
            "a=[1, 'é']",
        ),
        // Joined to text, or printed: always text.
        (loops("{{ '<' + c.function.arguments + '>' }}"), "<{\"a\": [1, \"é\"]}>", "<{\"a\":[1,\"é\"]}>"),
        (loops("{{ c.function.arguments }}"), "{\"a\": [1, \"é\"]}", "{\"a\":[1,\"é\"]}"),
        // Fails without content, as Qwen3's does.
        (
            loops("{{ m.content.strip() + c.function.arguments | tojson }}"),
            "{\"a\": [1, \"é\"]}",
            "{\"a\": [1, \"é\"]}",
        ),
    ] {
        let template = ChatTemplate::new(&source, "", "").unwrap();
        let render =
            |value: &Value| template.render(&[call(value.clone())], &RenderOptions::default()).unwrap();
        assert_eq!((render(&object).as_str(), render(&text).as_str()), (from_object, from_text), "{source}");
    }
    let written = ChatTemplate::new(&loops("{{ c.function.arguments | tojson }}"), "", "").unwrap();
    let broken = call(Value::from("{\"a\": "));
    assert_eq!(written.render(&[broken], &RenderOptions::default()).unwrap(), "\"{\\\"a\\\": \"");
}

#[test]
fn tools_and_documents_are_variables_and_win_over_extra_ones() {
    let template = ChatTemplate::new("{{ tools }}{{ documents }}", "", "").unwrap();
    let message = [Message::new("user", "hi")];
    let mut options = RenderOptions::default();
    assert_eq!(template.render(&message, &options).unwrap(), "NoneNone");
    options.extra.insert("tools".to_owned(), serde_json::json!([1]));
    assert_eq!(template.render(&message, &options).unwrap(), "[1]None");
    options.tools = Some(vec![serde_json::json!(2)]);
    options.documents = Some(Vec::new());
    assert_eq!(template.render(&message, &options).unwrap(), "[2][]");
}
