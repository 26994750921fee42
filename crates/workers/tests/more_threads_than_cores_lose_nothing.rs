//! With more threads than cores a thread may lose its core at any instruction: between claiming and running, while
//! falling asleep, while waking. Pools of many sizes run side by side, with regions of every length, gaps in which the
//! workers fall asleep, and callers that take turns; every sum must come out right and everything must end.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coldpress_workers::Workers;

const TIME: Duration = Duration::from_secs(3);

/// Runs regions until the time is up; returns how many.
fn exercise(workers: &Workers, mut seed: u64) -> u64 {
    let start = Instant::now();
    let mut regions = 0;
    let mut data = vec![0_u64; 1000];
    while start.elapsed() < TIME {
        workers.enter(|team| {
            for _ in 0..50 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = seed >> 33;
                let len = 1 + (random % 1000) as usize;
                let part_len = 1 + (random >> 10) as usize % 40;
                team.for_each_part_mut(&mut data[..len], part_len, |part, values, worker| {
                    assert!(worker < workers.threads());
                    values
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, value)| *value = (part * part_len + i) as u64);
                });
                let sum: u64 = data[..len].iter().sum();
                assert_eq!(sum, (len as u64 - 1) * len as u64 / 2);
                data[..len].fill(u64::MAX);
                regions += 1;
                if random.is_multiple_of(16) {
                    std::thread::sleep(Duration::from_micros(random % 200));
                }
            }
        });
    }
    regions
}

#[test]
fn pools_side_by_side_and_callers_in_turn() {
    let pools = [Workers::new(2), Workers::new(3), Workers::new(9), Workers::new(32)];
    let regions = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (index, workers) in pools.iter().enumerate() {
            for caller in 0..2 {
                let regions = &regions;
                scope.spawn(move || {
                    let done = exercise(workers, (index * 2 + caller) as u64);
                    regions.fetch_add(done, Ordering::Relaxed);
                });
            }
        }
    });
    println!("{} regions", regions.load(Ordering::Relaxed));
    assert!(regions.into_inner() > 400);
}

#[test]
fn scratch_of_a_worker_has_one_user_at_a_time() {
    let workers = Workers::new(7);
    workers.enter(|team| {
        let mut scratch = vec![0_u64; team.threads()];
        for _ in 0..300 {
            team.for_each_chunk_with(&mut scratch, 200, |_, runs| {
                let before = *runs;
                std::hint::spin_loop();
                *runs = before + 1;
            });
        }
        assert_eq!(scratch.iter().sum::<u64>(), 300 * 200);
    });
}

#[test]
fn many_short_lived_pools() {
    for round in 0..200 {
        let workers = Workers::new(1 + round % 6);
        if round % 3 > 0 {
            workers.enter(|team| team.for_each_chunk(10, |_, _| {}));
        }
    }
}

#[test]
fn sizes_out_of_range_are_limited() {
    assert_eq!(Workers::new(0).threads(), 1);
    assert!(Workers::new(usize::MAX).threads() <= coldpress_workers::THREADS_MAX);
}

#[test]
fn workers_do_take_part() {
    let workers = Workers::new(2);
    workers.enter(|team| {
        for gap_us in [0, 10, 1000] {
            std::thread::sleep(Duration::from_micros(gap_us));
            let barrier = std::sync::Barrier::new(2);
            // Each chunk waits for the other: one thread alone would hang here.
            team.for_each_chunk(2, |_, _| _ = barrier.wait());
        }
    });
}
