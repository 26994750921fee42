//! Recurrent layers: the same bits on every instruction set, for every number of threads and however the rows are cut;
//! close to the plain recurrence in f64.
//!
//! What could go wrong: a state that is decayed twice or not at all at a cut, the decay of another row, a key head of another
//! value head, taps in the wrong order, a convolution that reads an input it has already replaced, columns of neighbours.

use crate::vector_support::{assert_close, bits, noise, same_everywhere};
use coldpress_kernels::recurrent::{
    Columns, ConvolutionActivation, Decay, DecayRule, DeltaRows, DeltaShape, GateActivation, KeyHeads,
    ShortConvolution, decay_in_place, delta_rule, delta_state_len, gate_in_place, gated_rms_norm,
    l2_norm_in_place, short_convolution,
};
use coldpress_kernels::{Isa, Kernels};
use coldpress_workers::{Team, Workers};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Ways to cut `rows` into pieces.
fn cuts(rows: usize) -> Vec<Vec<usize>> {
    vec![vec![rows], vec![1; rows], vec![rows / 2, 0, rows - rows / 2], vec![2, rows - 2]]
}

#[test]
fn convolutions() {
    for (rows, channels, taps, first, stride) in
        [(9, 40, 4, 3, 50), (40, 600, 3, 0, 600), (5, 16, 4, 16, 32), (3, 7, 8, 0, 7), (4, 20, 1, 0, 20)]
    {
        for (activation, bias) in [
            (ConvolutionActivation::Identity, None),
            (ConvolutionActivation::Silu, Some(noise(channels, 1.0, 3))),
        ] {
            let (x, weights) = (noise(rows * stride, 2.0, 1), noise(taps * channels, 1.0, 2));
            let before = noise((taps - 1) * channels, 2.0, 4);
            let taps_of: Vec<&[f32]> = weights.chunks(channels).collect();
            let convolution = ShortConvolution { taps: &taps_of, bias: bias.as_deref(), activation };
            let mut results = cuts(rows).into_iter().map(|cut| {
                same_everywhere("convolution", |team, kernels| {
                    let (mut x, mut state) = (x.clone(), before.clone());
                    let mut rest = x.as_mut_slice();
                    for rows in &cut {
                        let (piece, behind) = rest.split_at_mut(rows * stride);
                        short_convolution(team, kernels, convolution, piece, stride, first, &mut state);
                        rest = behind;
                    }
                    x.extend(state);
                    x
                })
            });
            let found = results.next().expect("there are cuts");
            assert!(
                results.all(|other| bits(&other) == bits(&found)),
                "{channels} channels: cuts change bits"
            );

            let input = |row: isize, channel: usize| match usize::try_from(row) {
                Ok(row) => f64::from(x[row * stride + first + channel]),
                Err(_) => f64::from(before[(row + taps as isize - 1) as usize * channels + channel]),
            };
            let mut exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for row in 0..rows {
                for channel in 0..channels {
                    let mut sum = bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                    for tap in 0..taps {
                        let weight = f64::from(weights[tap * channels + channel]);
                        sum += weight * input((row + tap + 1) as isize - taps as isize, channel);
                    }
                    let silu = activation == ConvolutionActivation::Silu;
                    exact[row * stride + first + channel] = if silu { sum * sigmoid(sum) } else { sum };
                }
            }
            for position in 0..taps - 1 {
                let row = (rows + position + 1) as isize - taps as isize;
                exact.extend((0..channels).map(|channel| input(row, channel)));
            }
            // Nine roundings of sums of at most 8 * 2 + 1, and those of SiLU.
            assert_close(&found, &exact, 17.0 * 14.0 / f64::from(1 << 24), "convolution");
        }
    }
}

struct DeltaCase {
    shape: DeltaShape,
    rows: usize,
    per_channel: bool,
    /// query, key and value side by side
    mixed: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    before: Vec<f32>,
}

