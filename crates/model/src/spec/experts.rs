//! What belongs to the experts of a block beside their records: dense weights, small beside one expert, and what inputs go through.

use coldpress_kernels::vector::Rotation;

use super::VectorHandle;

/// Biases of all experts of a block. They are dense weights and no part of the records: all of them are small beside one expert,
/// and so records, packs and what was packed before them are the same with biases and without.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiases {
    /// Of the gate products, `[experts, width]`.
    pub gate: VectorHandle,
    /// Of the up products, `[experts, width]`.
    pub up: VectorHandle,
    /// Of the down products, `[experts, hidden]`.
    pub down: VectorHandle,
}

/// What the matrices of each expert of a block are multiplied by, `[experts]`; beside the records, like biases.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertFactors {
    /// Of gate.
    pub gate: Option<VectorHandle>,
    /// Of up.
    pub up: Option<VectorHandle>,
    /// Of down.
    pub down: Option<VectorHandle>,
}

/// What the inputs of experts go through, because their matrices are held for inputs that did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertRotations {
    /// What gate and up are multiplied with: rows of the hidden size.
    pub input: Option<Rotation>,
    /// What down is multiplied with: rows of the inner size.
    pub inner: Option<Rotation>,
}
