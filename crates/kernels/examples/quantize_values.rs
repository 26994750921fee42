//! Quantises f32 values from standard input to blocks on standard output, for comparison with other quantisers
//! (`tools/quantiser_error.py`), and says on standard error how long it took.
//! usage: quantize_values TYPE [rule]      TYPE as ggml names it; `rule` takes the reference rule instead of the search

use std::io::{Read, Write};
use std::time::Instant;

use coldpress_kernels::WeightFormat;
use coldpress_kernels::blocks::{quantize, quantize_with_search};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("usage: quantize_values TYPE [rule]");
    let by_rule = arguments.next().is_some_and(|way| way == "rule");
    let format = WeightFormat::ALL.into_iter().find(|format| format.name() == name).expect("a type of ggml");
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).expect("values on standard input");
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let mut out = vec![0; format.row_bytes(values.len())];
    let started = Instant::now();
    let quantise = if by_rule { quantize } else { quantize_with_search };
    quantise(format, &values, &mut out).expect("a type with a quantiser");
    eprintln!("{:.6}", started.elapsed().as_secs_f64());
    std::io::stdout().lock().write_all(&out).expect("standard output");
}
