//! Writing to the two output streams without panics, and errors as people read them.

use std::io::{self, Write};

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

/// Text of others with its control characters replaced, so that it can do nothing to a terminal.
pub fn printable(text: &str, instead: char) -> String {
    text.chars().map(|letter| if letter.is_control() { instead } else { letter }).collect()
}

/// A time in milliseconds, rounded to microseconds, for reports.
pub fn milliseconds(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Every phase with its time in milliseconds, for reports.
pub fn phases_ms(times: &coldpress::PhaseTimes) -> serde_json::Value {
    times.named().into_iter().map(|(name, time)| (name, serde_json::json!(milliseconds(time)))).collect()
}

/// What is lossy, to end a line with: `, lossy: kv q4`; nothing where nothing is.
pub fn lossy(lossy: &[String]) -> String {
    if lossy.is_empty() { String::new() } else { format!(", lossy: {}", lossy.join(", ")) }
}

/// Whether an error only says that the reader of standard output has gone.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error with its causes, leaving out causes that the message already contains.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = || io::Error::other("the disk is gone");
        let said = Err::<(), _>(cause()).context("cannot read a: the disk is gone").expect_err("an error");
        assert_eq!(explain(&said), "cannot read a: the disk is gone");
        let unsaid = Err::<(), _>(cause()).context("cannot read a").expect_err("an error");
        assert_eq!(explain(&unsaid), "cannot read a: the disk is gone");
    }
}
