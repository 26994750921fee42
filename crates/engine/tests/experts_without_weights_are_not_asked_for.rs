//! LongCat-Flash: experts that give back their input are nowhere on disk, and nobody asks the store for them.

use coldpress::{LoadConfiguration, Residency};
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference};
use crate::common::{load, logits};
use crate::families::{BOUND, distance, exact, logits_of, refusal};

/// With a bias that makes every token choose identities alone, no expert is asked for; with the opposite bias all are.
#[test]
fn tokens_use_as_many_experts_as_they_choose() {
    let Some(reference) = Reference::open("longcat_flash") else { return };
    let plain = Checkpoint::read(&reference.folder);
    let uses = |favoured: fn(usize) -> bool| {
        let mut checkpoint = plain.clone();
        let bias = checkpoint.tensor("model.layers.0.mlp.router.e_score_correction_bias");
        bias.map(|expert, _| if favoured(expert) { 10.0 } else { 0.0 });
        let streamed: LoadConfiguration = exact().residency(Residency::Streamed).slots(4).chunk_tokens(1);
        let folder = checkpoint.write();
        let mut runtime = load(folder.path(), &streamed);
        let logits = logits(&mut runtime, &reference.ids);
        assert!(logits.iter().all(|logit| logit.is_finite()));
        let experts = runtime.status().experts.expect("a store");
        experts.hits + experts.misses
    };
    let tokens = reference.ids.len() as u64;
    assert_eq!(uses(|expert| expert >= 8), 0, "identities alone");
    assert_eq!(uses(|expert| expert < 8), 3 * tokens, "experts alone");
    assert_eq!(
        uses(|expert| expert == 5 || expert == 9 || expert == 11),
        tokens,
        "one expert, two identities"
    );
}

#[test]
fn what_is_published_of_the_family_is_accepted_and_the_rest_refused() {
    let Some(reference) = Reference::open("longcat_flash") else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let published = [
        ("zero_expert_type", json!("identity")),
        ("attention_method", json!("MLA")),
        ("mla_scale_q_lora", json!(true)),
        ("mla_scale_kv_lora", json!(true)),
        ("num_hidden_layers", json!(2)),
        ("router_bias", json!(false)),
    ];
    for (key, value) in published {
        checkpoint.config[key] = value;
    }
    let worst = distance(&logits_of(checkpoint.write().path(), &exact(), &reference.ids), &reference.logits);
    assert!(worst < BOUND, "logits differ by {worst}");
    for (key, value, part) in [
        ("zero_expert_type", json!("constant"), "zero_expert_type is"),
        ("mla_scale_q_lora", json!(false), "mla_scale_q_lora is"),
        ("num_hidden_layers", json!(3), "num_hidden_layers is 3, with 1 layers of two halves"),
        ("zero_expert_num", json!(3), "has 8 experts and 3 without weights, and its router"),
    ] {
        let mut other = checkpoint.clone();
        other.config[key] = value;
        let error = refusal(&other);
        assert!(error.contains(part), "{key}: {error}");
    }
}
