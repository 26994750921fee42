//! A plan with everything that a user asks before downloading or loading: what fits, how fast, how much disk.
//!
//! Needs only the headers of a model. Brings sizes, rates and hit rates to the pure `predict.rs`; rates are measured in well
//! under two seconds, or assumed where the caller asks for that or the file is not all there. `bench` checks the outcome.

use std::path::{Path, PathBuf};
use std::time::Duration;

use coldpress_experts::pack::PackLayout;
use coldpress_experts::record::{SourceMatrix, arrange};
use coldpress_experts::{ExpertKey, Geometry};
use coldpress_kernels::{Kernels, probe};
use coldpress_memory::sys::free_disk_space;
use coldpress_memory::{Buffer, Bytes, Ledger, MachineFacts, Purpose, StorageKind, apart, storage_facts};
use coldpress_model::{DenseKind, ModelSpec, kv_bytes_per_token, state_bytes};
use coldpress_workers::{Team, Workers};

use crate::configuration::{LoadConfiguration, PackUse, Residency};
use crate::disk::measure_random_reads;
use crate::disk_tuning::remembered_rate;
use crate::error::EngineError;
use crate::files::open_model_headers;
use crate::learnt;
use crate::plan::{PlanReport, Prepared, Room, prepare_file};
use crate::predict::{
    Band, Estimate, Origin, PredictInput, Prediction, Rates, assumed_hit_rate, measured_hit_rate, predict,
};
use crate::runtime::LoadObserver;

/// Memory that is read to measure its rate: several times the last cache of most machines.
const READ_BYTES_MAX: u64 = 256 << 20;
/// Time of the measurement of memory.
const READ_TIME: Duration = Duration::from_millis(250);
/// Time of the measurement of int8 products.
const INT8_TIME: Duration = Duration::from_millis(100);
/// Time of the measurement of arranging.
const ARRANGE_TIME: Duration = Duration::from_millis(120);
/// Memory of the measurement of arranging; larger records are assumed to be as quick.
const ARRANGE_BYTES: u64 = 64 << 20;
/// Time of the measurement of the disk.
const DISK_TIME: Duration = Duration::from_millis(450);

/// Another machine than this one. What is not given is taken from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct WhatIf {
    /// Its memory.
    pub memory: Option<Bytes>,
    /// Bytes per second of its disk, in random reads of an expert.
    pub disk_bytes_per_second: Option<f64>,
    /// Bytes per second of its memory.
    pub memory_bytes_per_second: Option<f64>,
}

impl WhatIf {
    /// Whether it is about another machine at all.
    pub fn is_asked(&self) -> bool {
        *self != Self::default()
    }
}

/// What a forecast is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastRequest {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub answer_tokens: u64,
    /// Another machine.
    pub what_if: WhatIf,
    /// Whether rates that nobody gave are measured; otherwise they are assumed.
    pub measure: bool,
}

impl Default for ForecastRequest {
    fn default() -> Self {
        Self { prompt_tokens: 512, answer_tokens: 256, what_if: WhatIf::default(), measure: true }
    }
}

/// Room on a disk and what would go there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DiskRoom {
    /// The folder, or the nearest one above it that exists.
    pub folder: PathBuf,
    /// Bytes that would be written.
    pub needed: Bytes,
    /// Bytes that this user may write there; absent where the system does not tell.
    pub free: Option<Bytes>,
}

impl DiskRoom {
    fn of(folder: &Path, needed: u64) -> Self {
        let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let existing =
            absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned();
        let free = free_disk_space(&existing).ok();
        Self { folder: existing, needed: Bytes(needed), free }
    }

    /// Whether it fits; unknown counts as yes.
    pub fn fits(&self) -> bool {
        self.free.is_none_or(|free| free >= self.needed)
    }
}

/// A plan and what follows from it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Forecast {
    /// The plan that a run would use.
    #[serde(flatten)]
    pub report: PlanReport,
    /// Other budgets and contexts.
    pub room: Room,
    /// Copies of the weights in memory: one, whatever the number of memory nodes.
    pub weight_copies: u32,
    /// Bytes that the files of the model still lack.
    pub missing: Bytes,
    /// Room for what is missing of the model; absent for a complete one.
    pub download: Option<DiskRoom>,
    /// Room for the pack; absent where there is one in use, or nothing to pack.
    pub pack_space: Option<DiskRoom>,
    /// The other machine that was asked about.
    pub what_if: WhatIf,
    /// How fast it would run.
    pub prediction: Prediction,
    /// What to know and do.
    pub advice: Vec<String>,
}

