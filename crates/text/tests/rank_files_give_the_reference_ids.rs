//! Vocabularies by rank, tiktoken's files and Mistral's tekken.json, have no merges; pairs are merged by the rank of what they make.
//! Expected ids are those of the PyPI packages tiktoken and mistral-common (`fixtures/make_rank_references.py`).

use coldpress_text::{Message, ParseSpecial, RenderOptions, Tokenizer, TokenizerConfig, TokenizerFolder};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Fixture {
    tiktoken: String,
    tekken: Value,
    texts: Vec<String>,
    tiktoken_ids: Vec<Vec<u32>>,
    tekken_ids: Vec<Vec<u32>>,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("fixtures/rank_files.json")).expect("the fixture is valid")
}

#[test]
fn a_tiktoken_file_gives_the_ids_of_tiktoken() {
    let fixture = fixture();
    let tokenizer =
        Tokenizer::from_tiktoken(fixture.tiktoken.as_bytes(), Some("qwen2"), &TokenizerConfig::default())
            .unwrap();
    for (text, ids) in fixture.texts.iter().zip(&fixture.tiktoken_ids) {
        assert_eq!(&tokenizer.encode(text, ParseSpecial::Yes), ids, "{text:?}");
        assert_eq!(&tokenizer.decode(ids), text);
    }
}

#[test]
fn a_tekken_file_gives_the_ids_of_mistral_common() {
    let fixture = fixture();
    let json = fixture.tekken.to_string();
    let tokenizer = Tokenizer::from_tekken(json.as_bytes(), &TokenizerConfig::default()).unwrap();
    for (text, ids) in fixture.texts.iter().zip(&fixture.tekken_ids) {
        assert_eq!(&tokenizer.encode_prompt(text, ParseSpecial::No), ids, "{text:?}");
        assert_eq!(&tokenizer.decode(ids), text);
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.special_id("[INST]"), Some(3));
    assert_eq!(tokenizer.special_id("<SPECIAL_25>"), Some(25));
}

/// A folder under the system's temporary one, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("coldpress-text-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("additional_chat_templates")).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_of_kimis_kind_names_its_special_tokens_in_the_configuration() {
    let fixture = fixture();
    let folder = Folder::new("kimi");
    folder.write("tiktoken.model", &fixture.tiktoken);
    let first = 406;
    let config = json!({"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
        "added_tokens_decoder": {first.to_string(): {"content": "[BOS]", "special": true}, (first + 1).to_string(): {"content": "[EOS]", "special": true}}});
    folder.write("tokenizer_config.json", &config.to_string());
    let tokenizer = TokenizerFolder::open(&folder.0).unwrap().tokenizer(None).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(first), Some(first + 1)));
    assert_eq!(tokenizer.vocab_size(), first as usize + 256);
    assert_eq!(tokenizer.encode("[BOS]<|reserved_token_500|>", ParseSpecial::Yes), [first, 500]);
    assert!(!tokenizer.encode("[BOS]", ParseSpecial::No).contains(&first));
    let unnamed = TokenizerFolder::open(&folder.0).unwrap();
    assert!(unnamed.tokenizer(Some("no such")).is_err());
}

#[test]
fn templates_come_from_the_file_that_is_most_specific() {
    let folder = Folder::new("templates");
    folder.write("tekken.json", &fixture().tekken.to_string());
    let name = |folder: &Folder, with_tools: bool| {
        let template = TokenizerFolder::open(&folder.0).unwrap().chat_template().unwrap()?;
        let options = RenderOptions { tools: with_tools.then(Vec::new), ..RenderOptions::default() };
        Some(template.render(&[Message::new("user", "hi")], &options).unwrap())
    };
    assert_eq!(name(&folder, false), None);
    folder.write(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "chat_template": [{"name": "default", "template": "listed{{ bos_token }}"},
        {"name": "tool_use", "template": "listed for tools"}]}"#,
    );
    assert_eq!(name(&folder, false).unwrap(), "listed<s>");
    assert_eq!(name(&folder, true).unwrap(), "listed for tools");
    folder.write("chat_template.json", r#"{"chat_template": "from json"}"#);
    assert_eq!(name(&folder, false).unwrap(), "from json");
    folder.write("chat_template.jinja", "from jinja");
    folder.write("additional_chat_templates/tool_use.jinja", "jinja for tools");
    assert_eq!(name(&folder, false).unwrap(), "from jinja");
    assert_eq!(name(&folder, true).unwrap(), "jinja for tools");
}
