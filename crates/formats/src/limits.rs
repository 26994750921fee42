//! Every bound that the readers put on a model file, in one place.
//!
//! A length or a count in a file is a claim of its author. It is compared with the bytes that are left in the
//! file and with the limit here before anything is allocated, so the memory of one opened header stays within
//! a small multiple of [`MAX_HEADER_BYTES`], also for a sparse file of any size. The figures leave several
//! times the room that the largest published models need (a header of about 16 MiB, a vocabulary of 2^18,
//! 2^19 merges, 2^17 tensors where each expert has its own), and are low enough that the work they allow
//! takes less than 100 ms of processor time.

/// Longest header (everything before the tensor data) of one file, and of all parts of a set together.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Longest file that a header may speak of while the file itself is not all there.
pub const MAX_FILE_BYTES: u64 = 1 << 46;
/// Most metadata entries in one file.
pub const MAX_KEYS: u64 = 1 << 16;
/// Longest metadata key in bytes, the figure of the format document.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Longest single string value in bytes. Some files store a whole tokenizer file in one string.
pub const MAX_STRING_BYTES: u64 = 32 << 20;
/// Most elements in one metadata array.
pub const MAX_ARRAY_ELEMENTS: u64 = 1 << 21;
/// Most strings in all arrays of one file together; each takes work beyond its bytes.
pub const MAX_ARRAY_STRINGS: u64 = 1 << 21;
/// Deepest array nesting; a plain array has depth 1.
pub const MAX_ARRAY_DEPTH: u32 = 4;
/// Most arrays inside arrays in one file. An inner array takes more memory than its 12 bytes in the file.
pub const MAX_INNER_ARRAYS: u64 = 1 << 16;
/// Most tensors in one file, and in all parts of a set together.
pub const MAX_TENSORS: u64 = 1 << 18;
/// Longest tensor name in bytes. ggml stops at 64.
pub const MAX_TENSOR_NAME_BYTES: u64 = 1 << 10;
/// Most dimensions of a tensor, as in ggml.
pub const MAX_DIMENSIONS: u32 = 4;
/// Most parts of a split set.
pub const MAX_PARTS: u64 = 1 << 10;
/// Longest config.json.
pub const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Longest name of a safetensors file in an index.
pub const MAX_FILE_NAME_BYTES: usize = 255;
/// Most entries that are looked at in a folder given as a model.
pub const MAX_FOLDER_ENTRIES: usize = 1 << 16;

const _: () = {
    assert!(MAX_HEADER_BYTES <= 512 << 20);
    assert!(MAX_STRING_BYTES < MAX_HEADER_BYTES);
    assert!(MAX_KEY_BYTES <= MAX_STRING_BYTES);
    // The widest fixed-size element has 8 bytes, and so does the length of an empty string.
    assert!(MAX_ARRAY_ELEMENTS * 8 <= MAX_HEADER_BYTES);
    // String arrays keep their ends as u32.
    assert!(MAX_HEADER_BYTES <= u32::MAX as u64);
    // The indexes by name keep positions as u32.
    assert!(MAX_KEYS <= MAX_TENSORS && MAX_TENSORS <= 1 << 20);
    assert!(MAX_ARRAY_DEPTH <= 8);
};
