//! The memory gate: whether what a plan takes can be had now, asked before weights are read.
//!
//! The budget is the user's word; the machine may have less, or others may hold it. What counts is the plan: a large budget
//! of which a small model takes little risks nothing. Refuses in [`crate::plan::prepare`], so a plan can still be
//! shown. What [`MachineFacts`] calls available counts caches that the system would give up. Under a limit on address space
//! a mapped pack counts as a whole, whatever part of it is in memory.

use coldpress_memory::{Bytes, MachineFacts, MemoryWatch, Plan, apart};

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
    /// The limit on address space or data that `available` ends at, beyond which the system refuses an allocation; `None` where
    /// it ends at memory.
    pub ends_at_limit: Option<Bytes>,
    /// The address space that the run takes, where there is a limit on it.
    pub address_space: Option<AddressSpace>,
    /// The largest budget that passes now.
    pub largest_budget: Bytes,
    /// The smallest budget that works at all with the same options.
    pub smallest_budget: Bytes,
}

/// What the program holds already of what a plan has for it.
#[derive(Clone, Copy)]
struct Held {
    /// In memory, its own file included: not needed again.
    resident: Bytes,
    /// Allocated. Its file has address space of its own already, and what the plan has for it is left as a reserve for what
    /// the allocator and the threads take beyond what they were asked for.
    own: Bytes,
}

/// Address space of a run under a limit on it (`ulimit -v`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AddressSpace {
    /// What the run takes beyond what the program has already: the plan without what lies in a mapped pack, and the mapping.
    pub needed: Bytes,
    /// The part of it that is a pack mapped into memory, as a whole whatever is used of it.
    pub mapping: Bytes,
    /// What is left of the limit.
    pub left: Bytes,
    /// The limit.
    pub limit: Bytes,
}

impl AddressSpace {
    fn fits(&self) -> bool {
        self.needed <= self.left
    }

    /// A limit under which it fits, as `ulimit -v` takes it: in KiB. A MiB more than it takes now, because a program does not
    /// hold the same number of pages at every start.
    fn limit_kib(&self) -> u64 {
        let more = self.needed.saturating_sub(self.left);
        (self.limit.saturating_add(more).0.div_ceil(1 << 20) + 1) << 10
    }
}

impl Gate {
    /// Of a plan on a machine. `mapping` is the file that the run maps into memory as a whole, if any: what the plan has for
    /// experts then lies in it.
    pub(crate) fn of(
        configuration: &LoadConfiguration,
        facts: &MachineFacts,
        plan: &Plan,
        mapping: Option<Bytes>,
        smallest_budget: Bytes,
    ) -> Self {
        // The program is in memory already, and is a share of the plan too.
        let now = MemoryWatch::new().read().unwrap_or_default().process;
        let held = Held { resident: now.rss.min(plan.fixed), own: now.anon.min(plan.fixed) };
        Self::judge(configuration, facts, plan, mapping, smallest_budget, held)
    }

    fn judge(
        configuration: &LoadConfiguration,
        facts: &MachineFacts,
        plan: &Plan,
        mapping: Option<Bytes>,
        smallest_budget: Bytes,
        held: Held,
    ) -> Self {
        let needed = plan.total().saturating_sub(held.resident);
        let address_space = facts.address_space_left.map(|left| {
            let in_mapping = mapping.map_or(Bytes::ZERO, |_| plan.slots);
            let beside = plan.total().saturating_sub(held.own).saturating_sub(in_mapping);
            let mapping = mapping.unwrap_or(Bytes::ZERO);
            let limit = facts.address_space_limit.unwrap_or(left);
            AddressSpace { needed: beside.saturating_add(mapping), mapping, left, limit }
        });
        let budget_in = |left: Bytes, held: Bytes| left.saturating_add(held);
        let largest_budget = budget_in(facts.available, held.resident);
        Self {
            setting: Setting {
                value: configuration.memory_gate,
                origin: configuration.origin(SettingKey::MemoryGate),
            },
            needed,
            available: facts.available,
            usable: facts.usable,
            passes: needed <= facts.available && address_space.is_none_or(|space| space.fits()),
            ends_at_limit: facts.address_space_limit.filter(|_| facts.ends_at_limit()),
            address_space,
            largest_budget: address_space
                .map_or(largest_budget, |space| largest_budget.min(budget_in(space.left, held.own))),
            smallest_budget,
        }
    }

