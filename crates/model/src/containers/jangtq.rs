//! JANGTQ (`weight_format` mxtq): codes of a codebook, a norm per row, and a rotation that the inputs go through as well.
//!
//! A word of 32 bits holds as many whole codes as fit, lowest bits first; the last word of a row may be filled in part. The width
//! follows from the number of words, `tq_bits` says the same. Codebook and signs of the rotation follow from the number of inputs, the width and a seed; where the
//! bundle has them (`jangtq_runtime.safetensors`) those count. Only experts are held like this.
//! Facts: the PyPI package `jang` (2.5); the codebook is the optimum of Lloyd (1957) for the elements of random unit vectors.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use coldpress_formats::{Array, Metadata, ModelFile, Value};
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::vector::{Blocks, Rotation};
use coldpress_kernels::{Coding, Levels};

use super::pcg64::Pcg64;
use super::{Container, Found, Wanted, beside, expect_shape, expect_words, required, source_of};

pub(super) const CONTAINER: Container = Container { codes: ".tq_packed", find };

/// Widths that codes have.
const WIDTHS: [u32; 5] = [2, 3, 4, 6, 8];

/// What was worked out for matrices of one shape, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    is_jang: OnceCell<bool>,
    signs: Shared<usize, f32>,
    codebooks: Shared<(usize, u32), u32>,
}

/// Arrays by what they follow from.
type Shared<K, T> = RefCell<HashMap<K, Arc<[T]>>>;

fn find<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    let Wanted { module, rows, columns, count, derived } = wanted;
    let Some(codes) = beside(file, module, ".tq_packed") else { return Ok(None) };
    let name = &codes.name;
    expect_words(codes)?;
    let norms = required(file, codes, module, ".tq_norms")?;
    let width = required(file, codes, module, ".tq_bits")?;
    let words = codes.shape.first().copied().unwrap_or(0);
    let fits = |bits: &u32| columns.div_ceil((32 / bits) as usize) as u64 == words;
    let mut widths = WIDTHS.into_iter().filter(fits);
    let (Some(bits), None) = (widths.next(), widths.next()) else {
        return Err(format!(
            "tensor {name} has {words} words in a row, which are not the codes of {columns} columns in one way"
        ));
    };
    expect_shape(codes, &[words as usize, rows], count)?;
    expect_shape(norms, &[rows], count)?;
    expect_shape(width, &[1], None)?;
    let source = source_of(norms)?;
    let coding = Coding::new(bits, Levels::Codebook, None, source.held(), false)
        .ok_or_else(|| format!("tensor {name} has codes of {bits} bits"))?;
    let signs = derived.signs(file.metadata(), columns)?;
    let rotation = Rotation::new(Blocks::Descending, columns, signs).ok_or_else(|| {
        format!("tensor {name} has {columns} columns; rotations of multiples of 16 are computed")
    })?;
    Ok(Some(Found {
        coding,
        order: CodeOrder::Words,
        codes,
        scales: norms,
        source,
        rows_per_scale: 1,
        biases: None,
        codebook: Some(derived.codebook(file.metadata(), columns, bits)?),
        rotation: Some(rotation),
        also: vec![width],
    }))
}

impl Derived {
    /// Whether the file is a bundle of JANG, where shapes count and the configuration may have widths of another conversion.
    pub(super) fn is_jang(&self, metadata: &Metadata) -> bool {
        let has_its_keys =
            || metadata.iter().any(|(key, _)| key == "weight_format" || key.starts_with("jang"));
        *self.is_jang.get_or_init(has_its_keys)
    }

    /// Signs of the inputs of a matrix: those of the bundle, else of its seed.
    fn signs(&self, metadata: &Metadata, columns: usize) -> Result<Arc<[f32]>, String> {
        if let Some(signs) = self.signs.borrow().get(&columns) {
            return Ok(Arc::clone(signs));
        }
        let seeds = ["mxtq_seed", "jang_config.mxtq_seed"].map(|key| metadata.opt_u64(key).ok().flatten());
        let seed = match seeds {
            [Some(seed), Some(other)] if seed != other => {
                return Err(format!("mxtq_seed is {seed} in config.json and {other} in jang_config.json"));
            }
            [Some(seed), _] | [None, Some(seed)] => seed,
            [None, None] => {
                return Err("neither config.json nor jang_config.json has mxtq_seed, which the signs of the matrices come from"
                    .to_owned());
            }
        };
        let key = format!("jangtq_runtime.signs.{columns}.{seed}");
        let signs = match stated(metadata, &key, columns)? {
            Some(signs) if signs.iter().any(|sign| sign.abs() != 1.0) => {
                return Err(format!("{key} has values other than 1 and -1"));
            }
            Some(signs) => signs.into(),
            None => signs_of(seed, columns),
        };
        self.signs.borrow_mut().insert(columns, Arc::clone(&signs));
        Ok(signs)
    }

    /// What codes stand for: as the bundle says, else the optimum.
    fn codebook(&self, metadata: &Metadata, columns: usize, bits: u32) -> Result<Arc<[u32]>, String> {
        if let Some(codebook) = self.codebooks.borrow().get(&(columns, bits)) {
            return Ok(Arc::clone(codebook));
        }
        let key = format!("jangtq_runtime.codebook.{columns}.{bits}");
        let codebook = match stated(metadata, &key, 1 << bits)? {
            Some(codebook) => codebook,
            None => codebook_of(columns, bits),
        };
        let codebook: Arc<[u32]> = codebook.into_iter().map(f32::to_bits).collect();
        self.codebooks.borrow_mut().insert((columns, bits), Arc::clone(&codebook));
        Ok(codebook)
    }
}

