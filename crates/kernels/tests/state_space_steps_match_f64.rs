//! Linear attention with decays, and the steps and the norm of Mamba-2: the same bits on every instruction set, for every number of
//! threads and however the rows are cut; close to the plain recurrence in f64.
//!
//! What could go wrong: a state that is decayed twice or not at all at a cut, the decay or factor of another row or head, a key
//! head of another head, a skip of what was already multiplied, a group of the norm that reaches into the next one.

use crate::vector_support::{assert_close, bits, noise, same_everywhere};
use coldpress_kernels::Kernels;
use coldpress_kernels::recurrent::{
    Columns, DecayedRows, DecayedShape, DecayedSteps, HeadColumns, Rates, StepLimits, decayed_attention,
    decayed_state_len, gate_and_rms_norm, selective_steps,
};
use coldpress_workers::Team;

struct Case {
    shape: DecayedShape,
    rows: usize,
    /// Query, key and value of a head side by side where heads share no keys, else those of all heads.
    mixed: Vec<f32>,
    /// Factors, then decays of each row; or none.
    steps: Option<Vec<f32>>,
    decays: Vec<f32>,
    skip: Option<Vec<f32>>,
    before: Vec<f32>,
}

impl Case {
    fn new(shape: DecayedShape, rows: usize, selective: bool) -> Self {
        let DecayedShape { heads, key_heads, key_dim, value_dim } = shape;
        let unit = |len, seed| noise(len, 0.5, seed).into_iter().map(|x| x + 0.5).collect::<Vec<f32>>();
        Self {
            shape,
            rows,
            mixed: noise(rows * (2 * key_heads * key_dim + heads * value_dim), 1.0, 1),
            steps: selective.then(|| unit(rows * 2 * heads, 2)),
            decays: unit(heads, 3),
            skip: selective.then(|| noise(heads, 1.0, 4)),
            before: noise(decayed_state_len(shape), 1.0, 5),
        }
    }

    fn stride(&self) -> usize {
        self.mixed.len() / self.rows
    }

    /// First columns and head strides of query, key and value.
    fn places(&self) -> [(usize, usize); 3] {
        let DecayedShape { heads, key_heads, key_dim, value_dim } = self.shape;
        let keys = key_heads * key_dim;
        match heads == key_heads {
            true => [0, key_dim, 2 * key_dim].map(|first| (first, 2 * key_dim + value_dim)),
            false => [(0, key_dim), (keys, key_dim), (2 * keys, value_dim)],
        }
    }

    fn run(&self, team: &Team<'_>, kernels: Kernels, cut: &[usize]) -> Vec<f32> {
        let DecayedShape { heads, value_dim, .. } = self.shape;
        let (values, stride) = (heads * value_dim, self.stride());
        let mut out = vec![f32::NAN; self.rows * values];
        let mut state = self.before.clone();
        let mut first = 0;
        for &rows in cut {
            let data = &self.mixed[first * stride..(first + rows) * stride];
            let [query, key, value] = self.places().map(|(first_column, head_stride)| HeadColumns {
                columns: Columns { data, row_stride: stride, first_column },
                head_stride,
            });
            let steps = match &self.steps {
                None => DecayedSteps::Constant(&self.decays),
                Some(steps) => {
                    let data = &steps[first * 2 * heads..(first + rows) * 2 * heads];
                    let columns = |first_column| Columns { data, row_stride: 2 * heads, first_column };
                    DecayedSteps::PerRow { factor: columns(0), decay: columns(heads) }
                }
            };
            let input = DecayedRows { rows, query, key, value, steps, skip: self.skip.as_deref() };
            let out = &mut out[first * values..(first + rows) * values];
            decayed_attention(team, kernels, self.shape, input, &mut state, out);
            first += rows;
        }
        out.extend(state);
        out
    }

    fn exact(&self) -> Vec<f64> {
        let DecayedShape { heads, key_heads, key_dim, value_dim } = self.shape;
        let at = |row: usize, place: (usize, usize), head: usize, element: usize| {
            f64::from(self.mixed[row * self.stride() + place.0 + head * place.1 + element])
        };
        let [query, key, value] = self.places();
        let mut out = vec![0.0; self.rows * heads * value_dim];
        // [heads, value_dim / 16, key_dim, 16]
        let place = |head: usize, channel: usize, column: usize| {
            ((head * value_dim / 16 + column / 16) * key_dim + channel) * 16 + column % 16
        };
        let mut state: Vec<f64> = self.before.iter().map(|&value| f64::from(value)).collect();
        for row in 0..self.rows {
            for head in 0..heads {
                let key_head = head / (heads / key_heads);
                let step = |at: usize| self.steps.as_ref().map(|steps| steps[row * 2 * heads + at]);
                let factor = f64::from(step(head).unwrap_or(1.0));
                let decay = f64::from(step(heads + head).unwrap_or(self.decays[head]));
                for column in 0..value_dim {
                    let value = at(row, value, head, column);
                    let skip = self.skip.as_ref().map_or(0.0, |skip| f64::from(skip[head]));
                    let mut sum = skip * value;
                    for channel in 0..key_dim {
                        let state = &mut state[place(head, channel, column)];
                        *state = decay * *state + at(row, key, key_head, channel) * factor * value;
                        sum += *state * at(row, query, key_head, channel);
                    }
                    out[(row * heads + head) * value_dim + column] = sum;
                }
            }
        }
        out.extend(state);
        out
    }
}

