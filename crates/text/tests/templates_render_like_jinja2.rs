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
