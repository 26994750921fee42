//! Rotations of heads by the angles of a pass. The tables are made in `forward.rs`, once for all layers.

use std::ops::Range;

use coldpress_kernels::Kernels;
use coldpress_kernels::vector::{self, RopeRows};
use coldpress_memory::Buffer;
use coldpress_workers::Team;

use crate::forward::Model;
use crate::spec::RopePairing;

/// Rotates the heads of some rows; see [`Model::rotation`].
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    pairing: RopePairing,
    table: RopeRows<'a>,
}

impl Rotation<'_> {
    /// Rotates `heads`, any number of them for each row.
    pub fn apply(&self, team: &Team<'_>, kernels: Kernels, heads: &mut [f32]) {
        match self.pairing {
            RopePairing::HalfSplit => vector::rope_half_split(team, kernels, heads, self.table),
            RopePairing::Interleaved => vector::rope_interleaved(team, kernels, heads, self.table),
        }
    }
}

impl Model {
    /// Rotates heads of `head_dim` elements by embedding `rope`; `angles` is a part of the tables ([`Model::angles`]).
    pub(crate) fn rotation<'a>(
        &self,
        rope: usize,
        head_dim: usize,
        angles: Range<usize>,
        (cosines, sines): (&'a Buffer, &'a Buffer),
    ) -> Rotation<'a> {
        let rope = &self.spec.ropes[rope];
        let table = RopeRows {
            head_dim,
            rotary_dims: rope.dimensions,
            cosines: &cosines.as_slice_of::<f32>()[angles.clone()],
            sines: &sines.as_slice_of::<f32>()[angles],
        };
        Rotation { pairing: rope.pairing, table }
    }
}
