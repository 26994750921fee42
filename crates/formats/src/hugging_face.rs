//! A model folder of Hugging Face: config.json, and the safetensors files that hold its tensors.
//!
//! Which files: `model.safetensors`; else those that an index names (`model.safetensors.index.json`); else the numbered files
//! `model-00001-of-00003.safetensors` by their names; else the only `.safetensors` file. Entries may be symbolic links, as in
//! the cache of Hugging Face. An index is checked against the files: each named tensor lies where it says.
//! Refuses: folders that also hold a GGUF model, missing files, names that leave the folder, a tensor in two files.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::cursor::ByteOrder;
use crate::error::FormatError;
use crate::jang;
use crate::json::{config_metadata, malformed};
use crate::limits;
use crate::model_file::{
    Completeness, Counting, FileFormat, HeaderWatch, Parts, SourceFile, check_total, read_header,
};
use crate::safetensors::SafetensorsHeader;
use crate::split::io_error;
use crate::tensor::TensorInfo;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
/// Names of the index; some bundles of JANG have the second.
const INDEXES: [&str; 2] = ["model.safetensors.index.json", "consolidated.safetensors.index.json"];
const EXTENSION: &str = ".safetensors";
/// Names shown in an error about missing files.
const NAMES_SHOWN: usize = 8;

/// Whether `path` is a folder with a config.json beside safetensors files, or an index of them.
///
/// # Errors
/// The path is a file of such a folder; the folder holds a GGUF model as well; it cannot be listed.
pub(crate) fn is_checkpoint(path: &Path) -> Result<bool, FormatError> {
    let kind = fs::metadata(path).map_err(|source| io_error(path, "open", source))?;
    if !kind.is_dir() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(EXTENSION) || name == CONFIG || INDEXES.contains(&name.as_str()) {
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Err(FormatError::FileOfFolder { path: path.to_owned(), folder: folder.to_owned() });
        }
        return Ok(false);
    }
    let names = names_in(path)?;
    let weights = names.iter().any(|name| name.ends_with(EXTENSION) || INDEXES.contains(&name.as_str()));
    if !weights || !names.iter().any(|name| name == CONFIG) {
        return Ok(false);
    }
    let gguf = names.iter().filter(|name| name.ends_with(".gguf"));
    let mut models: Vec<String> = gguf.cloned().collect();
    if models.is_empty() {
        return Ok(true);
    }
    models.push(format!("{CONFIG} with {EXTENSION} files"));
    Err(FormatError::SeveralModels { path: path.to_owned(), models })
}

/// Names of the entries that are not hidden.
fn names_in(folder: &Path) -> Result<Vec<String>, FormatError> {
    let mut names = Vec::new();
    for (seen, entry) in fs::read_dir(folder).map_err(|source| io_error(folder, "list", source))?.enumerate()
    {
        let entry = entry.map_err(|source| io_error(folder, "list", source))?;
        if seen >= limits::MAX_FOLDER_ENTRIES {
            let problem = std::io::Error::other("it has too many entries; name the model file itself");
            return Err(io_error(folder, "list", problem));
        }
        names.extend(entry.file_name().into_string().ok().filter(|name| !name.starts_with('.')));
    }
    names.sort();
    Ok(names)
}

/// Reads config.json and the headers of all safetensors files of a folder that [`is_checkpoint`].
pub(crate) fn open(
    folder: &Path,
    completeness: Completeness,
    watch: &dyn HeaderWatch,
) -> Result<Parts, FormatError> {
    let path = folder.join(CONFIG);
    let (mut config, json) = read_whole(&path, limits::MAX_CONFIG_BYTES, watch)?;
    let metadata = jang::with_side_files(config_metadata(&path, &json)?, folder, watch)?;
    config.header_len = config.len;
    let (names, index) = files_of(folder, watch)?;
    let mut files = vec![config];
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut data_ends = vec![files[0].len];
    let mut header_bytes = 0;
    for name in &names {
        let path = folder.join(name);
        let read = |file: &mut Counting<'_>, len: u64, path: &Path| match completeness {
            Completeness::Whole => SafetensorsHeader::read(file, len, path),
            Completeness::Headers => SafetensorsHeader::read_incomplete(file, len, path),
        };
        let (mut file, header) = read_header(&path, watch, read)?;
        file.header_len = header.header_len;
        header_bytes += header.header_len;
        let count = (tensors.len() + header.tensors.len()) as u64;
        check_total(&path, "the header of all files together", header_bytes, limits::MAX_HEADER_BYTES)?;
        check_total(&path, "the number of tensors in all files together", count, limits::MAX_TENSORS)?;
        let number = files.len();
        tensors.extend(header.tensors.into_iter().map(|tensor| TensorInfo { file: number, ..tensor }));
        data_ends.push(header.data_end);
        files.push(file);
    }
    if let Some(index) = index {
        index.check(&files, &tensors)?;
    }
    let (byte_order, format) = (ByteOrder::Little, FileFormat::HuggingFace);
    Ok(Parts { metadata, tensors, files, data_ends, byte_order, format })
}

/// A small file as a whole, of at most `limit` bytes.
pub(crate) fn read_whole(
    path: &Path,
    limit: u64,
    watch: &dyn HeaderWatch,
) -> Result<(SourceFile, Vec<u8>), FormatError> {
    read_header(path, watch, |file, len, path| {
        check_total(path, "its length", len, limit)?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).map_err(|source| io_error(path, "read", source))?;
        Ok(bytes)
    })
}

