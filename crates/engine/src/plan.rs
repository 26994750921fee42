//! From a model file and a configuration to a memory plan, without reading weights.
//!
//! `plan` and `load` both come through [`prepare`], so the figures printed are the figures used. The arithmetic is in
//! `coldpress-memory`; this file brings the model's sizes and chooses the residency mode.

use std::path::Path;

use coldpress_experts::pack::PackLayout;
use coldpress_experts::{
    Geometry, LazyConfig, PackFile, READ_AHEAD_DEFAULT, RECORD_ALIGNMENT, RouteTelemetry, RowTable,
    mapped_place_bytes, read_ring_bytes, row_store_bytes, row_store_bytes_minimum,
};
use coldpress_formats::ModelFile;
use coldpress_kernels::{Isa, Kernels};
use coldpress_memory::plan::{
    CHUNK_TOKENS_MINIMUM, CONTEXT_MINIMUM, ContextRoom, Plan, PlanInput, PlanNote, RecordClass, RowCacheWish,
    context_room, plan as divide, resident_budget, smallest_budget,
};
use coldpress_memory::{Bytes, MachineFacts, Suggestion};
use coldpress_model::{
    BLOCK_ROWS, KvType, ModelSpec, PAGE_POSITIONS, describe, kv_bytes_per_token, largest_piece, scratch_cost,
    state_bytes,
};
use coldpress_workers::WORKER_STACK_BYTES;

use crate::configuration::{LoadConfiguration, PackUse, Residency};
use crate::disk_tuning::Reading;
use crate::error::EngineError;
use crate::eval::WINDOW_DEFAULT;
use crate::expert_types;
use crate::files::open_model;
use crate::gate::Gate;
use crate::keeper::SlotPlan;
use crate::learnt::PolicyChoice;
use crate::notes;
use crate::packs;
use crate::press::{LOW_RAM_CHUNK, LOW_RAM_CONTEXT, Press, ResidentCap, default_advice_cap};
use crate::sampling::{AnswerSampler, Sampler};
use crate::settings::{EffectiveSetting, SettingKey, effective};
use crate::summary::{ModelSummary, summary};
use crate::vocabulary::Vocabulary;

/// Context used when nobody asks for another one.
const CONTEXT_DEFAULT: u32 = 8192;
/// Prompt tokens per chunk when nobody asks for another figure.
const CHUNK_DEFAULT: u32 = 4096;
/// Slots beyond one token's experts, so that reads can land while experts compute.
const READ_AHEAD_SLOTS: u64 = 2;
/// Positions whose logits are computed at a time where a call asks for many.
pub(crate) const LOGIT_ROWS: usize = 4;
/// Dense weights are read in pieces of this size: large enough for a disk's full rate.
const DENSE_PIECE_BYTES: usize = 2 << 20;
/// Program text and data, allocator, small structures: everything that no formula below names. Guard:
/// `peak_stays_within_the_plan.rs`.
pub(crate) const PROGRAM_BYTES: u64 = 12 << 20;

/// A plan with what it is based on.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlanReport {
    /// The model.
    pub model: ModelSummary,
    /// Mode that will be used; never `auto`.
    pub residency: Residency,
    /// Why.
    pub reason: String,
    /// The pack that experts are read from, if any.
    pub pack: Option<std::path::PathBuf>,
    /// Part of the read ring that holds records on their way into a pack that fills while the model runs.
    pub pack_staging: Bytes,
    /// Part of the read ring that router advice may keep of experts beyond their places.
    pub advice_bytes: Bytes,
    /// Part of the scratch that counts the uses of experts.
    pub telemetry_bytes: Bytes,
    /// Memory that the machine, its control groups and limits leave to this process.
    pub usable: Bytes,
    /// Threads that compute.
    pub threads: usize,
    /// Instruction set.
    pub isa: &'static str,
    /// Precision of the KV cache.
    pub kv_type: &'static str,
    /// Part of the KV cache that holds states of recurrent layers.
    pub states: StateRoom,
    /// What makes answers differ from those of exact settings, in words such as `kv q4`; empty where nothing does.
    pub lossy: Vec<String>,
    /// Whether a setting gives up that answers are the same at any budget.
    pub depends_on_memory: bool,
    /// How experts are read.
    pub reading: Reading,
    /// Which record gives way, and who chose that.
    pub policy: PolicyChoice,
    /// What the mode means beyond the figures.
    pub notes: Vec<String>,
    /// Whether what the plan takes can be had now.
    pub gate: Gate,
    /// Every setting, what it came to and who chose it.
    pub settings: Vec<EffectiveSetting>,
    /// The division of the budget.
    pub plan: Plan,
}

