//! MLX: `weight` holds codes in words of 32 bits, lowest bit first, without gaps; `scales` and, in the affine mode, `biases` have a
//! number per group of columns. Without biases the scales are bytes: powers of two (mxfp4, mxfp8) or e4m3 (nvfp4).
//!
//! Width and group size may differ from tensor to tensor and follow from the shapes. Reference: `mlx.core.quantize`. JANG bundles hold
//! their affine matrices in the same way.

use coldpress_formats::{ModelFile, TensorType};
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::{Coding, Levels, ScaleSource};

use super::{Container, Found, Wanted, beside, expect_shape, float_source, required, setting};

pub(super) const CONTAINER: Container = Container { codes: ".weight", find };

/// Modes without biases: name, bits, group, what the codes stand for, how the scales are written.
const MODES: [(&str, usize, usize, Levels, ScaleSource); 3] = [
    ("mxfp4", 4, 32, Levels::E2m1, ScaleSource::E8m0),
    ("mxfp8", 8, 32, Levels::E4m3, ScaleSource::E8m0),
    ("nvfp4", 4, 16, Levels::E2m1, ScaleSource::E4m3),
];

fn find<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, derived } = wanted;
    let Some(codes) = beside(file, module, ".weight").filter(|codes| codes.tensor_type == TensorType::U32)
    else {
        return Ok(None);
    };
    let name = &codes.name;
    let scales = required(file, codes, module, ".scales")?;
    let biases = beside(file, module, ".biases");
    let first = |info: &coldpress_formats::TensorInfo| info.shape.first().copied().unwrap_or(0) as usize;
    let (bits, group) = (first(codes) * 32 / columns, columns / first(scales).max(1));
    if bits * columns != first(codes) * 32 || group * first(scales) != columns {
        return Err(format!(
            "tensor {name} has {} words and {} scales in a row, which do not divide its {columns} columns",
            first(codes),
            first(scales)
        ));
    }
    let (levels, source) = match biases {
        Some(_) => (Levels::Unsigned, float_source(scales.tensor_type)),
        None => {
            let is_it = |mode: &&(&str, usize, usize, Levels, ScaleSource)| (mode.1, mode.2) == (bits, group);
            let mode = MODES.iter().find(is_it).filter(|_| scales.tensor_type == TensorType::I8);
            let mode = mode.ok_or_else(|| {
                format!(
                    "tensor {name} has codes of {bits} bits, scales of type {} for groups of {group} and no biases, which \
                     is no mode of MLX",
                    scales.tensor_type
                )
            })?;
            (mode.3, Some(mode.4))
        }
    };
    let source = source.ok_or_else(|| {
        format!("tensor {} has type {}, not that of scales", scales.name, scales.tensor_type)
    })?;
    let coding = Coding::new(bits as u32, levels, Some(group), source.held(), biases.is_some());
    let coding = coding.ok_or_else(|| {
        format!(
            "tensor {name} has codes of {bits} bits in groups of {group}; MLX has 2, 3, 4, 5, 6 and 8 bits"
        )
    })?;
    expect_shape(codes, &[first(codes), rows], count)?;
    for info in [Some(scales), biases].into_iter().flatten() {
        expect_shape(info, &[columns / group, rows], count)?;
    }
    if let Some(biases) = biases.filter(|biases| biases.tensor_type != scales.tensor_type) {
        return Err(format!(
            "tensor {} has type {}, and {} {}",
            scales.name, scales.tensor_type, biases.name, biases.tensor_type
        ));
    }
    if !derived.is_jang(file.metadata()) {
        agree(file, module, bits, group)?;
    }
    Ok(Some(Found {
        coding,
        order: CodeOrder::Stream,
        codes,
        scales,
        source,
        rows_per_scale: 1,
        biases,
        codebook: None,
        rotation: None,
        also: Vec::new(),
    }))
}

/// Refuses a configuration that says something else than the shapes.
fn agree(file: &ModelFile, module: &str, bits: usize, group: usize) -> Result<(), String> {
    for (name, found) in [("bits", bits), ("group_size", group)] {
        match setting(file.metadata(), module, name) {
            Some(said) if said != found as u64 => {
                return Err(format!(
                    "the configuration gives {module} {name} {said}, its shapes say {found}: one of them is from another \
                     conversion"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}