#[test]
fn linear_attention_with_decays() {
    let shape = |heads, key_heads, key_dim, value_dim| DecayedShape { heads, key_heads, key_dim, value_dim };
    for (shape, rows) in [
        (shape(3, 3, 16, 16), 7),
        (shape(4, 1, 20, 80), 5),
        (shape(6, 2, 3, 112), 9),
        (shape(2, 2, 128, 128), 4),
    ] {
        for selective in [false, true] {
            let case = Case::new(shape, rows, selective);
            let cuts = [vec![rows], vec![1; rows], vec![rows / 2, 0, rows - rows / 2], vec![2, rows - 2]];
            let mut results = cuts
                .iter()
                .map(|cut| same_everywhere("decayed", |team, kernels| case.run(team, kernels, cut)));
            let found = results.next().expect("there are cuts");
            assert!(results.all(|other| bits(&other) == bits(&found)), "{shape:?}: cuts change bits");
            // States stay below 10, sums of key_dim terms below 2 * key_dim; each operation rounds once.
            let bound = 10.0 * shape.key_dim as f64 * 2f64.powi(-22);
            assert_close(&found, &case.exact(), bound, "decayed");
        }
    }
}

#[test]
fn steps_of_a_state_space_model() {
    let (rows, heads) = (5, 37);
    let (raw, bias) = (noise(rows * (heads + 3), 6.0, 1), noise(heads, 2.0, 2));
    let logarithms = noise(heads, 2.0, 3);
    let columns = Columns { data: &raw, row_stride: heads + 3, first_column: 2 };
    let rates: Vec<f32> = logarithms.iter().map(|x| -f64::from(*x).exp() as f32).collect();
    for limits in [StepLimits { least: 0.0, most: f32::INFINITY }, StepLimits { least: 0.2, most: 1.5 }] {
        for rates in [Rates::Values(&rates), Rates::Logarithms(&logarithms)] {
            let found = same_everywhere("steps", |team, kernels| {
                let mut out = vec![f32::NAN; rows * 2 * heads];
                selective_steps(team, kernels, columns, &bias, rates, limits, &mut out);
                out
            });
            let mut exact = vec![0.0; found.len()];
            for row in 0..rows {
                for head in 0..heads {
                    let x = raw[row * (heads + 3) + 2 + head] + bias[head];
                    let step = f64::from(x).exp().ln_1p().clamp(limits.least.into(), limits.most.into());
                    exact[row * 2 * heads + head] = step;
                    exact[(row * 2 + 1) * heads + head] = (-f64::from(logarithms[head]).exp() * step).exp();
                }
            }
            // Steps below 8 within four units in the last place; rates below 8, so exponents below 64 within ten units.
            assert_close(&found, &exact, 2e-5, "steps");
        }
    }
}

#[test]
fn norms_of_gated_groups() {
    for (rows, columns, groups) in [(3, 64, 1), (5, 120, 3), (2, 21, 1), (40, 1024, 8)] {
        let (x, gate) = (noise(rows * columns, 3.0, 1), noise(rows * (columns + 5), 4.0, 2));
        let weight = noise(columns, 1.5, 3);
        let gates = Columns { data: &gate, row_stride: columns + 5, first_column: 4 };
        let found = same_everywhere("gated norm", |team, kernels| {
            let mut x = x.clone();
            gate_and_rms_norm(team, kernels, &mut x, gates, &weight, groups, 1e-5);
            x
        });
        let len = columns / groups;
        let mut exact = Vec::new();
        for row in 0..rows {
            for group in 0..groups {
                let gated: Vec<f64> = (group * len..(group + 1) * len)
                    .map(|column| {
                        let gate = f64::from(gate[row * (columns + 5) + 4 + column]);
                        f64::from(x[row * columns + column]) * gate / (1.0 + (-gate).exp())
                    })
                    .collect();
                let mean = gated.iter().map(|x| x * x).sum::<f64>() / len as f64;
                let normed = gated.iter().zip(&weight[group * len..]);
                exact.extend(normed.map(|(x, weight)| x / (mean + 1e-5).sqrt() * f64::from(*weight)));
            }
        }
        // Normed values are below the root of the group's length times 1.5.
        assert_close(&found, &exact, 1e-5 * (len as f64).sqrt(), "gated norm");
    }
}