/// Room for states of recurrent layers: one in use and one being written for each sequence that computes, the others to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StateRoom {
    /// States that can be held; 0 for a model without recurrent layers.
    pub slots: usize,
    /// Bytes of each, whatever the length of its sequence.
    pub bytes_each: Bytes,
}

impl StateRoom {
    fn of(spec: &ModelSpec, configuration: &LoadConfiguration) -> Self {
        let bytes = state_bytes(spec);
        let slots = if bytes == 0 { 0 } else { configuration.state_slots() };
        Self { slots, bytes_each: Bytes(bytes as u64) }
    }
}

/// What other budgets and contexts would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Room {
    /// The smallest budget that works with the same options, to the byte.
    pub smallest_budget: Bytes,
    /// From this budget on every expert has a slot.
    pub resident_budget: Bytes,
    /// The contexts that the budget holds, up to what the model was trained for.
    pub context: Option<ContextRoom>,
}

/// Everything that is known before weights are read.
pub(crate) struct Prepared {
    pub file: ModelFile,
    pub spec: ModelSpec,
    pub kernels: Kernels,
    pub pack: Option<PackFile>,
    pub report: PlanReport,
    pub room: Room,
    /// Findings that the user should see, such as a pack that cannot be used.
    pub notes: Vec<String>,
}

/// What the keeper has to know about expert slots.
pub(crate) fn slot_plan(prepared: &Prepared, configuration: &LoadConfiguration) -> SlotPlan {
    let plan = &prepared.report.plan;
    let record_bytes =
        Geometry::new(&prepared.spec.experts).map_or(0, |geometry| geometry.record_bytes_max());
    let fewest = (prepared.spec.experts_per_token() as u64 + READ_AHEAD_SLOTS).min(plan.slot_count);
    SlotPlan {
        min: Bytes(fewest * record_bytes as u64).min(plan.slots),
        planned: plan.slots,
        others: plan.total().saturating_sub(plan.slots),
        budget: plan.budget,
        fixed: configuration.slots.is_some()
            || configuration.press.cold_fraction().is_some()
            || configuration.resident_cap != ResidentCap::Unlimited,
    }
}

/// The plan for a model file under a configuration; what [`crate::Runtime::load`] would use.
///
/// # Errors
/// The file is bad, an option does not fit the machine, or the budget cannot work.
pub fn plan(path: &Path, configuration: &LoadConfiguration) -> Result<PlanReport, EngineError> {
    Ok(prepare_again(path, configuration)?.report)
}

/// Opens a model file, describes it and divides the budget, for a load: refused where what the plan takes cannot be had now.
pub(crate) fn prepare(path: &Path, configuration: &LoadConfiguration) -> Result<Prepared, EngineError> {
    let prepared = prepare_again(path, configuration)?;
    let packs = prepared.pack.is_some() || configuration.pack.builds();
    configuration.check_experts(&prepared.spec, packs)?;
    prepared.report.gate.pass()?;
    Ok(prepared)
}

/// As [`prepare`] without the memory gate, for a runtime that holds already what it will need.
pub(crate) fn prepare_again(path: &Path, configuration: &LoadConfiguration) -> Result<Prepared, EngineError> {
    prepare_file(open_model(path)?, MachineFacts::detect()?, configuration)
}

