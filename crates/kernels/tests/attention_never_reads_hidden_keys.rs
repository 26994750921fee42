//! Keys and values after a row's position, or before its window, cannot change its output, whatever they
//! hold.
//!
//! What could go wrong: a masked weight of zero times a NaN of a position that was not written yet, a hidden
//! score that takes part in the maximum, a block read beyond the last position.

use crate::attention_support::{Case, all_kernels, bits};

fn fill_positions(case: &mut Case, positions: std::ops::Range<usize>, key: f32, value: f32) {
    let row_len = case.shape.kv_row_len();
    case.keys[positions.start * row_len..positions.end * row_len].fill(key);
    case.values[positions.start * row_len..positions.end * row_len].fill(value);
}

#[test]
fn later_positions() {
    for (first_position, rows) in [(0, 100), (500, 30), (1000, 3)] {
        let case = Case::new((4, 2, 24), first_position, rows);
        let row_len = case.shape.query_row_len();
        for kernels in all_kernels() {
            let expected = bits(&case.run(kernels, 2));
            for row in [0, 1, rows / 2, rows - 2] {
                for (key, value) in
                    [(f32::NAN, f32::NAN), (f32::INFINITY, f32::NEG_INFINITY), (60_000.0, 60_000.0)]
                {
                    let mut changed = case.clone();
                    fill_positions(&mut changed, first_position + row + 1..first_position + rows, key, value);
                    let found = bits(&changed.run(kernels, 2));
                    let seen = (row + 1) * row_len;
                    assert!(found[..seen] == expected[..seen], "row {row} of {rows} from {first_position}");
                    assert!(found[seen..] != expected[seen..], "later rows do see the change");
                }
            }
        }
    }
}

#[test]
fn positions_before_the_window() {
    for (first_position, rows, window) in [(300, 50, 70), (1100, 1, 64), (1100, 2, 600)] {
        let case = Case::new((4, 2, 24), first_position, rows).window(window);
        for kernels in all_kernels() {
            let mut changed = case.clone();
            fill_positions(&mut changed, 0..first_position + 1 - window, f32::NAN, f32::NAN);
            assert!(bits(&changed.run(kernels, 2)) == bits(&case.run(kernels, 2)), "window {window}");
        }
    }
}

#[test]
fn a_nan_query_spoils_only_its_own_output() {
    let case = Case::new((4, 2, 24), 600, 20);
    let (head, head_dim) = (7 * 4 + 2, case.shape.head_dim);
    let mut changed = case.clone();
    changed.query[head * head_dim + 5] = f32::NAN;
    for kernels in all_kernels() {
        let (expected, found) = (case.run(kernels, 2), changed.run(kernels, 2));
        for (index, (expected, found)) in expected.chunks(head_dim).zip(found.chunks(head_dim)).enumerate() {
            if index == head {
                assert!(found.iter().all(|x| x.is_nan()));
            } else {
                assert_eq!(bits(found), bits(expected));
            }
        }
    }
}
