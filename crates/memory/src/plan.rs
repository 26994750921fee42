//! The plan: who gets how many bytes of a budget. A pure function; nothing is read and nothing allocated.
//!
//! Owns: the order of shares (fixed, dense, KV cache, scratch, read ring, row cache, expert slots), what gives way when they do not
//! fit (the prefill chunk first, then a context nobody asked for), and the smallest budget that works. Refuses:
//! guessing sizes; every size is the caller's. The refusal and its text are in `refusal.rs`.
//!
//! **The smallest budget named in a refusal works, and one byte less does not** (guard:
//! `tests/smallest_budget_is_exact.rs`).

use std::fmt;

use serde::Serialize;

use crate::refusal::{DoesNotFit, Suggestion};
use crate::{Bytes, Purpose, apart};

/// Prefill chunks are not made shorter than this many tokens: below it every expert is read for a handful of rows.
pub const CHUNK_TOKENS_MINIMUM: u32 = 32;
/// A chunk of several blocks takes at most one part in this many from the expert slots.
const LONG_CHUNK_SHARE: u64 = 16;
/// Rows take at most one part in this many of what expert slots could have beyond their minimum: a row that is missing costs
/// a block of the disk, an expert megabytes.
const ROW_CACHE_SHARE: u64 = 16;
/// A context that nobody asked for is not made shorter than this many tokens.
pub const CONTEXT_MINIMUM: u32 = 512;

/// Records of one size. Layers may differ in size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordClass {
    /// Bytes of one record, padding included.
    pub record_bytes: Bytes,
    /// Number of such records in the model.
    pub count: u64,
}

/// KV cache of attention layers that see only the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvWindow {
    /// Bytes per token, over all layers with this window.
    pub bytes_per_token: Bytes,
    /// Tokens kept at most.
    pub tokens_max: u32,
}

/// How much memory is useful for rows of tables that stay on disk. Zero for models without such tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCacheWish {
    /// Without this nothing runs.
    pub minimum: Bytes,
    /// More is never given.
    pub maximum: Bytes,
}

/// Everything a plan depends on.
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// What the process may hold; [`Bytes::MAX`] for no limit.
    pub budget: Bytes,
    /// Memory of the machine that could be used, for a warning when the plan takes more.
    pub usable: Bytes,
    /// Program, tokenizer, thread stacks, reserve for the run time.
    pub fixed: Bytes,
    /// Weights that every token uses.
    pub dense: Bytes,
    /// KV cache independent of the context.
    pub kv_fixed: Bytes,
    /// KV cache per token of context, over all layers that keep the whole context.
    pub kv_per_token: Bytes,
    /// The KV cache holds at least this many tokens, whatever the context: several sequences share it.
    pub kv_tokens_minimum: u32,
    /// The KV cache holds whole pages of this many tokens; 1 where it has none.
    pub kv_page_tokens: u32,
    /// KV cache of layers that keep a window of it.
    pub kv_windows: Vec<KvWindow>,
    /// Tokens of context.
    pub context: u32,
    /// Whether the user asked for this context; then it is never made shorter.
    pub context_explicit: bool,
    /// A context nobody asked for is not made shorter than this; usually [`CONTEXT_MINIMUM`].
    pub context_minimum: u32,
    /// Scratch independent of the chunk.
    pub scratch_fixed: Bytes,
    /// Scratch per token of a prefill chunk.
    pub scratch_per_chunk_token: Bytes,
    /// Scratch per token of a block: as much of a chunk as passes one operation together.
    pub scratch_per_block_token: Bytes,
    /// Tokens of a block at most.
    pub block_tokens: u32,
    /// Tokens of a prefill chunk if there is room.
    pub chunk_tokens_wanted: u32,
    /// The chunk is not made shorter than this; usually [`CHUNK_TOKENS_MINIMUM`].
    pub chunk_tokens_minimum: u32,
    /// Buffers of reads in flight.
    pub read_ring: Bytes,
    /// Cache for rows of tables that stay on disk, if there are any.
    pub row_cache: RowCacheWish,
    /// The records of the model; empty for a model without routed experts.
    pub records: Vec<RecordClass>,
    /// Slots without which nothing runs: experts per token and reads in flight.
    pub records_minimum: u64,
    /// Share of the records, 0 to 1, that may live only on disk; slots are limited to the rest.
    pub cold_fraction: Option<f64>,
    /// The slot memory is rounded up to whole pages of this many bytes: [`crate::sys::page_size`].
    pub page_bytes: u64,
    /// Ways to save that the caller knows of, for a refusal.
    pub other_savings: Vec<Suggestion>,
}