/// An array of the bundle, of `length` finite numbers.
fn stated(metadata: &Metadata, key: &str, length: usize) -> Result<Option<Vec<f32>>, String> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Array(Array::Float32(values)))
            if values.len() == length && values.iter().all(|value| value.is_finite()) =>
        {
            Ok(Some(values.clone()))
        }
        Some(other) => Err(format!("{key} is {}, not {length} finite numbers", other.describe())),
    }
}

/// `numpy.random.default_rng(seed).choice([-1, 1], size=count)`.
fn signs_of(seed: u64, count: usize) -> Arc<[f32]> {
    let mut generator = Pcg64::new(seed);
    let pairs = (0..count.div_ceil(2)).flat_map(|_| {
        // Two draws of 32 bits, the lower ones first; of each the highest bit counts.
        let bits = generator.next();
        [bits >> 31 & 1, bits >> 63]
    });
    pairs.take(count).map(|bit| if bit == 1 { 1.0 } else { -1.0 }).collect()
}

/// Points at which the density is known.
const GRID: usize = 10_000;
/// Rounds at most.
const ROUNDS: usize = 200;

/// The levels that are best for the elements of random unit vectors in `dimensions` dimensions, ascending: Lloyd's rounds on a grid,
/// begun at even distances within three standard deviations.
fn codebook_of(dimensions: usize, bits: u32) -> Vec<f32> {
    let linspace = |first: f64, last: f64, count: usize| {
        let step = (last - first) / (count - 1) as f64;
        (0..count).map(move |index| if index == count - 1 { last } else { first + index as f64 * step })
    };
    let grid: Vec<f64> = linspace(-1.0, 1.0, GRID).collect();
    let exponent = (dimensions as f64 - 3.0) / 2.0;
    let mut density: Vec<f64> = grid.iter().map(|x| (1.0 - x * x).max(0.0).powf(exponent)).collect();
    let mass: f64 = trapezoids(&grid, &density).sum();
    density.iter_mut().for_each(|value| *value /= mass);
    let moments: Vec<f64> = grid.iter().zip(&density).map(|(x, density)| x * density).collect();
    let reach = 3.0 / (dimensions as f64).sqrt();
    let mut levels: Vec<f64> = linspace(-reach, reach, 1 << bits).collect();
    for _ in 0..ROUNDS {
        let mut bounds = vec![-1.0];
        bounds.extend(levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0));
        bounds.push(1.0);
        let next: Vec<f64> = levels
            .iter()
            .enumerate()
            .map(|(index, &level)| {
                let first = grid.partition_point(|&x| x < bounds[index]);
                // The last cell has its end.
                let end = match index + 1 == levels.len() {
                    true => grid.partition_point(|&x| x <= bounds[index + 1]),
                    false => grid.partition_point(|&x| x < bounds[index + 1]),
                };
                let cell = first..end.max(first);
                if cell.len() < 2 {
                    return level;
                }
                let sum =
                    |values: &[f64]| trapezoids(&grid[cell.clone()], &values[cell.clone()]).sum::<f64>();
                let mass = sum(&density);
                if mass > 0.0 { sum(&moments) / mass } else { level }
            })
            .collect();
        let is_same = |(old, new): (&f64, &f64)| (old - new).abs() <= 1e-10 + 1e-5 * new.abs();
        if levels.iter().zip(&next).all(is_same) {
            break;
        }
        levels = next;
    }
    levels.sort_by(f64::total_cmp);
    levels.into_iter().map(|level| level as f32).collect()
}

/// Areas under the lines between neighbours.
fn trapezoids<'a>(x: &'a [f64], y: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    x.windows(2).zip(y.windows(2)).map(|(x, y)| (x[1] - x[0]) * (y[0] + y[1]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codebooks_are_those_of_the_package() {
        let expected: [(usize, u32, &[f64]); 5] = [
            (1024, 2, &[0.014_294_03, 0.047_530_52]),
            (2048, 2, &[0.010_141_45, 0.033_700_48]),
            (4096, 2, &[0.007_191_89, 0.023_889_54]),
            (6144, 2, &[0.005_898_89, 0.019_570_89]),
            (
                4096,
                4,
                &[
                    0.002_480_59,
                    0.007_347_28,
                    0.012_204_59,
                    0.017_253_63,
                    0.022_576_56,
                    0.028_429_35,
                    0.035_457_44,
                    0.045_595_89,
                ],
            ),
        ];
        for (dimensions, bits, positive) in expected {
            let codebook = codebook_of(dimensions, bits);
            let half = codebook.len() / 2;
            for (index, expected) in positive.iter().enumerate() {
                // Printed with eight digits behind the point; a level has 24 bits.
                for found in [codebook[half + index], -codebook[half - 1 - index]] {
                    assert!(
                        (f64::from(found) - expected).abs() < 7e-9,
                        "{dimensions}, {bits}: {found}, not {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn signs_are_those_of_numpy() {
        let signs = signs_of(42, 4096);
        let first: String = signs[..16].iter().map(|&sign| if sign > 0.0 { '+' } else { '-' }).collect();
        assert_eq!(first, "-++--+-+--++++++");
        assert_eq!(signs.iter().filter(|&&sign| sign > 0.0).count(), 2036);
        assert_eq!(signs_of(42, 7)[..], signs[..7]);
    }
}
