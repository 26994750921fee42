//! One GGUF file from a model: parts of a split set put together, matrices in another type where that is asked for.
//!
//! Tensor by tensor, in pieces of rows, so memory does not depend on the model. Without a type every byte of every tensor is copied;
//! with one, matrices are quantised with a search for their scales, norms, routers and other vectors stay. The file is written under
//! another name and gets its own when it is whole; what exists is never overwritten.
//! Refuses: folders of Hugging Face (their tokenizer would have to be written in GGUF's terms), values that a type cannot hold.
//! Read next: `coldpress_formats::GgufWriter`, `packs` (which writes packs, the other thing a model is converted to).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use coldpress_experts::weight_format;
use coldpress_formats::{FileFormat, FormatError, GgufWriter, ModelFile, TensorInfo, TensorType, Value};
use coldpress_kernels::WeightFormat;
use coldpress_kernels::blocks::{
    SEARCHED_MAGNITUDE_MAX, dequantize, has_big_endian_form, quantize_with_search, to_little_endian,
};
use coldpress_memory::{Bytes, MachineFacts, sys};
use coldpress_model::describe;
use coldpress_workers::Workers;

use crate::error::EngineError;
use crate::files::open_model;
use crate::runtime::{LoadObserver, LoadStage};

/// Most values of a piece: 4 MiB as f32.
const PIECE_VALUES: u64 = 1 << 20;
/// Bytes written before they are synced and leave the page cache.
const WINDOW_BYTES: u64 = 64 << 20;
/// Names of matrices that lose too much, or are no matrices of a product.
const NEVER_QUANTISED: [&str; 9] = [
    "_norm.",
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv",
    "pos_embd",
    "token_types",
    "altup",
    "laurel",
    "per_layer_model_proj",
];
/// `general.file_type` of llama.cpp, for files whose matrices are of one type.
const FILE_TYPES: [(WeightFormat, u32); 12] = [
    (WeightFormat::F32, 0),
    (WeightFormat::F16, 1),
    (WeightFormat::Q4_0, 2),
    (WeightFormat::Q4_1, 3),
    (WeightFormat::Q8_0, 7),
    (WeightFormat::Q5_0, 8),
    (WeightFormat::Q5_1, 9),
    (WeightFormat::Q4K, 14),
    (WeightFormat::Q5K, 16),
    (WeightFormat::Q6K, 18),
    (WeightFormat::BF16, 32),
    (WeightFormat::Mxfp4, 38),
];

/// What matrices become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TensorChoice(Option<WeightFormat>);

impl TensorChoice {
    /// As they are, bit for bit.
    pub const KEEP: Self = Self(None);

    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 13] = [
        ("keep", Self::KEEP),
        ("f32", Self(Some(WeightFormat::F32))),
        ("f16", Self(Some(WeightFormat::F16))),
        ("bf16", Self(Some(WeightFormat::BF16))),
        ("q8_0", Self(Some(WeightFormat::Q8_0))),
        ("q6_k", Self(Some(WeightFormat::Q6K))),
        ("q5_k", Self(Some(WeightFormat::Q5K))),
        ("q5_1", Self(Some(WeightFormat::Q5_1))),
        ("q5_0", Self(Some(WeightFormat::Q5_0))),
        ("q4_k", Self(Some(WeightFormat::Q4K))),
        ("q4_1", Self(Some(WeightFormat::Q4_1))),
        ("q4_0", Self(Some(WeightFormat::Q4_0))),
        ("mxfp4", Self(Some(WeightFormat::Mxfp4))),
    ];
}

/// What [`convert_to_gguf`] makes of the matrices of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertTypes {
    /// All matrices but those of routed experts.
    pub matrices: TensorChoice,
    /// Matrices of routed experts.
    pub experts: TensorChoice,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ConvertReport {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub file_bytes: Bytes,
    /// Tensors in it.
    pub tensors: usize,
    /// Tensors that have another type than before.
    pub converted: usize,
    /// Whether every value is what it was.
    pub lossless: bool,
    /// Tensors that are not what was asked for, and why, a line each.
    pub exceptions: Vec<String>,
}

/// A tensor and what it becomes.
struct Planned<'a> {
    source: &'a TensorInfo,
    target: TensorType,
}

impl Planned<'_> {
    fn is_lossless(&self) -> bool {
        let is_float = weight_format(self.source.tensor_type).is_some_and(WeightFormat::is_float);
        self.target == self.source.tensor_type || (self.target == TensorType::F32 && is_float)
    }
}

