//! Qwen4-Exp: tables of n-grams stay on disk in every residency mode and within the budget, an indexer chooses positions from where it
//! says, and a table that is cut short is named.
//!
//! What could go wrong: a table that is loaded with the dense weights, rows that are read twice or not ahead, a block that is chosen one
//! position too early, n-grams over the end of a text.

use coldpress::{Bytes, Residency, Runtime, Silent};
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference};
use crate::common::{load, logits};
use crate::families::{bits, exact, logits_of};

const NAME: &str = "qwen4_exp_text";

fn reserved(runtime: &Runtime, purpose: &str) -> Bytes {
    let used = runtime.status().ledger.used_for;
    used.iter().find(|(of, _)| of.name() == purpose).expect("a purpose of the ledger").1
}

#[test]
fn every_token_reads_its_rows_from_disk_in_every_mode() {
    let Some(reference) = Reference::open(NAME) else { return };
    let folder = reference.linked("config.json");
    let mut expected = None;
    for residency in [Residency::Resident, Residency::Streamed, Residency::Paged] {
        let mut runtime = load(folder.path(), &exact().residency(residency));
        let got = bits(&logits(&mut runtime, &reference.ids));
        assert!(*expected.get_or_insert_with(|| got.clone()) == got, "{}", residency.name());
        let status = runtime.status();
        let rows = status.experts.expect("a store").rows;
        // Two heads for each of two lengths; loading tries one token.
        assert!(rows.asked >= 4 * reference.ids.len() as u64, "{rows:?}");
        assert!(rows.asked == rows.hits + rows.misses + rows.duplicates, "{rows:?}");
        assert!(rows.misses > 50 && rows.prefetched > 50 && rows.latency.count() > 0, "{rows:?}");
        let plan = &status.plan.plan;
        assert!(plan.row_cache > Bytes::ZERO);
        assert!(reserved(&runtime, "row cache") <= plan.row_cache, "{}", plan.row_cache);
    }
}

/// With a budget of 8 positions in blocks of 4, a row chooses two blocks: from the twelfth position on there are three.
#[test]
fn blocks_are_chosen_where_there_are_more_than_the_budget() {
    let Some(reference) = Reference::open(NAME) else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let mut with_budget = |budget: u64, count: usize| {
        checkpoint.config["indexer_budget"] = json!(budget);
        bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids[..count]))
    };
    for (count, same) in [(7, true), (8, true), (9, true), (11, true), (12, false), (13, false)] {
        let few = with_budget(8, count);
        assert_eq!(few == with_budget(400, count), same, "{count} tokens");
    }
}

/// What came before the end of a text is in no n-gram after it: rows are asked for that are the same whatever it was.
#[test]
fn an_end_of_text_separates_n_grams() {
    let Some(reference) = Reference::open(NAME) else { return };
    let folder = reference.linked("config.json");
    let distinct = |ids: &[u32]| {
        let mut runtime = load(folder.path(), &exact().residency(Residency::Resident));
        let before = runtime.status().experts.expect("a store").rows;
        logits(&mut runtime, ids);
        let rows = runtime.status().experts.expect("a store").rows;
        rows.misses + rows.hits - before.misses - before.hits
    };
    // The second half has the n-grams of the first one only where an end of text stands before both.
    let apart = distinct(&[2, 50, 60, 70, 2, 50, 60, 70]);
    let joined = distinct(&[2, 50, 60, 70, 71, 50, 60, 70]);
    assert!(apart < joined, "{apart} rows where n-grams repeat, {joined} where they do not");
}

#[test]
fn a_table_that_is_cut_short_or_of_another_size_is_named() {
    let Some(reference) = Reference::open(NAME) else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    checkpoint.config["ngram_vocab_size_base"] = json!(200);
    let folder = checkpoint.write();
    let error = Runtime::load(folder.path(), &exact(), &mut Silent).err().expect("another size").to_string();
    assert!(error.contains("n-grams of layer 0") && error.contains("512 rows"), "{error}");
}