impl DeltaCase {
    fn new(shape: DeltaShape, rows: usize, per_channel: bool) -> Self {
        let DeltaShape { heads, key_heads, key_dim, value_dim, .. } = shape;
        let mut mixed = noise(rows * (2 * key_heads * key_dim + heads * value_dim), 1.0, 1);
        let stride = mixed.len() / rows;
        let scalar = Kernels::for_isa(Isa::Scalar).expect("plain Rust runs everywhere");
        Workers::new(1).enter(|team| {
            let columns = (0, 2 * key_heads * key_dim);
            l2_norm_in_place(team, scalar, &mut mixed, stride, columns, key_dim, 1e-6, 1.0);
        });
        let decays = rows * heads * if per_channel { key_dim } else { 1 };
        let unit = |len, seed| noise(len, 0.5, seed).into_iter().map(|x| x + 0.5).collect();
        let before = noise(delta_state_len(shape), 1.0, 4);
        Self { shape, rows, per_channel, mixed, decay: unit(decays, 2), beta: unit(rows * heads, 3), before }
    }

    fn run(&self, team: &Team<'_>, kernels: Kernels, cut: &[usize]) -> Vec<f32> {
        let DeltaShape { heads, key_heads, key_dim, value_dim, .. } = self.shape;
        let (keys, values) = (key_heads * key_dim, heads * value_dim);
        let stride = 2 * keys + values;
        let decays = self.decay.len() / self.rows;
        let mut out = vec![f32::NAN; self.rows * values];
        let mut state = self.before.clone();
        let mut first = 0;
        for &rows in cut {
            let data = &self.mixed[first * stride..(first + rows) * stride];
            let mixed = |first_column| Columns { data, row_stride: stride, first_column };
            let decay = Columns::whole(&self.decay[first * decays..(first + rows) * decays], decays);
            let input = DeltaRows {
                rows,
                query: mixed(0),
                key: mixed(keys),
                value: mixed(2 * keys),
                decay: if self.per_channel { Decay::PerChannel(decay) } else { Decay::PerHead(decay) },
                beta: Columns::whole(&self.beta[first * heads..(first + rows) * heads], heads),
            };
            let out = &mut out[first * values..(first + rows) * values];
            delta_rule(team, kernels, self.shape, input, &mut state, out);
            first += rows;
        }
        out.extend(state);
        out
    }

    fn exact(&self) -> Vec<f64> {
        let DeltaShape { heads, key_heads, key_dim, value_dim, key_heads_of } = self.shape;
        let (keys, values) = (key_heads * key_dim, heads * value_dim);
        let stride = 2 * keys + values;
        let mut out = vec![0.0; self.rows * values];
        let mut state: Vec<f64> = self.before.iter().map(|x| f64::from(*x)).collect();
        let place = |head: usize, channel: usize, value: usize| {
            ((head * (value_dim / 16) + value / 16) * key_dim + channel) * 16 + value % 16
        };
        for row in 0..self.rows {
            let mixed = |column: usize| f64::from(self.mixed[row * stride + column]);
            for head in 0..heads {
                let key_head = match key_heads_of {
                    KeyHeads::Grouped => head / (heads / key_heads),
                    KeyHeads::InTurns => head % key_heads,
                };
                let decay = |channel: usize| match self.per_channel {
                    true => f64::from(self.decay[(row * heads + head) * key_dim + channel]),
                    false => f64::from(self.decay[row * heads + head]),
                };
                let key = |channel: usize| mixed(keys + key_head * key_dim + channel);
                let beta = f64::from(self.beta[row * heads + head]);
                for value in 0..value_dim {
                    let recalled: f64 = (0..key_dim)
                        .map(|channel| key(channel) * decay(channel) * state[place(head, channel, value)])
                        .sum();
                    let correction = beta * (mixed(2 * keys + head * value_dim + value) - recalled);
                    let mut read = 0.0;
                    for channel in 0..key_dim {
                        let place = &mut state[place(head, channel, value)];
                        *place = *place * decay(channel) + key(channel) * correction;
                        read += *place * mixed(key_head * key_dim + channel);
                    }
                    out[row * values + head * value_dim + value] = read;
                }
            }
        }
        out.extend(state);
        out
    }
}

