//! What a service reaches of the runtime that it owns.

use coldpress_experts::{ExpertStatistics, ExpertStore, TelemetrySnapshot};
use coldpress_memory::Bytes;
use coldpress_model::{KvPool, PAGE_POSITIONS, kv_bytes_per_token, state_bytes};

use crate::error::EngineError;
use crate::runtime::Runtime;

impl Runtime {
    /// Takes the heavy parts back and makes the pool of pages ready. Says whether the pool is new, and with it empty.
    pub(super) fn wake_for_requests(&mut self) -> Result<bool, EngineError> {
        self.wake()?;
        self.check_files()?;
        let new = self.ready_kv()?;
        self.kv.as_mut().expect("made ready before").give_back_dropped();
        Ok(new)
    }

    /// The pool of pages; the runtime is awake.
    pub(super) fn pool_mut(&mut self) -> &mut KvPool {
        &mut self.kv.as_mut().expect("awake while it serves").pool
    }

    /// The pool of pages while the runtime is awake.
    pub(super) fn awake_pool(&mut self) -> Option<&mut KvPool> {
        self.kv.as_mut().map(|kv| &mut kv.pool)
    }

    /// Bytes of one page of the pool.
    pub(super) fn page_bytes(&self) -> usize {
        kv_bytes_per_token(self.model.spec(), self.configuration.kv_type) * PAGE_POSITIONS
    }

    /// Whether the model has recurrent layers.
    pub(super) fn has_states(&self) -> bool {
        self.state_bytes() > 0
    }

    /// Bytes of the recurrent state of one sequence.
    pub(super) fn state_bytes(&self) -> usize {
        state_bytes(self.model.spec())
    }

    /// Rows that one forward pass can carry.
    pub(super) fn rows_max(&self) -> usize {
        self.report.plan.chunk_tokens as usize
    }

    /// What the store has counted; `None` for dense models.
    pub(super) fn store_statistics(&self) -> Option<ExpertStatistics> {
        self.experts.as_ref().map(ExpertStore::statistics)
    }

    /// Uses and hits of every expert, where they are counted.
    pub(super) fn telemetry(&self) -> Option<TelemetrySnapshot> {
        self.with_store(ExpertStore::telemetry).flatten()
    }

    /// The most resident memory seen so far.
    pub(super) fn peak_rss(&self) -> Bytes {
        self.peak_memory().rss
    }
}
