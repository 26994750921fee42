//! The loop of a service: take requests in, make the next pass, tell what came of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use coldpress_experts::ExpertStatistics;
use coldpress_memory::Bytes;
use coldpress_model::{ForwardEngine, LogitsWanted, ModelError, PAGE_POSITIONS, PoolPart, Segment, Sequence};
use coldpress_text::Tokenizer;

use super::answer::{Answer, tell_defect};
use super::client::{PrefixStatus, Shared, Waiting};
use super::keeping::{
    ask_for_common_states, ask_for_states, common_pages, evict_page, evict_state, give_back, release_removed,
    remember, remember_sequence, remember_state,
};
use super::pace::Pace;
use super::pass::{Part, Pass, Resting};
use super::prefix::PrefixTree;
use super::request::{Ending, Event};
use super::schedule::deal;
use super::snapshots::Snapshots;
use super::{PARALLEL_MAX, Serving};
use crate::error::EngineError;
use crate::keeper::lock;
use crate::runtime::Runtime;
use crate::sampling::AnswerSampler;

/// Counters of all experts are copied for the status this often at most.
const TELEMETRY_EVERY: Duration = Duration::from_millis(500);
/// Weight of the latest pass in the rates of the status.
const RATE_WEIGHT: f64 = 0.2;

/// See the module header.
pub(super) struct Worker {
    runtime: Runtime,
    shared: Arc<Shared>,
    parallel: usize,
    prefix: PrefixTree,
    snapshots: Option<Snapshots>,
    pace: Pace,
    /// Samplers of answers that ended.
    samplers: Vec<AnswerSampler>,
    next_id: u64,
    telemetry_at: Option<Instant>,
    /// Whether a request has ended since the last pass: one that made room may go on.
    ended: bool,
    /// Rows of each running answer in the next pass.
    rows: Vec<usize>,
    /// Those of them that belong to answers which are being written.
    decode_rows: usize,
}

impl Worker {
    /// Takes the memory that requests need beside the pool.
    pub fn new(runtime: Runtime, shared: Arc<Shared>, serving: &Serving) -> Result<Self, EngineError> {
        let vocabulary = runtime.vocabulary();
        let sampler = |_| AnswerSampler::new(&runtime.ledger, vocabulary);
        let samplers = (0..serving.parallel).map(sampler).collect::<Result<_, _>>()?;
        let (pages, with_states) = (runtime.pages(), runtime.has_states());
        lock(&shared.figures).prefix = PrefixStatus {
            pages,
            free_pages: pages,
            page_bytes: Bytes(runtime.page_bytes() as u64),
            state_slots: runtime.report.states.slots,
            free_state_slots: runtime.report.states.slots,
            state_bytes: runtime.report.states.bytes_each,
            ..PrefixStatus::default()
        };
        let mut snapshots = match &serving.snapshots {
            Some((folder, bytes_max)) => Some(Snapshots::open(folder, *bytes_max, &runtime)?),
            None => None,
        };
        if let Some(snapshots) = &mut snapshots {
            *lock(&shared.answers) = snapshots.answers();
        }
        Ok(Self {
            runtime,
            shared,
            parallel: serving.parallel,
            prefix: PrefixTree::with_states(with_states),
            snapshots,
            pace: Pace::default(),
            samplers,
            next_id: 0,
            telemetry_at: None,
            rows: Vec::with_capacity(PARALLEL_MAX),
            decode_rows: 0,
            ended: false,
        })
    }

