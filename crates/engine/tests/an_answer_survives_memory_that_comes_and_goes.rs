//! The budget is changed while tokens are generated, memory is given back while nobody asks: answers stay the same bits, and
//! the ledger is within the budget that holds at the moment.

mod common;

use std::time::{Duration, Instant};

use coldpress::{
    Bytes, GenerateObserver, GenerateOptions, IdleRelease, LoadConfiguration, Residency, Runtime,
    RuntimeHandle, Silent,
};
use common::{demo, load};

const TOKENS: usize = 40;

fn streamed(slots_share: f64) -> LoadConfiguration {
    LoadConfiguration::default().residency(Residency::Streamed).cold_fraction(1.0 - slots_share).context(256)
}

fn prompt(runtime: &Runtime) -> Vec<u32> {
    runtime.encode("The old house stood at the end of the lane, and", false).expect("encodes")
}

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: TOKENS, ignore_eos: true, ..GenerateOptions::default() }
}

fn answer(runtime: &mut Runtime, observer: &mut dyn GenerateObserver) -> Vec<u32> {
    let prompt = prompt(runtime);
    let mut session = runtime.session().expect("a session");
    runtime.generate(&mut session, &prompt, &options(), observer).expect("answers").tokens
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: still not so");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lowers and raises the budget at some tokens and waits until it holds.
struct Changing {
    handle: RuntimeHandle,
    budgets: Vec<Bytes>,
    tokens: usize,
    fewest_slots: u64,
}

impl GenerateObserver for Changing {
    fn token(&mut self, _id: u32) {
        self.tokens += 1;
        if self.tokens.is_multiple_of(4) {
            let budget = self.budgets[self.tokens / 4 % self.budgets.len()];
            self.handle.set_budget(budget).expect("fits");
            // Two looks of the keeper; what has to be given back follows with the next token.
            std::thread::sleep(Duration::from_millis(60));
        }
        let status = self.handle.status();
        assert!(status.computing && status.ledger.used <= status.ledger.budget, "{status:?}");
        if self.tokens % 4 == 2 && self.tokens > 4 {
            let handle = self.handle.clone();
            wait_for(&format!("{status:?}"), || {
                handle.status().ledger.budget == handle.status().budget_asked
            });
        }
        self.fewest_slots = self.fewest_slots.min(status.experts.expect("a store").slots);
    }
}

#[test]
fn a_budget_that_changes_while_tokens_are_generated_changes_no_token() {
    let expected = answer(&mut load(&demo(), &LoadConfiguration::default()), &mut Silent);
    for configuration in
        [streamed(0.6), LoadConfiguration::default().residency(Residency::Resident).context(256)]
    {
        let mut runtime = load(&demo(), &configuration.budget("1GiB".parse().expect("a size")));
        // The plan's budget is larger than what is used, so a lower one has to go below what is used to have an effect.
        let plan = runtime.status().plan.plan;
        let slots = plan.slots.0;
        let used = plan.fixed.0 + plan.dense.0 + plan.kv.0 + plan.scratch.0 + plan.read_ring.0 + slots;
        let budgets = [1 << 30, used - slots / 2, used - slots / 4, used - slots * 3 / 4].map(Bytes);
        let planned = plan.slot_count;
        let handle = runtime.handle();
        let mut changing = Changing { handle, budgets: budgets.to_vec(), tokens: 0, fewest_slots: u64::MAX };
        assert_eq!(answer(&mut runtime, &mut changing), expected);
        assert!(changing.fewest_slots * 2 <= planned, "{} of {planned} slots", changing.fewest_slots);
        // At rest too, and up again.
        let handle = runtime.handle();
        handle.set_budget(Bytes(used - slots / 2)).expect("fits");
        wait_for("less is held at rest", || handle.status().ledger.budget == Bytes(used - slots / 2));
        handle.set_budget(Bytes(1 << 30)).expect("fits");
        assert_eq!(answer(&mut runtime, &mut Silent), expected);
        let refused = handle.set_budget(Bytes(1 << 20)).expect_err("too small").to_string();
        assert!(refused.contains("1.0 MiB") && refused.contains("fewest slots"), "{refused}");
    }
}

#[test]
fn what_was_given_back_while_idle_is_there_again_for_the_next_question() {
    let expected = answer(&mut load(&demo(), &LoadConfiguration::default()), &mut Silent);
    for (name, release) in IdleRelease::ALL {
        let configuration = streamed(0.5).idle_after(Duration::from_millis(100)).idle_release(release);
        let mut runtime = load(&demo(), &configuration);
        let prompt = prompt(&runtime);
        let mut session = runtime.session().expect("a session");
        let handle = runtime.handle();
        for round in 0..3 {
            let answer = runtime.generate(&mut session, &prompt, &options(), &mut Silent).expect("answers");
            assert_eq!(answer.tokens, expected, "{name}, round {round}");
            wait_for(name, || handle.status().released == Some(release));
            wait_for("the experts are given back", || {
                let used = handle.status().ledger.used_for;
                used.iter().all(|(purpose, bytes)| purpose.name() != "expert slots" || *bytes == Bytes::ZERO)
            });
            let plan = runtime.status().plan.plan;
            let used = handle.status().ledger.used;
            match release {
                IdleRelease::Experts => assert!(used >= Bytes(plan.dense.0 + plan.fixed.0)),
                // What the sampler sorts in is small and stays.
                IdleRelease::All => assert!(used.0 <= plan.fixed.0 + (4 << 20), "{used} of {plan:?}"),
            }
        }
        assert!(runtime.status().experts.expect("a store").misses > 0);
    }
}

#[test]
fn a_model_file_that_went_away_while_idle_is_an_error_and_nothing_worse() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::copy(demo(), &path).expect("copies");
    let configuration = streamed(0.5).idle_after(Duration::from_millis(50)).idle_release(IdleRelease::All);
    let mut runtime = load(&path, &configuration);
    let expected = answer(&mut runtime, &mut Silent);
    let handle = runtime.handle();
    wait_for("released", || handle.status().released == Some(IdleRelease::All));
    let elsewhere = folder.path().join("elsewhere.gguf");
    std::fs::rename(&path, &elsewhere).expect("renames");
    let prompt = prompt(&runtime);
    let mut session = runtime.session().expect("a session");
    for _ in 0..2 {
        let error = runtime.generate(&mut session, &prompt, &options(), &mut Silent).expect_err("no file");
        assert!(error.to_string().contains("model.gguf"), "{error}");
    }
    std::fs::rename(&elsewhere, &path).expect("renames back");
    let again = runtime.generate(&mut session, &prompt, &options(), &mut Silent).expect("answers");
    assert_eq!(again.tokens, expected);
}
