//! Everything that can go wrong between a model file and a record in a slot.
//!
//! One variant per thing the caller can do about it; messages name the file, the place, the numbers and the way out.

use std::io;
use std::path::{Path, PathBuf};

use coldpress_kernels::WeightFormat;
use coldpress_memory::{Bytes, MemoryError, apart};

use crate::geometry::ExpertKey;

/// Why an expert operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ExpertError {
    /// The tensor directory describes experts that cannot exist or are not supported.
    #[error("routed layer {layer}: {detail}")]
    Geometry {
        /// Index among the routed layers.
        layer: usize,
        /// What does not fit together, with numbers.
        detail: String,
    },
    /// A request names an expert that the model does not have, or names one twice.
    #[error(
        "{key} was requested {times} times in one visit; the layer has {expert_count} experts, each may be named once"
    )]
    Request {
        /// The expert.
        key: ExpertKey,
        /// How often it was named.
        times: u32,
        /// Experts of that layer; 0 for a layer that does not exist.
        expert_count: usize,
    },
    /// The configuration of a store does not add up.
    #[error("{0}")]
    Configuration(String),
    /// A trace file is damaged, of another version or no trace at all.
    #[error("{path}, byte {offset}: {detail}; record it again with `coldpress trace`")]
    Trace {
        /// The file.
        path: PathBuf,
        /// Where the reader noticed.
        offset: u64,
        /// What is wrong, with numbers.
        detail: String,
    },
    /// The budget has no room.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The operating system reported an error.
    #[error("cannot {action} {path} (at byte {offset}): {source}{}", pack_remedy(path).unwrap_or_default())]
    Io {
        /// What was tried: "read", "write", "open" ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// First byte of the range concerned; 0 where the file as a whole is meant.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
    /// A file ends before the bytes that its directory promises.
    #[error(
        "{path} ends at byte {length}, but bytes {offset} to {end} are needed: the file was cut short or changed while in use\
         {}",
        pack_remedy(path).unwrap_or("; download it again or check its size")
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// First byte needed.
        offset: u64,
        /// End of the bytes needed.
        end: u64,
        /// Length found.
        length: u64,
    },
    /// A row of a table could not be read.
    #[error("row {row} of {tensor}: {source}")]
    Row {
        /// The tensor that holds it.
        tensor: String,
        /// Its number in that tensor.
        row: u64,
        /// What went wrong, with the file.
        source: Box<ExpertError>,
    },
    /// A row was asked for that the table does not have.
    #[error(
        "row {row} of {table} was asked for, which has {rows}: the configuration and the file do not belong together"
    )]
    NoSuchRow {
        /// The table.
        table: String,
        /// The row.
        row: u64,
        /// Rows that there are.
        rows: u64,
    },
    /// A record on disk is not what it must be, also when read again.
    #[error(
        "{path}: the record of {key} at byte {offset} is damaged ({fault}), also when read again; remove the \
         file and run `coldpress pack` again"
    )]
    Damaged {
        /// The pack file.
        path: PathBuf,
        /// First byte of the record.
        offset: u64,
        /// The expert.
        key: ExpertKey,
        /// What the check found.
        fault: RecordFault,
    },
    /// A matrix cannot be quantised as it was asked for.
    #[error(
        "{key}: {matrix} holds values that {format} cannot (not numbers, or beyond 65504 in magnitude): such weights are damaged; \
         download the model again, or keep its types (--experts keep)"
    )]
    NotQuantisable {
        /// The expert.
        key: ExpertKey,
        /// Gate, up or down.
        matrix: &'static str,
        /// The format that was asked for.
        format: WeightFormat,
    },
    /// The pack file as a whole cannot be used.
    #[error("{path}: {fault}")]
    Pack {
        /// The pack file.
        path: PathBuf,
        /// What is wrong and what to do.
        fault: PackFault,
    },
    /// The reader itself broke down (not a single read).
    #[error("the {reader} reader cannot go on: {source}; try the other one (reader `pread`)")]
    Reader {
        /// Name of the reader.
        reader: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Ending of the names of packs.
pub const PACK_EXTENSION: &str = "cpack";

/// The way out where a file cannot be read that is a pack by its name: it only holds what the model file has too.
fn pack_remedy(path: &Path) -> Option<&'static str> {
    // One that is being filled has an ending more.
    let named = |path: &Path| path.extension().is_some_and(|extension| extension == PACK_EXTENSION);
    (named(path) || named(&path.with_extension(""))).then_some(
        "; run `coldpress pack MODEL` again, or remove the file (and leave out --pack): experts are then read from the \
         model file",
    )
}

