//! The eviction machinery as a whole, as a caller sees it: whether experts may leave memory, how many bytes of them may
//! stay, and the switches around that.
//!
//! Owns: [`Press`], [`ResidentCap`], [`MemoryGate`], [`Thinking`], the low-RAM profile, their methods of
//! [`LoadConfiguration`] and which of them contradict each other. What they cost is computed in `plan`. Nothing here changes
//! a logit. Read next: `settings`, which says who chose what.

use coldpress_experts::{ExpertStore, Geometry, mapped_place_bytes};
use coldpress_memory::{Bytes, Ledger};

use crate::configuration::{ChoiceOrigin, ForceMode, LoadConfiguration, Residency};
use crate::error::EngineError;
use crate::gate::Gate;
use crate::plan::PlanReport;
use crate::settings::{Setting, SettingKey};

/// Context of the low-RAM profile, in tokens.
pub(crate) const LOW_RAM_CONTEXT: u32 = 2048;
/// Prefill chunk of the low-RAM profile, in tokens. The scratch of a chunk grows with it; so do the tokens that share one
/// read of an expert.
pub(crate) const LOW_RAM_CHUNK: u32 = 128;
/// Router advice takes at most one part in this many of the budget where nobody says how much.
const ADVICE_SHARE: u64 = 8;

/// Whether experts may leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Press {
    /// As the budget demands: nothing leaves where everything fits.
    #[default]
    Auto,
    /// This share of the routed experts' bytes may live only on disk, whatever the budget would hold.
    Enabled {
        /// 0 to 1.
        cold_fraction: f64,
    },
    /// Nothing is ever evicted: every expert is loaded before the first token, or the load is refused.
    Disabled,
}

impl Press {
    /// The share that may live only on disk, where it was given.
    pub fn cold_fraction(self) -> Option<f64> {
        match self {
            Self::Enabled { cold_fraction } => Some(cold_fraction),
            Self::Auto | Self::Disabled => None,
        }
    }
}

impl std::fmt::Display for Press {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Enabled { cold_fraction } => write!(formatter, "enabled, cold fraction {cold_fraction}"),
            Self::Disabled => formatter.write_str("disabled"),
        }
    }
}

/// Bound on the bytes of routed experts held in memory, within the budget.
///
/// A fraction is one of the routed experts' bytes, as the cold fraction is: a cap of 0.3 holds what a cold fraction of 0.7
/// holds. The difference is what happens where a token needs more: a cold fraction gives way, a cap is kept and the load refused.
#[derive(Clone, Copy, Debug, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ResidentCap {
    /// As many as the budget holds.
    #[default]
    Unlimited,
    /// A share of the routed experts' bytes, above 0 and at most 1.
    Fraction(f64),
    /// A number of bytes.
    Bytes(Bytes),
}

impl ResidentCap {
    /// The bound for a model with `expert_bytes` bytes of routed experts; `None` for none.
    pub fn bytes(self, expert_bytes: Bytes) -> Option<Bytes> {
        match self {
            Self::Unlimited => None,
            // Whole bytes; the rounding is far below one expert.
            Self::Fraction(fraction) => Some(Bytes((expert_bytes.0 as f64 * fraction) as u64)),
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl std::fmt::Display for ResidentCap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unlimited => formatter.write_str("unlimited"),
            Self::Fraction(fraction) => write!(formatter, "{fraction} of the routed experts"),
            Self::Bytes(bytes) => bytes.fmt(formatter),
        }
    }
}

/// Whether a load that needs more memory than can be had now is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryGate {
    /// Refused before weights are read.
    #[default]
    On,
    /// Let through, with a note of what is risked.
    Off,
}

impl MemoryGate {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 2] = [("on", Self::On), ("off", Self::Off)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        if self == Self::On { "on" } else { "off" }
    }
}

/// What a chat template that takes `enable_thinking` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// Nothing: the template decides.
    #[default]
    Auto,
    /// To let the model think before it answers.
    On,
    /// To let it answer at once.
    Off,
}

impl Thinking {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("auto", |&(name, _)| name)
    }
}

