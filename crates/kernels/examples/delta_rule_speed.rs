//! Measures the delta rule: milliseconds per call, multiply-adds per second, and bytes of state per second, for the shapes of
//! Qwen3-Next (one decay per head) and Kimi Linear (one per channel).
//!
//! `cargo run --release -p coldpress-kernels --example delta_rule_speed [ISA]`

mod clock;

use coldpress_kernels::recurrent::{
    Columns, Decay, DeltaRows, DeltaShape, KeyHeads, delta_rule, delta_state_len,
};
use coldpress_kernels::{Isa, Kernels};
use coldpress_workers::Workers;

use clock::measure;

/// Rows of one call.
const ROWS: [usize; 4] = [1, 8, 128, 512];

fn measure_shape(kernels: Kernels, threads: usize, name: &str, shape: DeltaShape, per_channel: bool) {
    let DeltaShape { heads, key_heads, key_dim, value_dim, .. } = shape;
    let (keys, values) = (key_heads * key_dim, heads * value_dim);
    let decays = heads * if per_channel { key_dim } else { 1 };
    let workers = Workers::new(threads);
    for rows in ROWS {
        // Long keys would let the state grow without bound over many calls.
        let (key, value) = (vec![0.05; rows * keys], vec![0.5; rows * values]);
        let (decay, beta) = (vec![0.9; rows * decays], vec![0.5; rows * heads]);
        let mut state = vec![0.0; delta_state_len(shape)];
        let mut out = vec![0.0; rows * values];
        let decay = Columns::whole(&decay, decays);
        let input = DeltaRows {
            rows,
            query: Columns::whole(&key, keys),
            key: Columns::whole(&key, keys),
            value: Columns::whole(&value, values),
            decay: if per_channel { Decay::PerChannel(decay) } else { Decay::PerHead(decay) },
            beta: Columns::whole(&beta, heads),
        };
        let seconds =
            workers.enter(|team| measure(|| delta_rule(team, kernels, shape, input, &mut state, &mut out)));
        // Decay, recall, correction and reading: four operations on each element, of which three are multiply-adds.
        let multiply_adds = 3.0 * (rows * state.len()) as f64;
        let bytes = 2.0 * size_of_val(state.as_slice()) as f64;
        println!(
            "{name:<12} {threads} threads, {rows:>3} rows: {:>8.3} ms, {:>6.1} G multiply-adds/s, state {:>6.1} GB/s",
            1e3 * seconds,
            multiply_adds / seconds / 1e9,
            bytes / seconds / 1e9
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
    let shape = |heads, key_heads| DeltaShape {
        heads,
        key_heads,
        key_dim: 128,
        value_dim: 128,
        key_heads_of: KeyHeads::Grouped,
    };
    for threads in [1, 2] {
        measure_shape(kernels, threads, "qwen3_next", shape(32, 16), false);
        measure_shape(kernels, threads, "kimi_linear", shape(32, 32), true);
    }
}
