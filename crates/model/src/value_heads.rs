//! Value heads that are smaller than key heads, or scaled (MiMo).
//!
//! The attention kernel and the cache know one head size. So values are widened with zeros to the size of keys before they are
//! cached, and the zeros that come out of attention are taken away again: the sums are those of the small heads, bit for bit.
//! The price is cache memory for the zeros, which the plan counts.
//! Next: `attend.rs`.

/// Moves the rows in the front of `values`, `heads` heads of `small` elements each, apart to heads of `wide` elements with
/// zeros behind, and multiplies them by `scale`. `values` holds the wide rows, `[rows, heads, wide]`.
pub(crate) fn widen(values: &mut [f32], small: usize, wide: usize, scale: f32) {
    let heads = values.len() / wide;
    // From the back, so that no head is written before it was read.
    for head in (0..heads).rev() {
        let (from, to) = (head * small, head * wide);
        values.copy_within(from..from + small, to);
        values[to + small..to + wide].fill(0.0);
    }
    if scale != 1.0 {
        values.iter_mut().for_each(|value| *value *= scale);
    }
}

/// Moves the first `small` elements of every head of `wide` elements together; the rest of `values` is left over.
pub(crate) fn narrow(values: &mut [f32], small: usize, wide: usize) {
    for head in 0..values.len() / wide {
        values.copy_within(head * wide..head * wide + small, head * small);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_heads_come_back_from_wide_ones() {
        let mut values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0, 9.0];
        widen(&mut values, 2, 3, 0.5);
        assert_eq!(values, [0.5, 1.0, 0.0, 1.5, 2.0, 0.0, 2.5, 3.0, 0.0]);
        narrow(&mut values, 2, 3);
        assert_eq!(values[..6], [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    }

    #[test]
    fn heads_of_one_size_are_scaled_only() {
        let mut values = vec![1.0, 2.0, 3.0, 4.0];
        widen(&mut values, 2, 2, 2.0);
        assert_eq!(values, [2.0, 4.0, 6.0, 8.0]);
        narrow(&mut values, 2, 2);
        assert_eq!(values, [2.0, 4.0, 6.0, 8.0]);
    }
}
