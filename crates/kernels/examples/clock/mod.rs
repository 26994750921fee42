//! The clock of the examples that measure single kernels.

use std::time::Instant;

/// Seconds of the fastest call: the one that other programs disturbed least.
pub fn measure(mut call: impl FnMut()) -> f64 {
    let mut seconds = Vec::new();
    let start = Instant::now();
    while seconds.len() < 5 || (start.elapsed().as_secs_f64() < 0.5 && seconds.len() < 400) {
        let call_start = Instant::now();
        call();
        seconds.push(call_start.elapsed().as_secs_f64());
    }
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}