/// Plans a model whose headers are there, and predicts how fast it would run. Reads no weights, except at random places to
/// measure the disk where that is asked for.
///
/// # Errors
/// A header is bad or not all there, an option does not fit the machine, or the budget cannot work.
pub fn forecast(
    path: &Path,
    configuration: &LoadConfiguration,
    request: &ForecastRequest,
    observer: &mut dyn LoadObserver,
) -> Result<Forecast, EngineError> {
    let facts = MachineFacts::detect()?;
    let facts = request.what_if.memory.map_or(facts, |memory| facts.with_memory(memory));
    let prepared = prepare_file(open_model_headers(path)?, facts, configuration)?;
    for note in &prepared.notes {
        observer.note(note);
    }
    let geometry =
        if prepared.spec.experts.is_empty() { None } else { Some(Geometry::new(&prepared.spec.experts)?) };
    let subject = Subject { prepared: &prepared, geometry: geometry.as_ref(), configuration, request };
    let rates = subject.rates(observer)?;
    let prediction = predict(&subject.input(rates));
    let missing = prepared.file.missing_bytes();
    let model_folder = || prepared.file.files()[0].path.parent().map_or(PathBuf::from("."), Path::to_owned);
    let download = (missing > 0).then(|| DiskRoom::of(&model_folder(), missing));
    let pack_space = subject.pack_space();
    let mut advice = subject.advice(&prediction);
    for (room, what) in [(&download, "the rest of the model"), (&pack_space, "the pack")] {
        if let Some(room) = room.as_ref().filter(|room| !room.fits()) {
            let [needed, free] = apart([room.needed, room.free.unwrap_or(Bytes::ZERO)]);
            advice.push(format!("{what} needs {needed} and {free} are free in {}", room.folder.display()));
        }
    }
    Ok(Forecast {
        room: prepared.room,
        weight_copies: 1,
        missing: Bytes(missing),
        download,
        pack_space,
        what_if: request.what_if,
        prediction,
        advice,
        report: prepared.report,
    })
}

struct Subject<'a> {
    prepared: &'a Prepared,
    geometry: Option<&'a Geometry>,
    configuration: &'a LoadConfiguration,
    request: &'a ForecastRequest,
}

