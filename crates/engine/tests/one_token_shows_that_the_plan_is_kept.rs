//! The one-token probe: after a token no share of the plan is exceeded, for any context, chunk and way to hold experts.
//!
//! A share that is rounded differently in plan and allocation, or a buffer that nobody planned, is found here by name. Memory of
//! the process counts, so this file has one test.

mod common;

use coldpress::{KvType, LoadConfiguration, Residency};
use common::{demo, fixture, load};

#[test]
fn no_share_is_exceeded_whatever_is_asked_for() {
    let models = [demo(), fixture("mixtral.gguf"), fixture("qwen2moe.gguf"), fixture("qwen3moe.gguf")];
    for model in models {
        for residency in [Residency::Resident, Residency::Streamed] {
            for (context, chunk, threads) in [(33, 1, 1), (100, 7, 2), (127, 127, 2)] {
                for kv in [KvType::F16, KvType::F32] {
                    let configuration = LoadConfiguration::default()
                        .residency(residency)
                        .context(context)
                        .chunk_tokens(chunk)
                        .threads(threads)
                        .kv_type(kv);
                    let mut runtime = load(&model, &configuration);
                    let report = runtime.probe().unwrap_or_else(|error| {
                        panic!("{}, {configuration:?}: {error}", model.display());
                    });
                    for share in &report.shares {
                        let close =
                            share.held.0 * 100 >= share.planned.0 * 95 || share.purpose.name() == "fixed";
                        // The read ring is planned for loading too, which is over.
                        assert!(
                            close || share.purpose.name() == "read ring" || share.planned.0 < 1 << 20,
                            "{}: {share:?} of {configuration:?}",
                            model.display()
                        );
                    }
                }
            }
        }
    }
}
