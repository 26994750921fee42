//! The plan's figures for the KV cache and for scratch are what a loaded model takes, within 5 %, for every family (grouped-query
//! attention with and without biases and head norms, windows, states of fixed size), all types of the cache that a model may use, one thread and two.
//!
//! What could go wrong: a formula for another kind of attention, per-layer sizes taken from the first layer, a buffer that the
//! formula does not know. Too small breaks the budget, too large refuses models that fit.

#[allow(dead_code)]
mod checkpoint;
mod common;

use coldpress::{Bytes, KvType, LoadConfiguration, Runtime};
use common::{demo, fixture, load};

fn reserved(runtime: &Runtime, purpose: &str) -> Bytes {
    let used = runtime.status().ledger.used_for;
    used.iter().find(|(of, _)| of.name() == purpose).expect("a purpose of the ledger").1
}

fn within_5_percent(planned: Bytes, taken: Bytes) -> bool {
    planned >= taken && planned.0 as f64 <= taken.0 as f64 * 1.05
}

#[test]
fn every_family_precision_and_number_of_threads() {
    let fixtures = ["qwen3moe.gguf", "qwen2moe.gguf", "mixtral.gguf", "lfm2moe.gguf"].map(fixture);
    let families = ["mimo_v2_flash", "granitemoehybrid", "minimax", "qwen3_next", "bailing_hybrid"];
    let references = families.into_iter().filter_map(checkpoint::Reference::open);
    let folders: Vec<_> = references.map(|reference| reference.linked("config.json")).collect();
    let folders = folders.iter().map(|folder| folder.path().to_owned());
    for model in fixtures.into_iter().chain([demo()]).chain(folders) {
        let trained = coldpress::model_summary(&model).expect("a good file").trained_context;
        let context = trained.min(1024) as u32;
        let types = KvType::ALL.into_iter().map(|(_, kv_type)| kv_type).filter(|&kv_type| {
            coldpress::plan(&model, &LoadConfiguration::default().context(context).kv_type(kv_type)).is_ok()
        });
        let types: Vec<KvType> = types.collect();
        assert!(types.len() >= 2, "{}", model.display());
        for kv_type in types {
            for threads in [1, 2] {
                let configuration =
                    LoadConfiguration::default().context(context).kv_type(kv_type).threads(threads);
                let plan = coldpress::plan(&model, &configuration).expect("fits").plan;
                let mut runtime = load(&model, &configuration);
                let session = runtime.session().expect("the cache was planned");
                let kv = reserved(&runtime, "KV cache");
                let scratch = reserved(&runtime, "scratch");
                drop(session);
                let what = format!("{} {} {threads}", model.display(), kv_type.name());
                assert!(kv > Bytes::ZERO && scratch > Bytes::ZERO, "{what}: nothing was measured");
                assert!(within_5_percent(plan.kv, kv), "{what}: KV planned {}, taken {kv}", plan.kv);
                assert!(
                    within_5_percent(plan.scratch, scratch),
                    "{what}: scratch planned {}, taken {scratch}",
                    plan.scratch
                );
            }
        }
    }
}
