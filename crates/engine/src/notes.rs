//! What a plan should say beyond its figures: what its mode means, what the gate says, what the model was not trained for, and
//! which settings were given that have no effect in it.
//!
//! Owns: the conditions under which a setting has an effect, one row each ([`without_effect`]). Conditions that depend on the
//! command (a run waits for no second question) are the program's. Refuses: changing anything; a note is read, not acted on.

use coldpress_memory::Bytes;

use crate::configuration::{ChoiceOrigin, ForceMode, LoadConfiguration, PackUse, Prefetch, Residency};
use crate::expert_types::ExpertType;
use crate::plan::PlanReport;
use crate::press::Thinking;
use crate::settings::SettingKey;
use crate::vocabulary::Vocabulary;

/// The variable of chat templates that lets a model think or not.
const THINKING_VARIABLE: &str = "enable_thinking";
const DEPENDS_ON_MEMORY: &str =
    "with a cache bias answers depend on the budget, on earlier requests and on requests beside them";
const NO_EXPERTS: &str = "the model has no routed experts";
const MAPPED_ONLY: &str = "it is for --residency mapped";

/// A plan that is complete but for its notes.
pub(crate) struct Subject<'a> {
    pub configuration: &'a LoadConfiguration,
    pub report: &'a PlanReport,
    /// Whether experts are read from a pack, also one that is written first.
    pub has_pack: bool,
    /// Absent where it cannot be read, which a load says better.
    pub vocabulary: Option<Vocabulary<'a>>,
}

/// All notes, the most general first.
pub(crate) fn of(subject: &Subject<'_>) -> Vec<String> {
    let Subject { configuration, report, .. } = subject;
    let mut notes: Vec<String> =
        mode(report.residency, configuration.force_mode).iter().map(|note| (*note).to_owned()).collect();
    notes.extend(report.gate.note());
    notes.extend(beyond_training(report));
    let no_room = report.residency == Residency::Mapped && report.advice_bytes == Bytes::ZERO;
    if configuration.router_advice && no_room {
        notes.push("the budget has no room for router advice: it keeps nothing".to_owned());
    }
    if report.depends_on_memory {
        notes.push(DEPENDS_ON_MEMORY.to_owned());
    }
    for key in SettingKey::ALL {
        let given = matches!(configuration.origins.of(key), ChoiceOrigin::Flag | ChoiceOrigin::Environment);
        if let Some(reason) = given.then(|| without_effect(key, subject)).flatten() {
            notes.push(format!("{} ({}) has no effect here: {reason}", key.name(), configuration.given(key)));
        }
    }
    notes
}

/// What the figures of a plan do not say about a mode.
fn mode(residency: Residency, force_mode: ForceMode) -> &'static [&'static str] {
    match (residency, force_mode) {
        (Residency::Auto | Residency::Resident | Residency::Streamed, _) => &[],
        (Residency::Paged, _) => &[
            "experts pass through the page cache, which fills with them beside the budget: the budget bounds this process, \
             not what the system caches for it",
        ],
        (Residency::Mapped, ForceMode::Soft) => &[
            "experts are used in place and checked each time they come to a place; the system may drop and read pages of \
             theirs in between, unchecked",
            "experts that lose their place leave this process, not the page cache, which fills beside the budget; \
             --force-mode force drops them there too",
        ],
        (Residency::Mapped, ForceMode::Force) => &[
            "experts are used in place and checked each time they come to a place; the system may drop and read pages of \
             theirs in between, unchecked",
        ],
    }
}

/// A context that reaches further than the model was trained for.
fn beyond_training(report: &PlanReport) -> Option<String> {
    let (context, trained) = (report.plan.context as usize, report.model.trained_context);
    (context > trained).then(|| {
        format!(
            "the context of {context} tokens is longer than the {trained} that the model was trained for: what it writes beyond \
             them may make no sense; --ctx {trained} takes less memory"
        )
    })
}

