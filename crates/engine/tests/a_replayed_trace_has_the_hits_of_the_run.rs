//! The simulator is the store without bytes: replaying the recorded routing of a run gives the hits and misses that the run
//! itself counted, for every policy.
//!
//! What could go wrong: the simulator calls a policy in another order than the store, pins other slots, or orders a visit
//! differently; then every table made with it would be about a cache that does not exist. Chunks are short here, so that
//! each visit fits the slots of its layer; beyond that the order in which reads land has a say (`simulate` module header).

use coldpress::{
    ChoiceOrigin, GenerateOptions, LoadConfiguration, POLICIES, PolicyKind, Prefetch, Residency, Silent,
    Visits,
};

#[test]
fn for_every_policy() {
    for (slots, chunk) in [(64, 1), (128, 3)] {
        for policy in POLICIES {
            let configuration = LoadConfiguration::default()
                .residency(Residency::Streamed)
                .slots(slots)
                .chunk_tokens(chunk)
                .context(256)
                .threads(2)
                .prefetch(Prefetch::Off, ChoiceOrigin::Flag)
                .policy(policy, ChoiceOrigin::Flag);
            let mut runtime = crate::common::load(&crate::common::demo(), &configuration);
            runtime.start_trace().expect("a model with experts");
            let mut session = runtime.session().expect("a session");
            let options = GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
            for text in ["The old house stood at the end of the lane, and", "def read_file(path):"] {
                session.clear();
                let prompt = runtime.encode(text, false).expect("a prompt");
                runtime.generate(&mut session, &prompt, &options, &mut Silent).expect("an answer");
            }
            let counted = runtime.status().experts.expect("a store");
            let trace = runtime.finish_trace().expect("a trace");
            let kind = PolicyKind::parse(policy).expect("a known name");
            let replayed = Visits::of(&trace).replay(kind, slots as usize);
            assert_eq!(
                (counted.hits, counted.misses),
                (replayed.hits, replayed.misses),
                "{policy}, {slots} slots, chunks of {chunk}"
            );
            assert!(counted.hits > 500 && counted.misses > 500, "{counted:?}");
            assert_eq!(runtime.status().policy, policy);
        }
    }
}

/// A prompt whose chunk asks for more experts than there are slots: close, but reads have a say.
#[test]
fn closely_for_long_chunks() {
    let configuration = LoadConfiguration::default()
        .residency(Residency::Streamed)
        .slots(64)
        .context(256)
        .threads(2)
        .prefetch(Prefetch::Off, ChoiceOrigin::Flag);
    let mut runtime = crate::common::load(&crate::common::demo(), &configuration);
    runtime.start_trace().expect("a model with experts");
    let mut session = runtime.session().expect("a session");
    let prompt: Vec<u32> = (0..100).map(|i| 300 + i * 97 % 7000).collect();
    let options = GenerateOptions { max_tokens: 60, ignore_eos: true, ..GenerateOptions::default() };
    runtime.generate(&mut session, &prompt, &options, &mut Silent).expect("an answer");
    let counted = runtime.status().experts.expect("a store");
    let trace = runtime.finish_trace().expect("a trace");
    let replayed = Visits::of(&trace).replay(PolicyKind::DEFAULT, 64);
    let difference = counted.hits.abs_diff(replayed.hits);
    assert!(difference * 50 <= counted.hits + counted.misses, "{counted:?}, {replayed:?}");
}
