//! A byte-level GGUF builder for tests. It knows no rules, so it can write what no program should, and it
//! shares no code with the crate's writer.

#![allow(dead_code, reason = "every test file uses another part")]

pub mod cases;

/// Numbers of the metadata value types.
pub mod value_type {
    pub const UINT8: u32 = 0;
    pub const UINT16: u32 = 2;
    pub const UINT32: u32 = 4;
    pub const INT32: u32 = 5;
    pub const FLOAT32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const UINT64: u32 = 10;
    pub const FLOAT64: u32 = 12;
}

/// Numbers of the tensor types used here.
pub mod tensor_type {
    pub const F32: u32 = 0;
    pub const Q4_K: u32 = 12;
    pub const I8: u32 = 24;
    pub const F64: u32 = 28;
    pub const MXFP4: u32 = 39;
}

/// A file under construction.
#[derive(Clone, Default)]
pub struct Raw {
    pub bytes: Vec<u8>,
    big: bool,
}

impl Raw {
    /// Magic, version 3, tensor count, key count.
    pub fn new(tensors: u64, keys: u64) -> Raw {
        Raw::with_version(3, false).u64(tensors).u64(keys)
    }

    /// Magic and version only.
    pub fn with_version(version: u32, big: bool) -> Raw {
        Raw { bytes: b"GGUF".to_vec(), big }.u32(version)
    }

    pub fn u8(self, value: u8) -> Raw {
        self.raw(&[value])
    }

    pub fn u32(self, value: u32) -> Raw {
        let bytes = if self.big { value.to_be_bytes() } else { value.to_le_bytes() };
        self.raw(&bytes)
    }

    pub fn u64(self, value: u64) -> Raw {
        let bytes = if self.big { value.to_be_bytes() } else { value.to_le_bytes() };
        self.raw(&bytes)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Raw {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn string(self, bytes: &[u8]) -> Raw {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    /// A key and the number of its value type; the value follows.
    pub fn key(self, key: &str, value_type: u32) -> Raw {
        self.string(key.as_bytes()).u32(value_type)
    }

    /// A key with a uint32.
    pub fn key_u32(self, key: &str, value: u32) -> Raw {
        self.key(key, value_type::UINT32).u32(value)
    }

    /// The start of an array value: element type and length; the elements follow.
    pub fn array(self, element_type: u32, length: u64) -> Raw {
        self.u32(element_type).u64(length)
    }

    /// One line of the tensor directory.
    pub fn tensor(self, name: &str, shape: &[u64], tensor_type: u32, offset: u64) -> Raw {
        let start = self.string(name.as_bytes()).u32(shape.len() as u32);
        let shaped = shape.iter().fold(start, |raw, &dimension| raw.u64(dimension));
        shaped.u32(tensor_type).u64(offset)
    }

    /// Zero bytes up to a multiple of `alignment`, then `length` bytes of data.
    pub fn data(mut self, alignment: usize, length: usize) -> Raw {
        let start = self.bytes.len().next_multiple_of(alignment);
        self.bytes.resize(start + length, 0);
        self
    }
}

/// The name of the variant of an error.
pub fn variant_name(error: &coldpress_formats::FormatError) -> String {
    let text = format!("{error:?}");
    text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