/// As [`prepare`], for a file of which only the headers may be there, on a machine that may be another one. What needs the
/// weights (packs and profiles are found by them) is left out for a file that is not complete.
pub(crate) fn prepare_file(
    file: ModelFile,
    facts: MachineFacts,
    configuration: &LoadConfiguration,
) -> Result<Prepared, EngineError> {
    configuration.check()?;
    let complete = file.missing_bytes() == 0;
    let mut spec = describe(&file).map_err(EngineError::BadModel)?;
    let mut notes = spec.notes.clone();
    configuration.apply_experts(&mut spec, &mut notes)?;
    let lossy = configuration.lossy(&spec);
    configuration.apply_routing(&mut spec)?;
    let geometry = if spec.experts.is_empty() { None } else { Some(Geometry::new(&spec.experts)?) };
    let kernels =
        kernels_for(configuration.isa).map_err(|error| configuration.blame(SettingKey::Isa, error))?;
    configuration.check_kv(&spec)?;
    let pack = match &geometry {
        Some(geometry) if complete => packs::find(&configuration.pack, &file, &spec, geometry, &mut notes)?,
        _ => None,
    };
    notes.extend(configuration.missing_pack(&spec, pack.is_some() || configuration.pack.builds()));
    let threads = configuration.threads.unwrap_or(facts.cpu_count).max(1);
    let shares = Shares { file: &file, spec: &spec, geometry: geometry.as_ref(), facts: &facts, threads };
    // A pack that will be written before the first token needs no ring for arranging records either.
    let packed = pack.is_some() || configuration.pack.builds() || expert_types::in_words(&spec).is_some();
    let (mut residency, mut reason, mut plan) = shares.choose(configuration, packed, Bytes::ZERO)?;
    // What is of use where there is room: where there is none, no budget that works becomes one that does not.
    let mut spare = Bytes::ZERO;
    let wanted = shares.wanted_spare(configuration, residency, packed);
    if wanted > Bytes::ZERO
        && let Ok(with_spare) = shares.choose(configuration, packed, wanted)
    {
        (residency, reason, plan) = with_spare;
        spare = wanted;
    }
    let (pack_staging, advice_bytes) = match residency {
        Residency::Mapped => (Bytes::ZERO, spare.saturating_add(shares.advice_asked(configuration))),
        _ => (spare, Bytes::ZERO),
    };
    let reading = Reading::planned(configuration, residency, &file, pack.as_ref(), geometry.as_ref());
    let policy = if complete {
        PolicyChoice::of(configuration, &file, &spec, &mut notes)?
    } else {
        PolicyChoice::of(&configuration.clone().without_profiles(), &file, &spec, &mut notes)?
    };
    let room = shares.room(configuration, packed, spare, &plan)?;
    let mapping = (residency == Residency::Mapped).then_some(geometry.as_ref()).flatten();
    let mapping = mapping.map(|geometry| Bytes(PackLayout::new(geometry).file_bytes()));
    let gate = Gate::of(configuration, &facts, &plan, mapping, room.smallest_budget);
    if gate.note().is_some() {
        // The gate says the same with what others hold.
        plan.notes.retain(|note| !matches!(note, PlanNote::MoreThanUsable { .. }));
    } else if facts.ends_at_limit() {
        plan.notes.iter_mut().for_each(at_limit);
    }
    let mut report = PlanReport {
        model: summary(&file, &spec, geometry.as_ref()),
        residency,
        reason,
        pack: pack.as_ref().map(|pack| pack.file().path().to_owned()),
        pack_staging,
        advice_bytes,
        telemetry_bytes: shares.telemetry_bytes(configuration),
        usable: facts.usable,
        threads,
        isa: kernels.isa().name(),
        kv_type: configuration.kv_type.name(),
        states: StateRoom::of(&spec, configuration),
        lossy,
        depends_on_memory: configuration.routing().cache_bias > 0.0,
        reading,
        policy,
        notes: Vec::new(),
        gate,
        settings: Vec::new(),
        plan,
    };
    report.settings = effective(configuration, &report);
    report.notes = notes::of(&notes::Subject {
        configuration,
        report: &report,
        has_pack: packed,
        vocabulary: Vocabulary::of(&file).ok(),
    });
    Ok(Prepared { file, spec, kernels, pack, report, room, notes })
}