/// Writes `model` as one GGUF file `out`, which must not exist.
///
/// # Errors
/// The model is a folder of Hugging Face, damaged or unknown; `out` exists or the disk has no room; a matrix has values that its type
/// cannot hold; reading or writing failed; the observer asked to stop. Nothing is left of the file then.
pub fn convert_to_gguf(
    model: &Path,
    out: &Path,
    types: ConvertTypes,
    observer: &mut dyn LoadObserver,
) -> Result<ConvertReport, EngineError> {
    let file = open_model(model)?;
    check_source(&file, model)?;
    check_place(out)?;
    let (planned, exceptions) = plan(&file, types)?;
    let mut writer = GgufWriter::new();
    for (key, value) in metadata(&file, types, &planned) {
        writer.metadata(key, value);
    }
    for Planned { source, target } in &planned {
        writer.tensor(&source.name, *target, &source.shape);
    }
    let total: u64 = planned.iter().map(bytes_of).sum();
    check_disk(out, total)?;
    let workers = Workers::new(MachineFacts::detect()?.cpu_count.max(1));
    let mut work = Work { file: &file, workers: &workers, observer, out, done: 0, total, unsynced: 0 };
    let mut places = planned.iter();
    let mut failure = None;
    let written = writer.write(out, |_, target| {
        let planned = places.next().expect("the writer asks for each tensor once");
        work.write(planned, target).map_err(|error| {
            let text = std::io::Error::other(error.to_string());
            failure = Some(error);
            text
        })
    });
    match (failure, written) {
        (Some(error), _) => return Err(error),
        (None, written) => written?,
    }
    // What was written must be what can be read.
    let made = open_model(out)?;
    describe(&made).map_err(EngineError::BadModel)?;
    crate::files::drop_cached(out);
    Ok(ConvertReport {
        path: out.to_owned(),
        file_bytes: Bytes(made.files().iter().map(|file| file.len).sum()),
        tensors: planned.len(),
        converted: planned.iter().filter(|planned| planned.target != planned.source.tensor_type).count(),
        lossless: planned.iter().all(Planned::is_lossless),
        exceptions,
    })
}

fn bytes_of(planned: &Planned<'_>) -> u64 {
    let Planned { source, target } = planned;
    source.elements() / target.block_elements() * target.block_bytes()
}

fn check_source(file: &ModelFile, model: &Path) -> Result<(), EngineError> {
    describe(file).map_err(EngineError::BadModel)?;
    if file.format() == FileFormat::HuggingFace {
        return Err(EngineError::BadOption(format!(
            "{} is a folder of Hugging Face: its tokenizer cannot be written as GGUF here, so the file would not load alone; the folder runs \
             as it is, and `coldpress convert MODEL --to pack` makes its experts smaller",
            model.display()
        )));
    }
    let missing = file.missing_bytes();
    if missing > 0 {
        let text = format!("{} is not complete: {} are missing", model.display(), Bytes(missing));
        return Err(EngineError::BadOption(text));
    }
    Ok(())
}

fn check_place(out: &Path) -> Result<(), EngineError> {
    if out.symlink_metadata().is_err() {
        return Ok(());
    }
    let reason = "exists: it is not overwritten; choose another name".to_owned();
    Err(EngineError::BadOutput { path: out.to_owned(), reason })
}

fn check_disk(out: &Path, needed: u64) -> Result<(), EngineError> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let bad = |reason| EngineError::BadOutput { path: out.to_owned(), reason };
    let free = sys::free_disk_space(folder)
        .map_err(|error| bad(format!("its folder cannot be used ({error}): make it first")))?;
    if free < Bytes(needed) {
        return Err(bad(format!(
            "{} are needed and {free} are free: make room or choose another disk",
            Bytes(needed)
        )));
    }
    Ok(())
}

/// Whether a tensor belongs to routed experts: a stack of them, or a matrix of one (`blk.0.ffn_up.3.weight`).
fn is_of_experts(name: &str) -> bool {
    let one = |rest: &str| rest.split('.').nth(1).is_some_and(|number| number.parse::<u32>().is_ok());
    name.contains("_exps.") || name.split_once(".ffn_").is_some_and(|(_, rest)| one(rest))
}

