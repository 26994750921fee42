//! The committed corpus of the fuzz target `checkpoint` holds the configurations and directories of references, so the fuzzer starts
//! at each container and at families of every kind.
//!
//! What could go wrong: a fixture is made anew and the fuzzer begins at an old form that is refused at its first key. To write the
//! corpus anew, with the shared references at hand: `COLDPRESS_WRITE_CORPUS=1 cargo test -p coldpress fuzz_corpus_of_checkpoints`.

use std::fs;
use std::path::Path;

use crate::checkpoint::Reference;

/// The largest input that the smoke run makes.
const LARGEST_BYTES: usize = 16 << 10;

const REFERENCES: [&str; 10] = [
    "mlx-lm/deepseek_v3",
    "mlx-lm/gpt_oss_mxfp4",
    "mlx-lm/kimi_linear",
    "mlx-lm/qwen3_next",
    "jang/jang-2l",
    "jang/jangh",
    "jang/jangtq2-minimax",
    "deepseek_v3_fp8",
    "longcat_flash",
    "qwen3_moe",
];

/// Configuration, side configuration and directory of tensors, as the target takes them apart.
fn input(folder: &Path) -> Vec<u8> {
    let names = ["model.safetensors", "model-00001-of-00001.safetensors"];
    let name = names.into_iter().find(|name| folder.join(name).exists()).expect("one file");
    let bytes = fs::read(folder.join(name)).expect("a file");
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let config = fs::read(folder.join("config.json")).expect("a configuration");
    let side = fs::read(folder.join("jang_config.json")).unwrap_or_default();
    // Without the indentation of a text for people.
    let compact = |text: Vec<u8>| {
        let text = String::from_utf8(text).expect("text");
        text.lines().map(str::trim).collect::<String>().into_bytes()
    };
    [compact(config), compact(side), bytes[8..8 + length].to_vec()].join(&0)
}

#[test]
fn it_equals_the_references() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/checkpoint");
    for name in REFERENCES {
        let Some(reference) = Reference::open(name) else { continue };
        let (path, wanted) = (corpus.join(name.replace('/', "_")), input(&reference.folder));
        assert!(wanted.len() <= LARGEST_BYTES, "{name} has {} bytes", wanted.len());
        if std::env::var_os("COLDPRESS_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&corpus).expect("a corpus folder");
            fs::write(&path, &wanted).expect("written");
        }
        assert!(fs::read(&path).ok() == Some(wanted), "{} differs from its reference", path.display());
    }
    assert_eq!(fs::read_dir(&corpus).expect("the corpus").count(), REFERENCES.len());
}
