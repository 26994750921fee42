//! Measures attention: milliseconds per call and multiply-adds per second for decode and prefill shapes.
//!
//! For every type of the cache: f16, q8, q4.
//!
//! `cargo run --release -p coldpress-kernels --example attention_speed [ISA]`

mod clock;

use coldpress_kernels::attention::{
    Attention, AttentionShape, BLOCK_NUMBERS, BlockQ4, BlockQ8, KvElements, KvRows, PAGE_POSITIONS,
    attention, quantize_q4, quantize_q8,
};
use coldpress_kernels::{Isa, Kernels};
use coldpress_workers::Workers;
use half::f16;

use clock::measure;

/// Rows of one call and positions that the last row sees.
const CALLS: [(usize, usize); 5] = [(1, 512), (1, 8192), (8, 8192), (512, 512), (512, 8192)];
const SHAPES: [AttentionShape; 3] = [
    AttentionShape { heads: 32, kv_heads: 4, head_dim: 128 },
    AttentionShape { heads: 16, kv_heads: 16, head_dim: 128 },
    AttentionShape { heads: 64, kv_heads: 8, head_dim: 64 },
];

fn noise(len: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A pool of each type with the same numbers.
struct Pools {
    f16: Vec<f16>,
    q8: Vec<BlockQ8>,
    q4: Vec<BlockQ4>,
}

impl Pools {
    fn new(kernels: Kernels, numbers: &[f32]) -> Self {
        let blocks = numbers.len() / BLOCK_NUMBERS;
        let (mut q8, mut q4) =
            (vec![bytemuck::Zeroable::zeroed(); blocks], vec![bytemuck::Zeroable::zeroed(); blocks]);
        Workers::new(1).enter(|team| {
            quantize_q8(team, kernels, numbers, &mut q8);
            quantize_q4(team, kernels, numbers, &mut q4);
        });
        Self { f16: numbers.iter().copied().map(f16::from_f32).collect(), q8, q4 }
    }

    /// Name, elements, numbers of an element, bytes of an element.
    fn all(&self) -> [(&'static str, KvElements<'_>, usize, usize); 3] {
        [
            ("f16", KvElements::F16(&self.f16), 1, size_of::<f16>()),
            ("q8", KvElements::Q8(&self.q8), BLOCK_NUMBERS, size_of::<BlockQ8>()),
            ("q4", KvElements::Q4(&self.q4), BLOCK_NUMBERS, size_of::<BlockQ4>()),
        ]
    }
}

fn measure_call(kernels: Kernels, shape: AttentionShape, rows: usize, positions: usize) {
    let query = noise(rows * shape.query_row_len(), 1);
    let pages: Vec<u32> = (0..positions.div_ceil(PAGE_POSITIONS) as u32).collect();
    let part = PAGE_POSITIONS * shape.kv_row_len();
    let pools = Pools::new(kernels, &noise(pages.len() * 2 * part, 2));
    let first_position = positions - rows;
    let visible = rows * first_position + rows * (rows + 1) / 2;
    let multiply_adds = (2 * visible * shape.query_row_len()) as f64;
    for (threads, (name, pool, numbers, bytes)) in
        [1, 2].into_iter().flat_map(|threads| pools.all().map(|pool| (threads, pool)))
    {
        let bytes = (2 * positions * shape.kv_row_len() / numbers * bytes) as f64;
        let mut out = vec![0.0; query.len()];
        let mut scratch = vec![0.0; shape.scratch_len(rows, threads)];
        let seconds = Workers::new(threads).enter(|team| {
            measure(|| {
                let cache = KvRows {
                    pool,
                    pages: &pages,
                    page_elements: 2 * part / numbers,
                    keys_offset: 0,
                    values_offset: part / numbers,
                };
                let (out, scratch) = (out.as_mut_slice(), scratch.as_mut_slice());
                let scale = 1.0 / (shape.head_dim as f32).sqrt();
                let query = query.as_slice();
                let (window, chunk, sinks) = (None, None, None);
                let call = Attention {
                    shape,
                    query,
                    first_position,
                    cache,
                    scale,
                    window,
                    chunk,
                    sinks,
                    out,
                    scratch,
                };
                attention(team, kernels, call);
            })
        });
        println!(
            "  rows {rows:4} positions {positions:5} threads {threads} {name:>3}: {:9.3} ms  \
             {:6.1} G multiply-adds/s  {:5.1} GB/s of cache",
            seconds * 1e3,
            multiply_adds / seconds * 1e-9,
            bytes / seconds * 1e-9
        );
    }
}

fn main() {
    let isa = std::env::args().nth(1);
    let kernels = match isa.as_deref() {
        None => Kernels::detect(),
        Some(name) => Isa::parse(name).and_then(Kernels::for_isa).expect("an instruction set that runs here"),
    };
    println!("{}", kernels.isa());
    for shape in SHAPES {
        println!("heads {} kv_heads {} head_dim {}", shape.heads, shape.kv_heads, shape.head_dim);
        for (rows, positions) in CALLS {
            measure_call(kernels, shape, rows, positions);
        }
    }
}