impl Subject<'_> {
    fn input(&self, rates: Rates) -> PredictInput {
        let (spec, report) = (&self.prepared.spec, &self.prepared.report);
        let plan = &report.plan;
        let (records, bytes) = self
            .geometry
            .map_or((0, 0), |geometry| (geometry.record_count() as u64, geometry.records_bytes()));
        let sizes = Sizes::of(spec);
        PredictInput {
            layers: spec.layers.len() as u64,
            moe_layers: spec.experts.len() as u64,
            records,
            slots: plan.slot_count,
            experts_per_token: spec.moe_blocks().map(|moe| moe.router.top_k as u64).sum(),
            record_bytes: bytes as f64 / records.max(1) as f64,
            dense_bytes: sizes.dense_bytes,
            kv_bytes_per_position: kv_bytes_per_token(spec, self.configuration.kv_type) as f64,
            weights_per_token: sizes.weights + self.expert_weights(),
            head_weights: (spec.vocabulary * spec.hidden) as f64,
            query_elements: spec
                .layers
                .iter()
                .filter_map(|layer| layer.attention.shape())
                .map(|shape| shape.query_row_len() as f64)
                .sum(),
            prompt_tokens: self.request.prompt_tokens,
            answer_tokens: self.request.answer_tokens,
            chunk_tokens: u64::from(plan.chunk_tokens),
            packed: report.pack.is_some() || self.configuration.pack.builds(),
            hit_rate: self.hit_rate(records),
            rates,
        }
    }

    /// Weights of the experts that one token uses.
    fn expert_weights(&self) -> f64 {
        let Some(geometry) = self.geometry else { return 0.0 };
        let blocks = self.prepared.spec.moe_blocks().enumerate();
        let of = |layer: usize| {
            geometry.layer(layer).matrices.iter().map(|m| (m.rows * m.columns) as f64).sum::<f64>()
        };
        blocks.map(|(layer, moe)| moe.router.top_k as f64 * of(layer)).sum()
    }

    fn hit_rate(&self, records: u64) -> Estimate {
        let plan = &self.prepared.report.plan;
        if plan.everything_resident || records == 0 {
            return Estimate::new(Band::exactly(1.0), Origin::Given, "everything is in memory");
        }
        let share = plan.slot_count as f64 / records as f64;
        let complete = self.prepared.file.missing_bytes() == 0;
        let profile = complete
            .then(|| learnt::recall(self.configuration, &self.prepared.file, &self.prepared.spec))
            .flatten()
            .filter(|profile| profile.slots > 0 && (0.0..=1.0).contains(&profile.hit_rate));
        match profile {
            Some(profile) => {
                measured_hit_rate(share, profile.slots as f64 / records as f64, profile.hit_rate)
            }
            None => assumed_hit_rate(share),
        }
    }

    fn rates(&self, observer: &mut dyn LoadObserver) -> Result<Rates, EngineError> {
        let (disk, disk_wait) = self.disk(observer)?;
        let what_if = &self.request.what_if;
        let measured = self.request.measure.then(|| self.processor()).transpose()?;
        let (memory, int8, arrange) = measured.unwrap_or_else(|| {
            let threads = self.prepared.report.threads as f64;
            let int8 = assumed_processor(50e9 * threads, 500e9 * threads);
            (assumed_processor(15e9, 60e9), int8, assumed_arranging())
        });
        let given = |rate: f64| Estimate::new(Band::exactly(rate), Origin::Given, "given");
        let memory = what_if.memory_bytes_per_second.map_or(memory, given);
        Ok(Rates { disk, disk_wait, memory, int8, arrange })
    }

    /// Rate of random reads of an expert, and the seconds that a read waits beyond it.
    fn disk(&self, observer: &mut dyn LoadObserver) -> Result<(Estimate, Estimate), EngineError> {
        let prepared = self.prepared;
        let path = prepared.file.files().iter().max_by_key(|file| file.len).map(|file| file.path.as_path());
        let kind =
            path.and_then(|path| storage_facts(path).ok()).map_or(StorageKind::Unknown, |facts| facts.kind);
        let kind =
            if self.request.what_if.disk_bytes_per_second.is_some() { StorageKind::SolidState } else { kind };
        let (assumed, wait) = assumed_disk(kind);
        let wait = Estimate::new(wait, Origin::Assumed, "a disk of this kind");
        if let Some(rate) = self.request.what_if.disk_bytes_per_second {
            return Ok((Estimate::new(Band::exactly(rate), Origin::Given, "given"), wait));
        }
        let Some(geometry) = self.geometry else { return Ok((assumed, wait)) };
        let (report, pack) = (&prepared.report, prepared.pack.as_ref());
        let remembered =
            remembered_rate(self.configuration, report.residency, &prepared.file, pack, geometry);
        let around = |rate: f64| Band::new(0.65 * rate, 1.25 * rate);
        let probe = self.request.measure
            && self.configuration.disk_probe.is_some()
            && !report.plan.everything_resident;
        let whole = prepared.file.missing_bytes() == 0;
        if let Some(path) = path.filter(|_| probe && whole) {
            let record = geometry.record_bytes_max();
            let (path, bytes) = match pack {
                Some(pack) => (pack.file().path(), record),
                None => (path, record / 3),
            };
            let reads = measure_random_reads(path, bytes, DISK_TIME, Bytes::MAX, observer)?;
            if let Some(rate) = reads.bytes_per_second() {
                // A measurement of an earlier day widens the band; it does not replace what the disk does now.
                let band = remembered.map_or(around(rate), |other| Band {
                    low: around(rate.min(other)).low,
                    high: around(rate.max(other)).high,
                });
                let short =
                    if reads.short_file { ", from a short file that the device may cache" } else { "" };
                let basis = format!("random reads of {}{short}", Bytes(reads.figures[0].read_bytes as u64));
                let p50 = reads.figures[0].latency_us_p50.map_or(wait.band.high, |us| us / 1e6);
                let waits = Estimate::new(
                    Band::new(0.0, 2.0 * p50),
                    Origin::Measured,
                    "half of the reads ended sooner than half of this",
                );
                return Ok((Estimate::new(band, Origin::Measured, basis), waits));
            }
        }
        match remembered {
            Some(rate) => Ok((Estimate::new(around(rate), Origin::Measured, "at an earlier start"), wait)),
            None => Ok((assumed, wait)),
        }
    }

    /// Rates of memory, of int8 products and of arranging, measured.
    fn processor(&self) -> Result<(Estimate, Estimate, Estimate), EngineError> {
        let threads = self.prepared.report.threads;
        let available = MachineFacts::detect()?.available;
        // Measuring takes less than the run would: a model that fits the caches is measured in them.
        let bound = available.0.min(self.prepared.report.plan.budget.0) / 8;
        let bytes = Bytes(READ_BYTES_MAX.min(bound).max(1 << 20));
        let mut buffer = Buffer::new(&Ledger::unlimited(), Purpose::Scratch, bytes)?;
        let kernels = self.prepared.kernels;
        let workers = Workers::new(threads);
        let (memory, int8) = workers.enter(|team| {
            let data = buffer.as_mut_slice_of::<u64>();
            team.for_each_part_mut(data, 1 << 17, |_, part, _| part.fill(0x0102_0304_0506_0708));
            (probe::read_bandwidth(team, data, READ_TIME), int8_rate(team, kernels))
        });
        drop(buffer);
        let arranged = match self.geometry.filter(|_| !self.prepared.report.plan.everything_resident) {
            Some(geometry) => workers.enter(|team| arrange_rate(team, geometry, bound.min(ARRANGE_BYTES)))?,
            None => None,
        };
        let plural = if threads == 1 { "" } else { "s" };
        let by = format!("here, with {threads} thread{plural}");
        let arrange = match arranged {
            Some(rate) => Estimate::new(Band::new(0.3 * rate, rate), Origin::Measured, by.clone()),
            None => assumed_arranging(),
        };
        Ok((
            Estimate::new(Band::new(0.85 * memory, 1.15 * memory), Origin::Measured, by.clone()),
            Estimate::new(Band::new(0.9 * int8, 1.1 * int8), Origin::Measured, by),
            arrange,
        ))
    }

    fn pack_space(&self) -> Option<DiskRoom> {
        let geometry = self.geometry.filter(|_| self.prepared.pack.is_none())?;
        let needed = PackLayout::new(geometry).file_bytes();
        match &self.configuration.pack {
            PackUse::IfPresent(folder) | PackUse::BuildIfAbsent(folder) | PackUse::Fill(folder) => {
                Some(DiskRoom::of(folder, needed))
            }
            PackUse::Never | PackUse::File(_) => None,
        }
    }

    fn advice(&self, prediction: &Prediction) -> Vec<String> {
        let report = &self.prepared.report;
        let mut advice = Vec::new();
        if matches!(report.residency, Residency::Paged | Residency::Mapped) {
            advice.push(
                "the speeds are those of streamed: what the page cache adds or takes is not predicted"
                    .to_owned(),
            );
        }
        let decode = &prediction.decode;
        let from_disk = !report.plan.everything_resident && report.plan.records_total > 0;
        if from_disk && decode.tokens_per_second.high < 1.0 {
            advice.push(format!(
                "the disk is too slow for this plan: a token reads {} and there is less than one token per second; a larger \
                 --budget, a smaller quantisation or another disk would help",
                Bytes(decode.read_bytes.about() as u64)
            ));
        }
        if from_disk
            && prediction.hit_rate.origin == Origin::Assumed
            && self.prepared.file.missing_bytes() == 0
        {
            advice.push(
                "`coldpress tune` with this budget measures the hit rate and narrows the band".to_owned(),
            );
        }
        advice
    }
}