/// What is wrong with the bytes of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Not a record at all.
    #[error("no record starts here")]
    Magic,
    /// The header is not what was written.
    #[error("header checksum {found:08x}, wanted {wanted:08x}")]
    HeaderChecksum {
        /// Checksum of the bytes found.
        found: u32,
        /// Checksum stored beside them.
        wanted: u32,
    },
    /// A field of the header has another value than the place of the record demands.
    #[error("{field} is {found}, wanted {wanted}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value found.
        found: u64,
        /// Value that belongs here.
        wanted: u64,
    },
    /// The bytes after the header are not what was written.
    #[error("checksum {found:08x}, wanted {wanted:08x}")]
    BodyChecksum {
        /// Checksum of the bytes found.
        found: u32,
        /// Checksum in the header.
        wanted: u32,
    },
}

/// What is wrong with a pack file as a whole. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackFault {
    /// Some other kind of file.
    #[error("this is not a coldpress pack file; give the path of a file written by `coldpress pack`")]
    NotAPack,
    /// Written by another version of the format.
    #[error("pack format version {found}, this program reads {supported}; run `coldpress pack` again")]
    Version {
        /// Version found.
        found: u32,
        /// Version supported.
        supported: u32,
    },
    /// Records in a layout that the kernels do not read.
    #[error("record layout {found}, this program reads {supported}; run `coldpress pack` again")]
    Layout {
        /// Layout found.
        found: u32,
        /// Layout supported.
        supported: u32,
    },
    /// The header is not what was written.
    #[error(
        "the header is damaged (checksum {found:08x}, wanted {wanted:08x}); remove the file and run `coldpress pack` again"
    )]
    HeaderChecksum {
        /// Checksum of the bytes found.
        found: u32,
        /// Checksum stored beside them.
        wanted: u32,
    },
    /// Writing has not come to its end.
    #[error("this pack was never finished; run `coldpress pack` again, it continues where it stopped")]
    Unfinished,
    /// The file is shorter or longer than its header says.
    #[error(
        "{found} bytes long, wanted {wanted}: cut short or extended; remove it and run `coldpress pack` again"
    )]
    Length {
        /// Length found.
        found: u64,
        /// Length wanted.
        wanted: u64,
    },
    /// Made from a model with other shapes.
    #[error("made for another model ({detail}); give the pack of this model or run `coldpress pack` again")]
    Geometry {
        /// First difference.
        detail: String,
    },
    /// Same shapes, other bytes.
    #[error(
        "made from other weights of the same shape (fingerprint {found}, this model has {wanted}); run `coldpress pack` again"
    )]
    Fingerprint {
        /// Fingerprint in the pack.
        found: String,
        /// Fingerprint of the model.
        wanted: String,
    },
    /// Another process writes the same pack.
    #[error("another process is writing this pack; wait for it, or choose another place")]
    Busy,
    /// The disk has too little room.
    #[error(
        "{} more are needed, the disk has {} free; free some space, choose another place, or run without a pack",
        apart([*needed, *free])[0], apart([*needed, *free])[1]
    )]
    DiskFull {
        /// Bytes still to be written.
        needed: Bytes,
        /// Bytes free.
        free: Bytes,
    },
    /// A record differs from what the model file gives.
    #[error(
        "the record of {key} differs from the model file at byte {at} of the record; run `coldpress pack` again"
    )]
    DiffersFromSource {
        /// The expert.
        key: ExpertKey,
        /// First differing byte, counted from the start of the record.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack can be made again or left out; a model file cannot.
    #[test]
    fn a_file_that_is_cut_or_gone_comes_with_the_way_out_that_fits_it() {
        let both = |name: &str| {
            let path = || PathBuf::from(name);
            let cut = ExpertError::Truncated { path: path(), offset: 8, end: 16, length: 12 };
            let source = io::ErrorKind::NotFound.into();
            let gone = ExpertError::Io { action: "open", path: path(), offset: 0, source };
            [cut, gone].map(|error| error.to_string())
        };
        for name in ["a/b.cpack", "a/b.cpack.partial"] {
            for message in both(name) {
                assert!(
                    message.contains("`coldpress pack MODEL`") && message.contains("remove"),
                    "{message}"
                );
                assert!(!message.contains("download"), "{message}");
            }
        }
        let [cut, gone] = both("a/b.gguf");
        assert!(cut.contains("download it again") && !gone.contains("coldpress pack"), "{cut} {gone}");
    }
}
