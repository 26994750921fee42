//! Repositories as people publish them, by their names alone.

use super::*;

const GIB: u64 = 1 << 30;

fn candidates<'a>(paths: &[&'a str]) -> Vec<Candidate<'a>> {
    paths.iter().map(|&path| Candidate { path, size: GIB }).collect()
}

fn chosen(quant: Option<&str>, paths: &[&str]) -> Result<Choice, HubError> {
    choose("o/n", quant, &candidates(paths))
}

fn gguf(quant: &str, paths: &[&str]) -> Vec<String> {
    match chosen(Some(quant), paths) {
        Ok(Choice::Gguf(parts)) => parts,
        other => panic!("{quant}: {other:?}"),
    }
}

fn refusal(quant: Option<&str>, paths: &[&str]) -> String {
    chosen(quant, paths).expect_err("refused").to_string()
}

const MANY: [&str; 11] = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-IQ4_XS.gguf",
    "m.BF16.gguf",
    "Q8_0/m-Q8_0-00001-of-00002.gguf",
    "Q8_0/m-Q8_0-00002-of-00002.gguf",
    "mmproj-F16.gguf",
    "m.imatrix.gguf",
    "imatrix_unsloth.gguf",
];

#[test]
fn a_quant_is_found_whatever_its_letters_look_like() {
    assert_eq!(gguf("q4_k_m", &MANY), ["m-Q4_K_M.gguf"]);
    assert_eq!(gguf("Q4_K_XL", &MANY), ["m-UD-Q4_K_XL.gguf"]);
    assert_eq!(gguf("ud-q4_k_xl", &MANY), ["m-UD-Q4_K_XL.gguf"]);
    assert_eq!(gguf("bf16", &MANY), ["m.BF16.gguf"]);
    assert_eq!(gguf("m-iq4_xs.gguf", &MANY), ["m-IQ4_XS.gguf"]);
    assert_eq!(gguf("q4_0", &["model_q4_0.gguf", "model_q4_0_4_4.gguf"]), ["model_q4_0.gguf"]);
}

#[test]
fn a_split_set_is_taken_as_a_whole_and_in_order() {
    assert_eq!(gguf("Q8_0", &MANY), ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]);
    let by_folder =
        ["UD-IQ1_S/m-00002-of-00002.gguf", "UD-IQ1_S/m-00001-of-00002.gguf", "Q2_K/m-00001-of-00001.gguf"];
    assert_eq!(
        gguf("ud-iq1_s", &by_folder),
        ["UD-IQ1_S/m-00001-of-00002.gguf", "UD-IQ1_S/m-00002-of-00002.gguf"]
    );
    assert_eq!(gguf("q2_k", &by_folder), ["Q2_K/m-00001-of-00001.gguf"]);
    let missing = refusal(Some("q8_0"), &MANY[..7]);
    assert!(missing.contains("part 2 of Q8_0/m-Q8_0-*-of-00002.gguf is missing"), "{missing}");
}

#[test]
fn several_models_are_listed_with_sizes_and_none_is_taken() {
    let list = refusal(None, &MANY);
    assert!(list.contains("holds 6 models; choose one as o/n:QUANT"), "{list}");
    for line in ["  Q4_K_M         1.0 GiB", "  UD-Q4_K_XL     1.0 GiB", "  Q8_0           2.0 GiB, 2 parts"]
    {
        assert!(list.contains(line), "{list}");
    }
    assert!(!list.contains("mmproj") && !list.contains("imatrix"), "{list}");
}

#[test]
fn a_name_that_fits_none_or_several_is_refused_with_the_list() {
    assert!(refusal(Some("q5_k_m"), &MANY).contains("no model called \"q5_k_m\"; it has\n"));
    // The beginning of a type is another type.
    assert!(refusal(Some("q4_k"), &MANY).contains("no model"));
    let twins = ["a-Q4_0.gguf", "b-Q4_0.gguf"];
    let several = refusal(Some("q4_0"), &twins);
    assert!(
        several.contains("several models") && several.contains("a-Q4_0") && several.contains("b-Q4_0"),
        "{several}"
    );
    assert_eq!(gguf("b-q4_0", &twins), ["b-Q4_0.gguf"]);
}

