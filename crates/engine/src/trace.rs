//! Recording the routing of real text, for `simulate` and `tune`.
//!
//! Off unless asked for. A trace is bounded, charged as a whole before it begins, and holds no text.

use std::io::BufWriter;
use std::path::Path;

use coldpress_experts::trace::{TRACE_BYTES_DEFAULT, TRACE_MAGIC};
use coldpress_experts::{Fingerprint, RoutingTrace};
use coldpress_memory::Bytes;

use crate::error::EngineError;
use crate::files::{begins_with, replace};
use crate::runtime::Runtime;
use crate::summary::ModelSummary;

impl Runtime {
    /// What [`Runtime::start_trace`] takes of the budget at most, for any model with four choices per token or more.
    pub const TRACE_BYTES: Bytes = Bytes(12 << 20);

    /// The fingerprint of the model's files, which packs, traces, profiles and hotlists carry.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        Ok(Fingerprint::of(&self.files, &self.model.spec().experts)?)
    }

    /// What [`Runtime::start_trace_of`] takes of the budget for `tokens` tokens of a model.
    pub fn trace_bytes(model: &ModelSummary, tokens: usize) -> Bytes {
        let (layers, top_k) = (model.moe_layers, model.experts_per_token);
        let bytes = RoutingTrace::memory_bytes(layers, top_k, choice_bytes(layers, top_k, tokens));
        Bytes(bytes as u64)
    }

    /// Writes down from now on which experts every token chooses, up to eight megabytes.
    ///
    /// # Errors
    /// The model has no routed experts, its fingerprint cannot be read, or the budget has no room: see
    /// [`LoadConfiguration::recording`](crate::LoadConfiguration::recording).
    pub fn start_trace(&mut self) -> Result<(), EngineError> {
        self.start_trace_of(usize::MAX)
    }

    /// As [`Runtime::start_trace`], up to `tokens` tokens.
    ///
    /// # Errors
    /// As [`Runtime::start_trace`].
    pub fn start_trace_of(&mut self, tokens: usize) -> Result<(), EngineError> {
        let spec = self.model.spec();
        if spec.experts.is_empty() {
            let reason = "this model has no routed experts: there is no routing to record";
            return Err(EngineError::BadOption(reason.to_owned()));
        }
        if spec.moe_blocks().any(|moe| moe.router.identities > 0) {
            let reason = "tokens of this model use different numbers of experts, and a recording has the same number of all";
            return Err(EngineError::BadOption(reason.to_owned()));
        }
        let top_k = spec.experts_per_token();
        if let Some(moe) = spec.moe_blocks().find(|moe| moe.router.top_k != top_k) {
            return Err(EngineError::BadOption(format!(
                "layers of this model use {} and {top_k} experts per token, and a recording has the same number of all",
                moe.router.top_k
            )));
        }
        let counts: Vec<usize> = spec.experts.iter().map(|layer| layer.expert_count).collect();
        let choice_bytes = choice_bytes(counts.len(), top_k, tokens);
        let bytes = RoutingTrace::memory_bytes(counts.len(), top_k, choice_bytes);
        // The old recording goes first: both would not be paid for.
        self.model.trace_routing(None);
        self.charge_recording(0, Bytes(bytes as u64))?;
        let trace = RoutingTrace::new(self.fingerprint()?, counts, top_k, choice_bytes);
        self.model.trace_routing(Some(trace));
        Ok(())
    }

    /// Ends recording and returns what was recorded since [`Runtime::start_trace`]; `None` if that was not called.
    pub fn finish_trace(&mut self) -> Option<RoutingTrace> {
        self.model.trace_routing(None)
    }
}

/// Bytes of the choices of `tokens` tokens, two each, at most those of any recording.
fn choice_bytes(layers: usize, top_k: usize, tokens: usize) -> usize {
    tokens.saturating_mul(layers * top_k * size_of::<u16>()).min(TRACE_BYTES_DEFAULT)
}

/// Writes a trace file, replacing at most another trace.
///
/// # Errors
/// `path` is something else, or cannot be written.
pub fn write_trace(trace: &RoutingTrace, path: &Path) -> Result<u64, EngineError> {
    let bad = |reason: String| EngineError::BadOutput { path: path.to_owned(), reason };
    if path.exists() && !begins_with(path, TRACE_MAGIC) {
        return Err(bad("exists and is not a trace: it is not overwritten; choose another place".to_owned()));
    }
    let mut bytes = 0;
    replace(path, |file| {
        bytes = trace.write(&mut BufWriter::new(file))?;
        Ok(())
    })
    .map_err(|error| bad(format!("cannot be written: {error}")))?;
    Ok(bytes)
}
