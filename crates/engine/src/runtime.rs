//! A loaded model and everything it computes with.
//!
//! [`Runtime::load`] is the one way in: plan first (refusals come before weights are read), then the ledger, then every
//! part in the order of the plan. The runtime owns the parts; the KV cache comes with the first [`Session`](crate::Session).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coldpress_experts::{
    ExpertStatistics, ExpertStore, Hotlist, PolicyKind, Residency as StoreResidency, RowOrder, RowStore,
    RowStoreConfig, StoreConfig, TelemetrySnapshot, TensorRange, TensorStream,
};
use coldpress_formats::SourceFile;
use coldpress_kernels::Kernels;
use coldpress_memory::{Bytes, Ledger, LedgerSnapshot, MemoryWatch, OverBudget, Purpose, Reservation};
use coldpress_model::{
    DenseWeights, FileBytes, KvPool, Model, ModelError, ModelSpec, PAGE_POSITIONS, PhaseClock, Scratch,
    ScratchShape, TensorReader,
};
use coldpress_text::Tokenizer;
use coldpress_workers::Workers;

use crate::configuration::{LoadConfiguration, Residency};
use crate::disk_tuning;
use crate::error::EngineError;
use crate::keeper::{Keeper, RuntimeHandle};
use crate::packs;
use crate::plan::{LOGIT_ROWS, PlanReport, Prepared, dense_piece_bytes, prepare, prepare_again, slot_plan};
use crate::press::{PressStatus, watch_routing};
use crate::prompt::{ChatOptions, PromptEncoder};
use crate::sampling::{AnswerSampler, Sampler};
use crate::shared_kv::SharedKv;
use crate::timeline::Recorder;
use crate::vocabulary::Vocabulary;

/// The long parts of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// Writing a pack.
    Pack,
    /// Checking a pack.
    Verify,
    /// Writing a model file.
    Convert,
    /// Reading dense weights.
    Dense,
    /// Reading all experts (`resident`).
    Experts,
    /// Writing a file to measure a disk with.
    DiskFile,
    /// Measuring a disk.
    Disk,
}

impl LoadStage {
    /// A short word for a progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Verify => "verify",
            Self::Convert => "convert",
            Self::Dense => "load",
            Self::Experts => "experts",
            Self::DiskFile => "write",
            Self::Disk => "measure",
        }
    }
}

/// Receives what happens while a model is loaded or packed. All methods have defaults.
pub trait LoadObserver {
    /// `done` of `total` bytes of a stage.
    fn progress(&mut self, stage: LoadStage, done: u64, total: u64) {
        let _ = (stage, done, total);
    }

    /// Something the user should know, one sentence.
    fn note(&mut self, text: &str) {
        let _ = text;
    }

    /// Asked often; `true` ends the work with [`EngineError::Cancelled`].
    fn should_stop(&mut self) -> bool {
        false
    }
}

impl LoadObserver for crate::Silent {}

/// The largest memory figures seen while a runtime exists, from the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PeakMemory {
    /// Resident memory of the process. The system keeps one peak for the life of a process: where that lies before the
    /// load (an earlier model was larger), this is the largest of the samples, as for `anon`.
    pub rss: Bytes,
    /// Anonymous memory of the process, sampled after every chunk of a prompt and at the end of every answer.
    pub anon: Bytes,
    /// Charge of the process's control group (other processes in it and page cache included), where there is one.
    pub cgroup: Option<Bytes>,
}

/// The state of a runtime.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Status {
    /// The plan it was loaded with.
    pub plan: PlanReport,
    /// Eviction policy of the expert store; `none` for dense models.
    pub policy: &'static str,
    /// How experts are read; `none` for dense models.
    pub reader: &'static str,
    /// The ledger: budget, reserved bytes and peak by purpose.
    pub ledger: LedgerSnapshot,
    /// Counters of the expert store; absent for dense models.
    pub experts: Option<ExpertStatistics>,
    /// Whether and how experts leave memory, with who chose what.
    pub press: PressStatus,
    /// Uses and hits of every expert, where they are counted.
    pub telemetry: Option<TelemetrySnapshot>,
    /// Peaks from the operating system.
    pub peak: PeakMemory,
}

