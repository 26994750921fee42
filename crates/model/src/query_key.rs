//! What Llama 4 does to queries and keys beside the rotation: heads of unit size, and queries that grow with their position.
//!
//! Every head and every row is computed by itself, in order, so that the rows beside it change no bit.
//! Next: `attend.rs`.

use coldpress_workers::Team;

use crate::scratch::rows_per_part;
use crate::spec::Temperature;

/// Divides every head of `head_dim` elements by its root mean square; sums in f64.
pub(crate) fn unit_heads(team: &Team<'_>, values: &mut [f32], head_dim: usize, epsilon: f32) {
    let heads_per_part = rows_per_part(team, values.len() / head_dim, head_dim * size_of::<f32>());
    team.for_each_part_mut(values, heads_per_part * head_dim, |_part, heads, _worker| {
        for head in heads.chunks_exact_mut(head_dim) {
            let squares = head.iter().fold(0.0, |sum, &value| sum + f64::from(value) * f64::from(value));
            let factor = 1.0 / (squares / head_dim as f64 + f64::from(epsilon)).sqrt();
            head.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
    });
}

/// Multiplies query rows of `width` elements, the first of them at `position`, by the factor of their positions.
pub(crate) fn temper(temperature: Temperature, position: usize, width: usize, queries: &mut [f32]) {
    for (row, query) in queries.chunks_exact_mut(width).enumerate() {
        let steps = ((position + row + 1) as f32 / temperature.floor).floor();
        if steps > 0.0 {
            let factor = steps.ln_1p() * temperature.scale + 1.0;
            query.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use coldpress_workers::Workers;

    use super::*;

    #[test]
    fn heads_get_a_mean_square_of_one() {
        let mut values = vec![3.0, 4.0, 0.0, 0.0, 1.0, -1.0, 1.0, 1.0];
        Workers::new(1).enter(|team| unit_heads(team, &mut values, 4, 0.0));
        assert_eq!(values, [1.2, 1.6, 0.0, 0.0, 1.0, -1.0, 1.0, 1.0]);
    }

    #[test]
    fn queries_grow_at_multiples_of_the_floor() {
        let mut queries = vec![1.0; 6];
        temper(Temperature { floor: 8.0, scale: 0.5 }, 6, 2, &mut queries);
        let first = 1.0 + 0.5 * 2.0f32.ln();
        assert_eq!(queries, [1.0, 1.0, first, first, first, first]);
    }
}
