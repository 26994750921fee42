//! How fast the matrix kernels read weights, and how fast they compute a short prompt.
//!
//! For each format and instruction set of this machine, with 1 and 2 threads: GB/s of packed weights in a matrix-vector
//! product over a matrix larger than the caches, next to a plain read of the same bytes, and over one that stays in the L2
//! cache (what the kernel itself can do); and multiply-adds (as GFLOP/s,
//! two per multiply-add) of 32 activation rows by one matrix. Best of several runs.
//!
//! The last column is how fast source rows are packed (GB/s of source bytes, 1 thread).
//!
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo run --release -p coldpress-kernels --example matvec_bandwidth [-- FORMAT...]`
//!
//! The variable makes the allocator ask for huge pages, as the buffers of the product do; with small pages a single
//! stream of reads stops at every page and the first two columns are halved.

use std::hint::black_box;
use std::time::Instant;

use coldpress_kernels::{
    ActivationBlock, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat, matmul, pack_rows,
    packed_bytes, packed_group_bytes, quantize_rows,
};
use coldpress_workers::{Team, Workers};

const COLUMNS: usize = 4096;
const MATVEC_BYTES: usize = 128 << 20;
const CACHED_BYTES: usize = 512 << 10;
const PROMPT_ROWS: usize = 32;
const PROMPT_WEIGHT_ROWS: usize = 256;
/// Many short runs, so that some of them are undisturbed.
const RUNS: usize = 40;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    // A constant byte is a valid weight in every format: finite scales, no subnormal products.
    let memory = vec![0x2b_u8; MATVEC_BYTES];
    println!("{:<22}{:>36}{:>28}{:>10}", "", "matvec GB/s", "32 rows GFLOP/s", "pack GB/s");
    println!(
        "{:<22}{:>12}{:>12}{:>12}{:>14}{:>14}",
        "", "1 thread", "2 threads", "1, in L2", "1 thread", "2 threads"
    );
    let pools = [Workers::new(1), Workers::new(2)];
    let read =
        pools.each_ref().map(|workers| gigabytes_per_second(MATVEC_BYTES, || plain_read(workers, &memory)));
    let cached = gigabytes_per_second(CACHED_BYTES, || plain_read(&pools[0], &memory[..CACHED_BYTES]));
    println!("{:<22}{:>12.1}{:>12.1}{cached:>12.1}", "plain read", read[0], read[1]);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let kernels = Kernels::for_isa(isa).expect("the instruction set was just checked");
        for format in WeightFormat::ALL {
            if !wanted.is_empty() && !wanted.iter().any(|name| name == format.name()) {
                continue;
            }
            let rates = pools.each_ref().map(|workers| matvec(workers, kernels, format, &memory));
            let cached = matvec(&pools[0], kernels, format, &memory[..CACHED_BYTES]);
            let prompt = pools.each_ref().map(|workers| prompt(workers, kernels, format, &memory));
            let label = format!("{isa} {format}");
            print!("{label:<22}{:>12.1}{:>12.1}{cached:>12.1}", rates[0], rates[1]);
            println!("{:>14.1}{:>14.1}{:>10.1}", prompt[0], prompt[1], pack(format, &memory));
        }
    }
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

fn plain_read(workers: &Workers, memory: &[u8]) {
    let parts: Vec<&[u8]> = memory.chunks(1 << 20).collect();
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

fn prompt(workers: &Workers, kernels: Kernels, format: WeightFormat, memory: &[u8]) -> f64 {
    let scalar = kernels.isa() == Isa::Scalar;
    let rows = if scalar { 64 } else { PROMPT_WEIGHT_ROWS };
    let bytes = rows / 16 * packed_group_bytes(format, COLUMNS);
    let seconds = product_seconds(
        workers,
        kernels,
        format,
        &memory[..bytes],
        rows,
        PROMPT_ROWS,
        if scalar { 1 } else { RUNS },
    );
    2.0 * (rows * COLUMNS * PROMPT_ROWS) as f64 / seconds / 1e9
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