impl PlanInput {
    /// Room of one slot: the largest record, so that any record fits any slot.
    pub fn record_bytes_max(&self) -> Bytes {
        self.record_classes().map(|class| class.record_bytes).max().unwrap_or(Bytes::ZERO)
    }

    /// Number of records of the model.
    pub fn records_total(&self) -> u64 {
        self.record_classes().fold(0, |sum, class| sum.saturating_add(class.count))
    }

    /// Bytes of all records, without the padding of slots.
    pub fn expert_bytes_total(&self) -> Bytes {
        self.record_classes().map(|class| class.record_bytes.saturating_mul(class.count)).sum()
    }

    fn record_classes(&self) -> impl Iterator<Item = &RecordClass> {
        self.records.iter().filter(|class| class.count > 0 && class.record_bytes > Bytes::ZERO)
    }

    fn whole_pages(&self, bytes: Bytes) -> Bytes {
        bytes.checked_next_multiple_of(self.page_bytes.max(1)).unwrap_or(Bytes::MAX)
    }

    /// Tokens that the KV cache holds at `context`: whole pages of it.
    pub fn kv_tokens_at(&self, context: u32) -> u64 {
        u64::from(context.max(self.kv_tokens_minimum)).next_multiple_of(u64::from(self.kv_page_tokens.max(1)))
    }

    /// KV cache at `context` tokens, in whole pages of memory.
    pub fn kv_at(&self, context: u32) -> Bytes {
        let windows = self
            .kv_windows
            .iter()
            .map(|window| window.bytes_per_token.saturating_mul(u64::from(context.min(window.tokens_max))));
        let per_token = self.kv_per_token.saturating_mul(self.kv_tokens_at(context));
        self.whole_pages(self.kv_fixed.saturating_add(per_token).saturating_add(windows.sum()))
    }

    /// Scratch for a chunk of `chunk_tokens` tokens.
    pub fn scratch_at(&self, chunk_tokens: u32) -> Bytes {
        let block_tokens = u64::from(chunk_tokens.min(self.block_tokens));
        self.scratch_fixed
            .saturating_add(self.scratch_per_chunk_token.saturating_mul(u64::from(chunk_tokens)))
            .saturating_add(self.scratch_per_block_token.saturating_mul(block_tokens))
    }

    /// Memory of `slot_count` slots: one buffer, in whole pages.
    pub fn slots_at(&self, slot_count: u64) -> Bytes {
        self.whole_pages(self.record_bytes_max().saturating_mul(slot_count))
    }

    /// Fewest slots that run.
    fn slots_minimum(&self) -> u64 {
        self.records_minimum.min(self.records_total())
    }

    /// Most slots worth having.
    fn slots_maximum(&self) -> u64 {
        let total = self.records_total();
        let Some(cold) = self.cold_fraction.filter(|cold| !cold.is_nan()) else {
            return total;
        };
        let hot = ((1.0 - cold.clamp(0.0, 1.0)) * total as f64).floor() as u64;
        hot.min(total).max(self.slots_minimum())
    }

    /// Slots that fit into `room`.
    fn slots_in(&self, room: Bytes) -> u64 {
        let record = self.record_bytes_max().0;
        if record == 0 {
            return 0;
        }
        let page = self.page_bytes.max(1);
        (room.0 / page * page / record).min(self.slots_maximum())
    }

    /// Whether a chunk beyond one block leaves the slots what they need. The memory it takes saves reads in prefill and
    /// costs hits in decode, so it may take a small part of what the slots have; a chunk that was asked for always may.
    fn is_worth_its_chunk(&self, chunk_tokens: u32, slot_count: u64) -> bool {
        if chunk_tokens <= self.block_tokens.max(self.chunk_tokens_minimum)
            || slot_count == self.records_total()
        {
            return true;
        }
        let extra = self.scratch_at(chunk_tokens).saturating_sub(self.scratch_at(self.block_tokens));
        extra.saturating_mul(LONG_CHUNK_SHARE) <= self.slots_at(slot_count)
    }

