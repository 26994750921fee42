//! A prompt of several blocks in one chunk reads no expert twice, as long as the experts of one layer fit the slots.
//!
//! What could go wrong: the second block of a layer finds that the policy has given the records of the first one away, and
//! a prompt of thousands of tokens reads the model again for every few hundred of them.

use coldpress::{ChoiceOrigin, GenerateOptions, LoadConfiguration, POLICIES, Residency, Silent};

#[test]
fn with_slots_for_little_more_than_a_layer() {
    let prompt: Vec<u32> = (0..1500).map(|i| 300 + i * 97 % 7000).collect();
    let records = 8 * 32;
    for policy in POLICIES {
        let configuration = LoadConfiguration::default()
            .residency(Residency::Streamed)
            .slots(48)
            .context(1600)
            .chunk_tokens(1500)
            .policy(policy, ChoiceOrigin::Flag);
        let mut runtime = crate::common::load(&crate::common::demo(), &configuration);
        let mut session = runtime.session().expect("a session");
        let options = GenerateOptions { max_tokens: 1, ..GenerateOptions::default() };
        runtime.generate(&mut session, &prompt, &options, &mut Silent).expect("an answer");
        let counted = runtime.status().experts.expect("a store");
        assert!(counted.misses <= records, "{policy}: {counted:?}");
        assert!(counted.hits >= records, "{policy}: three blocks name most experts: {counted:?}");
    }
}