/// A model that is ready to answer.
pub struct Runtime {
    pub(crate) configuration: LoadConfiguration,
    pub(crate) report: PlanReport,
    pub(crate) ledger: Ledger,
    pub(crate) workers: Workers,
    pub(crate) kernels: Kernels,
    pub(crate) model: Model,
    /// Here while the runtime computes, else with the keeper; so are the scratch and the model's weights.
    pub(crate) experts: Option<ExpertStore>,
    pub(crate) scratch: Option<Scratch>,
    /// With the keeper too while the runtime rests; absent until somebody needs it.
    pub(crate) kv: Option<SharedKv>,
    pub(crate) sampler: Sampler,
    /// The answer of [`Runtime::generate`].
    pub(crate) answer_sampler: AnswerSampler,
    pub(crate) clock: PhaseClock,
    /// What looks for a typical token, if somebody asks for its timeline.
    pub(crate) timeline: Option<Box<Recorder>>,
    /// Pay for what was recorded, which outlives the recording: traces, timelines.
    pub(crate) recordings: [Option<Reservation>; 2],
    pub(crate) tokenizer: Arc<Tokenizer>,
    prompts: PromptEncoder,
    pub(crate) files: Vec<SourceFile>,
    memory: MemoryWatch,
    /// The process's peak of resident memory when loading began.
    peak_rss_before: Bytes,
    sampled_rss: Bytes,
    peak_anon: Bytes,
    /// What earlier runs used, if it is remembered.
    pub(crate) earlier_hotlist: Hotlist,
    pub(crate) keeper: Keeper,
    /// Counted by stores that were given back.
    pub(crate) counted_before: ExpertStatistics,
    path: PathBuf,
    _fixed: Reservation,
}

impl Runtime {
    /// Plans, then loads the model at `path`: a `.gguf` file, any part of a split set, a folder with one
    /// set, or a Hugging Face folder.
    ///
    /// # Errors
    /// [`EngineError::DoesNotFit`] before any weight is read; bad files and options; failed reads.
    pub fn load(
        path: &Path,
        configuration: &LoadConfiguration,
        observer: &mut dyn LoadObserver,
    ) -> Result<Self, EngineError> {
        let memory = MemoryWatch::new();
        let peak_rss_before = memory.read().unwrap_or_default().process.peak_rss;
        let mut prepared = prepare(path, configuration)?;
        for note in &prepared.notes {
            observer.note(note);
        }
        for note in &prepared.report.plan.notes {
            observer.note(&note.to_string());
        }
        for note in &prepared.report.notes {
            observer.note(note);
        }
        let plan = &prepared.report.plan;
        let ledger = Ledger::new(plan.budget);
        let fixed = ledger.reserve(Purpose::Fixed, plan.fixed)?;
        let vocabulary = Vocabulary::of(&prepared.file)?;
        let tokenizer = Arc::new(vocabulary.tokenizer(configuration.pre_tokenizer.as_deref())?);
        let template = vocabulary.chat_template(&tokenizer)?;
        let context = prepared.report.plan.context as usize;
        let variables = configuration.template_variables();
        let prompts = PromptEncoder::new(Arc::clone(&tokenizer), template, variables, context);
        let workers = Workers::new(prepared.report.threads);
        if prepared.pack.is_none() {
            prepared.pack = packs::build(&configuration.pack, &prepared, &ledger, &workers, observer)?;
            prepared.report.pack = prepared.pack.as_ref().map(|pack| pack.file().path().to_owned());
        }
        let weights = load_dense(&prepared, configuration, &ledger, observer)?;
        let experts = open_experts(&mut prepared, configuration, &ledger, &workers, observer)?;
        let scratch = new_scratch(&ledger, &prepared.spec, &prepared.report)?;
        let sampler = Sampler::new(&ledger, prepared.spec.vocabulary)?;
        let answer_sampler = AnswerSampler::new(&ledger, prepared.spec.vocabulary)?;
        let keeper =
            Keeper::start(&ledger, &memory, slot_plan(&prepared, configuration), configuration.idle());
        keeper.steer(experts.as_ref());
        let mut runtime = Self {
            configuration: configuration.clone(),
            report: prepared.report,
            ledger,
            workers,
            kernels: prepared.kernels,
            model: Model::new(prepared.spec, weights),
            experts,
            scratch: Some(scratch),
            kv: None,
            sampler,
            answer_sampler,
            clock: PhaseClock::start(),
            timeline: None,
            recordings: [None, None],
            tokenizer,
            prompts,
            files: prepared.file.files().to_vec(),
            memory,
            peak_rss_before,
            sampled_rss: Bytes::ZERO,
            peak_anon: Bytes::ZERO,
            earlier_hotlist: Hotlist::default(),
            keeper,
            counted_before: ExpertStatistics::default(),
            path: path.to_owned(),
            _fixed: fixed,
        };
        runtime.configuration.routing().set(&mut runtime.model);
        runtime.warm(observer);
        runtime.rest();
        Ok(runtime)
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Rows of the output head.
    pub fn vocabulary(&self) -> usize {
        self.model.spec().vocabulary
    }

    /// Makes prompts, on any thread.
    pub fn prompts(&self) -> &PromptEncoder {
        &self.prompts
    }

    /// Bytes of text beyond which no prompt can fit the context: the context's length in the longest tokens.
    pub fn prompt_bytes_max(&self) -> usize {
        self.prompts.bytes_max()
    }

    /// Charges memory for recording, once per place in `recordings`.
    pub(crate) fn charge_recording(&mut self, place: usize, bytes: Bytes) -> Result<(), OverBudget> {
        if self.recordings[place].is_none() {
            self.recordings[place] = Some(self.ledger.reserve(Purpose::Scratch, bytes)?);
        }
        Ok(())
    }

    /// Finds out whether a model file was replaced or changed since it was opened: its experts are still being read.
    pub(crate) fn check_files(&self) -> Result<(), EngineError> {
        for file in &self.files {
            let path = || file.path.clone();
            let now = std::fs::metadata(&file.path)
                .map_err(|source| EngineError::FileGone { path: path(), source })?;
            if now.len() != file.len || now.modified().ok() != file.modified {
                return Err(EngineError::FileChanged { path: path() });
            }
        }
        Ok(())
    }

    /// Whether the file has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.prompts.template().is_some()
    }

