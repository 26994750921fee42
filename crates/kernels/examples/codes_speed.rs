//! How fast matrices of codes are, beside blocks and floats: one activation row on a matrix larger than the caches, and 64 rows on a
//! small one. Medians of turns, two threads.
//!
//! `cargo run --release -p coldpress-kernels --example codes_speed`

use std::time::Instant;

use coldpress_kernels::{
    ActivationBlock, Coding, InputRows, Kernels, Levels, MatmulJob, MatrixRef, ScaleFormat, WeightFormat,
    matmul, packed_bytes,
};
use coldpress_workers::Workers;

const COLUMNS: usize = 4096;
const TURNS: usize = 15;

fn codes(
    bits: u32,
    levels: Levels,
    group: Option<usize>,
    scales: ScaleFormat,
    has_bias: bool,
) -> WeightFormat {
    WeightFormat::Codes(Coding::new(bits, levels, group, scales, has_bias).expect("a coding"))
}

fn main() {
    use {Levels as L, ScaleFormat as S};
    let formats = [
        WeightFormat::BF16,
        WeightFormat::Q8_0,
        WeightFormat::Q4K,
        codes(2, L::Unsigned, Some(64), S::Bf16, true),
        codes(3, L::Unsigned, Some(64), S::Bf16, true),
        codes(4, L::Unsigned, Some(64), S::Bf16, true),
        codes(6, L::Unsigned, Some(64), S::Bf16, true),
        codes(8, L::Unsigned, Some(64), S::Bf16, true),
        codes(4, L::OffsetBinary, Some(32), S::Bf16, false),
        codes(4, L::E2m1, Some(32), S::Bf16, false),
        codes(8, L::E4m3, Some(128), S::F32, false),
        codes(2, L::Codebook, None, S::F16, false),
        codes(4, L::Codebook, None, S::F16, false),
    ];
    let kernels = Kernels::detect();
    let workers = Workers::new(2);
    println!("{}, two threads\n", kernels.isa());
    println!(
        "| format | bits per weight | 1 row: G weights/s | GB/s | 64 rows: GOP/s |\n|---|---|---|---|---|"
    );
    for format in formats {
        let bits = packed_bytes(format, 16, COLUMNS) as f64 * 8.0 / (16 * COLUMNS) as f64;
        let many = (128 << 20) * 8 / (bits as usize * COLUMNS) / 16 * 16;
        let single = seconds(&workers, kernels, format, many, 1);
        let rows = seconds(&workers, kernels, format, 512, 64);
        let rate = (many * COLUMNS) as f64 / single;
        let operations = 2.0 * (512 * COLUMNS * 64) as f64 / rows;
        println!(
            "| {format} | {bits:.2} | {:.1} | {:.1} | {:.0} |",
            rate / 1e9,
            rate * bits / 8e9,
            operations / 1e9
        );
    }
}

/// Median seconds of a product.
fn seconds(workers: &Workers, kernels: Kernels, format: WeightFormat, rows: usize, inputs: usize) -> f64 {
    // A constant byte is a valid weight in every format.
    let packed = vec![0x2b_u8; packed_bytes(format, rows, COLUMNS)];
    let floats: Vec<f32> = (0..inputs * COLUMNS).map(|at| (at % 17) as f32 - 8.0).collect();
    let blocks: Vec<ActivationBlock> =
        floats.as_chunks::<32>().0.iter().map(ActivationBlock::quantize).collect();
    let mut output = vec![0.0; inputs * rows];
    let mut times: Vec<f64> = (0..TURNS)
        .map(|_| {
            let weights = MatrixRef::new(format, rows, COLUMNS, &packed).expect("shape fits");
            let input = InputRows::new(COLUMNS, &floats, &blocks);
            let start = Instant::now();
            workers.enter(|team| matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]));
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[TURNS / 2]
}
