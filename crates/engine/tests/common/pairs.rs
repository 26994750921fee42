//! Covering arrays of strength two: few rows in which every pair of values of every two dimensions occurs.
//!
//! A fault that needs one setting, or two together, shows in some row; the whole product would take thousands. Greedy, after
//! Cohen, Dalal, Fredman and Patton, "The AETG System" (1997), without its random candidates: the rows are the same in
//! every run.

use std::collections::BTreeSet;

type Pair = [(usize, usize); 2];

/// Rows with one value per dimension, `sizes[dimension]` values each.
pub fn pairs(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut open: BTreeSet<Pair> = BTreeSet::new();
    for (first, &first_size) in sizes.iter().enumerate() {
        for (second, &second_size) in sizes.iter().enumerate().skip(first + 1) {
            for a in 0..first_size {
                open.extend((0..second_size).map(|b| [(first, a), (second, b)]));
            }
        }
    }
    let mut rows: Vec<Vec<usize>> = Vec::new();
    while let Some(&pair) = open.first() {
        let mut row: Vec<Option<usize>> = vec![None; sizes.len()];
        pair.iter().for_each(|&(dimension, value)| row[dimension] = Some(value));
        for (dimension, &size) in sizes.iter().enumerate() {
            if row[dimension].is_some() {
                continue;
            }
            let gain = |value: usize| {
                let fixed = row.iter().enumerate().filter_map(|(other, set)| Some((other, (*set)?)));
                fixed.filter(|&other| open.contains(&sorted((dimension, value), other))).count()
            };
            // Of equals another one in each row, so that values are spread.
            let start = rows.len();
            let values = (0..size).map(|offset| (start + offset) % size);
            row[dimension] = values.rev().max_by_key(|&value| gain(value));
        }
        let row: Vec<usize> = row.into_iter().map(|value| value.expect("every size is at least 1")).collect();
        for first in 0..row.len() {
            for second in first + 1..row.len() {
                open.remove(&[(first, row[first]), (second, row[second])]);
            }
        }
        rows.push(row);
    }
    rows
}

fn sorted(a: (usize, usize), b: (usize, usize)) -> Pair {
    if a < b { [a, b] } else { [b, a] }
}
