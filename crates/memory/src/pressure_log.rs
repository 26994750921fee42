//! What memory pressure made of the run: events for the status, and a short list of the last ones.
//!
//! Owns: [`PressureCause`], [`PressureEvent`] and [`PressureLog`]. Refuses: growing; a run of days keeps as many events as
//! one of minutes.

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use crate::Bytes;

/// Why expert slots were taken away or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PressureCause {
    /// Somebody lowered a limit of a control group of this process.
    LimitLowered,
    /// The control group is nearly full.
    GroupFull,
    /// The machine has little left.
    MachineShort,
    /// Threads wait for memory.
    Stalled,
    /// The system asks for memory back (macOS).
    SystemWarning,
    /// The process holds more than its ledger says.
    Drift,
    /// Nothing of this for a while: slots are given back.
    Calm,
}

impl PressureCause {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::LimitLowered,
        Self::GroupFull,
        Self::MachineShort,
        Self::Stalled,
        Self::SystemWarning,
        Self::Drift,
        Self::Calm,
    ];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LimitLowered => "limit lowered",
            Self::GroupFull => "control group nearly full",
            Self::MachineShort => "machine short of memory",
            Self::Stalled => "waiting for memory",
            Self::SystemWarning => "the system asks for memory",
            Self::Drift => "more held than accounted for",
            Self::Calm => "calm again",
        }
    }
}

impl fmt::Display for PressureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A change of what expert slots may hold, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PressureEvent {
    /// Milliseconds since the start.
    pub at_ms: u64,
    /// Why.
    pub cause: PressureCause,
    /// What expert slots could hold before.
    pub from: Bytes,
    /// What they may hold now.
    pub to: Bytes,
}

/// The last events, and how many there were of each cause.
///
/// Memory that others take for two seconds makes a hundred small changes. Events of one cause that follow each other within
/// [`PressureLog::MERGED_MS`] are one entry here: from the first to the last figure, at the time of the first. The memory of
/// all entries is there from the start: an event may come while tokens are made, when nothing is taken from the heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PressureLog {
    events: VecDeque<PressureEvent>,
    counts: [u64; PressureCause::ALL.len()],
    #[serde(skip)]
    last_at_ms: u64,
}

impl Default for PressureLog {
    fn default() -> Self {
        Self::new()
    }
}

impl PressureLog {
    /// Entries kept.
    pub const KEPT: usize = 32;
    /// Events of one cause are one entry while they are no further apart than this.
    pub const MERGED_MS: u64 = 2_000;

    /// An empty log.
    pub fn new() -> Self {
        Self {
            events: VecDeque::with_capacity(Self::KEPT),
            counts: [0; PressureCause::ALL.len()],
            last_at_ms: 0,
        }
    }

    /// Adds an event.
    pub fn push(&mut self, event: PressureEvent) {
        let is_near = event.at_ms.saturating_sub(self.last_at_ms) <= Self::MERGED_MS;
        self.last_at_ms = event.at_ms;
        if let Some(last) = self.events.back_mut()
            && is_near
            && last.cause == event.cause
        {
            last.to = event.to;
            return;
        }
        self.counts[event.cause as usize] += 1;
        if self.events.len() == Self::KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The last entries, the oldest first.
    pub fn events(&self) -> impl ExactSizeIterator<Item = &PressureEvent> {
        self.events.iter()
    }

    /// Entries of each cause since the start, in the order of [`PressureCause::ALL`].
    pub fn counts(&self) -> [(PressureCause, u64); PressureCause::ALL.len()] {
        PressureCause::ALL.map(|cause| (cause, self.count(cause)))
    }

    /// Entries of `cause` since the start.
    pub fn count(&self, cause: PressureCause) -> u64 {
        self.counts[cause as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: u64, cause: PressureCause, from: u64, to: u64) -> PressureEvent {
        PressureEvent { at_ms, cause, from: Bytes(from), to: Bytes(to) }
    }

    #[test]
    fn events_that_follow_each_other_closely_are_one_entry() {
        let mut log = PressureLog::new();
        for (at_ms, cause, from, to) in [
            (0, PressureCause::GroupFull, 100, 90),
            (2_000, PressureCause::GroupFull, 90, 80),
            (4_000, PressureCause::GroupFull, 80, 70),
            (6_001, PressureCause::GroupFull, 70, 60),
            (6_002, PressureCause::Drift, 60, 50),
            (6_003, PressureCause::GroupFull, 50, 40),
        ] {
            log.push(event(at_ms, cause, from, to));
        }
        let entries: Vec<_> = log.events().copied().collect();
        assert_eq!(
            entries,
            [
                event(0, PressureCause::GroupFull, 100, 70),
                event(6_001, PressureCause::GroupFull, 70, 60),
                event(6_002, PressureCause::Drift, 60, 50),
                event(6_003, PressureCause::GroupFull, 50, 40),
            ]
        );
        assert_eq!((log.count(PressureCause::GroupFull), log.count(PressureCause::Drift)), (3, 1));
    }

    #[test]
    fn a_long_run_keeps_the_last_entries_and_counts_all() {
        let mut log = PressureLog::default();
        let capacity = log.events.capacity();
        for index in 0..1_000 {
            log.push(event(index * 10_000, PressureCause::Calm, index, index + 1));
        }
        assert_eq!(log.events.capacity(), capacity, "events take no memory");
        assert_eq!(log.events().len(), PressureLog::KEPT);
        assert_eq!(log.events().last(), Some(&event(9_990_000, PressureCause::Calm, 999, 1_000)));
        assert_eq!(log.count(PressureCause::Calm), 1_000);
        assert!(log.counts().iter().all(|(cause, count)| (*count > 0) == (*cause == PressureCause::Calm)));
    }
}
