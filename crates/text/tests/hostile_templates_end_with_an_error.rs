//! A template is a program from a downloaded file. None may hang, use unbounded memory, overflow the stack or reach the host.

use coldpress_text::{ChatTemplate, Message, RenderOptions, TextError};
use std::time::{Duration, Instant};

fn render(source: &str) -> Result<String, TextError> {
    ChatTemplate::new(source, "", "")?.render(&[Message::new("user", "hi")], &RenderOptions::default())
}

/// Each of these must fail, and quickly.
fn assert_refused(source: &str) {
    let start = Instant::now();
    let shown: String = source.chars().take(120).collect();
    let error = match render(source) {
        Ok(text) => panic!("{shown} gave {} bytes", text.len()),
        Err(error) => error,
    };
    assert!(
        matches!(
            error,
            TextError::TemplateTooExpensive { .. }
                | TextError::TemplateRender { .. }
                | TextError::TemplateSyntax { .. }
        ),
        "{shown}: {error:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(20), "{shown} took {:?}", start.elapsed());
}

#[test]
fn endless_loops() {
    assert_refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    assert_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    assert_refused("{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}");
    assert_refused("{% for x in [[[]]] recursive %}{{ loop([x]) }}{% endfor %}");
}

#[test]
fn growing_text() {
    assert_refused(
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    );
    assert_refused(
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    );
    assert_refused(
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    );
    assert_refused("{{ 'a' * 99999999999 }}");
    assert_refused("{{ 'a' * 90000000 }}");
    assert_refused(
        "{% for i in range(90000) %}{{ '                                                                                ' * 50 }}{% endfor %}",
    );
    assert_refused(
        "{% set x %}{% for i in range(50000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}{% for i in range(5000) %}{{ x }}{% endfor %}",
    );
    assert_refused("{{ 'x' | center(999999999) }}");
    assert_refused("{{ '%999999999d' | format(1) }}{{ '{:999999999}'.format(1) }}");
}

#[test]
fn growing_values() {
    let doubling =
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    assert_refused(&format!("{doubling}{{{{ ns.x }}}}"));
    assert_refused(&format!("{doubling}{{{{ ns.x | tojson }}}}"));
    assert_refused(&format!("{doubling}{{{{ ns.x | string | length }}}}"));
    assert_refused("{{ [1] * 90000000 | list }}");
}

#[test]
fn deep_sources() {
    assert_refused(&format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)));
    assert_refused(&format!("{{{{ {}1 }}}}", "not ".repeat(100_000)));
    assert_refused(&format!("{}x{}", "{% if true %}".repeat(20_000), "{% endif %}".repeat(20_000)));
    assert_refused(&format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000)));
    for (start, link, end) in [
        ("1", " + 1", ""),
        ("1", "~1", ""),
        ("1", " and 1", ""),
        ("1", "**1", ""),
        ("1", "|int", ""),
        ("a", ".b", ""),
        ("a", "()", ""),
        ("a", "[0]", ""),
        ("1", " is odd", ""),
        ("", "-", "1"),
        ("", "1 if 1 else ", "1"),
    ] {
        assert_refused(&format!("{{{{ {start}{}{end} }}}}", link.repeat(80_000)));
        assert_refused(&format!("{{% set x = {start}{}{end} %}}", link.repeat(80_000)));
    }
    assert_refused(&format!("{{% if 1 %}}{}{{% endif %}}", "{%- elif 1 %}".repeat(50_000)));
    let large = " ".repeat((1 << 20) + 1);
    assert!(matches!(render(&large), Err(TextError::TemplateTooLarge { .. })));
}

#[test]
fn deep_values() {
    for wrap in [
        "[ns.x]",
        "{'a': ns.x}",
        "(ns.x,)",
        "ns.x + [1]",
        "[ns.x] + [1]",
        "ns.x | list",
        "ns.x | reverse",
        "ns.x | map('int')",
        "([ns.x] + [2]) | chain([1])",
        "namespace(a=ns.x)",
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(90000) %}}{{% set ns.x = {wrap} %}}{{% endfor %}}"
        );
        // Whether this is refused or done, it must not exhaust the stack.
        let _ = render(&source);
        let _ = render(&format!("{source}{{{{ ns.x }}}}"));
        let _ = render(&format!("{source}{{{{ ns.x | tojson }}}}"));
        let _ = render(&format!("{source}{{{{ ns.x == ns.x }}}}"));
    }
}

#[test]
fn deep_messages() {
    let mut value = serde_json::json!("x");
    for _ in 0..500 {
        value = serde_json::json!([value]);
    }
    let message = Message::from_json(serde_json::json!({"role": "user", "content": value})).unwrap();
    let template = ChatTemplate::new("{{ messages | tojson }}", "", "").unwrap();
    let result = template.render(std::slice::from_ref(&message), &RenderOptions::default());
    assert!(matches!(result, Err(TextError::BadMessage { index: 0, .. })), "{result:?}");
}

#[test]
fn nothing_of_the_host_is_reachable() {
    assert_refused("{% include '/etc/passwd' %}");
    assert_refused("{% extends 'chat' %}");
    assert_refused("{% import 'os' as os %}");
    assert_refused("{{ ''.__class__.__mro__ }}");
    assert_refused("{{ messages.append(1) }}");
    assert_refused("{{ cycler.__init__.__globals__ }}");
}

#[test]
fn a_long_honest_conversation_fits_the_limits() {
    let source = "{% set ns = namespace(text='') %}{% for message in messages %}{% set ns.text = message.content | trim | replace('a', 'b') %}\
        {{ '<|im_start|>' ~ message.role ~ ns.text ~ (message | tojson) }}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let messages: Vec<Message> =
        (0..2_000).map(|index| Message::new("user", &format!("{index} ").repeat(400))).collect();
    let text = template.render(&messages, &RenderOptions::default()).unwrap();
    assert!(text.len() > 2 * 2_000 * 400);
}