    /// As [`PromptEncoder::encode`].
    ///
    /// # Errors
    /// The text cannot fit the context.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        self.prompts.encode(text, parse_special)
    }

    /// Ids of a conversation through the model's chat template, ready for the assistant's answer.
    ///
    /// # Errors
    /// The file has no template, or the template refuses the messages.
    pub fn encode_chat(&self, messages: &[coldpress_text::Message]) -> Result<Vec<u32>, EngineError> {
        self.prompts.encode_chat(messages, &ChatOptions::default())
    }

    /// Watches and steers this runtime from other threads.
    pub fn handle(&self) -> RuntimeHandle {
        self.keeper.handle()
    }

    /// Takes the heavy parts back from the keeper, and loads again what was given back meanwhile.
    pub(crate) fn wake(&mut self) -> Result<(), EngineError> {
        let Some(parked) = self.keeper.unpark() else { return Ok(()) };
        self.experts = parked.experts;
        self.scratch = parked.scratch;
        self.kv = parked.kv;
        match parked.weights {
            Some(weights) => {
                self.model.put_weights(weights);
                Ok(())
            }
            None => self.load_again(parked.hotlist, parked.counted),
        }
    }

    /// Everything but tokenizer and program was given back: loads it as it was.
    fn load_again(&mut self, hotlist: Option<Hotlist>, counted: ExpertStatistics) -> Result<(), EngineError> {
        let result = self.load_parts();
        if result.is_err() {
            // The next request tries again.
            self.scratch = None;
            self.experts = None;
            self.keeper.park_nothing();
            return result;
        }
        self.counted_before = self.counted_before.and(&counted);
        if let (Some(store), Some(hotlist)) = (&mut self.experts, hotlist) {
            // What cannot be read now is read, or reported, when it is asked for.
            let _ = self.workers.enter(|team| store.warm(team, &hotlist, || true));
            self.earlier_hotlist = hotlist;
        }
        Ok(())
    }

    fn load_parts(&mut self) -> Result<(), EngineError> {
        self.check_files()?;
        let mut prepared = prepare_again(&self.path, &self.configuration)?;
        prepared.report = self.report.clone();
        let weights = load_dense(&prepared, &self.configuration, &self.ledger, &mut crate::Silent)?;
        self.scratch = Some(new_scratch(&self.ledger, &prepared.spec, &prepared.report)?);
        let (ledger, workers) = (&self.ledger, &self.workers);
        self.experts = open_experts(&mut prepared, &self.configuration, ledger, workers, &mut crate::Silent)?;
        self.model.put_weights(weights);
        self.keeper.steer(self.experts.as_ref());
        if let Some(store) = &mut self.experts {
            // No slot has been touched: what others took meanwhile is not asked of the system first.
            self.keeper.wait_for_a_look();
            store.follow_target()?;
        }
        Ok(())
    }

    /// Makes the KV cache of the plan, unless it is there; returns whether it is a new one, so that what was in an earlier one
    /// is forgotten. The runtime is awake.
    ///
    /// # Errors
    /// The budget has no room for it.
    pub(crate) fn ready_kv(&mut self) -> Result<bool, EngineError> {
        let absent = self.kv.is_none();
        if absent {
            self.kv = Some(self.new_kv()?);
        }
        Ok(absent)
    }

    /// Pages of the KV cache.
    pub(crate) fn pages(&self) -> usize {
        self.report.plan.kv_tokens.div_ceil(PAGE_POSITIONS as u64) as usize
    }

    pub(crate) fn new_kv(&self) -> Result<SharedKv, EngineError> {
        let (pages, states) = (self.pages(), self.configuration.state_slots());
        KvPool::new(&self.ledger, self.model.spec(), self.configuration.kv_type, pages, states)
            .map(SharedKv::new)
            .map_err(EngineError::Forward)
    }

    /// Leaves the heavy parts with the keeper until the next request.
    pub(crate) fn rest(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            let (experts, weights) = (self.experts.take(), self.model.take_weights());
            self.keeper.park(experts, Some(scratch), weights, self.kv.take());
        }
    }

    /// Looks at the expert store, wherever it is.
    pub(crate) fn with_store<R>(&self, look: impl FnOnce(&ExpertStore) -> R) -> Option<R> {
        match &self.experts {
            Some(store) => Some(look(store)),
            None => self.keeper.parked_store(look),
        }
    }

    /// What all stores of this runtime counted; `None` for dense models.
    fn expert_statistics(&self) -> Option<ExpertStatistics> {
        if self.model.spec().experts.is_empty() {
            return None;
        }
        let now = self.with_store(ExpertStore::statistics).unwrap_or_else(|| self.keeper.counted());
        Some(now.and(&self.counted_before))
    }

    /// Figures of this moment.
    pub fn status(&self) -> Status {
        Status {
            plan: self.report.clone(),
            policy: self.with_store(ExpertStore::policy_name).unwrap_or("none"),
            reader: self.with_store(ExpertStore::reader_name).unwrap_or("none"),
            ledger: self.ledger.snapshot(),
            experts: self.expert_statistics(),
            press: PressStatus::of(&self.configuration, &self.report),
            telemetry: self.with_store(ExpertStore::telemetry).flatten(),
            peak: self.peak_memory(),
        }
    }

    pub(crate) fn peak_memory(&self) -> PeakMemory {
        let usage = self.memory.read().unwrap_or_default();
        PeakMemory {
            rss: if usage.process.peak_rss > self.peak_rss_before {
                usage.process.peak_rss
            } else {
                self.sampled_rss.max(usage.process.rss)
            },
            anon: self.peak_anon.max(usage.process.anon),
            cgroup: usage.cgroup_peak,
        }
    }

    /// Looks at the process's memory, so that its peak is known. Called after each chunk of a prompt and at the end of an
    /// answer, not after each token: what a runtime holds only grows during an answer (slots and cache pages are touched
    /// for the first time, nothing is given back), so its end shows the most.
    pub(crate) fn sample_memory(&mut self) {
        if let Ok(usage) = self.memory.read() {
            self.sampled_rss = self.sampled_rss.max(usage.process.rss);
            self.peak_anon = self.peak_anon.max(usage.process.anon);
        }
    }
}

