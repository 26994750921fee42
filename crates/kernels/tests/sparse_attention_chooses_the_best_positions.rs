//! Scores of positions are those of the formula and the same bits everywhere, and the best of them are chosen exactly.
//!
//! What could go wrong: heads or dimensions added in another order on some instruction set or beside other rows, a weight of
//! another head, a negative product that counts, a page in another place, the last page that is not full; a choice that depends on
//! where scores are cut, that prefers a later position among equals, that drops a good one when room runs out.

use crate::attention_support::{all_kernels, noise};
use coldpress_kernels::Kernels;
use coldpress_kernels::attention::{
    Chooser, IndexScores, KvElements, KvRows, PAGE_POSITIONS, index_scores, index_scratch_len,
};
use coldpress_workers::Workers;
use half::f16;

/// Numbers before the keys of a page.
const OFFSET: usize = 48;

struct Case {
    heads: usize,
    head_dim: usize,
    rows: usize,
    query: Vec<f32>,
    weights: Vec<f32>,
    /// Widened halves, `[positions, head_dim]`.
    keys: Vec<f32>,
    half: bool,
}

impl Case {
    fn new(heads: usize, head_dim: usize, rows: usize, positions: usize, half: bool) -> Self {
        let keys = noise(positions * head_dim, 3).into_iter().map(|key| f16::from_f32(key).to_f32());
        Self {
            heads,
            head_dim,
            rows,
            query: noise(rows * heads * head_dim, 1),
            weights: noise(rows * heads, 2),
            keys: keys.collect(),
            half,
        }
    }

    fn positions(&self) -> usize {
        self.keys.len() / self.head_dim
    }

    /// Scores `[rows, positions]`, of `at_once` pages and `rows_at_once` rows per call.
    fn run(&self, kernels: Kernels, threads: usize, at_once: usize, rows_at_once: usize) -> Vec<f32> {
        let (positions, width) = (self.positions(), self.heads * self.head_dim);
        let pages = positions.div_ceil(PAGE_POSITIONS);
        let page_elements = OFFSET + PAGE_POSITIONS * self.head_dim;
        // The pages lie in reverse order.
        let table: Vec<u32> = (0..pages as u32).rev().collect();
        let mut pool = vec![f32::NAN; pages * page_elements];
        for (position, key) in self.keys.chunks_exact(self.head_dim).enumerate() {
            let page = table[position / PAGE_POSITIONS] as usize * page_elements;
            let at = page + OFFSET + position % PAGE_POSITIONS * self.head_dim;
            pool[at..at + self.head_dim].copy_from_slice(key);
        }
        let halves: Vec<f16> = pool.iter().map(|&value| f16::from_f32(value)).collect();
        let elements = if self.half { KvElements::F16(&halves) } else { KvElements::F32(&pool) };
        let keys = KvRows {
            pool: elements,
            pages: &table,
            page_elements,
            keys_offset: OFFSET,
            values_offset: OFFSET,
        };
        let mut scores = vec![0.0; self.rows * positions];
        let mut scratch = vec![0.0; index_scratch_len(self.head_dim, threads)];
        for first_row in (0..self.rows).step_by(rows_at_once) {
            let rows = first_row..self.rows.min(first_row + rows_at_once);
            for first in (0..positions).step_by(at_once * PAGE_POSITIONS) {
                let part = first..positions.min(first + at_once * PAGE_POSITIONS);
                let mut out =
                    vec![f32::NAN; part.len().div_ceil(PAGE_POSITIONS) * rows.len() * PAGE_POSITIONS];
                Workers::new(threads).enter(|team| {
                    let call = IndexScores {
                        head_dim: self.head_dim,
                        query: &self.query[rows.start * width..rows.end * width],
                        weights: &self.weights[rows.start * self.heads..rows.end * self.heads],
                        keys,
                        positions: part.clone(),
                        out: &mut out,
                        scratch: &mut scratch,
                    };
                    index_scores(team, kernels, call);
                });
                for (at, row) in rows.clone().enumerate() {
                    for position in part.clone() {
                        let (page, within) = ((position - first) / PAGE_POSITIONS, position % PAGE_POSITIONS);
                        scores[row * positions + position] =
                            out[(page * rows.len() + at) * PAGE_POSITIONS + within];
                    }
                }
            }
        }
        scores
    }

