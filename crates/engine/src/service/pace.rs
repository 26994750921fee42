//! How many prompt rows a pass may carry while answers are being written.
//!
//! A pass takes `fixed + per_row * rows`: the fixed part is mostly the reading of experts, the other one arithmetic. Many rows
//! make a prompt cheap, and everybody who waits for the next token waits for the whole pass. The rule: a pass lasts
//! [`PASS_TIME`], or as long as it takes to spend half of it on arithmetic, whichever is longer. So a prompt beside running
//! answers costs at most twice what it costs alone, and no answer waits for longer than it must. Both parts are estimated from
//! the latest passes. Pure; the clock is the caller's.

use std::time::Duration;

/// How long answers wait for a pass that carries a part of a prompt, unless reading alone takes longer.
const PASS_TIME: Duration = Duration::from_millis(500);
/// Passes that the estimate looks back at.
const PASSES: usize = 8;
/// Rows of the first pass, and the fewest of any: below, nearly every row reads experts of its own.
const ROWS_MIN: usize = 64;
/// Passes tell the two parts apart only if their sizes differ by this factor.
const SPREAD: usize = 2;

/// See the module header.
#[derive(Default)]
pub(crate) struct Pace {
    /// Rows and seconds of the latest passes with prompt rows.
    passes: [(usize, f64); PASSES],
    count: usize,
    /// Seconds of the fixed part and of a row.
    estimate: Option<(f64, f64)>,
}

impl Pace {
    /// A pass of `rows` rows, most of them of prompts, took `time`.
    pub fn observed(&mut self, rows: usize, time: Duration) {
        if rows >= ROWS_MIN {
            self.passes[self.count % PASSES] = (rows, time.as_secs_f64());
            self.count += 1;
            self.estimate = self.fitted();
        }
    }

    /// Rows of the next pass, at most `rows_max`.
    pub fn rows(&self, rows_max: usize) -> usize {
        let rows = match self.estimate {
            Some((fixed, per_row)) => {
                let in_time = (PASS_TIME.as_secs_f64() - fixed) / per_row;
                in_time.max(fixed / per_row) as usize
            }
            // Another size than before shows which part is which.
            None => match self.latest() {
                Some((rows, seconds)) if seconds < PASS_TIME.as_secs_f64() => rows.saturating_mul(SPREAD),
                Some((rows, _)) => rows / SPREAD,
                None => SPREAD * ROWS_MIN,
            },
        };
        rows.clamp(ROWS_MIN.min(rows_max), rows_max)
    }

    fn seen(&self) -> &[(usize, f64)] {
        &self.passes[..self.count.min(PASSES)]
    }

    fn latest(&self) -> Option<(usize, f64)> {
        let last = self.count.checked_sub(1)?;
        Some(self.passes[last % PASSES])
    }

    /// Both parts by least squares. Passes that are much alike do not tell them apart: they only say by how much both have
    /// changed.
    fn fitted(&self) -> Option<(f64, f64)> {
        let seen = self.seen();
        let rows = || seen.iter().map(|&(rows, _)| rows);
        let count = seen.len() as f64;
        let mean_rows = rows().sum::<usize>() as f64 / count;
        let mean_seconds = seen.iter().map(|&(_, seconds)| seconds).sum::<f64>() / count;
        if rows().max()? < SPREAD * rows().min()? {
            let (fixed, per_row) = self.estimate?;
            let change = mean_seconds / (fixed + per_row * mean_rows);
            return Some((fixed * change, per_row * change));
        }
        let (mut shared, mut spread) = (0.0, 0.0);
        for &(rows, seconds) in seen {
            let distance = rows as f64 - mean_rows;
            shared += distance * (seconds - mean_seconds);
            spread += distance * distance;
        }
        // Time that does not grow with the rows is noise around a fixed part.
        let per_row = (shared / spread).clamp(1e-9, (mean_seconds / mean_rows).max(1e-9));
        Some(((mean_seconds - per_row * mean_rows).max(0.0), per_row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows chosen after many passes that take `fixed + per_row * rows`.
    fn settled(fixed: f64, per_row: f64, rows_max: usize) -> usize {
        let mut pace = Pace::default();
        for _ in 0..50 {
            let rows = pace.rows(rows_max);
            pace.observed(rows, Duration::from_secs_f64(fixed + per_row * rows as f64));
        }
        pace.rows(rows_max)
    }

    #[test]
    fn a_fast_disk_gives_passes_of_the_time_wanted() {
        let rows = settled(0.02, 0.001, 4096);
        assert!((400..=500).contains(&rows), "{rows} rows");
    }

    #[test]
    fn a_slow_disk_gives_passes_of_half_arithmetic() {
        // Two seconds of reading: 500 ms are out of reach, and 64 rows would read all experts for next to nothing.
        let rows = settled(2.0, 0.01, 4096);
        assert!((190..=210).contains(&rows), "{rows} rows");
    }

    #[test]
    fn slow_arithmetic_still_gets_enough_rows_to_share_experts() {
        assert_eq!(settled(0.0, 0.1, 4096), ROWS_MIN);
        assert_eq!(settled(0.0, 0.1, 16), 16);
    }

    #[test]
    fn nothing_known_begins_small() {
        assert_eq!(Pace::default().rows(4096), 128);
    }
}
