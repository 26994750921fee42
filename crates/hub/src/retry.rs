//! When a request is tried again, and how long to wait before.
//!
//! A *passing* failure (cut connection, silence, 429, 5xx) is tried again with growing waits, at most as often as the settings say
//! in a row; bytes that arrive start the count anew, because a large file over a bad line is cut many times. A *contradiction*
//! (another length than announced) is tried once more, since a cache on the way may have it from yesterday. All else ends the pull.

use std::time::{Duration, Instant};

use crate::error::HubError;
use crate::{Observer, Settings};

/// The count of failures starts anew after this many bytes: less is what a hostile server would trickle.
const PROGRESS_BYTES: u64 = 1 << 20;
/// Often enough for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// Contradictions that end a pull.
const CONTRADICTIONS_MAX: u32 = 2;

/// Why a request gave nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It may work the next time.
    Passing(String),
    /// The server asks to wait, or is overloaded.
    Busy { problem: String, wait: Option<Duration> },
    /// What came is not what was announced.
    Contradiction(HubError),
    /// It will not work.
    Final(HubError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// The failures of one file or one question so far.
pub(crate) struct Attempts<'a> {
    settings: &'a Settings,
    url: String,
    part_kept: bool,
    in_a_row: u32,
    contradictions: u32,
    /// Bytes since the last failure that counted.
    progress_bytes: u64,
}

impl<'a> Attempts<'a> {
    /// `part_kept`: whether what arrived outlives the pull.
    pub(crate) fn new(settings: &'a Settings, url: &str, part_kept: bool) -> Self {
        let url = url.to_owned();
        Self { settings, url, part_kept, in_a_row: 0, contradictions: 0, progress_bytes: 0 }
    }

    /// Bytes arrived.
    pub(crate) fn progress(&mut self, bytes: u64) {
        self.progress_bytes += bytes;
        if self.progress_bytes >= PROGRESS_BYTES {
            (self.in_a_row, self.progress_bytes) = (0, 0);
        }
    }

    /// Waits for the next try.
    ///
    /// # Errors
    /// There is none: the failure is final, there were too many, the wait is too long, or the observer stops.
    pub(crate) fn wait(&mut self, failure: Failure, observer: &mut dyn Observer) -> Result<(), HubError> {
        let (problem, asked) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Contradiction(error) => {
                self.contradictions += 1;
                if self.contradictions >= CONTRADICTIONS_MAX {
                    return Err(error);
                }
                return sleep(self.settings.backoff, observer);
            }
            Failure::Passing(problem) => (problem, None),
            Failure::Busy { problem, wait } => (problem, wait),
        };
        self.in_a_row += 1;
        self.progress_bytes = 0;
        if self.in_a_row > self.settings.retries {
            let (url, tries, part_kept) = (self.url.clone(), self.in_a_row, self.part_kept);
            return Err(HubError::Unreachable { url, problem, tries, part_kept });
        }
        let longest = self.settings.longest_wait;
        if let Some(wait) = asked.filter(|&wait| wait > longest) {
            return Err(HubError::AskedToWait { url: self.url.clone(), wait, longest });
        }
        let backoff = self.settings.backoff.saturating_mul(1 << (self.in_a_row - 1).min(16)).min(longest);
        let wait = asked.map_or(backoff, |asked| asked.max(self.settings.backoff));
        let (attempt, of) = (self.in_a_row, self.settings.retries);
        observer.note(&format!("{problem}; next try in {:.1} s ({attempt} of {of})", wait.as_secs_f64()));
        sleep(wait, observer)
    }
}

/// # Errors
/// The observer stops.
pub(crate) fn sleep(wait: Duration, observer: &mut dyn Observer) -> Result<(), HubError> {
    let end = Instant::now() + wait;
    loop {
        if observer.should_stop() {
            return Err(HubError::Stopped);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
}
