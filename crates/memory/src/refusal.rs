//! The refusal of a plan and its text: what is needed part by part, what is missing, what would help.

use std::fmt;

use serde::Serialize;

use crate::Bytes;

/// A flag and what it would save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// As typed on the command line: `--ctx 2048`.
    pub flag: String,
    /// Bytes it saves.
    pub saves: Bytes,
}

/// No division of the budget works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoesNotFit {
    /// The budget.
    pub budget: Bytes,
    /// What the smallest plan needs, by part; they add up to `smallest_budget`.
    pub parts: Vec<(String, Bytes)>,
    /// The smallest budget that works with the same flags: exact to the byte.
    pub smallest_budget: Bytes,
    /// Flags that save memory, largest saving first.
    pub suggestions: Vec<Suggestion>,
}

impl DoesNotFit {
    /// Bytes that the budget lacks.
    pub fn missing(&self) -> Bytes {
        self.smallest_budget.saturating_sub(self.budget)
    }
}

impl std::error::Error for DoesNotFit {}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the model does not fit into a budget of {}", Mib(self.budget))?;
        let totals = [("needed at least", self.smallest_budget), ("missing", self.missing())];
        let rows = || self.parts.iter().map(|(name, bytes)| (name.as_str(), *bytes)).chain(totals);
        let name_width = rows().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let size_width = rows().map(|(_, bytes)| Mib(bytes).to_string().len()).max().unwrap_or(0);
        for (name, bytes) in rows() {
            writeln!(f, "  {name:<name_width$}  {:>size_width$}", Mib(bytes))?;
        }
        for Suggestion { flag, saves } in &self.suggestions {
            let enough = if *saves >= self.missing() { ", which is enough" } else { "" };
            writeln!(f, "{flag} saves {}{enough}", Mib(*saves))?;
        }
        write!(f, "--budget {} is the smallest that works", self.smallest_budget.0)
    }
}

/// Prints in MiB whatever the size, so that a column adds up; rounded up, so that no part looks free.
struct Mib(Bytes);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (u128::from(self.0.0) * 10).div_ceil(1 << 20);
        f.pad(&format!("{}.{} MiB", tenths / 10, tenths % 10))
    }
}
