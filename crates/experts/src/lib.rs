//! The expert store of coldpress: routed experts stay on disk and are read when the router asks for them.
//!
//! Owns records (one expert in the kernels' layout), the pack file that keeps them, the readers, the slots in memory and the
//! policies that say which record gives way. Refuses arithmetic on weights, routing, and every opinion on HTTP or flags.
//!
//! ```text
//!  model files --- reader ---> read ring --- arrange --.
//!                                                       >--> slot (pinned) ---> kernels
//!  pack file  ---- reader ---------------- verify -----'
//!  pack file, mapped ---------- verify ------------------> kernels, in place
//! ```
//!
//! Rows of tables that are looked up by number ([`rows`]) come through the same readers into a cache of their own.
//!
//! Read in this order: [`record`], [`slots`], [`store`] with its visits, `loader`, `reading`, [`reader`], [`pack`], [`policy`], `resize`.
#![deny(unsafe_code)]

mod advice;
mod ahead;
mod control;
mod error;
mod geometry;
mod hotlist;
mod loader;
mod mapped;
mod prefault;
mod reading;
mod resize;
mod slabs;
mod source;
mod stored;
mod stream;
mod telemetry;
mod timeline;
mod visit;

pub mod pack;
pub mod policy;
pub mod reader;
pub mod record;
mod requantize;
pub mod rows;
pub mod simulate;
pub mod slots;
mod statistics;
pub mod store;
pub mod trace;

pub use advice::{Changes, RouterAdvice};
pub use ahead::{Guess, ReadAheadMode};
pub use control::{RowFigures, StoreControl, StoreFigures};
pub use error::{ExpertError, PACK_EXTENSION, PackFault, RecordFault};
pub use geometry::{
    ExpertKey, ExpertOffsets, ExpertPlace, Geometry, LayerExperts, MATRIX_ALIGNMENT, MatrixPlace, Projection,
    RECORD_ALIGNMENT, RecordGeometry, weight_format,
};
pub use hotlist::Hotlist;
pub use mapped::mapped_place_bytes;
pub use pack::{Fingerprint, LazyConfig, PackFile};
pub use policy::{EvictionPolicy, PolicyKind};
pub use reader::{ExpertReader, ReaderChoice};
pub use reading::{SPLIT_MAX, read_ring_bytes};
pub use record::RecordRef;
pub use rows::{
    LatencyHistogram, RowOrder, RowShard, RowStatistics, RowStore, RowStoreConfig, RowTable, row_format,
    row_store_bytes, row_store_bytes_minimum,
};
pub use simulate::{ReplayCounts, Visits};
pub use source::{FileAccess, ModelSource, ReadFile, aligned};
pub use statistics::ExpertStatistics;
pub use store::{ExpertStore, READ_AHEAD_DEFAULT, Residency, StoreConfig};
pub use stored::{ExpertBytes, GateUp, Scaled, Stored};
pub use stream::{TensorRange, TensorStream};
pub use telemetry::{ExpertCount, PASSES, PassCount, RouteTelemetry, TelemetrySnapshot};
pub use timeline::{ReadEnd, ReadSpan, StoreTimeline, StoreWork, WorkSpan};
pub use trace::{RoutingTrace, order_by_last_use};
pub use visit::{Ready, Visit};