    /// The formula in double precision, and how far a score may be from it.
    fn exact(&self) -> Vec<(f64, f64)> {
        let mut scores = Vec::new();
        for row in 0..self.rows {
            for key in self.keys.chunks_exact(self.head_dim) {
                let (mut score, mut largest, mut counted) = (0.0, 0.0_f64, 0.0);
                for head in row * self.heads..(row + 1) * self.heads {
                    let query = &self.query[head * self.head_dim..(head + 1) * self.head_dim];
                    let products = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let weight = f64::from(self.weights[head]);
                    score += weight * products.clone().sum::<f64>().max(0.0);
                    largest = largest.max(products.map(f64::abs).sum());
                    counted += weight.abs();
                }
                let roundings = (self.head_dim + self.heads + 1) as f64;
                scores.push((score, roundings * 2f64.powi(-24) * largest * counted));
            }
        }
        scores
    }
}

#[test]
fn scores_are_those_of_the_formula_and_the_same_bits_everywhere() {
    for (heads, head_dim, rows, positions, half) in
        [(8, 64, 5, 200, true), (5, 24, 3, 129, false), (64, 128, 2, 70, true), (1, 16, 1, 64, false)]
    {
        let case = Case::new(heads, head_dim, rows, positions, half);
        let expected = case.run(all_kernels()[0], 1, 100, rows);
        for (found, (exact, bound)) in expected.iter().zip(case.exact()) {
            assert!((f64::from(*found) - exact).abs() <= bound, "{found} is not {exact} within {bound}");
        }
        for kernels in all_kernels() {
            for (threads, at_once, rows_at_once) in [(1, 1, 1), (2, 2, 2), (3, 100, rows)] {
                let found = case.run(kernels, threads, at_once, rows_at_once);
                let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{heads}x{head_dim}: {} with {threads} threads", kernels.isa());
            }
        }
    }
}

/// By sorting everything.
fn best(scores: &[f32], wanted: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|&a, &b| scores[b as usize].partial_cmp(&scores[a as usize]).expect("no NaN"));
    order.truncate(wanted);
    order.sort_unstable();
    order
}

#[test]
fn the_best_positions_are_chosen_however_scores_are_cut() {
    let mut numbers = noise(1_000_000, 5).into_iter().cycle();
    let mut below = |end: usize| {
        let number = numbers.next().unwrap_or(0.0);
        (((number + 1.0) / 2.0 * end as f32) as usize).min(end - 1)
    };
    for round in 0..200 {
        let wanted = [1, 2, 7, 64, 100][round % 5];
        // Around what is wanted, around what there is room for, and far beyond.
        let count = [wanted - 1, wanted, wanted + 1, 2 * wanted.max(64), 1500][below(5)];
        // Few values make many equals; both zeros are one value.
        let values = [3, 40, 100_000][below(3)];
        let scores: Vec<f32> = (0..count)
            .map(|_| (below(values) as f32 - (values / 2) as f32) * if below(2) == 0 { 1.0 } else { -1.0 })
            .collect();
        let mut slot = vec![u64::MAX; Chooser::slot_len(wanted)];
        Chooser::new(&mut slot, wanted).clear();
        let mut first = 0;
        while first < count {
            let end = count.min(first + 1 + below(130));
            Chooser::new(&mut slot, wanted).add(first, &scores[first..end]);
            first = end;
        }
        let mut chosen = vec![0; wanted];
        let found = Chooser::new(&mut slot, wanted).finish(&mut chosen);
        assert_eq!(chosen[..found], best(&scores, wanted), "{wanted} of {count} with {values} values");
    }
}
