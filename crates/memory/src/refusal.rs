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
        let unit = Unit::that_tells_apart(self.budget, self.smallest_budget);
        let text = |bytes: Bytes| unit.text(bytes);
        writeln!(f, "the model does not fit into a budget of {}", text(self.budget))?;
        let totals = [("needed at least", self.smallest_budget), ("missing", self.missing())];
        let rows = || self.parts.iter().map(|(name, bytes)| (name.as_str(), *bytes)).chain(totals);
        let name_width = rows().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let size_width = rows().map(|(_, bytes)| text(bytes).len()).max().unwrap_or(0);
        for (name, bytes) in rows() {
            writeln!(f, "  {name:<name_width$}  {:>size_width$}", text(bytes))?;
        }
        for Suggestion { flag, saves } in &self.suggestions {
            let enough = if *saves >= self.missing() { ", which is enough" } else { "" };
            writeln!(f, "{flag} saves {}{enough}", text(*saves))?;
        }
        write!(f, "--budget {} is the smallest that works", self.smallest_budget.0)
    }
}

/// The unit of a column: one for all sizes, so that it adds up.
#[derive(Clone, Copy)]
enum Unit {
    /// MiB with this many decimals, rounded up, so that no part looks free.
    Mib(u32),
    /// Whole bytes.
    Byte,
}

impl Unit {
    /// The shortest one in which a budget does not look like the larger one that would do.
    fn that_tells_apart(budget: Bytes, enough: Bytes) -> Self {
        let differ = |unit: &Self| budget == enough || unit.text(budget) != unit.text(enough);
        (1..=3).map(Self::Mib).find(differ).unwrap_or(Self::Byte)
    }

    fn text(self, bytes: Bytes) -> String {
        let Self::Mib(decimals) = self else { return format!("{} B", bytes.0) };
        let scale = 10_u128.pow(decimals);
        let parts = (u128::from(bytes.0) * scale).div_ceil(1 << 20);
        format!("{}.{:0width$} MiB", parts / scale, parts % scale, width = decimals as usize)
    }
}
