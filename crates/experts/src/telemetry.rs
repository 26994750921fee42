//! Route telemetry: how often each expert was asked for and was in memory, and what the last passes found. Off by default.
//!
//! The size is fixed when it starts: eight bytes per expert, and a ring of [`PASSES`] passes of 16 bytes, whatever the length
//! of a run. Counts stop at their largest value instead of starting again. Charged to the ledger. Changes no result.

use coldpress_memory::{Bytes, Ledger, Purpose, Reservation};
use serde::Serialize;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry};
use crate::store::ExpertStore;

/// Forward passes that are remembered; older ones are overwritten.
pub const PASSES: usize = 1024;

/// Uses of one expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertCount {
    /// Visits that asked for it.
    pub uses: u32,
    /// Those that found it in memory.
    pub hits: u32,
}

/// One forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassCount {
    /// Number of the pass, from 1; 0 for what came before the first one.
    pub pass: u32,
    /// Tokens of the pass.
    pub rows: u32,
    /// Experts asked for, over all layers.
    pub uses: u32,
    /// Those that were in memory.
    pub hits: u32,
}

/// See the module header.
#[derive(Debug)]
pub struct RouteTelemetry {
    counts: Vec<ExpertCount>,
    /// Index of the first expert of each layer, and the number of all.
    starts: Vec<usize>,
    passes: Vec<PassCount>,
    /// Passes so far; the last one is at this number modulo [`PASSES`].
    pass: u32,
    memory: Reservation,
}

/// What was counted so far, for a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TelemetrySnapshot {
    /// Per layer and expert.
    pub layers: Vec<Vec<ExpertCount>>,
    /// The last passes, oldest first.
    pub passes: Vec<PassCount>,
    /// Bytes that the telemetry holds.
    pub bytes: Bytes,
}

impl RouteTelemetry {
    /// Bytes that it holds for a model.
    pub fn bytes(geometry: &Geometry) -> Bytes {
        let counts = geometry.record_count() * size_of::<ExpertCount>();
        let starts = (geometry.layer_count() + 1) * size_of::<usize>();
        Bytes((counts + starts + PASSES * size_of::<PassCount>()) as u64)
    }

    /// Nothing counted yet.
    ///
    /// # Errors
    /// The ledger has no room for it.
    pub fn new(geometry: &Geometry, ledger: &Ledger) -> Result<Self, ExpertError> {
        let memory = ledger.reserve(Purpose::Scratch, Self::bytes(geometry));
        let first = |layer: usize| geometry.record_index(ExpertKey { layer: layer as u32, expert: 0 });
        Ok(Self {
            memory: memory.map_err(coldpress_memory::MemoryError::from)?,
            counts: vec![ExpertCount::default(); geometry.record_count()],
            starts: (0..geometry.layer_count()).map(first).chain([geometry.record_count()]).collect(),
            passes: vec![PassCount::default(); PASSES],
            pass: 0,
        })
    }

    /// A forward pass of `rows` tokens begins.
    pub fn begin_pass(&mut self, rows: usize) {
        self.pass = self.pass.saturating_add(1);
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.passes[self.pass as usize % PASSES] =
            PassCount { pass: self.pass, rows, ..PassCount::default() };
    }

    /// A visit to `layer` asked for `experts`; those at the positions `hits` were in memory. Names that do not exist
    /// are not counted.
    pub fn record(&mut self, layer: usize, experts: &[u32], hits: impl Iterator<Item = usize>) {
        let Some(&[start, end]) = self.starts.get(layer..).and_then(<[usize]>::first_chunk) else { return };
        let counts = &mut self.counts[start..end];
        let pass = &mut self.passes[self.pass as usize % PASSES];
        for &expert in experts {
            if let Some(count) = counts.get_mut(expert as usize) {
                count.uses = count.uses.saturating_add(1);
                pass.uses = pass.uses.saturating_add(1);
            }
        }
        for position in hits {
            let expert = experts.get(position).map(|&expert| expert as usize);
            if let Some(count) = expert.and_then(|expert| counts.get_mut(expert)) {
                count.hits = count.hits.saturating_add(1);
                pass.hits = pass.hits.saturating_add(1);
            }
        }
    }

