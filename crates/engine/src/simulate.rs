//! Comparing eviction policies on recorded routing, offline.

use coldpress_experts::{PolicyKind, ReplayCounts, RoutingTrace, Visits};

/// Every policy at every capacity.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Simulation {
    /// Routed layers of the model.
    pub layers: usize,
    /// Experts of all layers.
    pub records: usize,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Tokens of the trace.
    pub tokens: usize,
    /// Forward passes of the trace.
    pub passes: usize,
    /// Passes of a single token.
    pub decode_passes: usize,
    /// Slots compared, in the order asked for.
    pub slots: Vec<usize>,
    /// One row per policy.
    pub policies: Vec<PolicyCurve>,
    /// The optimum that knows the future, per capacity.
    pub belady: Vec<ReplayCounts>,
}

/// What one policy reached.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PolicyCurve {
    /// The policy's name.
    pub policy: &'static str,
    /// Hits and misses per capacity.
    pub counts: Vec<ReplayCounts>,
}

/// How many slots a simulation gives the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// A share of all experts, 0 to 1.
    Share(f64),
    /// A number of slots.
    Slots(usize),
}

/// Replays `trace` under every policy of `kinds` at every capacity.
pub fn simulate(trace: &RoutingTrace, capacities: &[Capacity], kinds: &[PolicyKind]) -> Simulation {
    let visits = Visits::of(trace);
    let slots: Vec<usize> = capacities
        .iter()
        .map(|capacity| match *capacity {
            Capacity::Share(share) => visits.slots_for(share),
            Capacity::Slots(slots) => slots.clamp(1, visits.record_count()),
        })
        .collect();
    let curve = |kind: &PolicyKind| PolicyCurve {
        policy: kind.name(),
        counts: slots.iter().map(|slots| visits.replay(*kind, *slots)).collect(),
    };
    Simulation {
        layers: trace.expert_counts().len(),
        records: visits.record_count(),
        experts_per_token: trace.top_k(),
        tokens: trace.tokens(),
        passes: trace.passes().len(),
        decode_passes: trace.passes().filter(|pass| pass.rows == 1).count(),
        policies: kinds.iter().map(curve).collect(),
        belady: slots.iter().map(|slots| visits.belady(*slots)).collect(),
        slots,
    }
}
