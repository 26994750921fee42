//! A last message of the assistant that is to be continued ends the prompt in its content: the template's end of the turn is
//! left away, so the model goes on instead of answering nothing.

use crate::common::byte_pairs;
use coldpress_text::{ChatTemplate, Message, RenderOptions, Tokenizer};
use serde_json::json;

const CHATML: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

fn tokenizer() -> Tokenizer {
    byte_pairs().vocabulary.tokenizer("qwen2").expect("a valid vocabulary")
}

fn continued(source: &str, messages: &[Message]) -> Result<Vec<u32>, coldpress_text::TextError> {
    let template = ChatTemplate::new(source, "", "").expect("a valid template");
    let options = RenderOptions { continue_last: true, ..RenderOptions::default() };
    tokenizer().encode_chat(&template, messages, &options)
}

#[test]
fn the_prompt_ends_with_the_content() {
    let tokenizer = tokenizer();
    for begun in ["The answer is", "a<|im_end|>b", "one. one.", "x "] {
        let messages = [Message::new("user", "one. x"), Message::new("assistant", begun)];
        let ids = continued(CHATML, &messages).expect("continues");
        assert_eq!(tokenizer.decode(&ids), format!("user\none. x\nassistant\n{begun}"));
    }
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let asked = Message::new("user", "x");
    let parts = Message::from_json(json!({"role": "assistant", "content": [{"type": "text", "text": "a"}]}));
    assert!(continued(CHATML, &[asked.clone(), parts.expect("an object")]).is_err());
    assert!(continued(CHATML, &[]).is_err());
    let silent = "{% for message in messages %}{{ message.role }}{% endfor %}";
    let refused = continued(silent, &[Message::new("assistant", "a")]).expect_err("it has no place");
    assert!(refused.to_string().contains("continued"), "{refused}");
}
