//! Which rows the next pass carries.
//!
//! Every answer that is being written brings its latest token: one row each. The rest of the pass is for prompts: the one that
//! came first has a right to half of it, so that it is never held up by more than as much again; what is left goes to the
//! shortest remainders, which are done soonest. Pure.

/// Deals `rows` rows of a pass to the prompts, given by their remaining tokens in order of arrival; `0` for one that does not
/// take part. Writes each prompt's rows to `out`.
pub(crate) fn deal(mut rows: usize, remaining: &[usize], out: &mut Vec<usize>) {
    out.clear();
    out.resize(remaining.len(), 0);
    let Some(first) = remaining.iter().position(|&tokens| tokens > 0) else { return };
    out[first] = remaining[first].min(rows.div_ceil(2));
    rows -= out[first];
    while rows > 0 {
        let open = (0..remaining.len()).filter(|&index| remaining[index] > out[index]);
        let Some(next) = open.min_by_key(|&index| remaining[index] - out[index]) else { return };
        let taken = (remaining[next] - out[next]).min(rows);
        out[next] += taken;
        rows -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(rows: usize, remaining: &[usize]) -> Vec<usize> {
        let mut out = Vec::new();
        deal(rows, remaining, &mut out);
        out
    }

    #[test]
    fn the_first_has_half_and_short_ones_come_next() {
        assert_eq!(dealt(100, &[1000]), [100]);
        assert_eq!(dealt(100, &[1000, 20, 500]), [50, 20, 30]);
        assert_eq!(dealt(100, &[1000, 600, 30]), [50, 20, 30]);
        assert_eq!(dealt(100, &[10, 500, 30]), [10, 60, 30]);
        assert_eq!(dealt(100, &[0, 500]), [0, 100]);
        assert_eq!(dealt(100, &[10, 20]), [10, 20]);
        assert_eq!(dealt(0, &[10]), [0]);
        assert_eq!(dealt(5, &[]), Vec::<usize>::new());
        assert_eq!(dealt(5, &[0, 0]), [0, 0]);
    }

    #[test]
    fn nobody_gets_more_than_remains_and_no_row_is_wasted() {
        for rows in 0..40 {
            for remaining in [[7, 3, 12], [1, 1, 1], [30, 0, 30], [0, 5, 9]] {
                let out = dealt(rows, &remaining);
                assert!(out.iter().zip(&remaining).all(|(out, remaining)| out <= remaining));
                assert_eq!(out.iter().sum::<usize>(), rows.min(remaining.iter().sum()));
            }
        }
    }
}