    /// What a user should know before a run; `None` where everything can be had.
    pub(crate) fn note(&self) -> Option<String> {
        if self.passes {
            return None;
        }
        Some(match self.setting.value {
            MemoryGate::On => format!("a run is refused now: {}; {}", self.shortage(), self.way_out()),
            MemoryGate::Off => format!("memory gate off: {}: {}", self.shortage(), self.risk()),
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

    /// The address space, where it does not do.
    fn tight_address_space(&self) -> Option<AddressSpace> {
        self.address_space.filter(|space| !space.fits())
    }

    /// What is needed, what there is, and the difference.
    fn shortage(&self) -> String {
        if let Some(AddressSpace { needed, mapping, left, limit }) = self.tight_address_space() {
            let beside = needed.saturating_sub(mapping);
            let [needed, left, limit, short] = apart([needed, left, limit, needed.saturating_sub(left)]);
            let parts = match mapping {
                Bytes::ZERO => String::new(),
                mapping => format!(" ({mapping} for the mapped pack, {beside} beside it)"),
            };
            return format!(
                "it may take {needed} of address space{parts} more than the program has, and {left} of the limit of {limit} \
                 (ulimit -v) can be had now, {short} too little"
            );
        }
        let short = self.needed.saturating_sub(self.available);
        let whole = self.ends_at_limit.unwrap_or(self.usable);
        let [needed, available, whole, short] = apart([self.needed, self.available, whole, short]);
        let of = match self.ends_at_limit {
            Some(_) => format!("of the limit of {whole} on data (ulimit -d)"),
            None => format!("of {whole} usable here"),
        };
        format!(
            "it may take {needed} of memory more than the program holds, and {available} {of} can be had now, {short} too little"
        )
    }

    /// What happens to those who go on all the same.
    fn risk(&self) -> &'static str {
        match self.tight_address_space() {
            Some(space) if space.mapping > Bytes::ZERO => {
                "the system will refuse to map the pack or an allocation, and the run ends there"
            }
            None if self.ends_at_limit.is_none() => {
                "expect swapping, or the system kills this program or another one"
            }
            _ => "the system will refuse an allocation, and the run ends there",
        }
    }

    fn way_out(&self) -> String {
        let tight = self.tight_address_space();
        if let Some(space) = tight.filter(|space| space.mapping > Bytes::ZERO) {
            return format!(
                "give --residency streamed, which maps nothing, or raise the limit (ulimit -v {} or more)",
                space.limit_kib()
            );
        }
        // Rounded so that it works when it is typed in: the largest down, the smallest up.
        let (largest, smallest) = (self.largest_budget.0 >> 20, self.smallest_budget.0.div_ceil(1 << 20));
        let lower = if largest >= smallest {
            format!("give --budget {largest}MiB or less (from {smallest}MiB on it works)")
        } else if tight.is_some() || self.ends_at_limit.is_some() {
            format!("no budget that works fits now (the smallest is {smallest}MiB)")
        } else {
            format!("no budget that works fits now (the smallest is {smallest}MiB): free memory")
        };
        match tight {
            Some(space) => format!("{lower}, or raise the limit (ulimit -v {} or more)", space.limit_kib()),
            None if self.ends_at_limit.is_some() => format!("{lower}, or raise the limit"),
            None => format!("{lower}, or --memory-gate off, which risks swapping and being killed"),
        }
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "this run does not fit now: {}; nothing was loaded: {}",
            self.shortage(),
            self.way_out()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldpress_memory::plan::{PlanInput, RowCacheWish, plan};

    const NOTHING: Held = Held { resident: Bytes::ZERO, own: Bytes::ZERO };

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
            row_cache: RowCacheWish::default(),
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
        Gate::judge(
            configuration,
            &facts(available),
            &planned(bytes),
            None,
            smallest,
            Held { resident: Bytes(held), own: Bytes(held) },
        )
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
        for part in [
            "600.0 MiB",
            "500.0 MiB",
            "1000.0 MiB usable",
            "100.0 MiB too little",
            "--budget 500MiB",
            "--memory-gate off",
        ] {
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

    /// Limits of the shell on a machine with plenty of memory.
    fn limited(address_space: Option<u64>, data: Option<u64>) -> MachineFacts {
        let left = [address_space, data].into_iter().flatten().min().map(Bytes);
        MachineFacts {
            address_space_limit: left.map(|left| left.saturating_add(Bytes::from_mib(50))),
            address_space_left: address_space.map(Bytes),
            data_left: data.map(Bytes),
            available: left.unwrap_or(Bytes::from_mib(1000)),
            ..facts(1000 << 20)
        }
    }

    #[test]
    fn a_limit_of_the_shell_is_told_as_one() {
        let smallest = Bytes::from_mib(100);
        for (address_space, data) in [(Some(500 << 20), None), (None, Some(500 << 20))] {
            for setting in [MemoryGate::On, MemoryGate::Off] {
                let configuration = LoadConfiguration::default().memory_gate(setting);
                let machine = limited(address_space, data);
                let gate =
                    Gate::judge(&configuration, &machine, &planned(600 << 20), None, smallest, NOTHING);
                assert!(!gate.passes);
                let said = format!("{} {gate}", gate.note().expect("a note"));
                assert!(said.contains("(ulimit -") && said.contains("100.0 MiB too little"), "{said}");
                assert!(!said.contains("swap") && !said.contains("kill"), "nothing swaps at a limit: {said}");
                assert_eq!(setting == MemoryGate::Off, said.contains("refuse an allocation"), "{said}");
            }
        }
    }

    #[test]
    fn a_mapped_pack_counts_as_a_whole_under_a_limit_on_address_space() {
        let configuration = LoadConfiguration::default();
        let judge = |machine: &MachineFacts, mapping: Option<u64>| {
            let (plan, smallest) = (planned(100 << 20), Bytes::from_mib(50));
            Gate::judge(&configuration, machine, &plan, mapping.map(Bytes), smallest, NOTHING)
        };
        let machine = limited(Some(500 << 20), None);
        assert!(judge(&machine, None).passes && judge(&machine, Some(400 << 20)).passes);
        assert!(judge(&limited(None, None), Some(4000 << 20)).passes, "without a limit a mapping is free");
        assert!(judge(&limited(None, Some(500 << 20)), Some(4000 << 20)).passes, "a mapped file is no data");
        let refused = judge(&machine, Some((400 << 20) + 1));
        let said = refused.pass().expect_err("refused").to_string();
        // 550 MiB are the limit; a byte rounds up, and a MiB is for what differs from start to start.
        for part in
            ["524288001 B", "524288000 B", "--residency streamed", "ulimit -v 565248", "nothing was loaded"]
        {
            assert!(said.contains(part), "{said} lacks {part}");
        }
        let open = Gate { setting: Setting { value: MemoryGate::Off, ..refused.setting }, ..refused };
        assert!(open.note().is_some_and(|note| note.contains("refuse to map the pack")), "{open}");
    }

    #[test]
    fn two_figures_that_differ_look_different() {
        let refused = gate(&LoadConfiguration::default(), (600 << 20) + 1, 600 << 20, 0);
        let said = refused.to_string();
        assert!(said.contains("629145601 B") && said.contains("629145600 B"), "{said}");
    }
}
