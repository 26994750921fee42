//! Ending an answer at a text of the request's choice.
//!
//! Owns finding the first of several stop strings in text that comes in pieces, and hands on all text before it. Held
//! back is only what may still become one. The result is the same however the text was cut.

/// Finds the first stop string: the one that is whole first and, of those that end with the same character, the
/// longest.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far, which is the beginning of a stop string.
    held: String,
    found: Option<usize>,
}

impl StopStrings {
    /// A finder of these strings. Empty strings are left out: they would end every answer before it begins.
    pub fn new(stops: Vec<String>) -> StopStrings {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopStrings { stops, held: String::new(), found: None }
    }

    /// Takes the next piece. Appends to `out` what belongs to the answer for certain. True if a stop string was found,
    /// now or before; what follows it is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.found.is_some() {
            return true;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        for character in text.chars() {
            self.held.push(character);
            if self.settle(out) {
                return true;
            }
        }
        false
    }

    /// The answer has ended: appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The stop string that ended the answer.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|at| self.stops[at].as_str())
    }

    /// Hands on what can no longer be the beginning of a stop string. True if one is whole.
    fn settle(&mut self, out: &mut String) -> bool {
        let whole = self.stops.iter().enumerate().filter(|(_, stop)| self.held.ends_with(stop.as_str()));
        if let Some((at, stop)) = whole.max_by_key(|(_, stop)| stop.len()) {
            out.push_str(&self.held[..self.held.len() - stop.len()]);
            self.held.clear();
            self.found = Some(at);
            return true;
        }
        let may_become_one = |rest: &str| self.stops.iter().any(|stop| stop.starts_with(rest));
        let mut starts = self.held.char_indices().map(|(start, _)| start);
        let start = starts.find(|start| may_become_one(&self.held[*start..]));
        let start = start.unwrap_or(self.held.len());
        out.push_str(&self.held[..start]);
        self.held.drain(..start);
        false
    }
}