/// What is said of the machine where what can be had ends at a limit instead.
fn at_limit(note: &mut PlanNote) {
    if let PlanNote::MoreThanUsable { total, usable } = *note {
        *note = PlanNote::MoreThanLimit { total, limit: usable };
    }
}

/// The kernels of `isa`, or the best ones of this machine.
///
/// # Errors
/// The machine cannot run `isa`.
pub(crate) fn kernels_for(isa: Option<Isa>) -> Result<Kernels, EngineError> {
    let Some(isa) = isa else { return Ok(Kernels::detect()) };
    Kernels::for_isa(isa)
        .ok_or_else(|| EngineError::BadOption(format!("this machine cannot run {} kernels", isa.name())))
}

/// Experts in flight at the same time: no more than there are slots to read into.
pub(crate) fn read_ahead(slots: u64) -> usize {
    READ_AHEAD_DEFAULT.min(usize::try_from(slots).unwrap_or(usize::MAX)).max(1)
}

/// Bytes of one piece while dense weights are read.
pub(crate) fn dense_piece_bytes(spec: &ModelSpec) -> usize {
    largest_piece(spec).max(DENSE_PIECE_BYTES)
}

/// Context and prefill chunk that nobody asked for.
fn defaults(configuration: &LoadConfiguration) -> (u32, u32) {
    let usual_context = configuration.exact_kv.map_or(CONTEXT_DEFAULT, |_| WINDOW_DEFAULT);
    let low = |key, small, usual| if configuration.low_ram_chooses(key) { small } else { usual };
    (
        low(SettingKey::Context, LOW_RAM_CONTEXT, usual_context),
        low(SettingKey::Chunk, LOW_RAM_CHUNK, CHUNK_DEFAULT),
    )
}

/// The share of the experts that stays on disk, from the cold fraction or the resident cap, whichever keeps fewer of them in
/// memory. A cold fraction gives way to what a token needs; a cap is refused where it holds less.
fn cold_fraction(
    configuration: &LoadConfiguration,
    records: &[RecordClass],
    slots_minimum: u64,
) -> Result<Option<f64>, EngineError> {
    let asked = configuration.press.cold_fraction().or(configuration.slots.map(|_| 1.0));
    let total: u64 = records.iter().map(|class| class.count).sum();
    let all: Bytes = records.iter().map(|class| class.record_bytes.saturating_mul(class.count)).sum();
    let largest = records.iter().map(|class| class.record_bytes).max().unwrap_or(Bytes::ZERO);
    let Some(cap) = configuration.resident_cap.bytes(all).filter(|cap| *cap < all) else {
        return Ok(asked);
    };
    let held = cap.0 / largest.0.max(1);
    let least = slots_minimum.min(total);
    if held < least {
        return Err(EngineError::BadOption(format!(
            "a resident cap of {cap} ({}) holds {held} experts of {largest}; one token and the reads of the next one need \
             {least}: give {} or more, or a smaller cold fraction instead of a cap",
            configuration.given(SettingKey::ResidentCap),
            configuration.instead(SettingKey::ResidentCap, largest.saturating_mul(least).0)
        )));
    }
    // Half an expert more, so that rounding in the share cannot lose one.
    let cold = 1.0 - (held as f64 + 0.5) / total as f64;
    Ok(Some(asked.map_or(cold, |asked| asked.max(cold))))
}

/// The sizes that a plan is made of.
struct Shares<'a> {
    file: &'a ModelFile,
    spec: &'a ModelSpec,
    geometry: Option<&'a Geometry>,
    facts: &'a MachineFacts,
    threads: usize,
}

