//! Floats of eight and four bits as checkpoints of DeepSeek hold them.
//!
//! FP8: `weight` is e4m3fn; `weight_scale_inv` (DeepSeek-V3) or `scale` (DeepSeek-V4) has a factor per block of 128x128 values, the
//! last blocks may be cut; `weight_scale` has one per row or for the whole matrix. FP4: `weight` holds two codes of e2m1 in a byte,
//! `scale` a power of two per 32 columns. Products take exact activations, so factors for activations (`input_scale`) have no effect.

use coldpress_formats::{ModelFile, TensorInfo, TensorType};
use coldpress_kernels::layout::{CodeOrder, GROUP_ROWS};
use coldpress_kernels::{Coding, Levels};

use super::{Container, Found, Wanted, beside, expect_shape, source_of};

pub(super) const BLOCKS: Container = Container { codes: ".weight", find: find_fp8 };
pub(super) const FP4: Container = Container { codes: ".weight", find: find_fp4 };

/// Rows and columns of a block where the configuration says nothing.
const BLOCK: [usize; 2] = [128, 128];
const BLOCK_KEYS: [&str; 2] =
    ["quantization_config.weight_block_size", "text_config.quantization_config.weight_block_size"];

fn find_fp8<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, .. } = wanted;
    let Some(codes) = beside(file, module, ".weight").filter(|codes| codes.tensor_type == TensorType::F8E4m3)
    else {
        return Ok(None);
    };
    expect_shape(codes, &[columns, rows], count)?;
    let blocks = [".weight_scale_inv", ".scale"].into_iter().find_map(|ending| beside(file, module, ending));
    let (scales, rows_per_scale, group) = match (blocks, beside(file, module, ".weight_scale")) {
        (Some(scales), _) => {
            let [block_rows, block_columns] = block_size(file)?;
            expect_shape(scales, &[columns.div_ceil(block_columns), rows.div_ceil(block_rows)], count)?;
            (scales, block_rows, Some(block_columns))
        }
        (None, Some(scales)) => (scales, rows_of_scale(scales, rows, count)?, None),
        (None, None) => {
            return Err(format!(
                "tensor {} is FP8 without factors: there is no {module}.weight_scale_inv, .scale or .weight_scale",
                codes.name
            ));
        }
    };
    let source = source_of(scales)?;
    let coding = Coding::new(8, Levels::E4m3, group, source.held(), false);
    let coding = coding.ok_or_else(|| format!("{module} has blocks of {group:?} columns"))?;
    let also = beside(file, module, ".input_scale").into_iter().collect();
    Ok(Some(Found {
        coding,
        order: CodeOrder::Stream,
        codes,
        scales,
        source,
        rows_per_scale,
        biases: None,
        codebook: None,
        rotation: None,
        also,
    }))
}

fn block_size(file: &ModelFile) -> Result<[usize; 2], String> {
    for key in BLOCK_KEYS {
        let list = file.metadata().get(key).and_then(|value| match value {
            coldpress_formats::Value::Array(list) => list.integers().map(Iterator::collect::<Vec<_>>),
            _ => None,
        });
        let Some(list) = list else { continue };
        return match list[..] {
            [rows, columns]
                if rows > 0
                    && rows <= 4096
                    && columns > 0
                    && columns <= 4096
                    && rows % GROUP_ROWS as i128 == 0 =>
            {
                Ok([rows as usize, columns as usize])
            }
            _ => {
                Err(format!("{key} is {list:?}; blocks have two sides, multiples of {GROUP_ROWS} up to 4096"))
            }
        };
    }
    Ok(BLOCK)
}

/// Rows that share a factor where there is one per row or one in all.
fn rows_of_scale(scales: &TensorInfo, rows: usize, count: Option<usize>) -> Result<usize, String> {
    let all = rows.next_multiple_of(GROUP_ROWS);
    let one = expect_shape(scales, &[1, 1], count).or_else(|_| expect_shape(scales, &[1], count));
    one.map(|()| all).or_else(|_| {
        expect_shape(scales, &[1, rows], count).or_else(|_| expect_shape(scales, &[rows], count)).map(|()| 1)
    })
}

fn find_fp4<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, .. } = wanted;
    let Some(codes) = beside(file, module, ".weight").filter(|codes| codes.tensor_type == TensorType::I8)
    else {
        return Ok(None);
    };
    let Some(scales) =
        beside(file, module, ".scale").filter(|scales| scales.tensor_type == TensorType::F8E8m0)
    else {
        return Ok(None);
    };
    if !columns.is_multiple_of(32) {
        return Err(format!("tensor {} has {columns} columns, not whole groups of 32", codes.name));
    }
    expect_shape(codes, &[columns / 2, rows], count)?;
    expect_shape(scales, &[columns / 32, rows], count)?;
    let source = source_of(scales)?;
    let coding = Coding::new(4, Levels::E2m1, Some(32), source.held(), false).ok_or("FP4 in groups of 32")?;
    Ok(Some(Found {
        coding,
        order: CodeOrder::Stream,
        codes,
        scales,
        source,
        rows_per_scale: 1,
        biases: None,
        codebook: None,
        rotation: None,
        also: Vec::new(),
    }))
}