impl LoadConfiguration {
    /// Whether experts may leave memory. Default: [`Press::Auto`].
    #[must_use]
    pub fn press(mut self, press: Press) -> Self {
        self.press = press;
        self.chosen_by(SettingKey::Press, ChoiceOrigin::Flag)
    }

    /// Bound on the bytes of routed experts held in memory. Default: [`ResidentCap::Unlimited`], what the budget holds.
    #[must_use]
    pub fn max_resident_bytes(mut self, cap: ResidentCap) -> Self {
        self.resident_cap = cap;
        self.chosen_by(SettingKey::ResidentCap, ChoiceOrigin::Flag)
    }

    /// Whether the experts that each layer uses most are kept in the page cache beyond the places of `mapped`. Default: no.
    /// Without effect in other modes.
    #[must_use]
    pub fn router_advice(mut self, on: bool) -> Self {
        self.router_advice = on;
        self.chosen_by(SettingKey::RouterAdvice, ChoiceOrigin::Flag)
    }

    /// Bound on the bytes that router advice keeps, part of the budget. Default: one token's experts, at most an eighth of
    /// the budget.
    #[must_use]
    pub fn router_advice_cap(mut self, cap: Bytes) -> Self {
        self.router_advice_cap = Some(cap);
        self.chosen_by(SettingKey::RouterAdviceCap, ChoiceOrigin::Flag)
    }

    /// Whether uses and hits of every expert are counted, in memory of fixed size. Default: no.
    #[must_use]
    pub fn route_telemetry(mut self, on: bool) -> Self {
        self.route_telemetry = on;
        self.chosen_by(SettingKey::RouteTelemetry, ChoiceOrigin::Flag)
    }

    /// Whether a load that needs more memory than can be had now is refused. Default: it is.
    #[must_use]
    pub fn memory_gate(mut self, gate: MemoryGate) -> Self {
        self.memory_gate = gate;
        self.chosen_by(SettingKey::MemoryGate, ChoiceOrigin::Flag)
    }

    /// The low-RAM profile. It chooses what nobody else chose: a context of 2,048 tokens, prefill chunks of 128, no hotlist,
    /// and no thinking where the chat template can be told so. Default: no.
    #[must_use]
    pub fn low_ram(mut self, on: bool) -> Self {
        self.low_ram = on;
        self.chosen_by(SettingKey::LowRam, ChoiceOrigin::Flag)
    }

