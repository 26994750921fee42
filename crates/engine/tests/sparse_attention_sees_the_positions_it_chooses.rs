//! Sparse attention sees all positions up to as many as are chosen, and the chosen ones alone beyond, whatever the form in which a
//! file says which layers choose.
//!
//! What could go wrong: a row that chooses one position too early or too late, a choice that depends on the chunk or is that of
//! another row, a layer that takes over the choice of another layer than the last one with an indexer.

use coldpress::{KvType, LoadConfiguration};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference};
use crate::families::{bits, exact, logits_of, refusal};

fn run(checkpoint: &Checkpoint, configuration: &LoadConfiguration, ids: &[u32]) -> Vec<u32> {
    bits(&logits_of(checkpoint.write().path(), configuration, ids))
}

/// The same model without its indexer.
fn dense(checkpoint: &Checkpoint) -> Checkpoint {
    let mut dense = checkpoint.clone();
    let config = dense.config.as_object_mut().expect("an object");
    for key in ["index_topk", "index_head_dim", "index_n_heads", "layer_types"] {
        config.remove(key);
    }
    dense.config["model_type"] = json!("deepseek_v3");
    dense.tensors.retain(|tensor| !tensor.name.contains(".indexer."));
    dense
}

#[test]
fn positions_are_chosen_from_one_beyond_the_number_on() {
    let Some(reference) = Reference::open("deepseek_v32") else { return };
    let mut sparse = Checkpoint::read(&reference.folder);
    let dense = dense(&sparse);
    for top_k in [8, 31, 33] {
        sparse.config["index_topk"] = json!(top_k);
        for (count, same) in [(top_k - 1, true), (top_k, true), (top_k + 1, false), (top_k + 2, false)] {
            let ids = &reference.ids[..count];
            for chunk in [7, 64] {
                let configuration = exact().chunk_tokens(chunk);
                let equal = run(&sparse, &configuration, ids) == run(&dense, &configuration, ids);
                assert_eq!(equal, same, "{count} tokens of which {top_k} are chosen, in chunks of {chunk}");
            }
        }
    }
}

/// Halves are stored rounded, so a key must be rounded before its own chunk looks at it.
#[test]
fn chunks_and_threads_change_no_bit_with_half_precision() {
    for name in ["deepseek_v32", "glm_moe_dsa"] {
        let Some(reference) = Reference::open(name) else { continue };
        let checkpoint = Checkpoint::read(&reference.folder);
        let half = exact().kv_type(KvType::F16);
        let expected = run(&checkpoint, &half, &reference.ids);
        for (chunk, threads) in [(1, 2), (7, 1), (33, 3)] {
            let found = run(&checkpoint, &half.clone().chunk_tokens(chunk).threads(threads), &reference.ids);
            assert!(found == expected, "{name}: other bits in chunks of {chunk} with {threads} threads");
        }
    }
}

#[test]
fn layers_that_share_a_choice_are_named_in_several_ways() {
    let Some(reference) = Reference::open("glm_moe_dsa") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = run(&checkpoint, &exact(), &reference.ids);
    let with = |changes: &[(&str, Value)]| {
        let mut other = checkpoint.clone();
        other.config.as_object_mut().expect("an object").remove("indexer_types");
        for (key, value) in changes {
            other.config[*key] = value.clone();
        }
        other
    };
    let spellings: [&[(&str, Value)]; 3] = [
        &[],
        &[("index_topk_pattern", json!("FS"))],
        &[("index_topk_freq", json!(2)), ("index_skip_topk_offset", json!(1))],
    ];
    for changes in spellings {
        assert!(run(&with(changes), &exact(), &reference.ids) == expected, "{changes:?}");
    }
    let refused: [(&[(&str, Value)], &str); 5] = [
        (&[("indexer_types", json!(["shared", "full"]))], "the first layer has no indexer"),
        (&[("indexer_types", json!(["full"]))], "indexer_types has 1 entries for 2 layers"),
        (&[("indexer_types", json!(["full", "half"]))], "indexer_types has a layer that is 'half'"),
        (&[("indexer_types", json!(["full", "full"]))], "model.layers.1.self_attn.indexer"),
        (&[("index_topk", json!(0))], "index_topk is 0"),
    ];
    for (changes, part) in refused {
        let error = refusal(&with(changes));
        assert!(error.contains(part), "{changes:?}: {error}");
    }
    let mut more = checkpoint.clone();
    let mut tensor = more.tensor("model.layers.0.self_attn.indexer.wk.weight").clone();
    tensor.name = tensor.name.replace("layers.0", "layers.1");
    more.tensors.push(tensor);
    assert!(refusal(&more).contains("model.layers.1.self_attn.indexer.wk"), "{}", refusal(&more));
}
