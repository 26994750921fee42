//! Which files of a repository are the model that was asked for; a pure function of their names and sizes.
//!
//! A GGUF model is one file or a complete split set. A checkpoint is config.json, the safetensors files of one index, and the small files
//! beside them; never the same weights in another form (`.bin`, `.pt`, `.onnx`, `consolidated*`). Where several models answer, nothing is guessed: the
//! refusal lists them. `mmproj` and `imatrix` files are no models.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use coldpress_memory::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::HubError;
use crate::names::path_problem;

const GGUF: &str = ".gguf";
const SAFETENSORS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";
const CONFIG: &str = "config.json";
const TEMPLATES: &str = "additional_chat_templates/";
/// The name that chooses a checkpoint where a repository holds GGUF files as well.
const CHECKPOINT: &str = "safetensors";
/// Digits of the numbers in the name of a part.
const PART_DIGITS: usize = 5;
/// Endings of the small files of a checkpoint: configuration, tokenizer, templates, and the code that some tokenizers are.
const SIDE_ENDINGS: [&str; 6] = [".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"];
/// Nothing larger is a side file; the largest tokenizer has 35 MB.
const SIDE_BYTES_MAX: u64 = 256 << 20;
/// Names in a message.
const SHOWN: usize = 8;

/// A file, for choosing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) path: &'a str,
    pub(crate) size: u64,
}

/// The files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Paths of all parts, the first one first.
    Gguf(Vec<String>),
    /// A folder.
    Checkpoint {
        /// The file that names the weights; [`shards`] reads it.
        index: Option<String>,
        /// Weights, where no index names them.
        weights: Vec<String>,
        /// What lies beside them.
        side: Vec<String>,
    },
}

/// A GGUF model of a repository.
#[derive(Debug)]
struct Model<'a> {
    label: String,
    /// The path without ending and part numbers.
    stem: &'a str,
    /// Parts that the names announce; 1 for a file alone.
    count: usize,
    parts: BTreeMap<usize, Candidate<'a>>,
}

/// Chooses the model called `quant`, or the only one.
///
/// # Errors
/// The repository holds no model, several where none was named, or none or several of this name; parts are missing.
pub(crate) fn choose(repo: &str, quant: Option<&str>, files: &[Candidate<'_>]) -> Result<Choice, HubError> {
    let models = gguf_models(files);
    let checkpoint = has_checkpoint(files);
    let list = || list(&models, checkpoint, files);
    match quant {
        Some(name) if checkpoint && name.eq_ignore_ascii_case(CHECKPOINT) => choose_checkpoint(repo, files),
        Some(name) if !models.is_empty() => match named(&models, name).as_slice() {
            [model] => model.complete(repo),
            found => {
                let number = if found.is_empty() { "no model" } else { "several models" };
                let (repo, quant) = (repo.to_owned(), name.to_owned());
                Err(HubError::NoSuchQuant { repo, quant, number, list: list() })
            }
        },
        Some(_) if checkpoint => {
            let problem =
                "is a checkpoint of safetensors, which has no quants; leave out what follows the colon";
            Err(HubError::BadName {
                what: "the repository",
                given: repo.to_owned(),
                problem: problem.to_owned(),
            })
        }
        _ => match (models.as_slice(), checkpoint) {
            ([], true) => choose_checkpoint(repo, files),
            ([], false) => {
                Err(no_model(repo, "neither a .gguf file nor config.json with .safetensors files", files))
            }
            ([model], false) => model.complete(repo),
            _ => {
                let count = models.len() + usize::from(checkpoint);
                Err(HubError::SeveralModels { repo: repo.to_owned(), count, list: list() })
            }
        },
    }
}

fn gguf_models<'a>(files: &[Candidate<'a>]) -> Vec<Model<'a>> {
    let mut models: BTreeMap<(&str, usize), Model<'a>> = BTreeMap::new();
    for &file in files {
        let Some(whole) = file.path.strip_suffix(GGUF) else { continue };
        let name = whole.rsplit('/').next().unwrap_or(whole).to_ascii_lowercase();
        if name.contains("mmproj") || name.contains("imatrix") {
            continue;
        }
        let (stem, number, count) = part_of(whole).unwrap_or((whole, 1, 1));
        let model = models.entry((stem, count));
        let empty = || Model { label: label(stem), stem, count, parts: BTreeMap::new() };
        model.or_insert_with(empty).parts.insert(number, file);
    }
    models.into_values().collect()
}

/// Splits `NAME-00001-of-00003` into name, number and count.
fn part_of(whole: &str) -> Option<(&str, usize, usize)> {
    let number = |text: &'_ str| -> Option<usize> {
        let digits = text.len() == PART_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (rest, count) = whole.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (!stem.is_empty() && (1..=count).contains(&part)).then_some((stem, part, count))
}