/// What each tensor becomes, and what is not as asked.
fn plan(file: &ModelFile, types: ConvertTypes) -> Result<(Vec<Planned<'_>>, Vec<String>), EngineError> {
    let mut exceptions: BTreeMap<String, usize> = BTreeMap::new();
    let mut planned = Vec::new();
    for source in file.tensors() {
        let choice = if is_of_experts(&source.name) { types.experts } else { types.matrices };
        let (target, exception) = target(source, choice);
        if let Some(exception) = exception {
            *exceptions.entry(exception).or_default() += 1;
        }
        planned.push(Planned { source, target });
    }
    let exceptions = exceptions.into_iter().map(|(text, count)| format!("{count} {text}")).collect();
    Ok((planned, exceptions))
}

/// What a tensor becomes, and what is to be said where that is not what was asked for.
fn target(source: &TensorInfo, choice: TensorChoice) -> (TensorType, Option<String>) {
    let keep = (source.tensor_type, None);
    let Some(asked) = choice.0 else { return keep };
    let name = &source.name;
    let is_matrix = source.shape.len() > 1
        && name.ends_with(".weight")
        && !NEVER_QUANTISED.iter().any(|part| name.contains(part));
    let Some(stored) = weight_format(source.tensor_type).filter(|stored| is_matrix && *stored != asked)
    else {
        return keep;
    };
    let columns = source.columns() as usize;
    // As llama.cpp does.
    let instead = match asked {
        WeightFormat::Q4K => WeightFormat::Q5_0,
        WeightFormat::Q5K => WeightFormat::Q5_1,
        WeightFormat::Q6K => WeightFormat::Q8_0,
        other => other,
    };
    let shape = format!("tensors of {columns} columns ({})", source.tensor_type.name());
    let Some(format) = [asked, instead].into_iter().find(|format| format.accepts_columns(columns)) else {
        let text = format!("{shape} stay as they are: {columns} is no multiple of 32");
        return (source.tensor_type, Some(text));
    };
    if !format.is_float() && format.row_bytes(columns) >= stored.row_bytes(columns) {
        let text = format!("{shape} stay as they are: {format} would be no smaller");
        return (source.tensor_type, Some(text));
    }
    let blocks = asked.block_elements();
    let exception =
        (format != asked).then(|| format!("{shape} become {format}: {columns} is no multiple of {blocks}"));
    let target = TensorType::from_name(format.name()).expect("formats with a quantiser are types of GGUF");
    (target, exception)
}

/// The metadata of the new file: that of the model, without what belonged to the parts of a set, and with the type it has now.
fn metadata(file: &ModelFile, types: ConvertTypes, planned: &[Planned<'_>]) -> Vec<(String, Value)> {
    const FILE_TYPE: &str = "general.file_type";
    const VERSION: &str = "general.quantization_version";
    let changed = planned.iter().any(|planned| planned.target != planned.source.tensor_type);
    let dropped = |key: &str| key.starts_with("split.") || (changed && [FILE_TYPE, VERSION].contains(&key));
    let mut entries: Vec<(String, Value)> = file
        .metadata()
        .iter()
        .filter(|(key, _)| !dropped(key))
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    if changed {
        entries.push((VERSION.to_owned(), Value::Uint32(2)));
        let mixed = types.matrices != types.experts
            && planned.iter().any(|planned| is_of_experts(&planned.source.name));
        let number = FILE_TYPES.iter().find(|(format, _)| !mixed && types.matrices.0 == Some(*format));
        entries.extend(number.map(|(_, number)| (FILE_TYPE.to_owned(), Value::Uint32(*number))));
    }
    entries
}

/// The work that is left, and how it is followed.
struct Work<'a> {
    file: &'a ModelFile,
    workers: &'a Workers,
    observer: &'a mut dyn LoadObserver,
    out: &'a Path,
    done: u64,
    total: u64,
    /// Bytes written since the last sync.
    unsynced: u64,
}

