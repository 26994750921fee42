//! Sets of numbers as a reader wants to see them: `2, 5 to 9 and 12`.

use std::fmt;

/// More ranges than this are summed up as a count.
const MOST_SHOWN: usize = 8;

/// Sorted, separate ranges; both ends belong to the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// From numbers in rising order without repetition.
    pub(crate) fn of(numbers: impl IntoIterator<Item = u64>) -> Ranges {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some(last) if last.1.checked_add(1) == Some(number) => last.1 = number,
                _ => ranges.push((number, number)),
            }
        }
        Ranges(ranges)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers from 0 up to the largest that are not in the set.
    pub(crate) fn gaps(&self) -> Ranges {
        let mut next = 0;
        let mut gaps = Vec::new();
        for &(first, last) in &self.0 {
            if first > next {
                gaps.push((next, first - 1));
            }
            next = last.saturating_add(1);
        }
        Ranges(gaps)
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(MOST_SHOWN)];
        let mut items = Vec::new();
        for &(first, last) in shown {
            match last - first {
                0 => items.push(first.to_string()),
                1 => items.extend([first.to_string(), last.to_string()]),
                _ => items.push(format!("{first} to {last}")),
            }
        }
        let hidden = self.0.len() - shown.len();
        if hidden > 0 {
            items.push(format!("{hidden} more groups"));
        }
        match items.split_last() {
            Some((last, [])) => formatter.write_str(last),
            Some((last, others)) => write!(formatter, "{} and {last}", others.join(", ")),
            None => formatter.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_like_a_sentence() {
        let text = |numbers: &[u64]| Ranges::of(numbers.iter().copied()).to_string();
        assert_eq!(text(&[2]), "2");
        assert_eq!(text(&[2, 5]), "2 and 5");
        assert_eq!(text(&[4, 5]), "4 and 5");
        assert_eq!(text(&[1, 4, 5]), "1, 4 and 5");
        assert_eq!(text(&[1, 2, 3, 7, 9, 10, 11]), "1 to 3, 7 and 9 to 11");
        let odd: Vec<u64> = (0..20).map(|number| number * 2).collect();
        assert_eq!(text(&odd), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more groups");
    }

    #[test]
    fn gaps_stay_short_for_any_numbers() {
        assert_eq!(Ranges::of([0, 1, 4, u64::MAX]).gaps(), Ranges(vec![(2, 3), (5, u64::MAX - 1)]));
        assert_eq!(Ranges::of([u64::MAX]).gaps(), Ranges(vec![(0, u64::MAX - 1)]));
    }
}