    /// What was counted so far. Allocates; for a status, not for every token.
    pub fn snapshot(&self) -> TelemetrySnapshot {
        let newest = self.pass as usize % PASSES;
        let passes = (1..=PASSES).map(|step| self.passes[(newest + step) % PASSES]);
        TelemetrySnapshot {
            layers: self.starts.windows(2).map(|ends| self.counts[ends[0]..ends[1]].to_vec()).collect(),
            passes: passes.filter(|pass| pass.pass > 0).collect(),
            bytes: self.memory.bytes(),
        }
    }
}

impl ExpertStore {
    /// Counts, from now on, uses and hits of every expert.
    ///
    /// # Errors
    /// The ledger has no room for [`RouteTelemetry::bytes`].
    pub fn record_telemetry(&mut self, ledger: &Ledger) -> Result<(), ExpertError> {
        self.telemetry = Some(Box::new(RouteTelemetry::new(&self.geometry, ledger)?));
        Ok(())
    }

    /// What was counted so far; `None` where nothing is.
    pub fn telemetry(&self) -> Option<TelemetrySnapshot> {
        self.telemetry.as_ref().map(|telemetry| telemetry.snapshot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::tests::geometry;

    #[test]
    fn uses_and_hits_are_counted_per_layer_and_expert() {
        let mut telemetry = RouteTelemetry::new(&geometry(2, 4), &Ledger::unlimited()).expect("room");
        telemetry.begin_pass(1);
        telemetry.record(0, &[2, 0], [1].into_iter());
        telemetry.record(1, &[3, 2], [0, 1].into_iter());
        telemetry.begin_pass(7);
        telemetry.record(0, &[2, 3], [0].into_iter());
        // Nothing of this exists.
        telemetry.record(2, &[0], [0].into_iter());
        telemetry.record(0, &[4], [0, 5].into_iter());
        let seen = telemetry.snapshot();
        let count = |uses, hits| ExpertCount { uses, hits };
        assert_eq!(seen.layers[0], [count(1, 1), count(0, 0), count(2, 1), count(1, 0)]);
        assert_eq!(seen.layers[1], [count(0, 0), count(0, 0), count(1, 1), count(1, 1)]);
        let passes = [
            PassCount { pass: 1, rows: 1, uses: 4, hits: 3 },
            PassCount { pass: 2, rows: 7, uses: 2, hits: 1 },
        ];
        assert_eq!(seen.passes, passes);
    }

    #[test]
    fn a_long_run_takes_no_more_memory_than_its_start() {
        let geometry = geometry(3, 8);
        let ledger = Ledger::unlimited();
        let mut telemetry = RouteTelemetry::new(&geometry, &ledger).expect("room");
        let held = ledger.used();
        assert_eq!(held, RouteTelemetry::bytes(&geometry));
        let places = |telemetry: &RouteTelemetry| {
            let counts = (telemetry.counts.as_ptr(), telemetry.counts.capacity());
            (counts, telemetry.starts.capacity(), telemetry.passes.capacity())
        };
        let before = places(&telemetry);
        for pass in 0..3 * PASSES {
            telemetry.begin_pass(1);
            for layer in 0..3 {
                telemetry.record(layer, &[(pass % 8) as u32, ((pass + 1) % 8) as u32], [1].into_iter());
            }
        }
        assert_eq!((places(&telemetry), ledger.used()), (before, held));
        let seen = telemetry.snapshot();
        assert_eq!(seen.passes.len(), PASSES);
        assert_eq!(seen.passes[0].pass as usize, 2 * PASSES + 1);
        assert_eq!(seen.passes[PASSES - 1].pass as usize, 3 * PASSES);
        let uses: u32 = seen.layers.iter().flatten().map(|count| count.uses).sum();
        assert_eq!(uses as usize, 3 * PASSES * 6);
        drop(telemetry);
        assert_eq!(ledger.used(), Bytes::ZERO);
    }

    #[test]
    fn counts_stop_at_the_largest_number() {
        let mut telemetry = RouteTelemetry::new(&geometry(1, 1), &Ledger::unlimited()).expect("room");
        telemetry.counts[0] = ExpertCount { uses: u32::MAX, hits: u32::MAX };
        telemetry.record(0, &[0], [0].into_iter());
        assert_eq!(telemetry.snapshot().layers[0][0], ExpertCount { uses: u32::MAX, hits: u32::MAX });
    }

    #[test]
    fn a_budget_without_room_refuses_it() {
        assert!(RouteTelemetry::new(&geometry(1, 1), &Ledger::new(Bytes(100))).is_err());
    }
}
