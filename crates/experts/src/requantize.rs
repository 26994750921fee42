//! Experts quantised on the way into their records: read as they are stored, row by row as f32, written in another format.
//!
//! A record is first arranged in the formats of the file, in a scratch of its own, whatever way it is stored in. Then each thread takes
//! groups of 16 rows: one row at a time becomes f32 and is quantised with a search for its scales. The bytes depend on the values
//! alone, so a pack and a read of the model file give the same record. Refuses values that the format cannot hold.
//! Read next: `coldpress_kernels::blocks::quantize_with_search`, `stored`, `reading`.

use std::sync::atomic::{AtomicBool, Ordering};

use coldpress_kernels::blocks::{SEARCHED_MAGNITUDE_MAX, quantize_with_search};
use coldpress_kernels::layout::{self, GROUP_ROWS, MatrixRef, pack_group, unpack_row};
use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, LayerExperts, MatrixPlace, PROJECTION_NAMES, RecordGeometry};
use crate::record;
use crate::slots::SlotMemory;
use crate::stored::{self, PARTS_MAX};

/// What a store needs to quantise experts.
#[derive(Debug)]
pub(crate) struct Quantising {
    /// Of each layer that is quantised: its records in the formats of the file.
    as_stored: Vec<Option<RecordGeometry>>,
    /// Memory for one of those records.
    scratch: SlotMemory,
}

/// Bytes of the scratch for `layers`, which must have passed [`Geometry::new`](crate::Geometry::new); 0 where nothing is quantised.
pub(crate) fn scratch_bytes(layers: &[LayerExperts]) -> usize {
    let quantised = layers.iter().enumerate().filter(|(_, experts)| experts.quantised.is_some());
    let records = quantised.filter_map(|(layer, experts)| RecordGeometry::as_stored(layer, experts).ok());
    records.map(|record| record.record_bytes).max().unwrap_or(0)
}

impl Quantising {
    /// For `layers`, with a scratch of [`scratch_bytes`].
    pub fn new(layers: &[LayerExperts], scratch: SlotMemory) -> Result<Self, ExpertError> {
        let as_stored = layers.iter().enumerate().map(|(layer, experts)| {
            experts.quantised.map(|_| RecordGeometry::as_stored(layer, experts)).transpose()
        });
        Ok(Self { as_stored: as_stored.collect::<Result<_, _>>()?, scratch })
    }

    /// Builds the record of `key` from its parts as they were read, with the formats of `geometry`.
    ///
    /// # Errors
    /// [`ExpertError::NotQuantisable`].
    pub fn arrange(
        &mut self,
        team: &Team<'_>,
        experts: &LayerExperts,
        geometry: &RecordGeometry,
        key: ExpertKey,
        parts: [&mut [u8]; PARTS_MAX],
        record: &mut [u8],
    ) -> Result<(), ExpertError> {
        let source = self.as_stored[key.layer as usize].expect("the layer is one that is quantised");
        let arranged = &mut self.scratch[..source.record_bytes];
        stored::arrange(team, experts, &source, key, parts, arranged);
        let mut refused = None;
        record::arrange_with(team, geometry, key, record, |matrix, place, out| {
            let MatrixPlace { format, rows, columns, offset, bytes } = source.matrices[matrix];
            let stored = &arranged[offset..offset + bytes];
            if format == place.format {
                out.copy_from_slice(stored);
                return;
            }
            let stored = MatrixRef::new(format, rows, columns, stored)
                .expect("the geometry takes its lengths from the kernels");
            if !quantize_matrix(team, &stored, place, out) {
                refused.get_or_insert((PROJECTION_NAMES[matrix], place.format));
            }
        });
        match refused {
            Some((matrix, format)) => Err(ExpertError::NotQuantisable { key, matrix, format }),
            None => Ok(()),
        }
    }
}

/// Quantises a matrix by the whole team; false where it has values that the format cannot hold.
fn quantize_matrix(team: &Team<'_>, stored: &MatrixRef<'_>, place: &MatrixPlace, out: &mut [u8]) -> bool {
    let MatrixPlace { format, rows, columns, .. } = *place;
    let row_bytes = format.row_bytes(columns);
    let fits = AtomicBool::new(true);
    team.for_each_part_mut(out, layout::packed_group_bytes(format, columns), |group, packed, _worker| {
        let first = group * GROUP_ROWS;
        let mut values = vec![0.0_f32; columns];
        let mut blocks = vec![0; GROUP_ROWS.min(rows - first) * row_bytes];
        for (lane, blocks) in blocks.chunks_exact_mut(row_bytes).enumerate() {
            unpack_row(stored, first + lane, &mut values);
            // Not a number fails the comparison too.
            if !values.iter().all(|value| value.abs() <= SEARCHED_MAGNITUDE_MAX) {
                fits.store(false, Ordering::Relaxed);
                return;
            }
            quantize_with_search(format, &values, blocks).expect("formats of records have a quantiser");
        }
        pack_group(format, columns, &blocks, packed);
    });
    fits.into_inner()
}
