//! The memory gate: whether what a plan takes can be had now, asked before weights are read.
//!
//! The budget is the user's word; the machine may have less, or others may hold it. What counts is the plan: a large budget
//! of which a small model takes little risks nothing. Refuses in [`crate::plan::prepare`], so a plan can still be
//! shown. What [`MachineFacts`] calls available counts caches that the system would give up.

use coldpress_memory::{Bytes, MachineFacts, MemoryWatch, Plan};

use crate::configuration::LoadConfiguration;
use crate::error::EngineError;
use crate::press::MemoryGate;
use crate::settings::{Setting, SettingKey};

/// What a plan needs beside what can be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gate {
    /// Whether a load is refused, and who chose that.
    pub setting: Setting<MemoryGate>,
    /// What the plan takes beyond what the program holds already.
    pub needed: Bytes,
    /// What can be had now without swapping, within all limits.
    pub available: Bytes,
    /// What the machine and its limits leave to this process.
    pub usable: Bytes,
    /// Whether it can be had.
    pub passes: bool,
    /// The largest budget that passes now.
    pub largest_budget: Bytes,
    /// The smallest budget that works at all with the same options.
    pub smallest_budget: Bytes,
}

impl Gate {
    /// Of a plan on a machine.
    pub(crate) fn of(
        configuration: &LoadConfiguration,
        facts: &MachineFacts,
        plan: &Plan,
        smallest_budget: Bytes,
    ) -> Self {
        // The program is in memory already, and is a share of the plan too.
        let held = MemoryWatch::new().read().map_or(Bytes::ZERO, |usage| usage.process.rss).min(plan.fixed);
        Self::judge(configuration, facts, plan, smallest_budget, held)
    }

    fn judge(
        configuration: &LoadConfiguration,
        facts: &MachineFacts,
        plan: &Plan,
        smallest_budget: Bytes,
        held: Bytes,
    ) -> Self {
        let needed = plan.total().saturating_sub(held);
        Self {
            setting: Setting {
                value: configuration.memory_gate,
                origin: configuration.origin(SettingKey::MemoryGate),
            },
            needed,
            available: facts.available,
            usable: facts.usable,
            passes: needed <= facts.available,
            largest_budget: facts.available.saturating_add(held),
            smallest_budget,
        }
    }

    /// What a user should know before a run; `None` where everything can be had.
    pub(crate) fn note(&self) -> Option<String> {
        if self.passes {
            return None;
        }
        let Self { needed, available, usable, .. } = self;
        let short = needed.saturating_sub(*available);
        Some(match self.setting.value {
            MemoryGate::On => format!(
                "a run is refused now: it may take {needed} more and {available} can be had ({usable} usable here); \
                 {}",
                self.way_out()
            ),
            MemoryGate::Off => format!(
                "memory gate off: this run may take {needed} more and {available} can be had ({usable} usable here), \
                 {short} too little: expect swapping, or the system kills this program or another one"
            ),
        })
    }

    /// # Errors
    /// Not everything can be had, and nobody said to go on all the same.
    pub(crate) fn pass(&self) -> Result<(), EngineError> {
        if self.passes || self.setting.value == MemoryGate::Off {
            return Ok(());
        }
        Err(EngineError::NotAvailable(Box::new(*self)))
    }

    fn way_out(&self) -> String {
        // Rounded so that it works when it is typed in: the largest down, the smallest up.
        let (largest, smallest) = (self.largest_budget.0 >> 20, self.smallest_budget.0.div_ceil(1 << 20));
        let lower = if largest >= smallest {
            format!("give --budget {largest}MiB or less (from {smallest}MiB on it works)")
        } else {
            format!("no budget that works fits now (the smallest is {smallest}MiB): free memory")
        };
        format!("{lower}, or --memory-gate off, which risks swapping and being killed")
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { needed, available, usable, .. } = self;
        write!(
            formatter,
            "this run may take {needed} of memory more than the program holds, and {available} can be had now \
             ({usable} usable here); nothing was loaded: {}",
            self.way_out()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldpress_memory::plan::{PlanInput, plan};

    fn facts(available: u64) -> MachineFacts {
        let facts = MachineFacts::detect().expect("this machine tells").with_memory(Bytes::from_mib(1000));
        MachineFacts { available: Bytes(available), ..facts }
    }

    /// A plan of exactly `bytes` bytes under a budget of 900 MiB.
    fn planned(bytes: u64) -> Plan {
        plan(&PlanInput {
            budget: Bytes::from_mib(900),
            usable: Bytes::from_mib(1000),
            fixed: Bytes::from_mib(10),
            dense: Bytes(bytes - (10 << 20)),
            kv_fixed: Bytes::ZERO,
            kv_per_token: Bytes::ZERO,
            kv_tokens_minimum: 0,
            kv_page_tokens: 1,
            kv_windows: Vec::new(),
            context: 1,
            context_explicit: true,
            context_minimum: 1,
            scratch_fixed: Bytes::ZERO,
            scratch_per_chunk_token: Bytes::ZERO,
            scratch_per_block_token: Bytes::ZERO,
            block_tokens: 1,
            chunk_tokens_wanted: 1,
            chunk_tokens_minimum: 1,
            read_ring: Bytes::ZERO,
            records: Vec::new(),
            records_minimum: 0,
            cold_fraction: None,
            page_bytes: 4096,
            other_savings: Vec::new(),
        })
        .expect("fits")
    }

    fn gate(configuration: &LoadConfiguration, bytes: u64, available: u64, held: u64) -> Gate {
        let smallest = Bytes::from_mib(100);
        Gate::judge(configuration, &facts(available), &planned(bytes), smallest, Bytes(held))
    }

    #[test]
    fn what_can_be_had_to_the_byte_passes_and_one_byte_more_does_not() {
        let configuration = LoadConfiguration::default();
        let bytes = 600 << 20;
        assert!(gate(&configuration, bytes, bytes, 0).passes, "the budget itself is larger");
        assert!(!gate(&configuration, bytes, bytes - 1, 0).passes);
        assert!(gate(&configuration, bytes, bytes - 1, 1).passes, "what is held is not needed again");
    }

    #[test]
    fn a_refusal_has_the_figures_and_a_budget_that_passes() {
        let refused = gate(&LoadConfiguration::default(), 600 << 20, 500 << 20, 0);
        let error = refused.pass().expect_err("refused").to_string();
        for part in ["600.0 MiB", "500.0 MiB", "1000.0 MiB usable", "--budget 500MiB", "--memory-gate off"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        assert!(refused.note().is_some_and(|note| note.contains("refused")));
        let hopeless = gate(&LoadConfiguration::default(), 600 << 20, 50 << 20, 0);
        assert!(hopeless.to_string().contains("no budget that works fits now"), "{hopeless}");
    }

    #[test]
    fn the_override_passes_and_names_what_is_risked() {
        let configuration = LoadConfiguration::default().memory_gate(MemoryGate::Off);
        let open = gate(&configuration, 600 << 20, 500 << 20, 0);
        assert!(open.pass().is_ok());
        let note = open.note().expect("a note");
        for part in ["600.0 MiB", "500.0 MiB", "100.0 MiB too little", "swapping", "kills"] {
            assert!(note.contains(part), "{note} lacks {part}");
        }
        assert_eq!(gate(&configuration, 600 << 20, 700 << 20, 0).note(), None);
    }
}
