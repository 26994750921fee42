//! What several tests share: the tiny reference models, the bundled model, loading and logits.
#![allow(dead_code, reason = "each test uses a part")]

pub mod pairs;

use std::path::{Path, PathBuf};

use coldpress::{LoadConfiguration, Runtime, Silent};

/// A file of the tests' fixture folder.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The model that comes with the project.
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf")
}

/// A model outside the repository, or `None` with a line that says so.
pub fn outside(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("COLDPRESS_REFERENCE_MODELS")?;
    let path = PathBuf::from(folder).join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: {} is not there", path.display());
    None
}

/// Loads a model that must load.
pub fn load(path: &Path, configuration: &LoadConfiguration) -> Runtime {
    match Runtime::load(path, configuration, &mut Silent) {
        Ok(runtime) => runtime,
        Err(error) => panic!("{} with {configuration:?}: {error}", path.display()),
    }
}

/// Logits of every position `[tokens * vocabulary]`.
pub fn logits(runtime: &mut Runtime, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    runtime
        .logits(ids, &mut |_, logits| {
            all.extend_from_slice(logits);
            true
        })
        .expect("the forward pass works");
    all
}

/// A reference model: its file, the ids fed to it and the logits that transformers computed.
pub struct Reference {
    pub model: PathBuf,
    pub ids: Vec<u32>,
    pub continuation: Vec<u32>,
    pub logits: Vec<f32>,
}

impl Reference {
    pub fn open(name: &str) -> Self {
        let text = std::fs::read_to_string(fixture(&format!("{name}.json"))).expect("the fixture is there");
        let json: serde_json::Value = serde_json::from_str(&text).expect("the fixture is JSON");
        let list = |key: &str| serde_json::from_value(json[key].clone()).expect("a list of ids");
        Self {
            model: fixture(&format!("{name}.gguf")),
            ids: list("input_ids"),
            continuation: list("greedy_continuation"),
            logits: npy_f32(&fixture(&format!("{name}.logits.npy"))),
        }
    }
}

/// The values of a little-endian f32 .npy file, version 1.
pub fn npy_f32(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("the fixture is there");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{} is a .npy file of version 1", path.display());
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = String::from_utf8_lossy(&bytes[10..10 + header]);
    assert!(text.contains("'<f4'") && text.contains("False"), "{text}");
    bytes[10 + header..].as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}
