//! Progress bars with an estimate of the time left, on a terminal only; pipes and files stay quiet.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows no bar.
const QUIET_FIRST: Duration = Duration::from_millis(400);

/// What a bar counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown with their rate.
    Bytes,
    /// Prompt tokens.
    Tokens,
    /// Runs of a measurement.
    Runs,
}

/// One bar, drawn on standard error. It appears when the work takes long enough to wonder about.
pub struct Progress {
    bar: ProgressBar,
    started: std::time::Instant,
    shown: bool,
    title: String,
    unit: Unit,
}

impl Progress {
    /// A bar named `title`.
    pub fn new(title: &str, unit: Unit) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar, started: std::time::Instant::now(), shown: false, title: title.to_owned(), unit }
    }

    /// Shows that `done` of `total` units are done.
    pub fn update(&mut self, done: u64, total: u64) {
        if !self.shown && self.started.elapsed() >= QUIET_FIRST && std::io::stderr().is_terminal() {
            self.show(done, total);
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    fn show(&mut self, done: u64, total: u64) {
        let template = match self.unit {
            Unit::Bytes => "{prefix:10} [{bar:28}] {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}",
            Unit::Tokens => "{prefix:10} [{bar:28}] {pos}/{len} tokens  ETA {eta}",
            Unit::Runs => "{prefix:10} [{bar:28}] {pos}/{len} runs  ETA {eta}",
        };
        let style = ProgressStyle::with_template(template).expect("the templates are constants");
        self.bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
            .with_style(style.progress_chars("=> "))
            .with_prefix(self.title.clone())
            .with_elapsed(self.started.elapsed());
        // What was done before the bar appears, such as by an earlier run, says nothing about the rate.
        self.bar.set_position(done);
        self.bar.reset_eta();
        self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        self.shown = true;
    }

    /// Lets `print` write its lines above the bar.
    pub fn above(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
