//! Measures every kernel of this build that runs here and writes `docs/kernels.md`.
//!
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo run --release -p coldpress-kernels --example kernel_report > docs/kernels.md`
//!
//! The variable makes the allocator ask for huge pages, as the buffers of the product do; with small pages a single stream
//! of reads stops at every page. Names of formats as arguments measure those alone. Best of several runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use coldpress_kernels::{
    ActivationBlock, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat, matmul, pack_rows,
    packed_bytes, packed_group_bytes, probe, quantize_rows,
};
use coldpress_workers::{Team, Workers};

const COLUMNS: usize = 4096;
const MATVEC_BYTES: usize = 128 << 20;
/// Tokens that meet one expert in a short prompt.
const EXPERT_ROWS: usize = 32;
/// Tokens that meet a dense matrix in a prompt.
const DENSE_ROWS: usize = 256;
const PRODUCT_WEIGHT_ROWS: usize = 512;
/// Many short runs, so that some of them are undisturbed.
const RUNS: usize = 40;

const INTRODUCTION: &str = "\
# Kernels

Written by `crates/kernels/examples/kernel_report.rs` from the dispatch table; the command is in its first lines.

One row for each matrix kernel of the build. Matrix-vector: one activation row and a matrix larger than the caches, as in
decode; *of read* compares with a plain read of the same bytes. Products: 32 activation rows, as one expert sees them in
prefill, and 256, as a dense matrix does; *of peak* compares with a loop of the instruction set's dot products on
registers. Packing: source weights per second, one thread. All kernels of a format give the same bits
(`tests/every_kernel_equals_scalar.rs`; those this machine cannot run: `tests/emulated_kernels_equal_scalar.rs` and
`tools/aarch64_kernels.sh`).
";

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    // A constant byte is a valid weight in every format: finite scales, no subnormal products.
    let memory = vec![0x2b_u8; MATVEC_BYTES];
    let pools = [Workers::new(1), Workers::new(2)];
    println!("{INTRODUCTION}");
    let processor = probe::processor_name().unwrap_or_else(|| "unknown processor".to_owned());
    let plain = pools.each_ref().map(|workers| plain_read(workers, &memory));
    println!(
        "Measured on {processor}: plain read {:.1} GB/s with one thread, {:.1} with two.\n",
        plain[0], plain[1]
    );
    let mut missing = Vec::new();
    for isa in Isa::ALL {
        let formats: Vec<WeightFormat> =
            matmul::entries().filter(|&(_, of)| of == isa).map(|(format, _)| format).collect();
        match Kernels::for_isa(isa) {
            Some(kernels) => report(&pools, kernels, &formats, &wanted, &memory, plain[1]),
            None => missing.push((isa, formats)),
        }
    }
    println!("## Not measured\n\nThis machine cannot run them.\n\n| instruction set | formats |\n|---|---|");
    for (isa, formats) in missing {
        let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
        let names = if names.is_empty() { "not in this build".to_owned() } else { names.join(", ") };
        println!("| {isa} | {names} |");
    }
}

fn report(
    pools: &[Workers; 2],
    kernels: Kernels,
    formats: &[WeightFormat],
    wanted: &[String],
    memory: &[u8],
    plain_read: f64,
) {
    let time = Duration::from_millis(100);
    let peaks = pools.each_ref().map(|workers| workers.enter(|team| probe::int8_peak(team, kernels, time)));
    println!(
        "## {}\n\nInt8 peak ({}): {:.0} GOP/s with one thread, {:.0} with two.\n",
        kernels.isa(),
        peaks[0].instruction,
        peaks[0].operations_per_second / 1e9,
        peaks[1].operations_per_second / 1e9
    );
    println!(
        "| format | ns per row | GB/s, 1 thread | 2 threads | of read | 32 rows GOP/s, 1 thread | 2 threads | of peak \
              | 256 rows, 2 threads | of peak | packing GB/s |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for &format in formats {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == format.name()) {
            continue;
        }
        let matvec = pools.each_ref().map(|workers| matvec(workers, kernels, format, memory));
        let expert = pools.each_ref().map(|workers| product(workers, kernels, format, memory, EXPERT_ROWS));
        let dense = product(&pools[1], kernels, format, memory, DENSE_ROWS);
        let peak = peaks[1].operations_per_second / 1e9;
        let of_peak = |rate: f64| {
            if format.takes_int8() { format!("{:.0} %", 100.0 * rate / peak) } else { "-".to_owned() }
        };
        let ns_per_row = (packed_group_bytes(format, COLUMNS) / 16) as f64 / matvec[0];
        println!(
            "| {format} | {ns_per_row:.0} | {:.1} | {:.1} | {:.0} % | {:.0} | {:.0} | {} | {dense:.0} | {} | {:.1} |",
            matvec[0],
            matvec[1],
            100.0 * matvec[1] / plain_read,
            expert[0],
            expert[1],
            of_peak(expert[1]),
            of_peak(dense),
            pack(format, memory)
        );
    }
    println!();
}

/// Seconds of the fastest of some runs; the scalar kernels get one.
fn best_seconds(runs: usize, mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn gigabytes_per_second(bytes: usize, run: impl FnMut()) -> f64 {
    bytes as f64 / best_seconds(RUNS, run) / 1e9
}

/// GB/s.
fn plain_read(workers: &Workers, memory: &[u8]) -> f64 {
    let parts: Vec<&[u8]> = memory.chunks(1 << 20).collect();
    gigabytes_per_second(memory.len(), || {
        workers.enter(|team| {
            team.for_each_chunk(parts.len(), |part, _worker| {
                let mut sums = [0_u64; 16];
                for line in parts[part].as_chunks::<128>().0 {
                    for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                        *sum = sum.wrapping_add(u64::from_le_bytes(*word));
                    }
                }
                black_box(sums);
            });
        });
    })
}

fn matvec(workers: &Workers, kernels: Kernels, format: WeightFormat, memory: &[u8]) -> f64 {
    let scalar = kernels.isa() == Isa::Scalar;
    let group_bytes = packed_group_bytes(format, COLUMNS);
    let groups = (memory.len() / group_bytes / if scalar { 64 } else { 1 }).max(1);
    let seconds = product_seconds(
        workers,
        kernels,
        format,
        &memory[..groups * group_bytes],
        groups * 16,
        1,
        if scalar { 1 } else { RUNS },
    );
    (groups * group_bytes) as f64 / seconds / 1e9
}

/// GOP/s, a multiplication and an addition counted separately.
fn product(
    workers: &Workers,
    kernels: Kernels,
    format: WeightFormat,
    memory: &[u8],
    input_rows: usize,
) -> f64 {
    let scalar = kernels.isa() == Isa::Scalar;
    let rows = if scalar { 64 } else { PRODUCT_WEIGHT_ROWS };
    let bytes = rows / 16 * packed_group_bytes(format, COLUMNS);
    let runs = if scalar { 1 } else { RUNS / 2 };
    let seconds = product_seconds(workers, kernels, format, &memory[..bytes], rows, input_rows, runs);
    2.0 * (rows * COLUMNS * input_rows) as f64 / seconds / 1e9
}

fn pack(format: WeightFormat, memory: &[u8]) -> f64 {
    let rows = 256;
    let source = &memory[..rows * format.row_bytes(COLUMNS)];
    let mut packed = vec![0; packed_bytes(format, rows, COLUMNS)];
    gigabytes_per_second(source.len(), || pack_rows(format, rows, COLUMNS, source, black_box(&mut packed)))
}

fn product_seconds(
    workers: &Workers,
    kernels: Kernels,
    format: WeightFormat,
    packed: &[u8],
    rows: usize,
    input_rows: usize,
    runs: usize,
) -> f64 {
    let weights = MatrixRef::new(format, rows, COLUMNS, packed).expect("whole groups");
    let floats: Vec<f32> = (0..input_rows * COLUMNS).map(|index| (index % 31) as f32 / 31.0 - 0.5).collect();
    let mut blocks = vec![ActivationBlock::ZERO; floats.len() / 32];
    let mut output = vec![0.0; input_rows * rows];
    workers.enter(|team: &Team<'_>| {
        quantize_rows(team, kernels, &floats, &mut blocks);
        best_seconds(runs, || {
            let input = InputRows::new(COLUMNS, &floats, &blocks);
            matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]);
            black_box(&output);
        })
    })
}
