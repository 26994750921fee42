//! A panic in a worker that is swallowed leaves a matrix half written, one that kills the worker leaves the pool short,
//! and one that unwinds the caller while workers still run frees memory under their hands. A panic must stop the region,
//! arrive at the caller with its message, and leave the pool as it was.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use coldpress_workers::{Team, Workers};

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("")
}

fn runs_everything(team: &Team<'_>) {
    let runs = AtomicUsize::new(0);
    team.for_each_chunk(100, |_, _| _ = runs.fetch_add(1, Ordering::Relaxed));
    assert_eq!(runs.into_inner(), 100);
}

#[test]
fn from_any_thread_and_the_pool_stays_usable() {
    for threads in [1, 2, 5] {
        let workers = Workers::new(threads);
        for victim in [0, 1, 49, 99] {
            let running = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                workers.enter(|team| {
                    team.for_each_chunk(100, |chunk, _| {
                        running.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        assert!(chunk != victim, "chunk {victim} gives up");
                    });
                });
            }));
            assert_eq!(message(&*result.expect_err("the panic arrives")), format!("chunk {victim} gives up"));
            assert_eq!(running.into_inner(), 0, "no body runs after the region");
            workers.enter(runs_everything);
        }
    }
}

#[test]
fn inside_one_enter_regions_go_on_after_a_caught_panic() {
    let workers = Workers::new(3);
    workers.enter(|team| {
        for _ in 0..200 {
            let region = AssertUnwindSafe(|| team.for_each_chunk(8, |chunk, _| assert!(chunk != 5, "five")));
            assert_eq!(message(&*catch_unwind(region).expect_err("the panic arrives")), "five");
            runs_everything(team);
        }
    });
}

#[test]
fn every_chunk_may_panic() {
    let workers = Workers::new(4);
    for _ in 0..100 {
        let region = AssertUnwindSafe(|| workers.enter(|team| team.for_each_chunk(16, |_, _| panic!("all"))));
        assert_eq!(message(&*catch_unwind(region).expect_err("the panic arrives")), "all");
    }
    workers.enter(runs_everything);
}

#[test]
fn a_panic_between_regions_lets_the_pool_go() {
    let workers = Workers::new(2);
    catch_unwind(AssertUnwindSafe(|| workers.enter(|_| panic!("between")))).expect_err("the panic arrives");
    workers.enter(runs_everything);
}

#[test]
fn entering_from_inside_is_refused_with_a_message() {
    let (workers, other) = (Workers::new(2), Workers::new(2));
    for inner in [&workers, &other] {
        let nested = AssertUnwindSafe(|| workers.enter(|_| inner.enter(|_| {})));
        let panic = catch_unwind(nested).expect_err("refused");
        assert!(message(&*panic).contains("do not nest"), "{}", message(&*panic));
        let in_body =
            AssertUnwindSafe(|| workers.enter(|team| team.for_each_chunk(4, |_, _| inner.enter(|_| {}))));
        let panic = catch_unwind(in_body).expect_err("refused");
        assert!(message(&*panic).contains("do not nest"), "{}", message(&*panic));
    }
    workers.enter(runs_everything);
}
