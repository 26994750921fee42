//! A gate on the result of attention (Qiu et al., arXiv 2505.06708): the query projection brings one number per element of the result,
//! of each head behind its query; their sigmoids multiply what the heads return, before the output projection.

use coldpress_kernels::Kernels;
use coldpress_kernels::recurrent::{Columns, GateActivation, gate_in_place};
use coldpress_workers::Team;

use crate::latent::for_rows;

/// Takes gates, `[rows, heads, head_dim]`, out of `[rows, heads, query and gate]`, and moves queries together.
pub(crate) fn take_gates(team: &Team<'_>, projected: &mut [f32], gates: &mut [f32], head_dim: usize) {
    let source = &*projected;
    for_rows(team, gates, head_dim, |head, gate| {
        gate.copy_from_slice(&source[(2 * head + 1) * head_dim..][..head_dim]);
    });
    for head in 1..gates.len() / head_dim {
        projected.copy_within(2 * head * head_dim..(2 * head + 1) * head_dim, head * head_dim);
    }
}

/// Multiplies results, `[rows, width]`, by the sigmoids of `gates`: one for each `columns_per_gate` of them.
pub(crate) fn apply_gates(
    team: &Team<'_>,
    kernels: Kernels,
    results: &mut [f32],
    width: usize,
    gates: &[f32],
    columns_per_gate: usize,
) {
    let gates = Columns::whole(gates, width / columns_per_gate);
    gate_in_place(team, kernels, results, width, gates, columns_per_gate, GateActivation::Sigmoid);
}

#[cfg(test)]
mod tests {
    use coldpress_workers::Workers;

    use super::*;

    #[test]
    fn gates_lie_behind_the_query_of_their_head() {
        let mut projected: Vec<f32> = (0..24).map(|at| at as f32).collect();
        let mut gates = vec![0.0; 12];
        Workers::new(2).enter(|team| take_gates(team, &mut projected, &mut gates, 3));
        assert_eq!(gates, [3., 4., 5., 9., 10., 11., 15., 16., 17., 21., 22., 23.]);
        assert_eq!(projected[..12], [0., 1., 2., 6., 7., 8., 12., 13., 14., 18., 19., 20.]);
    }
}
