//! Prints what an empty parallel region costs, back to back and after pauses of the caller.
//!
//! `cargo run --release -p coldpress-workers --example region_latency [threads]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use coldpress_workers::{Team, Workers};

const REGIONS: usize = 20_000;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(cores);
    let workers = Workers::new(threads);
    println!(
        "{} threads on {cores} cores; per region, microseconds: median, 99 %, largest",
        workers.threads()
    );
    workers.enter(|team| {
        for chunks_per_thread in [1, 8] {
            let chunk_count = team.threads() * chunks_per_thread;
            report(&format!("{chunk_count} empty chunks"), team, chunk_count, 0, Duration::ZERO);
        }
        for pause_us in [5, 20, 200] {
            let pause = Duration::from_micros(pause_us);
            report(&format!("after {pause_us} us alone"), team, 2 * team.threads(), 0, pause);
        }
        for work_us in [5, 50] {
            let name = format!("{} chunks of {work_us} us", 2 * team.threads());
            report(&name, team, 2 * team.threads(), work_us, Duration::ZERO);
        }
    });
    let mut enters: Vec<f64> = (0..500)
        .map(|_| {
            std::thread::sleep(Duration::from_micros(300));
            let start = Instant::now();
            workers.enter(|team| team.for_each_chunk(2, |chunk, _| _ = black_box(chunk)));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    print_line("enter from sleep, 1 region", &mut enters);
}

fn report(name: &str, team: &Team<'_>, chunk_count: usize, work_us: u64, pause: Duration) {
    let regions = if work_us > 0 || pause > Duration::from_micros(50) { REGIONS / 20 } else { REGIONS };
    let mut times_us = Vec::with_capacity(regions);
    for _ in 0..regions {
        busy(pause);
        let start = Instant::now();
        team.for_each_chunk(chunk_count, |chunk, _| {
            black_box(chunk);
            busy(Duration::from_micros(work_us));
        });
        times_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    print_line(name, &mut times_us);
}

fn busy(time: Duration) {
    if time > Duration::ZERO {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

fn print_line(name: &str, times_us: &mut [f64]) {
    times_us.sort_by(f64::total_cmp);
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize];
    println!("{name:<28} {:>8.2} {:>8.2} {:>8.1}", at(0.5), at(0.99), at(1.0));
}