/// What people call a model: the type in its file name, else in its folder's, else the file name.
fn label(stem: &str) -> String {
    let name = |part: &str| {
        let words: Vec<&str> = part.split(['-', '.']).collect();
        let at = words.iter().rposition(|word| is_type(&word.to_ascii_lowercase()))?;
        let dynamic = at > 0 && words[at - 1].eq_ignore_ascii_case("ud");
        Some(if dynamic { format!("{}-{}", words[at - 1], words[at]) } else { words[at].to_owned() })
    };
    let file = stem.rsplit('/').next().unwrap_or(stem);
    stem.rsplit('/').find_map(name).unwrap_or_else(|| file.to_owned())
}

fn is_type(word: &str) -> bool {
    let numbered = ["iq", "tq", "q"].iter().find_map(|begin| word.strip_prefix(begin));
    let plain = ["f16", "f32", "bf16", "fp16", "fp32", "fp8"];
    numbered.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
        || plain.contains(&word)
        || word.starts_with("mxfp4")
        || word.starts_with("nvfp4")
}

/// The models that answer to a name: by their label, else by their path, else those whose path has the name as a word.
fn named<'m, 'a>(models: &'m [Model<'a>], name: &str) -> Vec<&'m Model<'a>> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(GGUF).unwrap_or(&name);
    let is_word = |path: &str| {
        let path = path.to_ascii_lowercase();
        path.match_indices(name).any(|(at, _)| {
            let before = path[..at].chars().next_back();
            let after = path[at + name.len()..].chars().next();
            before.is_none_or(|letter| !letter.is_alphanumeric())
                && after.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_')
        })
    };
    let is_path = |model: &Model<'_>| {
        let file = |part: &Candidate<'_>| part.path.to_ascii_lowercase().strip_suffix(GGUF) == Some(name);
        model.stem.eq_ignore_ascii_case(name) || model.parts.values().any(file)
    };
    let matches: [&dyn Fn(&Model<'_>) -> bool; 3] =
        [&|model| model.label.eq_ignore_ascii_case(name), &is_path, &|model| is_word(model.stem)];
    let found = |matches: &dyn Fn(&Model<'_>) -> bool| {
        models.iter().filter(|model| matches(model)).collect::<Vec<_>>()
    };
    matches.into_iter().map(found).find(|found| !found.is_empty()).unwrap_or_default()
}

impl Model<'_> {
    fn bytes(&self) -> Bytes {
        Bytes(self.parts.values().map(|part| part.size).sum())
    }

    fn complete(&self, repo: &str) -> Result<Choice, HubError> {
        let missing: Vec<usize> =
            (1..=self.count).filter(|number| !self.parts.contains_key(number)).collect();
        if missing.is_empty() {
            return Ok(Choice::Gguf(self.parts.values().map(|part| part.path.to_owned()).collect()));
        }
        let set = format!("{}-*-of-{:05}{GGUF}", self.stem, self.count);
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        Err(missing_parts(repo, set, &names, "part"))
    }
}

/// `names` of parts that the repository does not have.
pub(crate) fn missing_parts(repo: &str, set: String, names: &[String], noun: &str) -> HubError {
    let one = names.len() == 1;
    let missing = format!("{noun}{} {}", if one { "" } else { "s" }, some_of(names));
    HubError::MissingParts { repo: repo.to_owned(), set, missing, one, place: "there".to_owned() }
}