fn new_scratch(ledger: &Ledger, spec: &ModelSpec, report: &PlanReport) -> Result<Scratch, EngineError> {
    let shape = ScratchShape {
        rows: report.plan.chunk_tokens as usize,
        logit_rows: LOGIT_ROWS,
        threads: report.threads,
    };
    Scratch::new(ledger, spec, shape).map_err(EngineError::Forward)
}

fn load_dense(
    prepared: &Prepared,
    configuration: &LoadConfiguration,
    ledger: &Ledger,
    observer: &mut dyn LoadObserver,
) -> Result<DenseWeights, EngineError> {
    let piece = dense_piece_bytes(&prepared.spec);
    let stream = TensorStream::open(prepared.file.files(), configuration.reader.choice(), ledger, piece)?;
    let mut reader = DenseReader { stream };
    let mut progress = |done, total| {
        observer.progress(LoadStage::Dense, done, total);
        !observer.should_stop()
    };
    let big_endian = prepared.file.big_endian();
    DenseWeights::load(ledger, &prepared.spec, big_endian, &mut reader, &mut progress).map_err(|error| {
        match error {
            ModelError::Cancelled => EngineError::Cancelled,
            error => EngineError::Forward(error),
        }
    })
}

/// Reads dense tensors for the model crate, which opens no files itself.
struct DenseReader {
    stream: TensorStream,
}