impl Work<'_> {
    /// Writes one tensor, a piece of rows at a time.
    fn write(&mut self, planned: &Planned<'_>, target: &mut dyn Write) -> Result<(), EngineError> {
        let Planned { source, target: target_type } = planned;
        let path = &self.file.files()[source.file].path;
        let failed = |path: &Path, error: std::io::Error| {
            EngineError::BadModelFile(FormatError::Io {
                path: path.to_owned(),
                action: "read",
                source: error,
            })
        };
        let file = File::open(path).map_err(|error| failed(path, error))?;
        // Advice, here and below: a refusal changes no result.
        let _ = sys::expect_random_reads(&file);
        let piece_rows = (PIECE_VALUES / source.columns()).clamp(1, source.rows());
        let mut bytes = vec![0; (piece_rows * source.row_bytes()) as usize];
        let mut made = Vec::new();
        let mut row = 0;
        while row < source.rows() {
            if self.observer.should_stop() {
                return Err(EngineError::Cancelled);
            }
            let rows = piece_rows.min(source.rows() - row);
            let bytes = &mut bytes[..(rows * source.row_bytes()) as usize];
            let at = source.offset + row * source.row_bytes();
            file.read_exact_at(bytes, at).map_err(|error| failed(path, error))?;
            let page = sys::page_size() as u64;
            let end = (at + bytes.len() as u64).next_multiple_of(page);
            let _ = sys::drop_page_cache(&file, at / page * page..end);
            self.turn_round(source, bytes)?;
            let piece: &[u8] = if *target_type == source.tensor_type {
                bytes
            } else {
                self.requantise(planned, bytes, &mut made)?;
                &made
            };
            target.write_all(piece).map_err(|error| self.bad_output(&error))?;
            self.advance(piece.len() as u64)?;
            row += rows;
        }
        Ok(())
    }

    /// Big-endian values to little-endian ones.
    fn turn_round(&self, source: &TensorInfo, bytes: &mut [u8]) -> Result<(), EngineError> {
        if !self.file.big_endian() {
            return Ok(());
        }
        let Some(format) = weight_format(source.tensor_type).filter(|format| has_big_endian_form(*format))
        else {
            return Err(EngineError::BadOption(format!(
                "tensor {:?} is big-endian {}, which nobody writes: it cannot be turned round",
                source.name,
                source.tensor_type.name()
            )));
        };
        to_little_endian(format, bytes);
        Ok(())
    }

    /// Rows of `bytes` in the type of `planned`, made by all threads.
    fn requantise(&self, planned: &Planned<'_>, bytes: &[u8], made: &mut Vec<u8>) -> Result<(), EngineError> {
        let Planned { source, target } = planned;
        let known = |kind: TensorType| weight_format(kind).expect("only known formats are planned to change");
        let (from, to) = (known(source.tensor_type), known(*target));
        let columns = source.columns() as usize;
        let (row_bytes, made_bytes) = (from.row_bytes(columns), to.row_bytes(columns));
        let rows = bytes.len() / row_bytes;
        made.clear();
        made.resize(rows * made_bytes, 0);
        let largest = match to {
            WeightFormat::F32 | WeightFormat::BF16 => f32::INFINITY,
            _ => SEARCHED_MAGNITUDE_MAX,
        };
        let fits = AtomicBool::new(true);
        self.workers.enter(|team| {
            team.for_each_part_mut(made, made_bytes, |row, made, _worker| {
                let mut values = vec![0.0_f32; columns];
                dequantize(from, &bytes[row * row_bytes..][..row_bytes], &mut values);
                // Not a number fails the comparison too; floats keep it.
                if largest.is_finite() && !values.iter().all(|value| value.abs() <= largest) {
                    fits.store(false, Ordering::Relaxed);
                    return;
                }
                quantize_with_search(to, &values, made).expect("every choice has a quantiser");
            });
        });
        if fits.into_inner() {
            return Ok(());
        }
        Err(EngineError::BadOption(format!(
            "tensor {:?} holds values that {to} cannot (not numbers, or beyond {largest} in magnitude): such weights are damaged; \
             download the model again, or keep its types",
            source.name
        )))
    }

    fn bad_output(&self, error: &std::io::Error) -> EngineError {
        EngineError::BadOutput { path: self.out.to_owned(), reason: format!("cannot be written: {error}") }
    }

    /// Counts `bytes` as written, and now and then takes what was written out of the page cache.
    fn advance(&mut self, bytes: u64) -> Result<(), EngineError> {
        self.done += bytes;
        self.unsynced += bytes;
        if self.unsynced >= WINDOW_BYTES {
            self.unsynced = 0;
            let mut partial = self.out.as_os_str().to_owned();
            partial.push(".partial");
            let file = File::open(PathBuf::from(partial)).map_err(|error| self.bad_output(&error))?;
            sys::sync_file(&file).map_err(|error| self.bad_output(&error))?;
            crate::files::drop_cached_file(&file);
        }
        self.observer.progress(LoadStage::Convert, self.done, self.total);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_experts_are_known_by_their_names() {
        for name in ["blk.0.ffn_up_exps.weight", "blk.3.ffn_gate.17.weight", "blk.1.ffn_down_exps.bias"] {
            assert!(is_of_experts(name), "{name}");
        }
        for name in
            ["blk.0.ffn_up.weight", "blk.0.ffn_up_shexp.weight", "output.weight", "blk.1.ffn_gate_inp.weight"]
        {
            assert!(!is_of_experts(name), "{name}");
        }
    }
}