#[test]
fn one_gguf_file_alone_needs_no_quant() {
    let only = chosen(None, &["README.md", "m.gguf", "mmproj-m.gguf"]).expect("one model");
    assert_eq!(only, Choice::Gguf(vec!["m.gguf".to_owned()]));
}

#[test]
fn a_checkpoint_is_its_index_and_what_lies_beside_it_without_copies() {
    let paths = [
        ".gitattributes",
        "README.md",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "consolidated-00001-of-00002.safetensors",
        "consolidated.safetensors.index.json",
        "generation_config.json",
        "jang_config.json",
        "jangtq_runtime.safetensors",
        "merges.txt",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "original/params.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "tokenization_kimi.py",
        "tokenizer.json",
        "tokenizer.model",
    ];
    let sized: Vec<_> = paths.iter().map(|&path| Candidate { path, size: 1000 }).collect();
    let Ok(Choice::Checkpoint { index, weights, side }) = choose("o/n", None, &sized) else {
        panic!("a checkpoint")
    };
    assert_eq!(index.as_deref(), Some("model.safetensors.index.json"));
    assert!(weights.is_empty());
    let wanted = [
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "jang_config.json",
        "jangtq_runtime.safetensors",
        "merges.txt",
        "tokenization_kimi.py",
        "tokenizer.json",
        "tokenizer.model",
    ];
    assert_eq!(side, wanted);
}

fn weights(paths: &[&str]) -> Vec<String> {
    match chosen(None, paths) {
        Ok(Choice::Checkpoint { index: None, weights, .. }) => weights,
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_without_an_index_are_one_file_or_one_numbered_set() {
    assert_eq!(
        weights(&["config.json", "model.safetensors", "consolidated.safetensors"]),
        ["model.safetensors"]
    );
    assert_eq!(weights(&["config.json", "weights.safetensors"]), ["weights.safetensors"]);
    let set = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(weights(&["config.json", set[0], set[1]]), set);
    assert!(
        refusal(None, &["config.json", set[1]]).contains("part 1 of model-*-of-00002.safetensors is missing")
    );
    assert!(refusal(None, &["config.json", "a.safetensors", "b.safetensors"]).contains("without an index"));
}

#[test]
fn a_repository_of_both_kinds_asks_which() {
    let both = ["config.json", "model.safetensors", "m-Q4_0.gguf"];
    let list = refusal(None, &both);
    assert!(list.contains("  Q4_0") && list.contains("  safetensors"), "{list}");
    assert_eq!(gguf("q4_0", &both), ["m-Q4_0.gguf"]);
    assert!(matches!(chosen(Some("safetensors"), &both), Ok(Choice::Checkpoint { .. })));
}

#[test]
fn what_is_no_model_is_refused_with_what_there_is() {
    for nothing in [
        &[][..],
        &["README.md"],
        &["config.json", "pytorch_model.bin"],
        &["model.safetensors"],
        &["mmproj-F16.gguf"],
    ] {
        assert!(refusal(None, nothing).contains("holds no model that can be pulled"), "{nothing:?}");
    }
    let checkpoint = ["config.json", "model.safetensors"];
    assert!(refusal(Some("q4_0"), &checkpoint).contains("has no quants"));
}

#[test]
fn an_index_names_files_inside_the_folder() {
    let index = br#"{"metadata": {}, "weight_map": {"a": "m-2", "b": "m-1", "c": "m-2"}}"#;
    assert_eq!(shards(index).expect("an index"), ["m-1", "m-2"]);
    for wrong in [
        &b"{}"[..],
        b"[",
        br#"{"weight_map": {"a": 1}}"#,
        br#"{"weight_map": {}}"#,
        br#"{"weight_map": {"a": "../m"}}"#,
    ] {
        assert!(shards(wrong).is_err());
    }
}
