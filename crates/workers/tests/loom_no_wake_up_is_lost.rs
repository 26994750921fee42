//! A wake-up that is lost once in a million regions hangs a server after an hour; a body called after its caller went
//! on reads freed memory. Loom runs every interleaving of small pools and checks every access.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p coldpress-workers --release --test loom_no_wake_up_is_lost`
#![cfg(loom)]

use coldpress_workers::Workers;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

/// `threads` threads, thread switches at places of their own choice up to `preemptions` times.
fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(scenario);
}

/// Plain memory that loom watches: a missing order between a body and its caller is an error, not a wrong number.
struct Watched(Vec<UnsafeCell<usize>>);

// SAFETY: the regions under test give each element to one chunk at a time; loom reports when they do not.
unsafe impl Sync for Watched {}

impl Watched {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, index: usize) {
        // SAFETY: see `Sync`.
        self.0[index].with_mut(|value| unsafe { *value += 1 });
    }

    fn all_are(&self, wanted: usize) {
        // SAFETY: see `Sync`.
        self.0.iter().for_each(|cell| cell.with(|value| assert_eq!(unsafe { *value }, wanted)));
    }
}

#[test]
fn loom_two_threads_two_regions() {
    check(3, || {
        let workers = Workers::new(2);
        workers.enter(|team| {
            let data = Watched::new(2);
            for region in 1..=2 {
                team.for_each_chunk(2, |chunk, _| data.add(chunk));
                data.all_are(region);
            }
        });
    });
}

#[test]
fn loom_three_threads_one_region() {
    check(2, || {
        let workers = Workers::new(3);
        workers.enter(|team| {
            let data = Watched::new(2);
            team.for_each_chunk(2, |chunk, _| data.add(chunk));
            data.all_are(1);
        });
    });
}

#[test]
fn loom_enter_twice() {
    check(3, || {
        let workers = Workers::new(2);
        for _ in 0..2 {
            let data = Watched::new(2);
            workers.enter(|team| team.for_each_chunk(2, |chunk, _| data.add(chunk)));
            data.all_are(1);
        }
    });
}

#[test]
fn loom_two_callers_take_turns() {
    check(2, || {
        let workers = Arc::new(Workers::new(2));
        let runs = Arc::new(AtomicUsize::new(0));
        let call = |workers: Arc<Workers>, runs: Arc<AtomicUsize>| {
            workers.enter(|team| team.for_each_chunk(2, |_, _| _ = runs.fetch_add(1, Ordering::Relaxed)));
        };
        let other = {
            let (workers, runs) = (Arc::clone(&workers), Arc::clone(&runs));
            loom::thread::spawn(move || call(workers, runs))
        };
        call(Arc::clone(&workers), Arc::clone(&runs));
        other.join().expect("no panic");
        assert_eq!(runs.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn loom_worker_scratch_has_one_user() {
    check(2, || {
        let workers = Workers::new(2);
        workers.enter(|team| {
            let scratch = Watched::new(2);
            let runs = AtomicUsize::new(0);
            team.for_each_chunk(3, |_, worker| {
                scratch.add(worker);
                runs.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(runs.load(Ordering::Relaxed), 3);
        });
    });
}

#[test]
fn loom_drop_without_work() {
    check(3, || {
        let workers = Workers::new(2);
        workers.enter(|_| {});
        drop(workers);
    });
}

/// The caller could run everything alone, so a worker that sleeps through would go unnoticed: here the chunks need
/// each other.
#[test]
fn loom_sleeping_workers_are_woken_by_a_region() {
    check(3, || {
        let workers = Workers::new(2);
        workers.enter(|team| {
            for _ in 0..2 {
                let met = loom::sync::Notify::new();
                team.for_each_chunk(2, |chunk, _| if chunk == 0 { met.wait() } else { met.notify() });
            }
        });
    });
}