/// Why a setting that was given changes nothing in this plan; `None` where it does, or where its value is what would be
/// done anyway.
fn without_effect(key: SettingKey, subject: &Subject<'_>) -> Option<&'static str> {
    let Subject { configuration, report, has_pack, .. } = subject;
    let dense = report.plan.records_total == 0;
    let resident = report.residency == Residency::Resident;
    let mapped = report.residency == Residency::Mapped;
    let unless_mapped = match (dense, mapped) {
        (true, _) => Some(NO_EXPERTS),
        (false, false) => Some(MAPPED_ONLY),
        (false, true) => None,
    };
    let unless_evicting = match (dense, resident) {
        (true, _) => Some(NO_EXPERTS),
        (false, true) => Some("every expert stays in memory"),
        (false, false) => None,
    };
    let when = |condition: bool, reason: &'static str| condition.then_some(reason);
    match key {
        SettingKey::Residency => {
            let evicting = !matches!(configuration.residency, Residency::Auto | Residency::Resident);
            when(dense && evicting, NO_EXPERTS)
        }
        SettingKey::Press => {
            when(dense && configuration.press.cold_fraction().is_some_and(|cold| cold > 0.0), NO_EXPERTS)
        }
        SettingKey::ResidentCap | SettingKey::Pack => when(dense, NO_EXPERTS),
        SettingKey::ForceMode => unless_mapped.filter(|_| configuration.force_mode == ForceMode::Force),
        SettingKey::Policy => unless_evicting,
        SettingKey::CacheBias => unless_evicting.filter(|_| configuration.cache_bias > 0.0),
        SettingKey::Prefetch => unless_evicting.filter(|_| configuration.prefetch == Some(Prefetch::On)),
        SettingKey::Split if configuration.split.is_none_or(|split| split == 1) => None,
        SettingKey::Split if dense => Some(NO_EXPERTS),
        SettingKey::Split if mapped => Some("mapped experts are read page by page"),
        SettingKey::Split => when(!has_pack, "only experts of a pack are read in parts"),
        SettingKey::Prestack => match configuration.pack {
            PackUse::BuildIfAbsent(_) | PackUse::Fill(_) if dense => Some(NO_EXPERTS),
            PackUse::Fill(_) => when(
                report.residency != Residency::Streamed && !has_pack,
                "a pack is filled with experts that are streamed",
            ),
            _ => None,
        },
        SettingKey::RouterAdvice => unless_mapped.filter(|_| configuration.router_advice),
        SettingKey::RouterAdviceCap => match configuration.router_advice {
            true => unless_mapped,
            false => Some("router advice is off"),
        },
        SettingKey::Experts => when(dense && configuration.experts != ExpertType::Keep, NO_EXPERTS),
        SettingKey::RouteTelemetry => when(dense && configuration.route_telemetry, NO_EXPERTS),
        SettingKey::LowRam => {
            let chosen = [SettingKey::Context, SettingKey::Chunk, SettingKey::Hotlist, SettingKey::Thinking];
            let all = chosen.iter().all(|key| configuration.origins.of(*key) != ChoiceOrigin::Default);
            when(configuration.low_ram && all, "all that it would choose was chosen")
        }
        SettingKey::IdleRelease => {
            when(configuration.idle_after.is_none(), "nothing is given back without --idle-after")
        }
        SettingKey::Thinking => thinking(subject),
        SettingKey::PreTokenizer => {
            let splits = subject.vocabulary.as_ref().is_none_or(Vocabulary::takes_pre_tokenizer);
            when(!splits, "the tokenizer of this file does not split text first")
        }
        SettingKey::Budget
        | SettingKey::Reader
        | SettingKey::PrestackFolder
        | SettingKey::Hotlist
        | SettingKey::DiskProbe
        | SettingKey::Context
        | SettingKey::Chunk
        | SettingKey::Kv
        | SettingKey::ExpertsPerToken
        | SettingKey::Threads
        | SettingKey::Isa
        | SettingKey::MemoryGate
        | SettingKey::IdleAfter => None,
    }
}

fn thinking(subject: &Subject<'_>) -> Option<&'static str> {
    if subject.configuration.thinking == Thinking::Auto {
        return None;
    }
    match subject.vocabulary.as_ref()?.template_source() {
        None => Some("the model has no chat template"),
        Some(template) if !template.contains(THINKING_VARIABLE) => {
            Some("the chat template of the model does not take enable_thinking")
        }
        Some(_) => None,
    }
}
