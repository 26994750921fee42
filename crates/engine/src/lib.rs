//! Run Mixture-of-Experts language models larger than memory, under one memory budget.
//!
//! ```no_run
//! use coldpress::{GenerateOptions, LoadConfiguration, Message, Runtime, Silent};
//!
//! # fn main() -> Result<(), coldpress::EngineError> {
//! let configuration = LoadConfiguration::default().budget("6GiB".parse().expect("a size"));
//! let mut runtime = Runtime::load("model.gguf".as_ref(), &configuration, &mut Silent)?;
//! let mut session = runtime.session()?;
//! let prompt = runtime.encode_chat(&[Message::new("user", "What is a whale?")])?;
//! let answer = runtime.generate(&mut session, &prompt, &GenerateOptions::default(), &mut Silent)?;
//! println!("{}", answer.text);
//! println!("peak {} of {}", runtime.status().peak.rss, runtime.status().plan.plan.budget);
//! # Ok(())
//! # }
//! ```
//!
//! [`plan`] says what a run would hold in memory, [`forecast`] also how fast it would be, [`Runtime`] holds it, [`Session`] is a conversation. The budget bounds the
//! whole process, and the answer does not depend on it. This crate prints nothing and reads no environment.
#![forbid(unsafe_code)]

mod checks;
mod configuration;
mod convert;
mod disk;
mod disk_tuning;
mod error;
mod eval;
mod expert_types;
mod files;
mod forecast;
mod gate;
mod generate;
mod inspect;
mod inspect_summary;
mod keeper;
mod learnt;
mod lossy;
mod machine;
mod notes;
mod packs;
mod plan;
mod predict;
mod press;
mod probe;
mod prompt;
mod runtime;
mod sampling;
pub mod service;
mod settings;
mod shared_kv;
mod simulate;
mod summary;
mod timeline;
mod trace;
mod tune;
mod vocabulary;

pub use coldpress_experts::trace::TRACE_MAGIC;
pub use coldpress_experts::{
    ExpertError, ExpertKey, ExpertStatistics, Fingerprint, PolicyKind, ReadEnd, ReadSpan, ReplayCounts,
    RoutingTrace, RowStatistics, Visits,
};
pub use coldpress_formats::FormatError;
pub use coldpress_kernels::Isa;
pub use coldpress_kernels::probe::processor_name;
pub use coldpress_memory::sys::{DirectIo, process_exists, share_one_heap_under_a_limit};
pub use coldpress_memory::{
    BudgetSpec, Bytes, DoesNotFit, Ledger, LedgerSnapshot, MachineFacts, MemoryError, Plan, SizeSpec,
    StorageFacts, StorageKind, Suggestion, Swap, SystemFacts, apart,
};
pub use coldpress_model::{KvType, Phase, PhaseStretch, PhaseTimes, allowed_kv_types};
pub use coldpress_text as text;
pub use coldpress_text::Message;
pub use coldpress_workers::THREADS_MAX;

pub use checks::{Check, CheckInput, Diagnosis, ModelCheck, Place, Platform, Verdict, diagnose, judge};
pub use configuration::{
    ChoiceOrigin, ForceMode, LoadConfiguration, POLICIES, PackUse, Prefetch, ReaderKind, Residency,
};
pub use convert::{ConvertReport, ConvertTypes, TensorChoice, convert_to_gguf};
pub use disk::{Ceiling, DiskFigure, DiskReport, Pattern, RandomReads, measure_disk, measure_random_reads};
pub use disk_tuning::{Basis, PageCacheUse, Reading};
pub use error::EngineError;
pub use eval::{ComparedSide, Comparison, ComparisonObserver};
pub use expert_types::ExpertType;
pub use files::begins_with;
pub use forecast::{DiskRoom, Forecast, ForecastRequest, WhatIf, forecast};
pub use gate::{AddressSpace, Gate};
pub use generate::{FinishReason, GenerateObserver, GenerateOptions, Generation, Session, Silent};
pub use inspect::{Inspection, inspect, model_file_bytes};
pub use inspect_summary::{ExpertFacts, LayerGroup, RoleShare};
pub use keeper::{IdleRelease, LiveStatus, RuntimeHandle};
pub use learnt::{PolicyChoice, PrefetchChoice, Profile};
pub use machine::{
    FormatKernel, InstructionSet, Int8Rate, MachineReport, ReadBandwidth, ReaderReport, examine,
};
pub use packs::{PackReport, pack_model, pack_model_as, verify_pack, verify_pack_as};
pub use plan::{PlanReport, Room, StateRoom, plan};
pub use predict::{
    Band, Bottleneck, Estimate, Origin, PredictInput, Prediction, Rates, Stage, TOKENS_PER_WORD, Term,
    assumed_hit_rate, measured_hit_rate, predict,
};
pub use press::{MemoryGate, Press, PressStatus, ResidentCap, Thinking};
pub use probe::{ProbeReport, ProbedShare};
pub use prompt::{ChatOptions, PromptEncoder};
pub use runtime::{LoadObserver, LoadStage, PeakMemory, Runtime, Status};
pub use sampling::{AnswerSampler, Sampler, Sampling, greedy};
pub use settings::{EffectiveSetting, GivenAs, Setting, SettingKey};
pub use simulate::{Capacity, PolicyCurve, Simulation, simulate};
pub use summary::{ModelSummary, model_summary};
pub use timeline::TokenTimeline;
pub use trace::write_trace;
pub use tune::{PrefetchTrial, TuneReport};
