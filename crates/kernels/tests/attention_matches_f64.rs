//! Attention against the textbook formula in f64, within the documented bound.
//!
//! What could go wrong: a query head reads another KV head, the padding of an odd head size leaks in, a block
//! or a span is lost or counted twice at its border, the running maximum is not taken out of older blocks,
//! the window is off by one.

use crate::attention_support::Case;
use coldpress_kernels::Kernels;

fn assert_matches(name: &str, case: &Case) {
    let reference = case.reference();
    for threads in [1, 2] {
        let found = case.run(Kernels::detect(), threads);
        assert_eq!(found.len(), reference.len());
        for (index, (found, (exact, bound))) in found.iter().zip(&reference).enumerate() {
            let error = (f64::from(*found) - exact).abs();
            assert!(
                error <= *bound,
                "{name}: {found}, not {exact} (bound {bound:e}) at {index}, {threads} threads"
            );
        }
        // Rounding errors mostly cancel: what is typical is far below the bound.
        let mean = reference
            .iter()
            .zip(&found)
            .map(|((exact, _), found)| (f64::from(*found) - exact).abs())
            .sum::<f64>()
            / found.len() as f64;
        assert!(mean < 4.0 / f64::from(1 << 24), "{name}: mean error {mean:e}");
    }
}

#[test]
fn for_every_head_size() {
    for head_dim in [1, 16, 24, 64, 80, 128, 256] {
        for (heads, kv_heads) in [(1, 1), (6, 2), (8, 1)] {
            let case = Case::new((heads, kv_heads, head_dim), 61, 9);
            assert_matches(&format!("{heads}/{kv_heads}x{head_dim}"), &case);
            assert_matches(&format!("{heads}/{kv_heads}x{head_dim} f32"), &case.single());
        }
    }
}

#[test]
fn at_the_borders_of_blocks_and_spans() {
    for last_position in [0, 1, 15, 16, 62, 63, 64, 65, 127, 511, 512, 513, 1100, 2049] {
        let case = Case::new((4, 2, 32), last_position, 1);
        assert_matches(&format!("decode at {last_position}"), &case);
        if last_position >= 9 {
            let case = Case::new((4, 2, 32), last_position - 9, 10);
            assert_matches(&format!("10 rows up to {last_position}"), &case);
        }
    }
}

#[test]
fn for_a_prompt_from_its_start() {
    assert_matches("grouped", &Case::new((8, 2, 24), 0, 200));
    assert_matches("parts of a group", &Case::new((37, 1, 24), 0, 90).with_sinks());
    assert_matches("values in keys", &Case::new((20, 1, 48), 490, 40).values_in_keys());
    assert_matches("parts of two groups", &Case::new((40, 2, 16), 1000, 1));
    assert_matches("one head per KV head", &Case::new((2, 2, 16), 0, 300));
    assert_matches("more heads in a group than in a chunk", &Case::new((150, 1, 16), 0, 20));
}

#[test]
fn with_a_sliding_window() {
    for window in [1, 2, 63, 64, 65, 100, 600, 5000] {
        for (first_position, rows) in [(0, 150), (700, 1), (690, 40)] {
            let case = Case::new((4, 2, 24), first_position, rows).window(window);
            assert_matches(&format!("window {window} from {first_position}"), &case);
        }
    }
}

#[test]
fn in_chunks_of_positions() {
    for chunk in [1, 8, 64, 100, 512, 700] {
        for (first_position, rows) in [(0, 150), (700, 1), (690, 40)] {
            let case = Case::new((4, 2, 24), first_position, rows).chunk(chunk);
            assert_matches(&format!("chunk {chunk} from {first_position}"), &case);
        }
    }
    assert_matches("chunk and window", &Case::new((4, 2, 24), 600, 90).chunk(64).window(40));
}

#[test]
fn with_attention_sinks() {
    assert_matches("sinks", &Case::new((6, 3, 64), 0, 70).with_sinks());
    assert_matches("sinks and window", &Case::new((6, 3, 64), 600, 5).with_sinks().window(128));
}
