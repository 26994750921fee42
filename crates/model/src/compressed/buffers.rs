//! The buffers of compressed attention, for [`COMPRESSED_ROWS`] rows, and what they cost.

use coldpress_kernels::attention::PAGE_POSITIONS;
use coldpress_memory::{Buffer, Ledger};

use super::{COMPRESSED_ROWS, CompressedSpec, CompressionSpec, compressor::GroupIndexerSpec};
use crate::error::ModelError;
use crate::scratch::{Need, Prepared, scratch_buffer};
use crate::spec::{AttentionKind, ModelSpec};

/// Sizes of the buffers of [`CompressedScratch`].
#[derive(Clone, Copy)]
pub(crate) struct CompressedNeeds {
    query_down: Need,
    query_latent: [Need; 2],
    query: Need,
    key: Need,
    products: Need,
    index_rows: Need,
    index_query: Need,
    index_weights: Need,
    attended: Need,
    group_input: [Need; 2],
    group_output: Need,
    gathered: Need,
    pages: Need,
    scores: Need,
    order: Need,
    work: Need,
}

/// Vectors as long as a compressed row that closing a group works with.
pub(super) const WORK_VECTORS: usize = 5;

impl CompressedNeeds {
    /// `None` for a model without compressed attention.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let layers = || {
            spec.layers.iter().filter_map(|layer| match &layer.attention {
                AttentionKind::Compressed(spec) => Some(spec),
                _ => None,
            })
        };
        layers().next()?;
        let most = |elements: &dyn Fn(&CompressedSpec) -> usize| layers().map(elements).max().unwrap_or(0);
        let of_compression = |elements: &dyn Fn(&CompressionSpec) -> usize| {
            most(&|spec| spec.compression.as_ref().map_or(0, elements))
        };
        let of_indexer = |elements: &dyn Fn(&GroupIndexerSpec) -> usize| {
            of_compression(&|compression| compression.indexer.as_ref().map_or(0, elements))
        };
        let floats = |elements: usize| Need::fixed(elements * size_of::<f32>());
        let row_floats = |elements: usize| floats(COMPRESSED_ROWS * elements);
        let query = most(&|spec| spec.query_len());
        let dim = most(&|spec| spec.head_dim).max(of_indexer(&|indexer| indexer.compressor.dim));
        let columns = of_compression(&|compression| compression.rows.columns())
            .max(of_indexer(&|indexer| indexer.compressor.columns()));
        let seen = most(&|spec| {
            let rows = spec.compression.as_ref().map_or(0, |compression| compression.rows_max);
            (spec.window + rows).next_multiple_of(PAGE_POSITIONS)
        });
        let groups = most(&|spec| spec.output_groups);
        let group_columns = most(&|spec| spec.query_len() / spec.output_groups);
        let groups_max = of_compression(&|compression| compression.groups_max);
        Some(Self {
            query_down: row_floats(most(&|spec| spec.query_rank)),
            query_latent: Prepared::needs(most(&|spec| spec.query_rank))
                .map(|need| need.of_rows(COMPRESSED_ROWS)),
            query: row_floats(query),
            key: row_floats(most(&|spec| spec.head_dim)),
            products: row_floats(2 * columns),
            index_rows: row_floats(of_compression(&|compression| compression.layout().width)),
            index_query: row_floats(of_indexer(&GroupIndexerSpec::query_len)),
            index_weights: row_floats(of_indexer(&|indexer| indexer.heads)),
            attended: row_floats(query),
            group_input: Prepared::needs(group_columns).map(|need| need.of_rows(COMPRESSED_ROWS * groups)),
            group_output: row_floats(most(&CompressedSpec::result_len)),
            gathered: floats(seen * dim),
            pages: floats(seen.div_ceil(PAGE_POSITIONS)),
            scores: floats(groups_max),
            order: floats(groups_max),
            work: floats(WORK_VECTORS * dim),
        })
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        let plain = [
            self.query_down,
            self.query,
            self.key,
            self.products,
            self.index_rows,
            self.index_query,
            self.index_weights,
            self.attended,
            self.group_output,
            self.gathered,
            self.pages,
            self.scores,
            self.order,
            self.work,
        ];
        plain.into_iter().chain(self.query_latent).chain(self.group_input)
    }
}

/// The buffers of compressed attention.
pub(crate) struct CompressedScratch {
    /// Queries' latents [rows, query rank].
    pub(super) query_down: Buffer,
    /// The same, normed.
    pub(super) query_latent: Prepared,
    /// [rows, heads, head_dim]
    pub(super) query: Buffer,
    /// [rows, head_dim]
    pub(super) key: Buffer,
    /// What compressors read: values of all rows, then gates.
    pub(super) products: Buffer,
    /// Rows for the index part of the cache.
    pub(super) index_rows: Buffer,
    /// [rows, indexer heads, their elements]
    pub(super) index_query: Buffer,
    /// [rows, indexer heads]
    pub(super) index_weights: Buffer,
    /// Attention results [rows, heads, head_dim].
    pub(super) attended: Buffer,
    /// The same by groups of heads [groups, rows, columns].
    pub(super) group_input: Prepared,
    /// [groups, rows, rank]
    pub(super) group_output: Buffer,
    /// What one row sees, in pages that follow each other.
    pub(super) gathered: Buffer,
    /// The table of these pages.
    pub(super) pages: Buffer,
    /// The indexer's scores of all groups.
    pub(super) scores: Buffer,
    /// Groups in the order of their choice.
    pub(super) order: Buffer,
    /// For closing a group [`WORK_VECTORS`, elements of a row].
    pub(super) work: Buffer,
}

impl CompressedScratch {
    pub fn new(ledger: &Ledger, needs: CompressedNeeds) -> Result<Self, ModelError> {
        let plain = |need: Need| scratch_buffer(ledger, need, 0);
        let mut pages = plain(needs.pages)?;
        for (number, page) in pages.as_mut_slice_of::<u32>().iter_mut().enumerate() {
            *page = number as u32;
        }
        Ok(Self {
            query_down: plain(needs.query_down)?,
            query_latent: Prepared::new(ledger, needs.query_latent, 0)?,
            query: plain(needs.query)?,
            key: plain(needs.key)?,
            products: plain(needs.products)?,
            index_rows: plain(needs.index_rows)?,
            index_query: plain(needs.index_query)?,
            index_weights: plain(needs.index_weights)?,
            attended: plain(needs.attended)?,
            group_input: Prepared::new(ledger, needs.group_input, 0)?,
            group_output: plain(needs.group_output)?,
            gathered: plain(needs.gathered)?,
            pages,
            scores: plain(needs.scores)?,
            order: plain(needs.order)?,
            work: plain(needs.work)?,
        })
    }
}