impl TensorReader for DenseReader {
    fn read(
        &mut self,
        bytes: FileBytes,
        row_bytes: usize,
        rows_multiple: usize,
        take: &mut dyn FnMut(&mut [u8]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let range = TensorRange {
            file: bytes.file,
            offset: bytes.offset,
            rows: bytes.byte_len / row_bytes as u64,
            row_bytes: row_bytes as u64,
            rows_multiple: rows_multiple as u64,
        };
        self.stream.each_piece(&range, |_, piece| take(piece))
    }
}

pub(crate) fn open_experts(
    prepared: &mut Prepared,
    configuration: &LoadConfiguration,
    ledger: &Ledger,
    workers: &Workers,
    observer: &mut dyn LoadObserver,
) -> Result<Option<ExpertStore>, EngineError> {
    if prepared.spec.experts.is_empty() {
        return Ok(None);
    }
    disk_tuning::tune(prepared, configuration, ledger, observer);
    let spec: &ModelSpec = &prepared.spec;
    let plan = &prepared.report.plan;
    let slots = usize::try_from(plan.slot_count).unwrap_or(usize::MAX);
    let residency = match prepared.report.residency {
        Residency::Resident => StoreResidency::Resident,
        Residency::Auto | Residency::Streamed => StoreResidency::Streamed { slots },
        Residency::Paged => StoreResidency::Paged { slots },
        Residency::Mapped => {
            StoreResidency::Mapped { places: slots, release: configuration.force_mode.release() }
        }
    };
    let expert_counts: Vec<usize> = spec.experts.iter().map(|layer| layer.expert_count).collect();
    let policy = PolicyKind::parse(prepared.report.policy.name).unwrap_or(PolicyKind::DEFAULT);
    let records_in_memory = match residency {
        StoreResidency::Resident => expert_counts.iter().sum(),
        _ => slots,
    };
    let reading = &prepared.report.reading;
    let lazy = packs::to_fill(&configuration.pack, prepared)?;
    let pack = prepared.pack.take();
    let mut store = ExpertStore::open(StoreConfig {
        layers: spec.experts.clone(),
        files: prepared.file.files().to_vec(),
        read_ahead: reading.records_in_flight(pack.is_some(), plan.slot_count),
        pack,
        lazy,
        ledger: ledger.clone(),
        residency,
        reader: reading.choice(configuration.reader),
        policy: Some(policy.build(records_in_memory, &expert_counts)),
        split: reading.split,
        prefetch: prepared.report.policy.prefetch.setting.mode(),
        access: reading.access.file_access(),
    })?;
    if !spec.row_tables.is_empty() {
        store.attach_rows(RowStore::open(RowStoreConfig {
            tables: spec.row_tables.clone(),
            files: prepared.file.files().to_vec(),
            ledger: ledger.clone(),
            bytes: plan.row_cache,
            reader: reading.choice(configuration.reader),
            order: RowOrder::default(),
        })?);
    }
    for notice in store.notices() {
        observer.note(notice);
    }
    watch_routing(&mut store, &prepared.report, ledger)?;
    if residency == StoreResidency::Resident {
        workers.enter(|team| {
            store.preload_all(team, |done, total| {
                observer.progress(LoadStage::Experts, done, total);
                !observer.should_stop()
            })
        })?;
    }
    Ok(Some(store))
}
