//! How fast something falls, and how much of the time somebody waits, from looks at irregular times.
//!
//! Owns: [`FallRate`] (bytes per second that others take) and [`StallShare`] (share of a second that threads waited). Pure:
//! time is handed in. `controller.rs` says what follows from them.

use std::time::Duration;

use crate::StallScope;

/// How quickly a faster fall is believed, and how slowly a slower one, as time constants in seconds.
const RISE_SECONDS: f64 = 0.02;
const DECAY_SECONDS: f64 = 0.5;

/// How fast a figure falls, smoothed.
///
/// Only what two looks in a row agree on counts: a step (a limit that was lowered, a process that started, a figure that
/// macOS rounds to one percent of the machine) has happened and foretells nothing; somebody who fills memory is there at the
/// next look too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FallRate {
    last: Option<(Duration, i128)>,
    last_rate: f64,
    smoothed: f64,
}

impl FallRate {
    /// Takes in the `figure` in bytes at `now`; returns bytes per second, at least zero.
    pub(crate) fn follow(&mut self, now: Duration, figure: i128) -> f64 {
        let Some((then, before)) = self.last else {
            self.last = Some((now, figure));
            return 0.0;
        };
        let seconds = now.saturating_sub(then).as_secs_f64();
        // Closer looks say more about the clock than about memory.
        if seconds < 0.001 {
            return self.smoothed;
        }
        self.last = Some((now, figure));
        let rate = ((before - figure) as f64 / seconds).max(0.0);
        let seen = rate.min(self.last_rate);
        self.last_rate = rate;
        let constant = if seen > self.smoothed { RISE_SECONDS } else { DECAY_SECONDS };
        self.smoothed += (seen - self.smoothed) * (1.0 - (-seconds / constant).exp());
        self.smoothed
    }
}

/// What share of each past second somebody waited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallShare {
    start: Option<(Duration, u64, StallScope)>,
}

impl StallShare {
    /// Takes in the total in microseconds at `now`. Returns the share, 0 to 1, once per second at most; `None` in between and
    /// after the figure began anew or became somebody else's.
    pub(crate) fn follow(&mut self, now: Duration, total_us: u64, scope: StallScope) -> Option<f64> {
        let Some((then, before, _)) = self.start.filter(|(_, _, old)| *old == scope) else {
            self.start = Some((now, total_us, scope));
            return None;
        };
        let elapsed = now.saturating_sub(then);
        if elapsed < Duration::from_secs(1) {
            return None;
        }
        self.start = Some((now, total_us, scope));
        let share = total_us.checked_sub(before)? as f64 / elapsed.as_micros() as f64;
        // Nobody waits longer than the clock runs, apart from small differences of clocks: this is another group's counter.
        (share <= 1.1).then_some(share.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(20);

    #[test]
    fn a_steady_fall_is_believed_soon_and_forgotten_slowly() {
        let mut fall = FallRate::default();
        let (mut figure, mut rate) = (8_000_000_000_i128, 0.0);
        for tick in 0..15 {
            rate = fall.follow(TICK * tick, figure);
            figure -= 40_000_000;
        }
        assert!(rate > 1.9e9 && rate <= 2.0e9, "2 GB/s for a quarter of a second: {rate}");
        figure += 40_000_000;
        for tick in 15..40 {
            rate = fall.follow(TICK * tick, figure);
        }
        assert!(rate > 0.5e9 && rate < 1.0e9, "half a second later: {rate}");
    }

    #[test]
    fn steps_and_noise_foretell_nothing() {
        let mut fall = FallRate::default();
        let mut figure = 8_000_000_000_i128;
        for tick in 0..500 {
            // Down in one look, up in the next, and once a large step.
            figure += if tick % 2 == 0 { -160_000_000 } else { 160_000_000 };
            figure -= if tick == 250 { 3_000_000_000 } else { 0 };
            assert_eq!(fall.follow(TICK * tick, figure), 0.0, "look {tick}");
            assert_eq!(fall.follow(TICK * tick, 0), 0.0, "twice at one moment");
        }
    }

    #[test]
    fn shares_are_of_whole_seconds_and_of_one_counter() {
        let mut share = StallShare::default();
        let ms = Duration::from_millis;
        assert_eq!(share.follow(ms(0), 1_000_000, StallScope::Own), None);
        assert_eq!(share.follow(ms(900), 1_250_000, StallScope::Own), None);
        assert_eq!(share.follow(ms(1000), 1_250_000, StallScope::Own), Some(0.25));
        assert_eq!(share.follow(ms(3000), 1_750_000, StallScope::Own), Some(0.25));
        assert_eq!(share.follow(ms(4000), 9, StallScope::Own), None, "the counter began anew");
        assert_eq!(share.follow(ms(5000), 90_000_000, StallScope::Own), None, "another group's counter");
        assert_eq!(share.follow(ms(6000), 90_100_000, StallScope::Machine), None, "another scope");
        assert_eq!(share.follow(ms(7000), 90_200_000, StallScope::Machine), Some(0.1));
    }
}
