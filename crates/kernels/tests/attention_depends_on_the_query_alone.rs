//! The output of a query has the same bits alone and in any chunk, on any number of threads and any
//! instruction set, and wherever the pages of its keys lie.
//!
//! What could go wrong: blocks that start at the first row instead of fixed positions, tiles that add in
//! another order, spans merged in the order in which threads finish, a tail that goes another way than the
//! full vectors.

use crate::attention_support::{Case, all_kernels, bits};
use coldpress_kernels::Kernels;

fn assert_one_result(name: &str, case: &Case) {
    let kernels = all_kernels();
    let expected = bits(&case.run(kernels[0], 1));
    assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{name}");
    for &kernels in &kernels[1..] {
        for threads in [1, 2, 5] {
            for chunk in [1, 2, 7, 33, 64, case.rows()] {
                let found = bits(&case.run_in_chunks(kernels, threads, chunk));
                assert!(found == expected, "{name}: {} threads {threads} chunk {chunk}", kernels.isa());
            }
        }
    }
    for (threads, chunk) in [(2, 1), (3, 7)] {
        let found = bits(&case.run_in_chunks(kernels[0], threads, chunk));
        assert!(found == expected, "{name}: scalar threads {threads} chunk {chunk}");
    }
}

#[test]
fn grouped_heads() {
    assert_one_result("8/2x64 at 0", &Case::new((8, 2, 64), 0, 90));
    assert_one_result("8/2x64 at 1000", &Case::new((8, 2, 64), 1000, 70));
    assert_one_result("16/1x24 at 500", &Case::new((16, 1, 24), 500, 66));
}

/// Heads of one KV head are dealt out in parts, here of 10 and of 12, 12 and 11.
#[test]
fn many_heads_of_one_kv_head() {
    assert_one_result("40/2x24 at 500", &Case::new((40, 2, 24), 500, 66).with_sinks());
    assert_one_result("35/1x40 at 900", &Case::new((35, 1, 40), 900, 40).values_in_keys());
}

#[test]
fn one_head_per_kv_head() {
    assert_one_result("3/3x80", &Case::new((3, 3, 80), 480, 70).single());
}

#[test]
fn windows_and_sinks() {
    assert_one_result("window 50", &Case::new((4, 2, 16), 530, 150).window(50).with_sinks());
    assert_one_result("chunk 200", &Case::new((4, 2, 16), 530, 150).chunk(200));
    assert_one_result("window 700", &Case::new((4, 4, 16), 1000, 80).window(700));
}

#[test]
fn pages_in_any_order() {
    for (heads, first_position, rows) in [((8, 2, 64), 700, 90), ((3, 3, 80), 1500, 1), ((4, 1, 24), 1150, 7)]
    {
        for case in [Case::new(heads, first_position, rows), Case::new(heads, first_position, rows).single()]
        {
            for kernels in all_kernels() {
                let expected = bits(&case.run(kernels, 2));
                for seed in 10..13 {
                    let scattered = case.clone().scattered(seed);
                    assert!(scattered.pages != case.pages, "the order is another one");
                    for (threads, chunk) in [(1, rows), (2, rows), (2, 7)] {
                        let found = bits(&scattered.run_in_chunks(kernels, threads, chunk));
                        assert!(found == expected, "{heads:?} at {first_position}, {}", kernels.isa());
                    }
                }
            }
        }
    }
}

#[test]
fn grouped_heads_equal_repeated_kv_heads() {
    let grouped = Case::new((6, 2, 24), 100, 5);
    let mut repeated = grouped.clone();
    repeated.shape.kv_heads = 6;
    let repeat = |values: &[f32]| -> Vec<f32> {
        values.chunks(24).flat_map(|head| [head; 3]).flatten().copied().collect()
    };
    (repeated.keys, repeated.values) = (repeat(&grouped.keys), repeat(&grouped.values));
    assert_eq!(bits(&grouped.run(Kernels::detect(), 2)), bits(&repeated.run(Kernels::detect(), 2)));
}