/// A rate between `low` and `high` where nothing was measured.
fn assumed_processor(low: f64, high: f64) -> Estimate {
    Estimate::new(Band::new(low, high), Origin::Assumed, "a processor of recent years")
}

fn assumed_arranging() -> Estimate {
    assumed_processor(0.8e9, 8e9)
}

/// What disks of a kind deliver, and how long a read waits beyond that.
fn assumed_disk(kind: StorageKind) -> (Estimate, Band) {
    let (rate, wait, basis) = match kind {
        StorageKind::Rotating => ((40e6, 180e6), (4e-3, 20e-3), "a disk with heads"),
        StorageKind::Network => ((50e6, 1e9), (0.2e-3, 5e-3), "a disk of another machine"),
        StorageKind::Memory => ((2e9, 15e9), (0.0, 50e-6), "files in memory"),
        StorageKind::SolidState | StorageKind::Virtual | StorageKind::Unknown => {
            ((0.5e9, 3.5e9), (0.0, 0.4e-3), "a solid-state disk")
        }
    };
    (Estimate::new(Band::new(rate.0, rate.1), Origin::Assumed, basis), Band::new(wait.0, wait.1))
}

fn int8_rate(team: &Team<'_>, kernels: Kernels) -> f64 {
    probe::int8_peak(team, kernels, INT8_TIME).operations_per_second
}

