//! `pack-quantized` of compressed-tensors (Kimi K2 Thinking): `weight_packed` holds codes in words of 32 bits, lowest bits first, the
//! code being the number plus half of its range; `weight_scale` has a factor per group of columns or per row.
//!
//! Refuses: zero points (asymmetric numbers), reordered columns, numbers that are not packed.

use coldpress_formats::{ModelFile, TensorType};
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::{Coding, Levels};

use super::{Container, Found, Wanted, beside, expect_shape, source_of};

pub(super) const PACKED: Container = Container { codes: ".weight_packed", find };

fn find<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, .. } = wanted;
    let Some(codes) = beside(file, module, ".weight_packed") else { return Ok(None) };
    if codes.tensor_type != TensorType::I32 {
        return Err(format!("tensor {} has type {}, packed codes are I32", codes.name, codes.tensor_type));
    }
    for (ending, what) in [(".weight_zero_point", "zero points"), (".weight_g_idx", "reordered columns")] {
        if beside(file, module, ending).is_some() {
            return Err(format!("{module} has {what} ({module}{ending}), which are not computed"));
        }
    }
    let scales = beside(file, module, ".weight_scale")
        .ok_or_else(|| format!("tensor {} has no {module}.weight_scale", codes.name))?;
    let words = codes.shape.first().copied().unwrap_or(0) as usize;
    let bits = [4, 8].into_iter().find(|bits| columns.div_ceil(32 / bits) == words);
    let bits = bits.ok_or_else(|| {
        format!(
            "tensor {} has {words} words in a row of {columns} columns, wanted codes of 4 or 8 bits",
            codes.name
        )
    })?;
    expect_shape(codes, &[words, rows], count)?;
    let groups = match scales.shape.len() {
        0 | 1 if count.is_none() && rows > 1 => 1,
        _ => scales.shape.first().copied().unwrap_or(1) as usize,
    };
    let group = columns.div_ceil(groups.max(1));
    if groups == 0 || group * groups != columns {
        return Err(format!("tensor {} has {groups} scales in a row of {columns} columns", scales.name));
    }
    expect_shape(scales, &[groups, rows], count).or_else(|error| match groups {
        1 => expect_shape(scales, &[rows], count),
        _ => Err(error),
    })?;
    let source = source_of(scales)?;
    let group = (groups > 1).then_some(group);
    let coding = Coding::new(bits as u32, Levels::OffsetBinary, group, source.held(), false);
    let coding = coding.ok_or_else(|| format!("{module} has groups of {group:?} columns"))?;
    let also = beside(file, module, ".weight_shape").into_iter().collect();
    Ok(Some(Found {
        coding,
        order: CodeOrder::Words,
        codes,
        scales,
        source,
        rows_per_scale: 1,
        biases: None,
        codebook: None,
        rotation: None,
        also,
    }))
}