/// The first names, and how many more there are.
fn some_of(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

fn list(models: &[Model<'_>], checkpoint: bool, files: &[Candidate<'_>]) -> String {
    let repeated = |label: &str| models.iter().filter(|model| model.label == label).count() > 1;
    let mut rows: Vec<(Bytes, &str, String)> = Vec::new();
    for model in models {
        let name = if repeated(&model.label) { model.stem } else { &model.label };
        let parts = if model.count > 1 { format!(", {} parts", model.count) } else { String::new() };
        rows.push((model.bytes(), name, parts));
    }
    if checkpoint {
        let weights = files.iter().filter(|file| is_weights(file.path));
        rows.push((Bytes(weights.map(|file| file.size).sum()), CHECKPOINT, String::new()));
    }
    rows.sort();
    let width = rows.iter().map(|row| row.1.len()).max().unwrap_or(0);
    let line = |(bytes, name, parts): &(Bytes, &str, String)| {
        format!("  {name:<width$}  {:>10}{parts}", bytes.to_string())
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn no_model(repo: &str, problem: &str, files: &[Candidate<'_>]) -> HubError {
    let names: Vec<String> = files.iter().map(|file| file.path.to_owned()).collect();
    let list = if names.is_empty() { "no files".to_owned() } else { some_of(&names) };
    HubError::NoModel { repo: repo.to_owned(), problem: problem.to_owned(), list }
}

/// Weights of a checkpoint: at the top of the repository, and no second copy of others.
fn is_weights(path: &str) -> bool {
    let other = ["consolidated", "adapter", "jang"];
    path.ends_with(SAFETENSORS) && !path.contains('/') && !other.iter().any(|begin| path.starts_with(begin))
}

fn has_checkpoint(files: &[Candidate<'_>]) -> bool {
    files.iter().any(|file| file.path == CONFIG)
        && files.iter().any(|file| is_weights(file.path) || is_index(file.path))
}

fn is_index(path: &str) -> bool {
    path.ends_with(INDEX) && !path.contains('/')
}

fn choose_checkpoint(repo: &str, files: &[Candidate<'_>]) -> Result<Choice, HubError> {
    let is_side = |file: &&Candidate<'_>| {
        let name = file.path.strip_prefix(TEMPLATES).unwrap_or(file.path);
        let ending =
            SIDE_ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.ends_with(".index.json");
        let sidecar = name.starts_with("jang") && name.ends_with(SAFETENSORS);
        (ending && file.size <= SIDE_BYTES_MAX || sidecar) && !name.contains('/') && !name.starts_with('.')
    };
    let side: Vec<String> = files.iter().filter(is_side).map(|file| file.path.to_owned()).collect();
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let with_index = |index: &str| Choice::Checkpoint {
        index: Some(index.to_owned()),
        weights: Vec::new(),
        side: side.clone(),
    };
    let plain = |weights: Vec<String>| Choice::Checkpoint { index: None, weights, side: side.clone() };
    let single = format!("model{SAFETENSORS}");
    let index = format!("model{INDEX}");
    if has(&single) {
        return Ok(plain(vec![single]));
    }
    if has(&index) {
        return Ok(with_index(&index));
    }
    let indices: Vec<&str> = files.iter().map(|file| file.path).filter(|path| is_index(path)).collect();
    if let [index] = indices.as_slice() {
        return Ok(with_index(index));
    }
    let weights: Vec<&str> = files.iter().map(|file| file.path).filter(|path| is_weights(path)).collect();
    match weights.as_slice() {
        [] => Err(no_model(repo, "several indices and no model.safetensors.index.json", files)),
        [only] if part_of(only.trim_end_matches(SAFETENSORS)).is_none_or(|(_, _, count)| count == 1) => {
            Ok(plain(vec![(*only).to_owned()]))
        }
        _ => numbered(repo, &weights).map_or_else(
            || Err(no_model(repo, "several .safetensors files without an index or numbers", files)),
            |set| set.map(plain),
        ),
    }
}

/// All files, where their names are those of one numbered set.
fn numbered(repo: &str, weights: &[&str]) -> Option<Result<Vec<String>, HubError>> {
    let parts: Option<Vec<_>> =
        weights.iter().map(|path| part_of(path.trim_end_matches(SAFETENSORS))).collect();
    let parts = parts?;
    let &(stem, _, count) = parts.first()?;
    if parts.iter().any(|&(other, _, of)| (other, of) != (stem, count)) {
        return None;
    }
    let present = |number: &usize| parts.iter().any(|&(_, part, _)| part == *number);
    let missing: Vec<String> =
        (1..=count).filter(|number| !present(number)).map(|number| number.to_string()).collect();
    Some(if missing.is_empty() {
        Ok(weights.iter().map(|path| (*path).to_owned()).collect())
    } else {
        Err(missing_parts(repo, format!("{stem}-*-of-{count:05}{SAFETENSORS}"), &missing, "part"))
    })
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: FileNames,
}

/// The values of an object, each once: an index has a hundred thousand tensors in a hundred files.
struct FileNames(BTreeSet<String>);

impl<'de> Deserialize<'de> for FileNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = FileNames;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<FileNames, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((_, name)) = object.next_entry::<IgnoredAny, String>()? {
                    names.insert(name);
                }
                Ok(FileNames(names))
            }
        }
        deserializer.deserialize_map(Values)
    }
}

/// The files that an index names, each once.
///
/// # Errors
/// The text is no index, or a name is no path inside the folder; in words.
pub(crate) fn shards(json: &[u8]) -> Result<Vec<String>, String> {
    let index: Index =
        serde_json::from_slice(json).map_err(|error| format!("it is no index of tensors: {error}"))?;
    let names: Vec<String> = index.weight_map.0.into_iter().collect();
    match names.iter().find_map(|name| path_problem(name)) {
        Some(problem) => Err(format!("it names a file that {problem}")),
        None if names.is_empty() => Err("it names no file".to_owned()),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests;