    /// What a chat template that takes `enable_thinking` is told. Default: nothing, or `off` with the low-RAM profile.
    #[must_use]
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.thinking = thinking;
        self.chosen_by(SettingKey::Thinking, ChoiceOrigin::Flag)
    }

    /// Whether the low-RAM profile chooses `key`, because nobody else did.
    pub(crate) fn low_ram_chooses(&self, key: SettingKey) -> bool {
        const CHOSEN: [SettingKey; 4] =
            [SettingKey::Context, SettingKey::Chunk, SettingKey::Hotlist, SettingKey::Thinking];
        self.low_ram && CHOSEN.contains(&key) && self.origins.of(key) == ChoiceOrigin::Default
    }

    /// Folder of the hotlists, where they are wanted.
    pub(crate) fn wanted_hotlists(&self) -> Option<&std::path::PathBuf> {
        self.hotlists.as_ref().filter(|_| !self.low_ram_chooses(SettingKey::Hotlist))
    }

    /// What chat templates are told about thinking.
    pub(crate) fn wanted_thinking(&self) -> Thinking {
        if self.low_ram_chooses(SettingKey::Thinking) { Thinking::Off } else { self.thinking }
    }

    /// Variables for every chat template of a run. A template that names none of them renders as without.
    pub fn template_variables(&self) -> serde_json::Map<String, serde_json::Value> {
        let told = match self.wanted_thinking() {
            Thinking::Auto => None,
            thinking => Some(("enable_thinking".to_owned(), (thinking == Thinking::On).into())),
        };
        told.into_iter().collect()
    }

    /// Whether every expert must have memory of its own.
    pub(crate) fn must_be_resident(&self) -> bool {
        self.residency == Residency::Resident || self.press == Press::Disabled
    }

    /// Settings that contradict each other, both named with who chose them. A cap in bytes contradicts nothing until
    /// the bytes of the routed experts are known.
    pub(crate) fn check_conflicts(&self, expert_bytes: Option<Bytes>) -> Result<(), EngineError> {
        let evicts = matches!(self.residency, Residency::Streamed | Residency::Paged | Residency::Mapped);
        let capped = match self.resident_cap {
            ResidentCap::Unlimited => false,
            ResidentCap::Fraction(fraction) => fraction < 1.0,
            ResidentCap::Bytes(bytes) => expert_bytes.is_some_and(|all| bytes < all),
        };
        let cold = self.press.cold_fraction().is_some_and(|fraction| fraction > 0.0);
        let (keeping, evicting) = if self.press == Press::Disabled {
            let evicting = match (evicts, capped) {
                (true, _) => SettingKey::Residency,
                (_, true) => SettingKey::ResidentCap,
                _ => return Ok(()),
            };
            (SettingKey::Press, evicting)
        } else if self.residency == Residency::Resident {
            let evicting = match (cold, capped) {
                (true, _) => SettingKey::Press,
                (_, true) => SettingKey::ResidentCap,
                _ => return Ok(()),
            };
            (SettingKey::Residency, evicting)
        } else {
            return Ok(());
        };
        let (keeping, evicting) = (self.said(keeping), self.said(evicting));
        Err(EngineError::BadOption(format!(
            "{keeping} keeps every expert in memory and {evicting} does not: leave one of them out"
        )))
    }

    /// A setting with what it came to and how it was given.
    fn said(&self, key: SettingKey) -> String {
        let value = match key {
            SettingKey::Residency => self.residency.name().to_owned(),
            SettingKey::ResidentCap => self.resident_cap.to_string(),
            _ => self.press.to_string(),
        };
        format!("{} ({value}, {})", key.name(), self.given(key))
    }

    /// Whether router advice is on where it has an effect.
    pub(crate) fn advises(&self) -> bool {
        self.router_advice && self.residency == Residency::Mapped
    }
}

/// What router advice may keep where nobody says how much: the experts of one token, at most a part of the budget.
pub(crate) fn default_advice_cap(geometry: &Geometry, experts_per_token: usize, budget: Bytes) -> Bytes {
    let place = mapped_place_bytes(geometry.record_bytes_max()) as u64;
    let one_token = place.saturating_mul((experts_per_token * geometry.layer_count()) as u64);
    Bytes(one_token.min(budget.0 / ADVICE_SHARE))
}

/// Starts what watches the routing of a store that was just opened, as planned: router advice and route telemetry.
pub(crate) fn watch_routing(
    store: &mut ExpertStore,
    report: &PlanReport,
    ledger: &Ledger,
) -> Result<(), EngineError> {
    if report.advice_bytes > Bytes::ZERO {
        store.advise(report.advice_bytes, ledger)?;
    }
    if report.telemetry_bytes > Bytes::ZERO {
        store.record_telemetry(ledger)?;
    }
    Ok(())
}

/// The eviction machinery of a run, for its status.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct PressStatus {
    /// Whether experts leave memory at all: not all of them have a place.
    pub enabled: bool,
    /// Share of the routed experts that has no place in memory, 0 to 1.
    pub cold_fraction: f64,
    /// What was asked for.
    pub press: Setting<Press>,
    /// Bound on the bytes of experts in memory.
    pub resident_cap: Setting<ResidentCap>,
    /// How `mapped` gives experts back.
    pub force_mode: Setting<ForceMode>,
    /// Bytes that router advice may keep beyond the places; zero where it is off or has no effect.
    pub router_advice_bytes: Bytes,
    /// Bytes of route telemetry; zero where it is off.
    pub telemetry_bytes: Bytes,
    /// The memory gate at the load.
    pub gate: Gate,
}

