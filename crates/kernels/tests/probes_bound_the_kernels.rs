//! The probes state bounds: no int8 kernel runs faster than the peak of its instruction set, and a read takes time.
//!
//! A loop that the compiler or the processor cuts short would state a peak out of reach; one that waits for its own sums
//! would state a peak that kernels exceed, and every efficiency computed from it would be wrong.

use std::time::{Duration, Instant};

use coldpress_kernels::{
    ActivationBlock, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat, matmul, packed_bytes, probe,
};
use coldpress_workers::Workers;

const ROWS: usize = 64;
const COLUMNS: usize = 1024;
const INPUT_ROWS: usize = 32;

/// Multiplications and additions per second of a product that stays in the caches.
fn kernel_rate(kernels: Kernels) -> f64 {
    let weights = vec![0x2b_u8; packed_bytes(WeightFormat::Q8_0, ROWS, COLUMNS)];
    let weights = MatrixRef::new(WeightFormat::Q8_0, ROWS, COLUMNS, &weights).expect("the size is right");
    let blocks = vec![ActivationBlock::quantize(&[0.5; 32]); INPUT_ROWS * COLUMNS / 32];
    let mut output = vec![0.0_f32; INPUT_ROWS * ROWS];
    let best = Workers::new(1).enter(|team| {
        let mut best = Duration::MAX;
        for _ in 0..50 {
            let started = Instant::now();
            let input = InputRows::from_blocks(COLUMNS, &blocks);
            matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]);
            best = best.min(started.elapsed());
        }
        best
    });
    (2 * ROWS * COLUMNS * INPUT_ROWS) as f64 / best.as_secs_f64()
}

#[test]
fn no_kernel_is_faster_than_the_peak() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let kernels = Kernels::for_isa(isa).expect("the instruction set was just checked");
        let peak = Workers::new(1)
            .enter(|team| probe::int8_peak(team, kernels, Duration::from_millis(120)))
            .operations_per_second;
        let rate = kernel_rate(kernels);
        println!("{isa}: kernel {:.1} of {:.1} GOP/s", rate / 1e9, peak / 1e9);
        // A processor issues a handful of vector instructions per cycle at single-digit GHz: 8 x 64 products x 8 GHz.
        assert!(peak > 1e8 && peak < 1e13, "{isa}: {peak:e}");
        // Clocks move between two measurements, by less than a tenth.
        assert!(isa == Isa::Scalar || rate < 1.1 * peak, "{isa}: kernel {rate:e}, peak {peak:e}");
    }
}

#[test]
fn a_read_takes_as_long_as_its_bytes_need() {
    let data = vec![1_u64; (64 << 20) / 8];
    let rate = Workers::new(2).enter(|team| probe::read_bandwidth(team, &data, Duration::from_millis(50)));
    // Memory that answers with more than 4 TB/s or less than 50 MB/s to two threads does not exist.
    assert!(rate > 5e7 && rate < 4e12, "{rate:e} bytes per second");
}
