//! Checkpoints in memory: read from a folder, changed, written again as one file or as shards; and where references are.

pub mod as_gguf;
pub mod pruned;

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{fixture, npy_f32};

/// A reference: a checkpoint folder with the logits of another program.
pub struct Reference {
    pub folder: PathBuf,
    pub ids: Vec<u32>,
    pub continuation: Vec<u32>,
    pub logits: Vec<f32>,
}

impl Reference {
    /// From the fixtures, else from the shared folder; `None` with a line that says so where it is in neither.
    pub fn open(name: &str) -> Option<Self> {
        let own = fixture("hugging_face").join(name);
        let folder = if own.exists() { own } else { shared(&format!("oracle/{name}"))? };
        let text = std::fs::read_to_string(folder.join("ref.json")).expect("a reference has its ids");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let list = |key: &str| serde_json::from_value(json[key].clone()).expect("a list of ids");
        Some(Self {
            ids: list("input_ids"),
            continuation: list("greedy_continuation"),
            logits: npy_f32(&folder.join("logits.npy")),
            folder,
        })
    }

    /// A model folder of symbolic links, as in the cache of Hugging Face, with this file as config.json.
    pub fn linked(&self, config: &str) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        symlink(self.folder.join(config), folder.path().join("config.json")).expect("a link");
        for entry in std::fs::read_dir(&self.folder).expect("a folder").flatten() {
            let name = entry.file_name().into_string().expect("a name");
            if name.starts_with("model") || name.starts_with("jang") {
                symlink(entry.path(), folder.path().join(name)).expect("a link");
            }
        }
        add_tokenizer(folder.path());
        folder
    }
}

/// A path of the folder that is shared beside the repository, or `None` with a line that says so.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = std::env::var_os("COLDPRESS_SHARED").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: {} is not there", path.display());
    None
}

fn add_tokenizer(folder: &Path) {
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        symlink(fixture("hugging_face/tokenizer").join(name), folder.join(name)).expect("a link");
    }
}

/// One tensor as it is stored, outermost dimension first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Its values, of a float32 tensor.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "F32");
        self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Replaces every value.
    pub fn map(&mut self, change: impl Fn(usize, f32) -> f32) {
        let changed = self.values().into_iter().enumerate().map(|(at, value)| change(at, value));
        self.bytes = changed.flat_map(f32::to_le_bytes).collect();
    }

    /// The same, rounded to another type.
    pub fn rounded(&self, dtype: &str) -> Tensor {
        let values = self.values().into_iter();
        let bytes = match dtype {
            "F16" => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            "BF16" => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
            other => panic!("no rounding to {other}"),
        };
        Tensor { dtype: dtype.to_owned(), bytes, ..self.clone() }
    }

    /// The same with the values of [`Tensor::rounded`] as float32.
    pub fn widened(&self, dtype: &str) -> Tensor {
        let mut tensor = self.clone();
        match dtype {
            "F16" => tensor.map(|_, value| f16::from_f32(value).to_f32()),
            _ => tensor.map(|_, value| bf16::from_f32(value).to_f32()),
        }
        tensor
    }
}

/// A whole checkpoint.
#[derive(Clone)]
pub struct Checkpoint {
    pub config: Value,
    pub tensors: Vec<Tensor>,
    /// Files beside them: those of bundles of JANG.
    pub side_files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    pub fn read(folder: &Path) -> Self {
        let read = |name: &str| std::fs::read(folder.join(name)).expect("a file of the checkpoint");
        let names = ["model.safetensors", "model-00001-of-00001.safetensors"];
        let bytes = read(names.into_iter().find(|name| folder.join(name).exists()).expect("one file"));
        let tensors = Self::tensors_of(&bytes);
        let config = serde_json::from_slice(&read("config.json")).expect("a configuration");
        let side_files = ["jang_config.json", "jangtq_runtime.safetensors"];
        let side_files = side_files.into_iter().filter(|name| folder.join(name).exists());
        let side_files = side_files.map(|name| (name.to_owned(), read(name))).collect();
        Self { config, tensors, side_files }
    }

    /// The tensors of a safetensors file.
    pub fn read_tensors(path: &Path) -> Vec<Tensor> {
        Self::tensors_of(&std::fs::read(path).expect("a file"))
    }