impl PressStatus {
    /// Of a run with this configuration and plan.
    pub fn of(configuration: &LoadConfiguration, report: &PlanReport) -> Self {
        let plan = &report.plan;
        let warm = plan.slot_count as f64 / plan.records_total.max(1) as f64;
        Self {
            enabled: plan.slot_count < plan.records_total,
            cold_fraction: if plan.records_total == 0 { 0.0 } else { 1.0 - warm },
            press: Setting { value: configuration.press, origin: configuration.origin(SettingKey::Press) },
            resident_cap: Setting {
                value: configuration.resident_cap,
                origin: configuration.origin(SettingKey::ResidentCap),
            },
            force_mode: Setting {
                value: configuration.force_mode,
                origin: configuration.origin(SettingKey::ForceMode),
            },
            router_advice_bytes: report.advice_bytes,
            telemetry_bytes: report.telemetry_bytes,
            gate: report.gate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(configuration: LoadConfiguration) -> Option<String> {
        configuration.check().err().map(|error| error.to_string())
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_with_who_chose_them() {
        let disabled = LoadConfiguration::default().press(Press::Disabled);
        let cap = ResidentCap::Bytes(Bytes::from_mib(5));
        let capped = disabled
            .clone()
            .max_resident_bytes(cap)
            .chosen_by(SettingKey::ResidentCap, ChoiceOrigin::Environment);
        assert_eq!(conflict(capped.clone()), None, "it may be a small model");
        assert!(capped.check_conflicts(Some(Bytes::from_mib(5))).is_ok());
        let message = capped.check_conflicts(Some(Bytes::from_mib(6))).expect_err("refused").to_string();
        for part in ["flag --press", "5.0 MiB", "environment COLDPRESS_MAX_RESIDENT", "disabled"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
        let message = conflict(disabled.clone().residency(Residency::Mapped)).expect("refused");
        assert!(message.contains("--press") && message.contains("--residency"), "{message}");
        let resident = LoadConfiguration::default().residency(Residency::Resident);
        let message = conflict(resident.clone().cold_fraction(0.5)).expect("refused");
        assert!(message.contains("cold fraction 0.5") && message.contains("resident"), "{message}");
        assert!(conflict(resident.clone().max_resident_bytes(ResidentCap::Fraction(0.5))).is_some());
        for agreed in [
            resident.clone().press(Press::Disabled),
            resident.clone().cold_fraction(0.0),
            resident.max_resident_bytes(ResidentCap::Fraction(1.0)),
            disabled.max_resident_bytes(ResidentCap::Unlimited),
            LoadConfiguration::default().cold_fraction(0.5).max_resident_bytes(cap),
        ] {
            assert_eq!(conflict(agreed), None);
        }
    }

    #[test]
    fn fractions_that_mean_nothing_are_refused() {
        for fraction in [0.0, -0.5, 1.5, f64::NAN] {
            let cap = ResidentCap::Fraction(fraction);
            assert!(conflict(LoadConfiguration::default().max_resident_bytes(cap)).is_some(), "{fraction}");
        }
        for cold_fraction in [-0.5, 1.5, f64::NAN] {
            let press = Press::Enabled { cold_fraction };
            assert!(conflict(LoadConfiguration::default().press(press)).is_some(), "{cold_fraction}");
        }
    }

    #[test]
    fn the_low_ram_profile_chooses_only_what_nobody_chose() {
        let low = LoadConfiguration::default().low_ram(true);
        assert_eq!(low.wanted_thinking(), Thinking::Off);
        assert_eq!(low.template_variables().get("enable_thinking"), Some(&false.into()));
        let asked = low.clone().thinking(Thinking::Auto);
        assert!(asked.template_variables().is_empty());
        let on = asked.thinking(Thinking::On);
        assert_eq!(on.template_variables().get("enable_thinking"), Some(&true.into()));
        assert!(LoadConfiguration::default().template_variables().is_empty());
        let folder = std::path::PathBuf::from("h");
        let listed = low.hotlists(folder.clone());
        assert_eq!(listed.wanted_hotlists(), Some(&folder), "the caller named a folder");
        let usual = listed.chosen_by(SettingKey::Hotlist, ChoiceOrigin::Default);
        assert_eq!(usual.wanted_hotlists(), None);
    }
}
