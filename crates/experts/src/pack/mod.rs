//! The pack: every record of a model in one file, in the layout the kernels read.
//!
//! ```text
//! 0      magic "COLDPACK"      12  layout          32  file bytes      48  fingerprint (32)
//! 8      version               16  header bytes    40  state           80  layer count
//! 96     per layer, 64 bytes: expert count, record bytes, first offset, gate/up/down {format, rows, columns}
//! ...    zeros; CRC-32C of everything before in the last 4 bytes of the header (a multiple of 4096)
//! then   the records, layer by layer, expert by expert
//! ```
//!
//! Integers are little-endian. Offsets follow from the shapes, so there is no index. A pack is written under another name
//! (`NAME.partial`) with state "unfinished", and gets its final header and its name when all records are on disk.
//! It never changes afterwards and moves between machines.
//!
//! `format` has the bytes of the header, `writer` and `reader` do what they say, `fingerprint` ties a pack to its model,
//! `lazy` fills a pack while its model runs.

mod fingerprint;
mod format;
mod lazy;
mod reader;
mod writer;

pub use fingerprint::Fingerprint;
pub use format::{PACK_MAGIC, PackLayout};
pub use lazy::LazyConfig;
pub(crate) use lazy::LazyPack;
pub use reader::{PackFile, VerifyConfig};
pub use writer::{PackConfig, PackReport, WRITE_WINDOW_BYTES, partial_path, write_pack};
