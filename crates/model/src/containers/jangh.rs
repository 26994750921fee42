//! JANGH (`jangtq` version 2): codes of evenly growing levels, a scale per row, and a rotation of the inputs in blocks of 32.
//!
//! Codes are a stream as in MLX. The configuration has an entry for each module: mode, width, rotation; without one nothing is read, because shapes do
//! not tell a rotation. Only experts are held like this. Facts: the PyPI package `jang` (2.5).

use std::sync::Arc;

use coldpress_formats::{Array, Metadata, ModelFile, Value};
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::vector::{Blocks, Rotation};
use coldpress_kernels::{Coding, Levels};

use super::{Container, Found, KEYS, Wanted, beside, expect_shape, expect_words, required, source_of};

const CODES: &str = ".tq2_packed";
pub(super) const CONTAINER: Container = Container { codes: CODES, find };

/// What the configuration calls such a module.
const MODE: &str = "jangtq2";

fn find<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, .. } = wanted;
    let Some(codes) = beside(file, module, CODES) else { return Ok(None) };
    let name = &codes.name;
    expect_words(codes)?;
    let scales = required(file, codes, module, ".tq2_scales")?;
    let metadata = file.metadata();
    let begin = KEYS[..2].iter().find(|begin| metadata.get(&format!("{begin}{module}.mode")).is_some());
    let begin = begin.ok_or_else(|| {
        format!("tensor {name} holds codes, and the configuration has no quantization entry for {module}")
    })?;
    let text = |key: &str| metadata.opt_string(&format!("{begin}{module}.{key}")).ok().flatten();
    if text("mode") != Some(MODE) {
        return Err(format!("{begin}{module}.mode is not \"{MODE}\", and {name} holds such codes"));
    }
    let bits = metadata.opt_u64(&format!("{begin}{module}.bits")).ok().flatten();
    let bits = bits.and_then(|bits| u32::try_from(bits).ok()).filter(|bits| constants(*bits).is_some());
    let bits = bits.ok_or_else(|| format!("{begin}{module}.bits is not 2, 3, 4, 6 or 8"))?;
    if !columns.is_multiple_of(32) {
        return Err(format!("tensor {name} has {columns} columns, which are not whole blocks of 32"));
    }
    let rotation = match text("rotation") {
        Some("none") => None,
        Some("hadamard32") => Rotation::new(Blocks::Of32, columns, Arc::new([])),
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), |other| format!("{other:?}"));
            return Err(format!(
                "{begin}{module}.rotation is {found}; \"none\" and \"hadamard32\" are computed"
            ));
        }
    };
    expect_shape(codes, &[columns * bits as usize / 32, rows], count)?;
    expect_shape(scales, &[rows], count)?;
    let source = source_of(scales)?;
    let coding = Coding::new(bits, Levels::Codebook, None, source.held(), false)
        .ok_or_else(|| format!("tensor {name} has codes of {bits} bits"))?;
    Ok(Some(Found {
        coding,
        order: CodeOrder::Stream,
        codes,
        scales,
        source,
        rows_per_scale: 1,
        biases: None,
        codebook: Some(codebook(metadata, bits)?),
        rotation,
        also: Vec::new(),
    }))
}

/// Refuses bundles of another version, and entries of modules that are not there.
pub(super) fn check(file: &ModelFile) -> Result<(), String> {
    let metadata = file.metadata();
    let known = [("packing", "lsb-bitstream"), ("codebook_family", "odd-cubic")];
    for (key, known) in known {
        let key = format!("jangtq.{key}");
        if let Some(found) = metadata.opt_string(&key).ok().flatten().filter(|found| *found != known) {
            return Err(format!("{key} is \"{found}\"; \"{known}\" is read"));
        }
    }
    if let Some(version) = metadata.get("jangtq.version").filter(|version| version.integer() != Some(2)) {
        return Err(format!("jangtq.version is {}; version 2 is read", version.describe()));
    }
    let is_jangh = metadata.get("jangtq.version").is_some();
    let other = |name: &str| {
        name.contains(".switch_mlp.") && !name.ends_with(CODES) && !name.ends_with(".tq2_scales")
    };
    if let Some(tensor) = file.tensors().find(|tensor| is_jangh && other(&tensor.name)) {
        return Err(format!(
            "jangtq.version says that experts are codes of JANGH, and tensor {} is not",
            tensor.name
        ));
    }
    for (key, value) in metadata.iter() {
        let module = KEYS[..2].iter().find_map(|begin| key.strip_prefix(begin)?.strip_suffix(".mode"));
        let is_mode = matches!(value, Value::String(text) if text.as_bytes() == MODE.as_bytes());
        if let Some(module) = module.filter(|_| is_mode)
            && beside(file, module, CODES).is_none()
        {
            return Err(format!("{key} is \"{MODE}\", and there is no tensor {module}{CODES}"));
        }
    }
    Ok(())
}

/// `a` and `b` of the levels `u * (a + b * u * u)`.
fn constants(bits: u32) -> Option<(f64, f64)> {
    match bits {
        2 => Some((0.893, 0.05065)),
        3 => Some((0.47125, 0.0116)),
        4 => Some((0.2405, 0.0021)),
        // Even steps that lose least of a unit Gaussian, of 400 between 3.2 and 8 divided by the number of levels.
        6 => Some((0.104_135_338_345_864_66, 0.0)),
        8 => Some((0.030_780_075_187_969_925, 0.0)),
        _ => None,
    }
}

/// What codes stand for: as the bundle says, else by the formula.
fn codebook(metadata: &Metadata, bits: u32) -> Result<Arc<[u32]>, String> {
    let key = format!("jangtq.codebooks.{bits}.levels");
    let levels: Vec<f32> = match metadata.get(&key) {
        None => levels(bits),
        Some(Value::Array(Array::Float64(stated))) => stated.iter().map(|&level| level as f32).collect(),
        Some(Value::Array(Array::Float32(stated))) => stated.clone(),
        Some(other) => return Err(format!("{key} is {}, not a list of numbers", other.describe())),
    };
    if levels.len() != 1 << bits || !levels.iter().all(|level| level.is_finite()) {
        return Err(format!("{key} has {} values, not {} finite ones", levels.len(), 1 << bits));
    }
    Ok(levels.into_iter().map(f32::to_bits).collect())
}

fn levels(bits: u32) -> Vec<f32> {
    let (a, b) = constants(bits).unwrap_or_default();
    let middle = ((1u32 << bits) - 1) as f64 / 2.0;
    let level = |code: u32| {
        let u = f64::from(code) - middle;
        (u * (a + b * u * u)) as f32
    };
    (0..1 << bits).map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the package prints them.
    #[test]
    fn levels_are_those_of_the_package() {
        assert_eq!(levels(2)[2..], [0.452_831_24, 1.510_443_8]);
        assert_eq!(levels(3)[4..], [0.237_075, 0.746_025, 1.359_375, 2.146_725]);
        assert_eq!(levels(4)[13..], [1.672_137_5, 2.139_962_4, 2.689_687_5]);
        for bits in [2, 3, 4, 6, 8] {
            let levels = levels(bits);
            assert!(levels.iter().zip(levels.iter().rev()).all(|(low, high)| *low == -high), "{bits} bits");
            assert!(levels.is_sorted());
        }
    }
}