    /// The same of its bytes.
    pub fn tensors_of(bytes: &[u8]) -> Vec<Tensor> {
        let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
        let (header, data) = bytes[8..].split_at(length);
        let header: Value = serde_json::from_slice(header).expect("a header");
        let entries = header.as_object().expect("an object").iter();
        let tensors = entries.filter(|(name, _)| *name != "__metadata__").map(|(name, entry)| {
            let [start, end]: [usize; 2] =
                serde_json::from_value(entry["data_offsets"].clone()).expect("two offsets");
            Tensor {
                name: name.clone(),
                dtype: entry["dtype"].as_str().expect("a type").to_owned(),
                shape: serde_json::from_value(entry["shape"].clone()).expect("a shape"),
                bytes: data[start..end].to_vec(),
            }
        });
        tensors.collect()
    }

    /// Takes over the `config_overrides` of the description of a GGUF file.
    pub fn change_config(&mut self, description: &Path) {
        let text = std::fs::read_to_string(description).expect("a description");
        let description: Value = serde_json::from_str(&text).expect("JSON");
        merge(&mut self.config, &description["config_overrides"]);
    }

    /// MXFP4 experts as floats, in the transposed form in which they are stored without quantisation.
    pub fn with_codes_as_floats(&self) -> Self {
        const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let mut checkpoint = self.clone();
        checkpoint.config.as_object_mut().expect("an object").remove("quantization_config");
        let is_part = |tensor: &Tensor| tensor.name.ends_with("_blocks") || tensor.name.ends_with("_scales");
        checkpoint.tensors.retain(|tensor| !is_part(tensor));
        for codes in self.tensors.iter().filter(|tensor| tensor.name.ends_with("_blocks")) {
            let name = codes.name.strip_suffix("_blocks").expect("just looked at");
            let scales = self.tensors.iter().find(|tensor| tensor.name == format!("{name}_scales"));
            let scales = &scales.expect("codes have scales").bytes;
            let [experts, rows, blocks] = [0, 1, 2].map(|at| codes.shape[at] as usize);
            let columns = 32 * blocks;
            let value = |expert: usize, row: usize, column: usize| {
                let block = (expert * rows + row) * blocks + column / 32;
                let code = codes.bytes[16 * block + column % 32 / 2] >> (column % 2 * 4) & 0xf;
                let magnitude = VALUES[usize::from(code & 7)] * 2f32.powi(i32::from(scales[block]) - 127);
                if code < 8 { magnitude } else { -magnitude }
            };
            let places = (0..experts * rows * columns)
                .map(|at| (at / (rows * columns), at % rows, at / rows % columns));
            let bytes = places.flat_map(|(expert, row, column)| value(expert, row, column).to_le_bytes());
            checkpoint.tensors.push(Tensor {
                name: name.to_owned(),
                dtype: "F32".to_owned(),
                shape: vec![experts as u64, columns as u64, rows as u64],
                bytes: bytes.collect(),
            });
        }
        checkpoint
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Writes it as one file.
    pub fn write(&self) -> TempDir {
        let folder = self.folder();
        write_safetensors(&folder.path().join("model.safetensors"), &self.tensors);
        folder
    }

    /// Writes it as `count` files with an index; neighbours in the list go to different files.
    pub fn write_shards(&self, count: usize) -> TempDir {
        let folder = self.folder();
        let name = |shard: usize| format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
        let mut map = serde_json::Map::new();
        for shard in 0..count {
            let tensors: Vec<Tensor> = self.tensors.iter().skip(shard).step_by(count).cloned().collect();
            for tensor in &tensors {
                map.insert(tensor.name.clone(), name(shard).into());
            }
            write_safetensors(&folder.path().join(name(shard)), &tensors);
        }
        let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string())
            .expect("written");
        folder
    }

    fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).expect("written");
        for (name, bytes) in &self.side_files {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        add_tokenizer(folder.path());
        folder
    }
}

fn merge(into: &mut Value, from: &Value) {
    let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) else {
        return;
    };
    for (key, value) in from {
        match into.get_mut(key) {
            Some(inner) if inner.is_object() => merge(inner, value),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let entry =
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(path, bytes).expect("written");
}
