//! Rows of embedding tables that are too large for memory, read one by one.
//!
//! Some models look rows up by hashes of the last tokens (n-gram embeddings): a few hundred bytes per row, tens of gigabytes
//! per table, a handful of rows per token, and ids that are known as soon as the tokens are. Tables therefore stay on disk
//! in every residency mode. [`RowStore::prefetch`] begins reads when the ids are known, [`RowStore::fetch`] hands rows out
//! as f32; rows that come often stay in a bounded cache. Values never depend on what was cached.
//! Knows no hashing and no model; see `ngram` in the model crate for that.
//! Read in this order: [`RowTable`], `cache` (which rows stay), `store` (how they come).

mod cache;
mod frequency;
mod index;
mod latency;
mod statistics;
mod store;
mod table;

pub use cache::RowOrder;
pub use latency::LatencyHistogram;
pub use statistics::RowStatistics;
pub use store::{READS_DEFAULT, RowStore, RowStoreConfig, row_store_bytes, row_store_bytes_minimum};
pub use table::{RowShard, RowTable, row_format};
