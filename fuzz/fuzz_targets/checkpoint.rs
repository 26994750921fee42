//! Any configuration, side configuration and directory of tensors as a checkpoint folder: describing the model ends with a model or an
//! error. It covers the families, the containers of codes and what they look up. Time and memory are bounded by the options of
//! libFuzzer, see README.md.
//!
//! The input is three texts with a zero byte between them.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use coldpress_formats::ModelFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut texts = bytes.splitn(3, |&byte| byte == 0);
    let mut next = || texts.next().unwrap_or_default();
    let (config, side, directory) = (next(), next(), next());
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("a file can be written");
    write("config.json", config);
    match side {
        [] => drop(fs::remove_file(folder.join("jang_config.json"))),
        side => write("jang_config.json", side),
    }
    let length = (directory.len() as u64).to_le_bytes();
    write("model.safetensors", &[&length[..], directory].concat());
    // The tensors themselves are not there, as in a download that has begun.
    if let Ok(file) = ModelFile::open_headers(folder) {
        let _ = coldpress_model::describe(&file);
    }
});

/// A folder of this process, in memory where the system has such.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = parent.join(format!("coldpress-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        folder
    })
}