    /// Everything but the slots, with the smallest row cache.
    fn base(&self, context: u32, chunk_tokens: u32) -> Bytes {
        let shares = [
            self.fixed,
            self.dense,
            self.kv_at(context),
            self.scratch_at(chunk_tokens),
            self.read_ring,
            self.row_cache.minimum,
        ];
        shares.into_iter().sum()
    }

    /// What the row cache gets beyond its minimum out of `room`, in whole pages: a part of what slots could have, or what is left
    /// when every record has a slot.
    fn rows_beyond_minimum(&self, room: Bytes) -> Bytes {
        let page = self.page_bytes.max(1);
        let most = self.row_cache.maximum.saturating_sub(self.row_cache.minimum);
        let extra = match room.checked_sub(self.slots_at(self.slots_maximum())) {
            Some(left) => left.0,
            None => room.saturating_sub(self.slots_at(self.slots_minimum())).0 / ROW_CACHE_SHARE,
        };
        Bytes(most.0.min(extra) / page * page)
    }

    /// Contexts to try, longest first: the one given, then powers of two down to the minimum if nobody asked for it.
    fn contexts(&self) -> impl Iterator<Item = u32> + use<> {
        let minimum =
            if self.context_explicit { self.context } else { self.context_minimum.min(self.context) };
        std::iter::successors(Some(self.context), move |context| shorter_context(*context, minimum))
    }

    /// Chunks to try, longest first: halves of the one wanted down to the minimum.
    fn chunks(&self) -> impl Iterator<Item = u32> + use<> {
        let minimum = self.chunk_tokens_minimum.min(self.chunk_tokens_wanted);
        std::iter::successors(Some(self.chunk_tokens_wanted), move |chunk| {
            (*chunk > minimum).then(|| (*chunk / 2).max(minimum))
        })
    }
}

/// The largest power of two below `context`, but not below `minimum`; `None` at the minimum.
fn shorter_context(context: u32, minimum: u32) -> Option<u32> {
    (context > minimum).then(|| ((context - 1).checked_ilog2().map_or(0, |log| 1 << log)).max(minimum))
}

/// A division of the budget that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The budget that was divided.
    pub budget: Bytes,
    /// Program, tokenizer, thread stacks, reserve for the run time.
    pub fixed: Bytes,
    /// Weights that every token uses.
    pub dense: Bytes,
    /// KV cache at `context`.
    pub kv: Bytes,
    /// Scratch for `chunk_tokens`.
    pub scratch: Bytes,
    /// Buffers of reads in flight.
    pub read_ring: Bytes,
    /// Cache for rows of tables that stay on disk.
    pub row_cache: Bytes,
    /// Expert slots: one buffer of `slot_count` × `record_bytes`, in whole pages.
    pub slots: Bytes,
    /// Number of slots.
    pub slot_count: u64,
    /// Room of one slot.
    pub record_bytes: Bytes,
    /// Number of records of the model.
    pub records_total: u64,
    /// Tokens of context.
    pub context: u32,
    /// Tokens that the KV cache holds: the context, or more where several sequences share it, in whole pages.
    pub kv_tokens: u64,
    /// Tokens of a prefill chunk.
    pub chunk_tokens: u32,
    /// Whether every record has a slot, so that the disk is read only at the start.
    pub everything_resident: bool,
    /// What the user should know.
    pub notes: Vec<PlanNote>,
}

impl Plan {
    /// The sum of all shares.
    pub fn total(&self) -> Bytes {
        Purpose::ALL.into_iter().map(|purpose| self.share(purpose)).sum()
    }

    /// The share of one purpose.
    pub fn share(&self, purpose: Purpose) -> Bytes {
        match purpose {
            Purpose::Fixed => self.fixed,
            Purpose::Dense => self.dense,
            Purpose::KvCache => self.kv,
            Purpose::Scratch => self.scratch,
            Purpose::ReadRing => self.read_ring,
            Purpose::RowCache => self.row_cache,
            Purpose::ExpertSlots => self.slots,
        }
    }
}

