//! Attention cases for the tests, with the same numbers for the same case.
#![allow(dead_code)]

use std::ops::Range;

use coldpress_kernels::attention::{
    Attention, AttentionShape, KvElements, KvRows, PAGE_POSITIONS, attention,
};
use coldpress_kernels::{Isa, Kernels};
use coldpress_workers::Workers;
use half::f16;

/// Inputs of one attention layer for some rows.
#[derive(Clone)]
pub struct Case {
    pub shape: AttentionShape,
    pub first_position: usize,
    pub query: Vec<f32>,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub half: bool,
    /// Which page of the pool holds the positions `64 * index ..`.
    pub pages: Vec<u32>,
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    pub sinks: Option<Vec<f32>>,
    /// Whether values are read where keys are.
    pub shared: bool,
}

/// The kernels of every instruction set of this machine; scalar is the first.
pub fn all_kernels() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect()
}

/// Numbers in `-1..1`, the same for the same seed.
pub fn noise(len: usize, mut seed: u64) -> Vec<f32> {
    seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn widened(values: &[f32], half: bool) -> Vec<f32> {
    values.iter().map(|&value| if half { f16::from_f32(value).to_f32() } else { value }).collect()
}

impl Case {
    pub fn new(
        (heads, kv_heads, head_dim): (usize, usize, usize),
        first_position: usize,
        rows: usize,
    ) -> Case {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        let cached = (first_position + rows) * shape.kv_row_len();
        // Large enough that some keys get most of the weight.
        let query = noise(rows * shape.query_row_len(), 1).into_iter().map(|x| 4.0 * x).collect();
        let (keys, values) = (noise(cached, 2), noise(cached, 3));
        let pages = (0..(first_position + rows).div_ceil(PAGE_POSITIONS) as u32).collect();
        Case {
            shape,
            first_position,
            query,
            keys,
            values,
            half: true,
            pages,
            window: None,
            chunk: None,
            sinks: None,
            shared: false,
        }
    }

    /// Pages in an order that the seed decides, with free pages between them.
    pub fn scattered(mut self, seed: u64) -> Case {
        let mut places: Vec<(f32, u32)> = noise(3 * self.pages.len(), seed).into_iter().zip(0..).collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.pages = places[..self.pages.len()].iter().map(|place| place.1).collect();
        self
    }

    /// The pool: keys and values where the page table says, NaN everywhere else. Another layer lies before the keys.
    fn pool(&self) -> Vec<f32> {
        let row_len = self.shape.kv_row_len();
        let page_len = self.page_elements();
        let last = self.pages.iter().copied().max().map_or(0, |page| page as usize + 1);
        let mut pool = vec![f32::NAN; last * page_len];
        for (rows, offset) in [(&self.keys, self.keys_offset()), (&self.values, self.values_offset())] {
            for (rows, &page) in rows.chunks(PAGE_POSITIONS * row_len).zip(&self.pages) {
                let start = page as usize * page_len + offset;
                pool[start..start + rows.len()].copy_from_slice(rows);
            }
        }
        pool
    }

    fn keys_offset(&self) -> usize {
        48
    }

    fn values_offset(&self) -> usize {
        if self.shared {
            return self.keys_offset();
        }
        self.keys_offset() + PAGE_POSITIONS * self.shape.kv_row_len()
    }

    fn page_elements(&self) -> usize {
        self.values_offset() + PAGE_POSITIONS * self.shape.kv_row_len()
    }

    pub fn single(mut self) -> Case {
        self.half = false;
        self
    }

    /// Values are the keys, as in latent attention.
    pub fn values_in_keys(mut self) -> Case {
        self.values.clone_from(&self.keys);
        self.shared = true;
        self
    }

    pub fn window(mut self, window: usize) -> Case {
        self.window = Some(window);
        self
    }

    pub fn chunk(mut self, chunk: usize) -> Case {
        self.chunk = Some(chunk);
        self
    }

    pub fn with_sinks(mut self) -> Case {
        self.sinks = Some(noise(self.shape.heads, 4).into_iter().map(|x| 3.0 * x).collect());
        self
    }

    pub fn rows(&self) -> usize {
        self.query.len() / self.shape.query_row_len()
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// Output of the whole case in one call.
    pub fn run(&self, kernels: Kernels, threads: usize) -> Vec<f32> {
        self.run_in_chunks(kernels, threads, self.rows())
    }

    /// Output of the case, `chunk` rows per call. The scratch memory is exactly as long as asked for and full
    /// of NaN.
    pub fn run_in_chunks(&self, kernels: Kernels, threads: usize, chunk: usize) -> Vec<f32> {
        let row_len = self.shape.query_row_len();
        let pool = self.pool();
        let halves: Vec<f16> = pool.iter().map(|&value| f16::from_f32(value)).collect();
        let mut out = vec![f32::NAN; self.query.len()];
        let calls = self.query.chunks(chunk * row_len).zip(out.chunks_mut(chunk * row_len));
        Workers::new(threads).enter(|team| {
            for (call, (query, out)) in calls.enumerate() {
                let mut scratch = vec![f32::NAN; self.shape.scratch_len(query.len() / row_len, threads)];
                let cache = KvRows {
                    pool: if self.half { KvElements::F16(&halves) } else { KvElements::F32(&pool) },
                    pages: &self.pages,
                    page_elements: self.page_elements(),
                    keys_offset: self.keys_offset(),
                    values_offset: self.values_offset(),
                };
                let call = Attention {
                    shape: self.shape,
                    query,
                    first_position: self.first_position + call * chunk,
                    cache,
                    scale: self.scale(),
                    window: self.window,
                    chunk: self.chunk,
                    sinks: self.sinks.as_deref(),
                    out,
                    scratch: &mut scratch,
                };
                attention(team, kernels, call);
            }
        });
        out
    }

    /// Positions that a row sees.
    pub fn visible(&self, row: usize) -> Range<usize> {
        let position = self.first_position + row;
        let sees = |&key: &usize| {
            self.window.is_none_or(|window| position - key < window)
                && self.chunk.is_none_or(|chunk| position / chunk == key / chunk)
        };
        (0..=position).find(sees).unwrap()..position + 1
    }

    /// The textbook formula in f64, with the error that the documentation of `attention` allows.
    pub fn reference(&self) -> Vec<(f64, f64)> {
        let AttentionShape { heads, kv_heads, head_dim } = self.shape;
        let (keys, values) = (widened(&self.keys, self.half), widened(&self.values, self.half));
        let mut result = Vec::new();
        for row in 0..self.rows() {
            for head in 0..heads {
                let query = &self.query[(row * heads + head) * head_dim..][..head_dim];
                let kv_head = head / (heads / kv_heads);
                let at = |position: usize| (position * kv_heads + kv_head) * head_dim;
                let visible = self.visible(row);
                let products = |position: usize| {
                    let key = &keys[at(position)..][..head_dim];
                    query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).collect::<Vec<_>>()
                };
                let scale = f64::from(self.scale());
                let scores: Vec<f64> =
                    visible.clone().map(|key| products(key).iter().sum::<f64>() * scale).collect();
                let size = |key: usize| products(key).iter().map(|x| x.abs()).sum::<f64>() * scale;
                let score_size = visible.clone().map(size).fold(0.0, f64::max);
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
                for dimension in 0..head_dim {
                    let value = |key: usize| f64::from(values[at(key) + dimension]);
                    let exact: f64 =
                        visible.clone().zip(&weights).map(|(key, weight)| weight * value(key)).sum();
                    let value_size = visible.clone().map(|key| value(key).abs()).fold(0.0, f64::max);
                    let roundings =
                        2.0 * (head_dim + 8) as f64 * score_size + 2.0 * visible.len() as f64 + 40.0;
                    result.push((exact / sum, value_size * roundings / (1 << 24) as f64));
                }
            }
        }
        result
    }
}

/// Bits, for comparisons that must be exact.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