#[test]
fn delta_rules() {
    for (heads, key_heads, key_dim, value_dim, rows) in
        [(4, 2, 16, 16, 9), (2, 2, 24, 48, 6), (2, 1, 128, 128, 5), (1, 1, 5, 32, 3)]
    {
        for key_heads_of in [KeyHeads::Grouped, KeyHeads::InTurns] {
            for per_channel in [false, true] {
                let shape = DeltaShape { heads, key_heads, key_dim, value_dim, key_heads_of };
                let case = DeltaCase::new(shape, rows, per_channel);
                let mut results = cuts(rows)
                    .into_iter()
                    .map(|cut| same_everywhere("delta rule", |team, kernels| case.run(team, kernels, &cut)));
                let found = results.next().expect("there are cuts");
                assert!(results.all(|other| bits(&other) == bits(&found)), "{shape:?}: cuts change bits");
                // Unit keys keep numbers near 1; errors of a step are some roundings of sums of up to key_dim numbers.
                assert_close(&found, &case.exact(), 1e-5, "delta rule");
            }
        }
    }
}

#[test]
fn norms_decays_and_gates() {
    for (rows, heads, head_dim) in [(3, 2, 16), (5, 3, 20), (20, 8, 128)] {
        let columns = heads * head_dim;
        let (x, gate) = (noise(rows * columns, 3.0, 1), noise(rows * (columns + 5), 6.0, 2));
        let (weight, bias) = (noise(head_dim, 2.0, 3), noise(columns, 1.0, 4));
        let gate_columns = Columns { data: &gate, row_stride: columns + 5, first_column: 5 };
        let gate_at = |row: usize, column: usize| f64::from(gate[row * (columns + 5) + 5 + column]);
        let squares = |row: usize, column: usize| {
            let start = row * columns + column / head_dim * head_dim;
            x[start..start + head_dim].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()
        };
        let expect = |bound: f64, name: &str, found: Vec<f32>, value: &dyn Fn(f64, usize, usize) -> f64| {
            let exact: Vec<f64> =
                (0..rows * columns).map(|at| value(f64::from(x[at]), at / columns, at % columns)).collect();
            assert_close(&found, &exact, bound, name);
        };

        let found = same_everywhere("l2 norm", |team, kernels| {
            let mut x = x.clone();
            l2_norm_in_place(
                team,
                kernels,
                &mut x,
                columns,
                (head_dim, columns - head_dim),
                head_dim,
                0.5,
                0.3,
            );
            x
        });
        expect(1e-6, "l2 norm", found, &|x, row, column| {
            if column < head_dim { x } else { 0.3 * x / (squares(row, column) + 0.5).sqrt() }
        });

        for (rule, rate) in [(DecayRule::Softplus, -0.7), (DecayRule::Bounded { lower_bound: -5.0 }, 0.7)] {
            let rates: Vec<f32> = (0..columns).map(|column| rate * (1.0 + column as f32 / 100.0)).collect();
            let found = same_everywhere("decay", |team, kernels| {
                let mut x = x.clone();
                decay_in_place(team, kernels, &mut x, &bias, &rates, rule);
                x
            });
            expect(1e-5, "decay", found, &|x, _, column| {
                let (x, rate) = (x + f64::from(bias[column]), f64::from(rates[column]));
                match rule {
                    DecayRule::Softplus => (rate * x.exp().ln_1p()).exp(),
                    DecayRule::Bounded { lower_bound } => (f64::from(lower_bound) * sigmoid(rate * x)).exp(),
                }
            });
        }

        for (activation, of_gate) in [
            (GateActivation::Sigmoid, (|x| sigmoid(x)) as fn(f64) -> f64),
            (GateActivation::Silu, |x| x * sigmoid(x)),
        ] {
            let found = same_everywhere("gated norm", |team, kernels| {
                let mut x = x.clone();
                gated_rms_norm(team, kernels, &mut x, columns, gate_columns, &weight, 0.1, activation);
                x
            });
            expect(1e-5, "gated norm", found, &|x, row, column| {
                let mean = squares(row, column) / head_dim as f64;
                let normed = x / (mean + f64::from(0.1_f32)).sqrt() * f64::from(weight[column % head_dim]);
                normed * of_gate(gate_at(row, column))
            });
            for per_gate in [1, head_dim] {
                let found = same_everywhere("gate", |team, kernels| {
                    let mut x = x.clone();
                    gate_in_place(team, kernels, &mut x, columns, gate_columns, per_gate, activation);
                    x
                });
                expect(1e-5, "gate", found, &|x, row, column| x * of_gate(gate_at(row, column / per_gate)));
            }
        }
    }
}