impl Shares<'_> {
    /// Chooses the residency mode and divides the budget for it.
    fn choose(
        &self,
        configuration: &LoadConfiguration,
        packed: bool,
        spare: Bytes,
    ) -> Result<(Residency, String, Plan), EngineError> {
        let mut input = self.input(configuration, packed)?;
        input.read_ring = input.read_ring.saturating_add(spare);
        configuration.check_conflicts(self.geometry.map(|geometry| Bytes(geometry.records_bytes())))?;
        if configuration.must_be_resident() {
            let minimum = input.records_minimum;
            let all = input.records_total();
            let spared = input.slots_at(all).saturating_sub(input.slots_at(minimum));
            let (flag, reason) = match configuration.press {
                Press::Disabled => ("--press auto", "press disabled: nothing is evicted"),
                _ => ("--residency streamed", "as asked"),
            };
            let savings = vec![Suggestion { flag: flag.to_owned(), saves: spared }];
            let input = PlanInput { records_minimum: all, other_savings: savings, ..input };
            return Ok((Residency::Resident, reason.to_owned(), divide(&input)?));
        }
        if configuration.residency == Residency::Mapped && self.geometry.is_some() && !packed {
            return Err(EngineError::BadOption(format!(
                "experts can be used in place ({}) in a pack only: run `coldpress pack MODEL` first, or choose another residency",
                configuration.given(SettingKey::Residency)
            )));
        }
        let plan = divide(&input)?;
        if matches!(configuration.residency, Residency::Streamed | Residency::Paged | Residency::Mapped) {
            return Ok((configuration.residency, "as asked".to_owned(), plan));
        }
        if self.geometry.is_none() {
            return Ok((Residency::Resident, "the model has no routed experts".to_owned(), plan));
        }
        Ok(if plan.everything_resident {
            (Residency::Resident, "all experts fit the budget".to_owned(), plan)
        } else {
            let share = 100.0 * plan.slot_count as f64 / plan.records_total as f64;
            let capped = configuration.resident_cap.bytes(input.expert_bytes_total());
            let reason = match (configuration.press.cold_fraction(), capped) {
                (Some(fraction), _) if input.cold_fraction == Some(fraction) => {
                    format!("the cold fraction of {fraction} keeps {share:.0}% of the experts in memory")
                }
                (_, Some(cap)) if input.slots_at(plan.slot_count + 1) > cap => {
                    format!("the resident cap of {cap} keeps {share:.0}% of the experts in memory")
                }
                _ => format!("{share:.0}% of the experts fit the budget"),
            };
            (Residency::Streamed, reason, plan)
        })
    }

    /// What other budgets and contexts would do with the same options.
    fn room(
        &self,
        configuration: &LoadConfiguration,
        packed: bool,
        spare: Bytes,
        plan: &Plan,
    ) -> Result<Room, EngineError> {
        let mut input = self.input(configuration, packed)?;
        if configuration.must_be_resident() {
            input.records_minimum = input.records_total();
        }
        // Spare memory is only taken where there is room, so the smallest budget knows nothing of them.
        let smallest_budget = smallest_budget(&input);
        input.read_ring = input.read_ring.saturating_add(spare);
        let trained = u32::try_from(self.spec.trained_context).unwrap_or(u32::MAX);
        Ok(Room {
            smallest_budget,
            resident_budget: resident_budget(&input, plan.context, plan.chunk_tokens),
            context: context_room(&input, trained),
        })
    }

    /// Memory for records on their way into a pack.
    fn pack_staging(&self) -> Bytes {
        let record = self.geometry.map_or(0, Geometry::record_bytes_max);
        let bytes = record.saturating_mul(LazyConfig::STAGED_RECORDS);
        Bytes(bytes.next_multiple_of(self.facts.page_size) as u64)
    }

    /// Slots for the states of recurrent layers, in every cache.
    fn state_bytes(&self, configuration: &LoadConfiguration) -> Bytes {
        let slots = (state_bytes(self.spec) * configuration.state_slots()) as u64;
        let caches = configuration.kv_types().count() as u64;
        Bytes(slots.next_multiple_of(self.facts.page_size as u64)).saturating_mul(caches)
    }

    /// What requests take beside keys and values.
    fn serving_bytes(&self, configuration: &LoadConfiguration) -> Bytes {
        let page_bytes = kv_bytes_per_token(self.spec, configuration.kv_type) * PAGE_POSITIONS;
        let serving = configuration.serving.as_ref();
        serving.map_or(Bytes::ZERO, |serving| serving.bytes(self.spec.vocabulary, page_bytes))
    }

    fn input(&self, configuration: &LoadConfiguration, packed: bool) -> Result<PlanInput, EngineError> {
        let spec = self.spec;
        let trained = u32::try_from(spec.trained_context).unwrap_or(u32::MAX);
        let scratch = scratch_cost(spec, LOGIT_ROWS, self.threads);
        let (default_context, default_chunk) = defaults(configuration);
        let context = configuration.context.unwrap_or(default_context.min(trained));
        if let Some(limit) = spec.context_limit.filter(|&limit| context as usize > limit) {
            return Err(EngineError::BadOption(format!(
                "a context of {context} positions: this model is computed in another way beyond {limit}, which coldpress does \
                 not do; give {limit} or less ({})",
                configuration.given(SettingKey::Context)
            )));
        }
        let kv_per_token = |kv_type: KvType| Bytes(kv_bytes_per_token(spec, kv_type) as u64);
        let slots_minimum = configuration.slots.unwrap_or(spec.experts_per_token() as u64 + READ_AHEAD_SLOTS);
        let records: Vec<RecordClass> = self.record_classes(configuration.residency);
        let cold_fraction = cold_fraction(configuration, &records, slots_minimum)?;
        // Dense weights stream through two pieces before there are any slots; a block of alignment at both ends.
        let dense_ring =
            2 * (dense_piece_bytes(spec) + 2 * RECORD_ALIGNMENT).next_multiple_of(self.facts.page_size);
        let experts_ring = if spec.experts.is_empty() || packed {
            0
        } else {
            read_ring_bytes(&spec.experts, read_ahead(records.iter().map(|class| class.count).sum()))
        };
        // What other flags would save on the smallest plan, which is the one a refusal shows.
        let smallest_context = configuration.context.unwrap_or(context.min(CONTEXT_MINIMUM));
        let mut savings = Vec::new();
        let mut saving = |flag: &str, bytes: u64| {
            savings.push(Suggestion { flag: flag.to_owned(), saves: Bytes(bytes) });
        };
        if configuration.kv_type == KvType::F32 {
            let per_token = kv_per_token(KvType::F32).saturating_sub(kv_per_token(KvType::F16));
            let tokens = smallest_context.max(configuration.kv_positions);
            let tokens = u64::from(tokens).next_multiple_of(PAGE_POSITIONS as u64);
            saving("--kv f16", per_token.saturating_mul(tokens).0);
        }
        if self.threads > 1 {
            let single = scratch_cost(spec, LOGIT_ROWS, 1);
            let stacks = ((self.threads - 1) * WORKER_STACK_BYTES) as u64;
            saving("--threads 1", stacks + scratch.fixed.saturating_sub(single.fixed));
        }
        if configuration.router_advice {
            saving("--router-advice off", self.advice_asked(configuration).0);
        }
        saving("running `coldpress pack` first", experts_ring.saturating_sub(dense_ring as u64));
        Ok(PlanInput {
            budget: self.facts.budget(configuration.budget),
            usable: self.facts.usable,
            fixed: Bytes(self.fixed_bytes(configuration.pre_tokenizer.as_deref())?),
            dense: Bytes((spec.dense_bytes() as u64).next_multiple_of(self.facts.page_size as u64)),
            kv_fixed: self.state_bytes(configuration),
            kv_per_token: configuration.kv_types().map(kv_per_token).sum(),
            kv_tokens_minimum: configuration.kv_positions,
            kv_page_tokens: PAGE_POSITIONS as u32,
            kv_windows: Vec::new(),
            context,
            context_explicit: configuration.context.is_some(),
            context_minimum: CONTEXT_MINIMUM,
            scratch_fixed: Bytes(
                scratch.fixed + Sampler::bytes(spec.vocabulary) + AnswerSampler::bytes(spec.vocabulary),
            )
            .saturating_add(self.telemetry_bytes(configuration))
            .saturating_add(configuration.recording)
            .saturating_add(configuration.kept_bytes(spec.vocabulary))
            .saturating_add(self.serving_bytes(configuration)),
            scratch_per_chunk_token: Bytes(scratch.per_row),
            scratch_per_block_token: Bytes(scratch.per_block_row),
            block_tokens: BLOCK_ROWS as u32,
            chunk_tokens_wanted: configuration.chunk_tokens.unwrap_or(default_chunk).min(context),
            chunk_tokens_minimum: configuration.chunk_tokens.unwrap_or(CHUNK_TOKENS_MINIMUM),
            read_ring: Bytes(experts_ring.max(dense_ring as u64))
                .saturating_add(self.advice_asked(configuration)),
            row_cache: self.row_cache(),
            records,
            records_minimum: slots_minimum,
            cold_fraction,
            page_bytes: self.facts.page_size as u64,
            other_savings: savings,
        })
    }

    /// Memory for rows of tables on disk, from that of the reads in flight to that of all rows.
    fn row_cache(&self) -> RowCacheWish {
        let tables = &self.spec.row_tables;
        if tables.is_empty() {
            return RowCacheWish::default();
        }
        let rows: u64 = tables.iter().map(RowTable::rows).fold(0, u64::saturating_add);
        let minimum = row_store_bytes_minimum(tables);
        let maximum = row_store_bytes(tables, usize::try_from(rows).unwrap_or(usize::MAX));
        RowCacheWish { minimum, maximum: maximum.max(minimum) }
    }

    /// What router advice was told to keep, part of the read ring.
    fn advice_asked(&self, configuration: &LoadConfiguration) -> Bytes {
        let applies = self.geometry.is_some() && configuration.advises();
        configuration.router_advice_cap.filter(|_| applies).unwrap_or(Bytes::ZERO)
    }

    /// Memory in the read ring that is of use where there is room: for records on their way into a pack, or for what router
    /// advice keeps where nobody said how much.
    fn wanted_spare(&self, configuration: &LoadConfiguration, residency: Residency, packed: bool) -> Bytes {
        let Some(geometry) = self.geometry else { return Bytes::ZERO };
        if residency == Residency::Streamed && !packed && matches!(configuration.pack, PackUse::Fill(_)) {
            return self.pack_staging();
        }
        if configuration.advises() && configuration.router_advice_cap.is_none() {
            let budget = self.facts.budget(configuration.budget);
            return default_advice_cap(geometry, self.spec.experts_per_token(), budget);
        }
        Bytes::ZERO
    }

    /// What route telemetry takes, part of the scratch.
    fn telemetry_bytes(&self, configuration: &LoadConfiguration) -> Bytes {
        match self.geometry.filter(|_| configuration.route_telemetry) {
            Some(geometry) => RouteTelemetry::bytes(geometry),
            None => Bytes::ZERO,
        }
    }

    fn record_classes(&self, residency: Residency) -> Vec<RecordClass> {
        let Some(geometry) = self.geometry else { return Vec::new() };
        let held = |record_bytes: usize| match residency {
            Residency::Mapped => mapped_place_bytes(record_bytes),
            _ => record_bytes,
        };
        (0..geometry.layer_count())
            .map(|layer| RecordClass {
                record_bytes: Bytes(held(geometry.layer(layer).record_bytes) as u64),
                count: geometry.expert_count(layer) as u64,
            })
            .collect()
    }

    /// Program, header of the model file, tokenizer, thread stacks.
    fn fixed_bytes(&self, pre_tokenizer: Option<&str>) -> Result<u64, EngineError> {
        let tokenizer = Vocabulary::of(self.file)?.estimated_bytes(pre_tokenizer)?;
        let header: u64 = self.file.files().iter().map(|file| file.header_len).sum();
        let stacks = (self.threads * WORKER_STACK_BYTES) as u64;
        Ok(PROGRAM_BYTES + header + tokenizer + stacks)
    }
}