/// Bytes per second at which the largest records are made of source bytes, checksum included; `None` for records that are
/// too large to try.
fn arrange_rate(team: &Team<'_>, geometry: &Geometry, bytes_max: u64) -> Result<Option<f64>, EngineError> {
    let Some(record) = (0..geometry.layer_count())
        .map(|layer| geometry.layer(layer))
        .max_by_key(|record| record.record_bytes)
    else {
        return Ok(None);
    };
    let source: [usize; 3] =
        record.matrices.map(|matrix| matrix.format.row_bytes(matrix.columns) * matrix.rows);
    let each = source.iter().sum::<usize>() + record.record_bytes;
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    if each > bytes_max {
        return Ok(None);
    }
    let count = (bytes_max / each).min(64);
    let mut memory = Buffer::new(&Ledger::unlimited(), Purpose::Scratch, Bytes((each * count) as u64))?;
    let mut places: Vec<&mut [u8]> = memory.as_bytes_mut().chunks_exact_mut(each).take(count).collect();
    let (mut done, mut round) = (0, 0);
    let mut started = std::time::Instant::now();
    // The first round only finds the memory.
    while round < 2 * count || started.elapsed() < ARRANGE_TIME {
        if round == count {
            (started, done) = (std::time::Instant::now(), 0);
        }
        let (gate, rest) = places[round % count].split_at_mut(source[0]);
        let (up, rest) = rest.split_at_mut(source[1]);
        let (down, out) = rest.split_at_mut(source[2]);
        let sources = [gate, up, down].map(|bytes| SourceMatrix { bytes, big_endian: false });
        arrange(team, record, ExpertKey { layer: 0, expert: 0 }, sources, out);
        done += record.record_bytes;
        round += 1;
    }
    Ok(Some(done as f64 / started.elapsed().as_secs_f64().max(1e-9)))
}

/// Dense figures of a model.
struct Sizes {
    /// Bytes that every token reads.
    dense_bytes: f64,
    /// Weights that every token is multiplied with, head left out.
    weights: f64,
}

impl Sizes {
    fn of(spec: &ModelSpec) -> Self {
        // Of an embedding that is not also the head, a token reads one row.
        let embedding = &spec.tensor(spec.embedding).name;
        let one_row = |name: &str| spec.embedding != spec.output && name == embedding;
        // A recurrent state is read and written with every token.
        let (mut bytes, mut weights) = (2.0 * state_bytes(spec) as f64, 0.0);
        for tensor in spec.tensors.iter().filter(|tensor| !one_row(&tensor.name)) {
            bytes += tensor.resident_bytes() as f64;
            if let DenseKind::Matrix { rows, columns } | DenseKind::Transposed { rows, columns } = tensor.kind
            {
                weights += (rows * columns) as f64;
            }
        }
        Self { dense_bytes: bytes, weights: (weights - (spec.vocabulary * spec.hidden) as f64).max(0.0) }
    }
}