    /// Answers until the service is stopped. A panic ends the service and nobody waits for it: running requests are told by
    /// `answer::Told` while the stack unwinds, waiting ones here, later ones by `Shared::failure`.
    pub fn guarded_run(self) {
        let shared = Arc::clone(&self.shared);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run())) {
            let reason = said(&*panic);
            let waiting = {
                let mut queue = lock(&shared.queue);
                let _ = shared.failure.set(reason.clone());
                queue.take_out(|_| true)
            };
            let mut figures = lock(&shared.figures);
            figures.totals.failed += (waiting.len() + figures.running.len()) as u64;
            figures.running.clear();
            drop(figures);
            for mut waiting in waiting {
                tell_defect(&mut waiting.sink, &reason);
            }
        }
    }

    /// Answers until the service is stopped.
    fn run(mut self) {
        let encoder = self.shared.encoder.clone();
        let tokenizer: &Tokenizer = encoder.tokenizer();
        let mut running: Vec<Answer<'_>> = Vec::with_capacity(self.parallel);
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.end_cancelled(&mut running);
            let before = self.next_id;
            self.admit(&mut running, tokenizer);
            if self.next_id != before {
                // The first pass of a prompt may take long.
                self.publish(&running);
            }
            if running.is_empty() {
                self.rest();
                continue;
            }
            self.pass(&mut running, tokenizer);
            if let Some(snapshots) = &mut self.snapshots {
                snapshots.step(self.runtime.pool_mut());
            }
        }
        for answer in running.drain(..) {
            self.end(answer, Ending::Cancelled);
        }
        for waiting in lock(&self.shared.queue).take_out(|_| true) {
            end_waiting(waiting);
        }
        self.keep_answers();
        if let (Some(mut snapshots), Some(pool)) = (self.snapshots.take(), self.runtime.awake_pool()) {
            snapshots.flush(pool);
            snapshots.close();
        }
    }

    /// Nothing is to be done: the runtime rests until somebody rings.
    fn rest(&mut self) {
        if let (Some(snapshots), Some(pool)) = (&mut self.snapshots, self.runtime.awake_pool()) {
            snapshots.flush(pool);
        }
        self.keep_answers();
        self.publish(&[]);
        self.runtime.rest();
        self.shared.bell.wait();
    }

    /// Writes how the model wrote its answers beside the snapshots, if there is news.
    fn keep_answers(&mut self) {
        let Some(snapshots) = &mut self.snapshots else { return };
        // The lock is not held while the disk works.
        let news = lock(&self.shared.answers).changes();
        if let Some(bytes) = news {
            snapshots.keep_answers(&bytes);
        }
    }

    fn end_cancelled(&mut self, running: &mut Vec<Answer<'_>>) {
        let mut index = 0;
        while index < running.len() {
            if running[index].is_cancelled() {
                let answer = running.remove(index);
                self.end(answer, Ending::Cancelled);
            } else {
                index += 1;
            }
        }
        let gone = lock(&self.shared.queue).take_out(|waiting| waiting.cancelled.load(Ordering::Relaxed));
        lock(&self.shared.figures).totals.cancelled += gone.len() as u64;
        gone.into_iter().for_each(end_waiting);
    }

    /// Takes requests out of the queue while there is room to compute them.
    fn admit<'t>(&mut self, running: &mut Vec<Answer<'t>>, tokenizer: &'t Tokenizer) {
        while running.len() < self.parallel {
            let Some(waiting) = lock(&self.shared.queue).pop() else { return };
            if waiting.cancelled.load(Ordering::Relaxed) {
                lock(&self.shared.figures).totals.cancelled += 1;
                end_waiting(waiting);
                continue;
            }
            if let Err(error) = self.wake() {
                fail_waiting(waiting, error);
                lock(&self.shared.figures).totals.failed += 1;
                continue;
            }
            let pages = waiting.request.prompt.len().div_ceil(PAGE_POSITIONS);
            if !running.is_empty() && pages > self.pages_in_reach(running) {
                // It waits for one of the running requests to end.
                lock(&self.shared.queue).push_first(&waiting.request.client.clone(), waiting);
                return;
            }
            let Some(sampler) = self.samplers.pop() else { return };
            let context = self.shared.encoder.context();
            self.next_id += 1;
            let sequence = Sequence::new(context);
            let mut answer = Answer::begin(self.next_id, waiting, sequence, sampler, tokenizer, context);
            self.take_prefix(&mut answer);
            ask_for_common_states(running, &answer);
            let mut figures = lock(&self.shared.figures);
            figures.totals.requests += 1;
            figures.totals.prompt_tokens += answer.prompt_tokens() as u64;
            drop(figures);
            running.push(answer);
        }
    }

    /// Brings the model back to work, and notices that the pages were given back meanwhile or the file has changed.
    fn wake(&mut self) -> Result<(), EngineError> {
        let new = self.runtime.wake_for_requests()?;
        if new {
            // Their pool is gone, and with it every page.
            self.prefix.clear();
        }
        Ok(())
    }

    /// Pages that are free or could be taken from the tree.
    fn pages_in_reach(&mut self, running: &[Answer<'_>]) -> usize {
        let pool = self.runtime.pool_mut();
        let used: usize = running.iter().map(|answer| answer.sequence.pages().len()).sum();
        // Shared pages are counted once for each request: the figure errs on the side of waiting.
        pool.pages().saturating_sub(used)
    }

    /// Begins the answer with the pages that the tree or the snapshots have of its tokens.
    fn take_prefix(&mut self, answer: &mut Answer<'_>) {
        // The last token is computed in any case: its logits choose the next one.
        let known = &answer.tokens[..answer.tokens.len() - 1];
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.bring(known, &mut self.prefix, self.runtime.pool_mut());
        }
        let found = self.prefix.find(known);
        let pool = self.runtime.pool_mut();
        // The rest of the last page is not of this request: it gets a copy of its own before it writes.
        let context = self.shared.encoder.context();
        let sequence = pool.sequence_with_state(&found.pages, found.tokens, found.state, context);
        answer.ask_for_states(found.agreed);
        let empty = std::mem::replace(&mut answer.sequence, sequence);
        pool.release(empty);
        answer.told_started(found.tokens);
    }

    /// Pages for `rows` more tokens of the answer at `index`, and a slot for its state. They come from the tree, from snapshots that
    /// are not written yet, then from younger requests, which pause.
    fn make_room(&mut self, running: &mut [Answer<'_>], index: usize, rows: usize) -> bool {
        loop {
            let pool = self.runtime.pool_mut();
            let Err(full) = pool.extend(&mut running[index].sequence, rows) else { return true };
            let evicted = match full.part {
                PoolPart::Pages => evict_page(&mut self.prefix, pool),
                PoolPart::States => evict_state(&mut self.prefix, pool),
            };
            if evicted {
                continue;
            }
            if self.snapshots.as_mut().is_some_and(|snapshots| snapshots.give_up_pending(pool) > 0) {
                continue;
            }
            let younger = (index + 1..running.len()).rev().find(|&other| !running[other].sequence.is_empty());
            if let Some(younger) = younger {
                self.pause(&mut running[younger]);
                self.rows[younger] = 0;
                continue;
            }
            if self.prefix.pages() > 0 {
                // A page that the tree shares with this request cannot be written: the tree forgets it.
                self.forget_prefixes();
                continue;
            }
            return false;
        }
    }

    /// A request makes room for older ones: what it has computed stays in the tree as long as nobody needs the pages.
    fn pause(&mut self, answer: &mut Answer<'_>) {
        answer.paused = true;
        let sequence = std::mem::replace(&mut answer.sequence, Sequence::new(self.shared.encoder.context()));
        let pool = self.runtime.pool_mut();
        remember_sequence(&mut self.prefix, pool, &answer.tokens, sequence);
        lock(&self.shared.figures).totals.preemptions += 1;
    }

    fn forget_prefixes(&mut self) {
        let removed = self.prefix.clear();
        let pool = self.runtime.pool_mut();
        removed.into_iter().for_each(|removed| release_removed(pool, removed));
    }

    /// Rows of the next pass for each running request, in `self.rows`.
    fn plan_rows(&mut self, running: &[Answer<'_>]) {
        let rows_max = self.runtime.rows_max();
        let decoding = running.iter().filter(|answer| answer.is_decoding() && !answer.paused).count();
        let for_prompts = if decoding == 0 { rows_max } else { self.pace.rows(rows_max - decoding) };
        let mut remaining = ArrayVec::<usize, PARALLEL_MAX>::new();
        for (index, answer) in running.iter().enumerate() {
            let waits = answer.paused || answer.is_decoding() || self.follows(&running[..index], answer);
            remaining.push(if waits { 0 } else { answer.remaining() });
        }
        deal(for_prompts, &remaining, &mut self.rows);
        for (rows, answer) in self.rows.iter_mut().zip(running) {
            if answer.is_decoding() && !answer.paused {
                *rows = 1;
            }
        }
        self.decode_rows = decoding;
    }

    /// Whether an older request is computing what this one needs too: it waits and takes it from the tree.
    fn follows(&self, older: &[Answer<'_>], answer: &Answer<'_>) -> bool {
        let done = answer.sequence.len();
        older.iter().filter(|older| !older.is_decoding() && !older.paused).any(|older| {
            let common = common_pages(older, answer);
            match self.prefix.has_states() {
                true => older.next_states().any(|length| length <= common && length > done),
                false => common > done,
            }
        })
    }

    /// One forward pass of the running requests.
    fn pass(&mut self, running: &mut Vec<Answer<'_>>, tokenizer: &Tokenizer) {
        if std::mem::take(&mut self.ended) {
            running.iter_mut().for_each(|answer| answer.paused = false);
        }
        self.take_what_others_computed(running);
        self.plan_rows(running);
        for index in 0..running.len() {
            let rows = self.rows[index];
            if rows > 0 && !self.make_room(running, index, rows) {
                self.rows[index] = 0;
                self.pause(&mut running[index]);
            }
        }
        ask_for_states(running, &self.rows, &mut self.prefix, self.runtime.pool_mut());
        let started = Instant::now();
        let before = self.runtime.store_statistics();
        let result = self.compute(running);
        let time = started.elapsed();
        match result {
            Ok(()) => {
                self.count(running, time, before);
                self.told(running, tokenizer);
            }
            // Those that are not wanted any more are taken out before the next pass.
            Err(ModelError::Cancelled) => {}
            Err(error) => self.failed(running, error),
        }
        if self.rows.iter().sum::<usize>() > self.decode_rows {
            self.runtime.sample_memory();
        }
        self.publish(running);
    }

    /// A prompt that waited for an older one to compute the same beginning takes it now.
    fn take_what_others_computed(&mut self, running: &mut [Answer<'_>]) {
        for answer in running.iter_mut().filter(|answer| !answer.paused && !answer.is_decoding()) {
            let known = &answer.tokens[..answer.tokens.len() - 1];
            if self.prefix.peek(known) >= answer.sequence.len() + PAGE_POSITIONS {
                self.take_prefix(answer);
            }
        }
    }

    fn compute(&mut self, running: &mut [Answer<'_>]) -> Result<(), ModelError> {
        let mut pairs = ArrayVec::<(Segment<'_>, Part<'_>), PARALLEL_MAX>::new();
        let mut resting = ArrayVec::<Resting<'_>, PARALLEL_MAX>::new();
        for (answer, &rows) in running.iter_mut().zip(&self.rows) {
            let from = answer.sequence.len();
            if rows == 0 {
                resting.push(Resting {
                    id: answer.id,
                    cancelled: &answer.cancelled,
                    known: &answer.tokens[..from],
                    sequence: &mut answer.sequence,
                });
                continue;
            }
            let last = rows == answer.remaining();
            let segment = Segment {
                tokens: &answer.tokens[from..from + rows],
                sequence: &mut answer.sequence,
                logits: if last { LogitsWanted::Last } else { LogitsWanted::None },
            };
            let part = Part {
                id: answer.id,
                rows,
                from,
                known: &answer.tokens[..from],
                cancelled: &answer.cancelled,
                chooser: &mut answer.chooser,
                told: &mut answer.told,
            };
            pairs.push((segment, part));
        }
        // Single rows lie together, so that they share the reading of the output matrix.
        pairs.sort_unstable_by_key(|(_, part)| part.rows > 1);
        let (mut segments, parts): (ArrayVec<_, PARALLEL_MAX>, ArrayVec<_, PARALLEL_MAX>) =
            pairs.into_iter().unzip();
        let Runtime { workers, model, kernels, experts, scratch, sampler, clock, kv, .. } = &mut self.runtime;
        let scratch = scratch.as_mut().expect("awake while it computes");
        let pool = &mut kv.as_mut().expect("awake while it computes").pool;
        let snapshots = self.snapshots.as_mut();
        let mut pass =
            Pass { parts, resting, sampler, shared: &self.shared, prefix: &mut self.prefix, snapshots };
        workers.enter(|team| {
            let experts = experts.as_mut();
            let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
            model.forward(&mut engine, &mut segments, &mut pass)
        })
    }

    /// Counts a pass, and gives each request its share of it.
    fn count(&mut self, running: &mut [Answer<'_>], time: Duration, before: Option<ExpertStatistics>) {
        let total: usize = self.rows.iter().sum();
        let decoded = self.decode_rows.min(total);
        let prefilled = total - decoded;
        // A pass that somebody left early says little about its rows.
        if prefilled > 0 && !running.iter().any(Answer::is_cancelled) {
            self.pace.observed(total, time);
        }
        let statistics = self.runtime.store_statistics().zip(before).map(|(now, before)| now.since(&before));
        for (answer, &rows) in running.iter_mut().zip(&self.rows) {
            if let Some(statistics) = &statistics {
                answer.share.add(statistics, rows as f64 / total as f64);
            }
        }
        let mut figures = lock(&self.shared.figures);
        figures.totals.passes += 1;
        figures.totals.disk_wait_us += statistics.map_or(0, |statistics| statistics.disk_wait_us);
        figures.totals.prefill_tokens += prefilled as u64;
        let seconds = time.as_secs_f64();
        let blend = |rate: &mut f64, rows: usize| {
            if rows > 0 {
                let latest = rows as f64 / seconds;
                *rate = if *rate == 0.0 { latest } else { *rate + RATE_WEIGHT * (latest - *rate) };
            }
        };
        blend(&mut figures.prefill_rate, prefilled);
        blend(&mut figures.decode_rate, decoded);
    }

    /// Tells each request what the pass brought, and ends those that are complete.
    fn told(&mut self, running: &mut Vec<Answer<'_>>, tokenizer: &Tokenizer) {
        let mut index = 0;
        let mut at = 0;
        while index < running.len() {
            let rows = self.rows[at];
            at += 1;
            if rows == 0 {
                index += 1;
                continue;
            }
            self.remember(&mut running[index]);
            let answer = &mut running[index];
            match answer.take_chosen(tokenizer) {
                Ok(None) => index += 1,
                Ok(Some(ending)) => {
                    let answer = running.remove(index);
                    self.end(answer, ending);
                }
                Err(error) => {
                    let answer = running.remove(index);
                    self.fail(answer, Arc::new(error));
                }
            }
        }
    }

    /// Lets the tree know the pages of a prompt as far as they are filled.
    fn remember(&mut self, answer: &mut Answer<'_>) {
        let pool = self.runtime.pool_mut();
        let kept = pool.take_kept_states(&mut answer.sequence);
        if answer.completion_tokens() == 0 {
            let whole = answer.sequence.len() / PAGE_POSITIONS * PAGE_POSITIONS;
            remember(&mut self.prefix, pool, &answer.tokens[..whole], answer.sequence.pages());
        }
        kept.into_iter().for_each(|kept| remember_state(&mut self.prefix, pool, &answer.tokens, kept));
    }

    /// A pass failed: all that took part in it get the reason.
    fn failed(&mut self, running: &mut Vec<Answer<'_>>, error: ModelError) {
        let error = Arc::new(EngineError::Forward(error));
        let rows = std::mem::take(&mut self.rows);
        let mut kept = Vec::with_capacity(self.parallel);
        for (answer, &rows) in running.drain(..).zip(&rows) {
            if rows == 0 { kept.push(answer) } else { self.fail(answer, Arc::clone(&error)) }
        }
        *running = kept;
        self.rows = rows;
    }

    fn fail(&mut self, answer: Answer<'_>, error: Arc<EngineError>) {
        lock(&self.shared.figures).totals.failed += 1;
        let (tokens, sequence, sampler) = answer.fail(error);
        self.give_back(&tokens, sequence, sampler);
    }

    fn end(&mut self, answer: Answer<'_>, ending: Ending) {
        {
            let mut figures = lock(&self.shared.figures);
            let totals = &mut figures.totals;
            match ending {
                Ending::Cancelled => totals.cancelled += 1,
                _ => totals.finished += 1,
            }
            totals.cached_tokens += answer.cached_tokens() as u64;
            totals.completion_tokens += answer.completion_tokens() as u64;
        }
        self.runtime.sample_memory();
        let peak = self.runtime.peak_rss();
        let prompt_tokens = answer.prompt_tokens();
        let (tokens, sequence, sampler) = answer.finish(ending, peak);
        lock(&self.shared.answers).learn_ids(&tokens, prompt_tokens, self.shared.encoder.tokenizer());
        self.give_back(&tokens, sequence, sampler);
    }

    /// What a request has computed stays in the tree.
    fn give_back(&mut self, tokens: &[u32], sequence: Sequence, sampler: AnswerSampler) {
        self.samplers.push(sampler);
        self.ended = true;
        give_back(&mut self.prefix, self.snapshots.as_mut(), self.runtime.pool_mut(), tokens, sequence);
    }

    fn publish(&mut self, running: &[Answer<'_>]) {
        let due =
            self.telemetry_at.is_none_or(|then| then.elapsed() >= TELEMETRY_EVERY) || running.is_empty();
        let telemetry = if due {
            self.telemetry_at = Some(Instant::now());
            self.runtime.telemetry()
        } else {
            None
        };
        let prefix = self.runtime.awake_pool().map(|pool| PrefixStatus {
            pages: pool.pages(),
            free_pages: pool.pages_free(),
            cached_pages: self.prefix.pages(),
            page_bytes: Bytes(pool.page_bytes() as u64),
            state_slots: pool.state_slots(),
            free_state_slots: pool.state_slots_free(),
            cached_states: self.prefix.states(),
            state_bytes: Bytes(pool.state_bytes() as u64),
            snapshot_bytes: self.snapshots.as_ref().map(Snapshots::bytes),
        });
        let mut figures = lock(&self.shared.figures);
        figures.running.clear();
        // Whoever is not wanted any more ends before the next pass.
        figures.running.extend(running.iter().filter(|answer| !answer.is_cancelled()).map(Answer::status));
        if let Some(prefix) = prefix {
            figures.prefix = prefix;
        }
        if telemetry.is_some() {
            figures.telemetry = telemetry;
        }
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "its thread ended without a word".to_owned())
}

fn end_waiting(waiting: Waiting) {
    let Waiting { request, mut sink, since, .. } = waiting;
    sink(Event::Finished(Box::new(super::request::Finished::never_begun(
        request.prompt.len(),
        since.elapsed(),
    ))));
}

fn fail_waiting(waiting: Waiting, error: EngineError) {
    let mut sink = waiting.sink;
    sink(Event::Failed(Arc::new(error)));
}
