//! Conversations of one runtime share the planned positions of the KV cache: the plan says how many, no answer depends on who
//! has them, and what a dropped conversation had serves the next one.
//!
//! What could go wrong: pages that stay taken when a session is dropped, a session that believes its tokens are still there
//! when another one took their place, a pool that is larger than its share of the plan.

use crate::common::{demo, load};
use coldpress::{Bytes, GenerateOptions, Generation, LoadConfiguration, Runtime, Session, Silent};

const CONTEXT: u32 = 200;

fn prompt(runtime: &Runtime, text: &str) -> Vec<u32> {
    let ids = runtime.encode(&text.repeat(24), false).expect("encodes");
    ids[..120].to_vec()
}

fn ask(runtime: &mut Runtime, session: &mut Session, prompt: &[u32]) -> Generation {
    let options = GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
    runtime.generate(session, prompt, &options, &mut Silent).expect("answers")
}

fn with_positions(positions: u32) -> Runtime {
    load(&demo(), &LoadConfiguration::default().context(CONTEXT).kv_positions(positions))
}

fn kv_held(runtime: &Runtime) -> Bytes {
    let used = runtime.status().ledger.used_for;
    used.iter().find(|(of, _)| of.name() == "KV cache").expect("a purpose of the ledger").1
}

#[test]
fn who_comes_first_gives_way_and_no_answer_changes() {
    let (whale, house) = ("The whale is the largest animal. ", "An old house stood in the lane. ");
    for (positions, stays) in [(0, false), (256, false), (2 * 256, true)] {
        let mut runtime = with_positions(positions);
        let prompts = [whale, house].map(|text| prompt(&runtime, text));
        let expected = prompts.clone().map(|prompt| {
            let mut session = runtime.session().expect("a session");
            ask(&mut runtime, &mut session, &prompt).tokens
        });
        let mut sessions = [0, 1].map(|_| runtime.session().expect("a session"));
        for round in 0..3 {
            for which in [0, 1] {
                let answer = ask(&mut runtime, &mut sessions[which], &prompts[which]);
                assert_eq!(answer.tokens, expected[which], "{positions} positions, round {round}");
                let cached = if round > 0 && stays { 119 } else { 0 };
                assert_eq!(answer.cached_tokens, cached, "{positions} positions, round {round}");
            }
        }
        let again = ask(&mut runtime, &mut sessions[1], &prompts[1]);
        assert_eq!((again.tokens, again.cached_tokens), (expected[1].clone(), 119));
    }
}

#[test]
fn the_plan_says_what_the_conversations_share() {
    for (positions, planned) in [(0, 256), (1, 256), (201, 256), (257, 320), (1000, 1024)] {
        let mut runtime = with_positions(positions);
        let _session = runtime.session().expect("a session");
        let plan = runtime.status().plan.plan;
        assert_eq!((plan.context, plan.kv_tokens), (CONTEXT, planned));
        assert_eq!(kv_held(&runtime), plan.kv);
        let one = load(&demo(), &LoadConfiguration::default().context(64));
        let per_page = one.status().plan.plan.kv.0 as f64;
        assert!((plan.kv.0 as f64 / per_page / (planned as f64 / 64.0) - 1.0).abs() < 0.05, "{plan:?}");
    }
}

#[test]
fn dropped_conversations_leave_nothing_behind() {
    let mut runtime = with_positions(0);
    let prompt = prompt(&runtime, "The whale is the largest animal. ");
    let mut kept = runtime.session().expect("a session");
    ask(&mut runtime, &mut kept, &prompt[..8]);
    for _ in 0..5 {
        let mut session = runtime.session().expect("a session");
        ask(&mut runtime, &mut session, &prompt);
    }
    // Three pages of the last one and one of this one are all there are.
    let last = ask(&mut runtime, &mut kept, &prompt[..8]);
    assert_eq!(last.cached_tokens, 7, "nobody needed its place: the others were gone");
    assert_eq!(kv_held(&runtime), runtime.status().plan.plan.kv);
}
