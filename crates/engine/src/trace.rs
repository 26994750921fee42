//! Recording the routing of real text, for `simulate` and `tune`.
//!
//! Off unless asked for. A trace is bounded, lies outside the plan's memory (a few megabytes at most) and holds no text.

use std::io::Write;
use std::path::Path;

use coldpress_experts::trace::{TRACE_BYTES_DEFAULT, TRACE_MAGIC};
use coldpress_experts::{Fingerprint, RoutingTrace};

use crate::error::EngineError;
use crate::files::{begins_with, replace};
use crate::runtime::Runtime;

impl Runtime {
    /// The fingerprint of the model's files, which packs, traces, profiles and hotlists carry.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        Ok(Fingerprint::of(&self.files, &self.model.spec().experts)?)
    }

    /// Writes down from now on which experts every token chooses, up to eight megabytes.
    ///
    /// # Errors
    /// The model has no routed experts, or its fingerprint cannot be read.
    pub fn start_trace(&mut self) -> Result<(), EngineError> {
        let spec = self.model.spec();
        if spec.experts.is_empty() {
            let reason = "this model has no routed experts: there is no routing to record";
            return Err(EngineError::BadOption(reason.to_owned()));
        }
        let counts = spec.experts.iter().map(|layer| layer.expert_count).collect();
        let top_k = spec.experts_per_token();
        let trace = RoutingTrace::new(self.fingerprint()?, counts, top_k, TRACE_BYTES_DEFAULT);
        self.model.trace_routing(Some(trace));
        Ok(())
    }

    /// Ends recording and returns what was recorded since [`Runtime::start_trace`]; `None` if that was not called.
    pub fn finish_trace(&mut self) -> Option<RoutingTrace> {
        self.model.trace_routing(None)
    }
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
    let bytes = trace.to_bytes();
    replace(path, |file| file.write_all(&bytes))
        .map_err(|error| bad(format!("cannot be written: {error}")))?;
    Ok(bytes.len() as u64)
}