/// Names of the safetensors files of a folder, and the index where it decides.
fn files_of(folder: &Path, watch: &dyn HeaderWatch) -> Result<(Vec<String>, Option<Index>), FormatError> {
    if folder.join(SINGLE).exists() {
        return Ok((vec![SINGLE.to_owned()], None));
    }
    if let Some(path) = INDEXES.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        let (_, json) = read_whole(&path, limits::MAX_HEADER_BYTES, watch)?;
        let index = Index::parse(path, &json)?;
        let names: Vec<String> = index.files.keys().cloned().collect();
        refuse_missing(folder, &index.path, &names)?;
        return Ok((names, Some(index)));
    }
    let mut names = names_in(folder)?;
    names.retain(|name| name.ends_with(EXTENSION) && name != jang::RUNTIME);
    if let Some(numbered) = numbered_set(&names) {
        refuse_missing(folder, folder, &numbered)?;
        return Ok((numbered, None));
    }
    match names.len() {
        1 => Ok((names, None)),
        _ => Err(FormatError::SeveralModels { path: folder.to_owned(), models: names }),
    }
}

/// All names of the set that `model-00001-of-00003.safetensors` belongs to.
fn numbered_set(names: &[String]) -> Option<Vec<String>> {
    let (_, count) = names.first()?.strip_suffix(EXTENSION)?.rsplit_once("-of-")?;
    let total: u64 = count.parse().ok()?;
    let bounded = (1..=limits::MAX_PARTS).contains(&total) && names.len() as u64 <= total;
    let set = |total| (1..=total).map(|number| format!("model-{number:05}-of-{count}{EXTENSION}"));
    bounded
        .then(|| set(total).collect())
        .filter(|all: &Vec<String>| names.iter().all(|name| all.contains(name)))
}

fn refuse_missing(folder: &Path, index: &Path, names: &[String]) -> Result<(), FormatError> {
    let missing: Vec<&str> =
        names.iter().filter(|name| !folder.join(name).exists()).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut shown = missing[..missing.len().min(NAMES_SHOWN)].join(", ");
    if missing.len() > NAMES_SHOWN {
        shown.push_str(&format!(" and {} more", missing.len() - NAMES_SHOWN));
    }
    Err(FormatError::MissingShards {
        index: index.to_owned(),
        folder: folder.to_owned(),
        count: names.len(),
        missing_count: missing.len(),
        missing: shown,
    })
}

/// Which file holds which tensors.
struct Index {
    path: PathBuf,
    files: BTreeMap<String, Vec<String>>,
}

impl Index {
    fn parse(path: PathBuf, json: &[u8]) -> Result<Index, FormatError> {
        let index: IndexFile =
            serde_json::from_slice(json).map_err(|error| malformed(&path, "the index", json, &error))?;
        let bad = |problem: String| FormatError::BadIndex { path: path.clone(), problem };
        if index.weight_map.0.is_empty() {
            return Err(bad("its weight_map names no tensor".to_owned()));
        }
        check_total(&path, "the number of files", index.weight_map.0.len() as u64, limits::MAX_PARTS)?;
        for name in index.weight_map.0.keys() {
            let plain = name.ends_with(EXTENSION)
                && !name.starts_with('.')
                && !name.contains(['/', '\\', '\0'])
                && name.len() <= limits::MAX_FILE_NAME_BYTES;
            if !plain {
                let shown: String = name.escape_debug().take(80).collect();
                return Err(bad(format!(
                    "it names the file \"{shown}\"; files are {EXTENSION} files of the folder"
                )));
            }
        }
        Ok(Index { files: index.weight_map.0, path })
    }

    /// Every tensor that the index names lies in the file that it names. `files[0]` is config.json.
    fn check(&self, files: &[SourceFile], tensors: &[TensorInfo]) -> Result<(), FormatError> {
        let mut there: Vec<(usize, &str)> =
            tensors.iter().map(|tensor| (tensor.file, tensor.name.as_str())).collect();
        there.sort_unstable();
        for (number, names) in self.files.values().enumerate() {
            for name in names {
                if there.binary_search(&(number + 1, name.as_str())).is_err() {
                    let file = files[number + 1].path.display();
                    let problem =
                        format!("it says that tensor {name:?} is in {file}, which does not hold it");
                    return Err(FormatError::BadIndex { path: self.path.clone(), problem });
                }
            }
        }
        Ok(())
    }
}

/// The index as it is written; other keys have no meaning here.
#[derive(serde::Deserialize)]
struct IndexFile {
    weight_map: WeightMap,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
}

/// Files with their tensors.
struct WeightMap(BTreeMap<String, Vec<String>>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = WeightMap;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensor and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<WeightMap, A::Error> {
                let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
                let mut count = 0_u64;
                while let Some((tensor, file)) = object.next_entry::<String, String>()? {
                    count += 1;
                    if count > limits::MAX_TENSORS {
                        let problem = format_args!("more than {} tensors", limits::MAX_TENSORS);
                        return Err(serde::de::Error::custom(problem));
                    }
                    files.entry(file).or_default().push(tensor);
                }
                Ok(WeightMap(files))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
