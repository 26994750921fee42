//! A lost or doubled chunk is a silently wrong matrix row. Many regions of odd sizes run on pools from one thread to
//! far more threads than cores, and every chunk must have run exactly once and its writes be visible afterwards.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicU32, Ordering};

use coldpress_workers::Workers;

#[test]
fn every_chunk_runs_once_on_any_pool() {
    for threads in [1, 2, 3, 16] {
        let workers = Workers::new(threads);
        for round in 0..20 {
            workers.enter(|team| {
                for chunk_count in [0, 1, 2, 3, 7, 64, 1000 + round] {
                    let runs: Vec<AtomicU32> = (0..chunk_count).map(|_| AtomicU32::new(0)).collect();
                    team.for_each_chunk(chunk_count, |chunk, worker| {
                        assert!(worker < threads);
                        runs[chunk].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(runs.iter().all(|run| run.load(Ordering::Relaxed) == 1));
                }
            });
        }
    }
}