/// Something about a plan that the user should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanNote {
    /// The plan takes more than the machine has.
    MoreThanUsable {
        /// Sum of the plan.
        total: Bytes,
        /// What the machine has.
        usable: Bytes,
    },
    /// The plan takes more than a limit on address space or data lets this process have.
    MoreThanLimit {
        /// Sum of the plan.
        total: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The context was made shorter to fit.
    ContextShortened {
        /// Tokens of the default.
        from: u32,
        /// Tokens now.
        to: u32,
    },
    /// The prefill chunk was made shorter to fit.
    ChunkShortened {
        /// Tokens wanted.
        from: u32,
        /// Tokens now.
        to: u32,
    },
}

impl fmt::Display for PlanNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MoreThanUsable { total, usable } => {
                let [total, usable] = apart([*total, *usable]);
                write!(
                    f,
                    "the plan takes {total} but only {usable} of memory are usable here: \
                     expect swapping or the out-of-memory killer"
                )
            }
            Self::MoreThanLimit { total, limit } => {
                let [total, limit] = apart([*total, *limit]);
                write!(
                    f,
                    "the plan takes {total} but the limit on address space or data is {limit} (ulimit -v, ulimit -d): \
                     the system will refuse an allocation, and the program ends there"
                )
            }
            Self::ContextShortened { from, to } => {
                write!(f, "context shortened from {from} to {to} tokens to fit; --ctx asks for another")
            }
            Self::ChunkShortened { from, to } => {
                write!(f, "prefill chunk shortened from {from} to {to} tokens to fit: prompts take longer")
            }
        }
    }
}

/// Divides the budget, or says what is missing.
///
/// Of the contexts and chunks allowed, the longest context wins, then the longest chunk that leaves the minimum of
/// slots (and, beyond one block, nearly all of them); the slots take the rest, up to one per record (or up to the warm share when `cold_fraction` is given).
pub fn plan(input: &PlanInput) -> Result<Plan, DoesNotFit> {
    for context in input.contexts() {
        for chunk_tokens in input.chunks() {
            let Some(room) = input.budget.checked_sub(input.base(context, chunk_tokens)) else {
                continue;
            };
            let rows = input.rows_beyond_minimum(room);
            let slot_count = input.slots_in(room.saturating_sub(rows));
            if slot_count >= input.slots_minimum() && input.is_worth_its_chunk(chunk_tokens, slot_count) {
                return Ok(divide(input, context, chunk_tokens, slot_count, rows));
            }
        }
    }
    Err(refuse(input))
}

/// The smallest budget that works, to the byte: one byte less is refused.
pub fn smallest_budget(input: &PlanInput) -> Bytes {
    smallest_parts(input).iter().map(|(_, bytes)| *bytes).sum()
}

/// The budget from which every record has a slot, with the context and the chunk given.
pub fn resident_budget(input: &PlanInput, context: u32, chunk_tokens: u32) -> Bytes {
    input.base(context, chunk_tokens).saturating_add(input.slots_at(input.records_total()))
}

/// How much context a budget holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ContextRoom {
    /// The longest context that runs at all: the slots are then at their minimum.
    pub longest: u32,
    /// The longest context that costs the slots at most one part in sixteen of what they have with the shortest one.
    pub best: u32,
}

/// The room for context in the budget, up to `context_max` tokens; `None` where not even one token fits.
pub fn context_room(input: &PlanInput, context_max: u32) -> Option<ContextRoom> {
    let chunk = input.chunk_tokens_minimum.min(input.chunk_tokens_wanted);
    let slots = |context: u32| {
        let room = input.budget.checked_sub(input.base(context, chunk))?;
        Some(input.slots_in(room)).filter(|slots| *slots >= input.slots_minimum())
    };
    let longest = last_that(context_max, |context| slots(context).is_some())?;
    let most = slots(input.context_minimum.clamp(1, longest)).unwrap_or(0);
    let enough = most - most / LONG_CHUNK_SHARE;
    let best = last_that(longest, |context| slots(context).is_some_and(|slots| slots >= enough));
    Some(ContextRoom { longest, best: best.unwrap_or(longest) })
}

/// The largest number from 1 to `most` that holds, where all numbers below one that holds do too.
fn last_that(most: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if most == 0 || !holds(1) {
        return None;
    }
    let (mut yes, mut no) = (1, most.saturating_add(1));
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if holds(middle) { yes = middle } else { no = middle }
    }
    Some(yes)
}

