//! Writing to the two output streams without panics, and figures as people read them.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;

/// One line on standard error. A closed standard error is nobody's problem.
pub fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Text on standard output, at once.
///
/// # Errors
/// The reader is gone, or the disk behind it is full.
pub fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One JSON object and a newline on standard output.
///
/// # Errors
/// As [`text`].
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let mut object = serde_json::to_string(value)?;
    object.push('\n');
    Ok(text(&object)?)
}

/// Whether an error only says that the reader of standard output has gone.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A duration as a person says it: `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{} min {} s", s as u64 / 60, s as u64 % 60),
        s => format!("{} h {} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_speech() {
        let said = [0.85, 3.21, 12.0, 200.0, 7500.0].map(|s| duration(Duration::from_secs_f64(s)));
        assert_eq!(said, ["850 ms", "3.2 s", "12 s", "3 min 20 s", "2 h 5 min"]);
    }
}
