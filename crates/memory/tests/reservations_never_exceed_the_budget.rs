//! A check followed by a charge lets two threads through where one fits. Threads reserve, split and drop at random
//! while the sum of what they really hold is kept beside the ledger; the budget must never be passed, the peak must be
//! a sum that occurred, and nothing may be left at the end. The same while somebody changes the budget: a check of the
//! old budget followed by a charge under the new one would let more be held than the new one allows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};
use proptest::prelude::*;

const BUDGET: u64 = 1000;

/// A small generator, so that each thread has its own sequence.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn concurrent_reservations_stay_within_the_budget() {
    let ledger = Ledger::new(Bytes(BUDGET));
    let held = AtomicU64::new(0);
    let held_max = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 1..=8_u64 {
            let (ledger, held, held_max, refused) = (&ledger, &held, &held_max, &refused);
            scope.spawn(move || {
                let mut state = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut mine = Vec::new();
                for _ in 0..20_000 {
                    let purpose = Purpose::ALL[(next(&mut state) % 7) as usize];
                    if next(&mut state).is_multiple_of(3) && !mine.is_empty() {
                        let index = next(&mut state) as usize % mine.len();
                        let reservation: coldpress_memory::Reservation = mine.swap_remove(index);
                        // Counted off first: the outside sum is never above the true one.
                        held.fetch_sub(reservation.bytes().0, Ordering::SeqCst);
                        drop(reservation);
                        continue;
                    }
                    match ledger.reserve(purpose, Bytes(next(&mut state) % 200)) {
                        Ok(reservation) => {
                            let bytes = reservation.bytes().0;
                            let sum = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            held_max.fetch_max(sum, Ordering::SeqCst);
                            mine.push(reservation);
                        }
                        Err(error) => {
                            assert!(error.asked > error.free, "{error}");
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    assert!(ledger.used().0 <= BUDGET && ledger.peak().0 <= BUDGET);
                }
                for reservation in mine {
                    held.fetch_sub(reservation.bytes().0, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(held_max.into_inner() <= ledger.peak().0 && ledger.peak().0 <= BUDGET);
    assert!(refused.into_inner() > 0, "the budget was never reached: the test shows nothing");
    assert_eq!(ledger.used(), Bytes::ZERO);
    assert!(Purpose::ALL.iter().all(|purpose| ledger.used_for(*purpose) == Bytes::ZERO));
}

/// Threads reserve and drop at random until `done`; `held` never shows more than they hold.
fn hold_and_drop(ledger: &Ledger, held: &AtomicU64, done: &AtomicBool, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut mine = Vec::new();
    while !done.load(Ordering::SeqCst) {
        if next(&mut state).is_multiple_of(2) && !mine.is_empty() {
            let index = next(&mut state) as usize % mine.len();
            let reservation: coldpress_memory::Reservation = mine.swap_remove(index);
            held.fetch_sub(reservation.bytes().0, Ordering::SeqCst);
        } else if let Ok(reservation) = ledger.reserve(Purpose::ExpertSlots, Bytes(next(&mut state) % 200)) {
            held.fetch_add(reservation.bytes().0, Ordering::SeqCst);
            mine.push(reservation);
        }
    }
    for reservation in mine {
        held.fetch_sub(reservation.bytes().0, Ordering::SeqCst);
    }
}

#[test]
fn concurrent_reservations_stay_within_a_budget_that_changes() {
    let ledger = Ledger::new(Bytes(BUDGET));
    let (held, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut lowered, mut refused, mut passed) = (0, 0, 0);
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let (ledger, held, done) = (&ledger, &held, &done);
            scope.spawn(move || hold_and_drop(ledger, held, done, thread));
        }
        let mut state = 0x1234_5678_9abc_def1;
        let began = std::time::Instant::now();
        let shows = |lowered, refused| lowered > 100 && refused > 100;
        for round in 0_u64.. {
            // Where processors are few, the other threads get their turn late.
            if round >= 20_000 && (shows(lowered, refused) || began.elapsed().as_secs() > 20) {
                break;
            }
            let before = ledger.budget();
            let asked = Bytes(next(&mut state) % BUDGET);
            match ledger.set_budget(asked) {
                Ok(()) => lowered += u64::from(asked < before),
                Err(error) => {
                    refused += 1;
                    passed += u64::from(error.used <= asked || error.budget != before || asked >= before);
                }
            }
            // From here on the budget is ours until the next change; whoever still gets through is seen now.
            let budget = ledger.budget().0;
            for _ in 0..20 {
                passed += u64::from(held.load(Ordering::SeqCst) > budget);
            }
        }
        // Threads end before anything is asserted, or a failure would wait for them without end.
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(passed, 0, "more was held than the budget of that moment allowed, or a refusal was wrong");
    assert!(lowered > 100 && refused > 100, "{lowered} lowered, {refused} refused: the test shows nothing");
    assert_eq!((ledger.used(), ledger.free()), (Bytes::ZERO, ledger.budget()));
}

#[test]
fn budgets_set_by_several_threads_add_up_in_the_end() {
    let ledger = Ledger::new(Bytes(BUDGET));
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let ledger = &ledger;
            scope.spawn(move || {
                let mut state = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                for _ in 0..20_000 {
                    ledger.set_budget(Bytes(next(&mut state) % BUDGET)).expect("nothing is in use");
                }
            });
        }
    });
    assert_eq!(ledger.free(), ledger.budget());
    assert!(ledger.budget().0 < BUDGET);
}

proptest! {
    /// One thread, so that sum and peak can be kept exactly beside the ledger.
    #[test]
    fn sum_and_peak_are_exact(steps in prop::collection::vec((0_u64..400, 0_usize..6, any::<bool>()), 1..200)) {
        let ledger = Ledger::new(Bytes(BUDGET));
        let mut held = Vec::new();
        let (mut sum, mut peak) = (0, 0);
        for (bytes, purpose, drop_one) in steps {
            if drop_one && !held.is_empty() {
                let reservation: coldpress_memory::Reservation = held.remove(bytes as usize % held.len());
                sum -= reservation.bytes().0;
            } else if let Ok(reservation) = ledger.reserve(Purpose::ALL[purpose], Bytes(bytes)) {
                sum += bytes;
                peak = peak.max(sum);
                held.push(reservation);
            } else {
                prop_assert!(sum + bytes > BUDGET);
            }
            prop_assert_eq!((ledger.used().0, ledger.peak().0), (sum, peak));
            let by_purpose: u64 = ledger.snapshot().used_for.iter().map(|(_, bytes)| bytes.0).sum();
            prop_assert_eq!(by_purpose, sum);
        }
    }
}

#[test]
fn buffers_are_zeroed_aligned_charged_in_pages_and_returned() {
    let ledger = Ledger::new(Bytes::from_mib(64));
    let page = coldpress_memory::sys::page_size() as u64;
    for len in [0, 1, page - 1, page, page + 1, (4 << 20) - 1, 4 << 20, (9 << 20) + 5] {
        let mut buffer = Buffer::new(&ledger, Purpose::Scratch, Bytes(len)).expect("fits");
        let charged = Bytes(len.next_multiple_of(page));
        assert_eq!((buffer.len() as u64, buffer.reserved(), ledger.used()), (len, charged, charged));
        let alignment = if cfg!(target_os = "linux") && len >= 4 << 20 { 2 << 20 } else { 4096 };
        assert_eq!(buffer.as_bytes().as_ptr() as usize % alignment, 0, "{len} bytes");
        assert!(buffer.as_bytes().iter().all(|byte| *byte == 0));
        buffer.as_bytes_mut().fill(7);
        assert_eq!(buffer.as_slice_of::<f32>().len() as u64, len / 4);
        assert_eq!(buffer.as_mut_slice_of::<u64>().len() as u64, len / 8);
        buffer.discard(0..usize::MAX).expect("own pages");
        let whole_pages = (len / page * page) as usize;
        assert!(buffer.as_bytes()[..whole_pages].iter().all(|byte| *byte == 0));
        assert!(buffer.as_bytes()[whole_pages..].iter().all(|byte| *byte == 7));
    }
    assert_eq!(ledger.used(), Bytes::ZERO);
    let error =
        Buffer::new(&ledger, Purpose::KvCache, Bytes::from_mib(65)).expect_err("over budget").to_string();
    assert!(
        error.contains("KV cache") && error.contains("65.0 MiB") && error.contains("64.0 MiB"),
        "{error}"
    );
}

#[test]
fn impossible_sizes_are_errors_that_charge_nothing() {
    let ledger = Ledger::unlimited();
    for bytes in [u64::MAX, u64::MAX - (1 << 20), 1 << 62] {
        let error = Buffer::new(&ledger, Purpose::ExpertSlots, Bytes(bytes)).expect_err("no such memory");
        assert!(error.to_string().contains("expert slots"), "{error}");
    }
    assert_eq!(ledger.used(), Bytes::ZERO);
}