fn divide(input: &PlanInput, context: u32, chunk_tokens: u32, slot_count: u64, rows: Bytes) -> Plan {
    let mut plan = Plan {
        budget: input.budget,
        fixed: input.fixed,
        dense: input.dense,
        kv: input.kv_at(context),
        scratch: input.scratch_at(chunk_tokens),
        read_ring: input.read_ring,
        row_cache: input.row_cache.minimum.saturating_add(rows),
        slots: input.slots_at(slot_count),
        slot_count,
        record_bytes: input.record_bytes_max(),
        records_total: input.records_total(),
        context,
        kv_tokens: input.kv_tokens_at(context),
        chunk_tokens,
        everything_resident: slot_count == input.records_total(),
        notes: Vec::new(),
    };
    let (total, usable) = (plan.total(), input.usable);
    // Limits are kept in whole pages, so the last partial one is no excess.
    if total > usable.saturating_add(Bytes(input.page_bytes)) {
        plan.notes.push(PlanNote::MoreThanUsable { total, usable });
    }
    if context < input.context {
        plan.notes.push(PlanNote::ContextShortened { from: input.context, to: context });
    }
    if chunk_tokens < input.chunk_tokens_wanted.min(input.block_tokens) {
        plan.notes.push(PlanNote::ChunkShortened { from: input.chunk_tokens_wanted, to: chunk_tokens });
    }
    plan
}

/// The smallest plan there is, part by part. Every share grows with context and chunk, so the last candidates of both give
/// the smallest.
fn smallest_parts(input: &PlanInput) -> Vec<(String, Bytes)> {
    let context = smallest_context(input);
    let chunk_tokens = input.chunks().last().unwrap_or(input.chunk_tokens_wanted);
    let slot_count = input.slots_minimum();
    let rows = Some(input.row_cache.minimum).filter(|bytes| *bytes > Bytes::ZERO);
    let mut parts = vec![
        (Purpose::Fixed.name().to_owned(), input.fixed),
        (Purpose::Dense.name().to_owned(), input.dense),
        (kv_part(input, context), input.kv_at(context)),
        (format!("{} (chunk {chunk_tokens})", Purpose::Scratch), input.scratch_at(chunk_tokens)),
        (Purpose::ReadRing.name().to_owned(), input.read_ring),
    ];
    parts.extend(rows.map(|bytes| (Purpose::RowCache.name().to_owned(), bytes)));
    let slots = format!("{} ({slot_count} × {})", Purpose::ExpertSlots, input.record_bytes_max());
    parts.push((slots, input.slots_at(slot_count)));
    parts
}

/// What the KV cache is called in a refusal.
fn kv_part(input: &PlanInput, context: u32) -> String {
    let tokens = input.kv_tokens_at(context);
    let room = if tokens == u64::from(context) { String::new() } else { format!(", room for {tokens}") };
    format!("{} (context {context}{room})", Purpose::KvCache)
}

fn smallest_context(input: &PlanInput) -> u32 {
    input.contexts().last().unwrap_or(input.context)
}

/// The refusal: the smallest plan, what it lacks and what would help.
fn refuse(input: &PlanInput) -> DoesNotFit {
    let context = smallest_context(input);
    let parts = smallest_parts(input);
    let smallest_budget: Bytes = parts.iter().map(|(_, bytes)| *bytes).sum();
    let missing = smallest_budget.saturating_sub(input.budget);
    let mut suggestions = input.other_savings.clone();
    suggestions.extend(shorter_context_suggestion(input, context, missing));
    suggestions.retain(|suggestion| suggestion.saves > Bytes::ZERO);
    suggestions.sort_by(|a, b| b.saves.cmp(&a.saves).then_with(|| a.flag.cmp(&b.flag)));
    DoesNotFit { budget: input.budget, parts, smallest_budget, suggestions }
}

/// The longest shorter context that makes it fit, else the shortest.
fn shorter_context_suggestion(input: &PlanInput, context: u32, missing: Bytes) -> Option<Suggestion> {
    let minimum = input.context_minimum.min(context);
    let saved = |shorter: u32| input.kv_at(context).saturating_sub(input.kv_at(shorter));
    let shorter = std::iter::successors(shorter_context(context, minimum), |c| shorter_context(*c, minimum));
    let best = shorter.clone().find(|c| saved(*c) >= missing).or_else(|| shorter.last())?;
    Some(Suggestion { flag: format!("--ctx {best}"), saves: saved(best) })
}
