//! A forward reader over the header of one file that cannot be talked into reading or allocating too much.
//!
//! It knows its offset, the length of the file and the byte order. Every length is compared with the bytes
//! left in the file, then with a limit, before memory is taken. It never seeks and never reads ahead of need
//! beyond its buffer.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::error::FormatError;
use crate::limits;

/// Byte order of the numbers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

const BUFFER_BYTES: usize = 64 << 10;

pub(crate) struct Cursor<'path, R> {
    reader: BufReader<R>,
    path: &'path Path,
    offset: u64,
    file_len: u64,
    pub(crate) byte_order: ByteOrder,
}

impl<'path, R: Read> Cursor<'path, R> {
    pub(crate) fn new(reader: R, file_len: u64, path: &'path Path) -> Cursor<'path, R> {
        let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
        Cursor { reader, path, offset: 0, file_len, byte_order: ByteOrder::Little }
    }

    pub(crate) fn path(&self) -> &'path Path {
        self.path
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn left(&self) -> u64 {
        self.file_len - self.offset
    }

    /// Fails unless `needed` bytes are left in the file and within the longest header.
    pub(crate) fn require(&self, needed: u64, what: &'static str) -> Result<(), FormatError> {
        let left = self.left();
        if needed > left {
            let (path, offset) = (self.path.to_owned(), self.offset);
            return Err(FormatError::Truncated { path, what, offset, needed, left });
        }
        // Cannot wrap: the sum is at most the file length.
        let end = self.offset + needed;
        if end > limits::MAX_HEADER_BYTES {
            return Err(self.over_limit("the end of the header", end, limits::MAX_HEADER_BYTES));
        }
        Ok(())
    }

    /// Fails if a count or length is above its limit.
    pub(crate) fn within(&self, value: u64, limit: u64, what: &'static str) -> Result<(), FormatError> {
        if value > limit { Err(self.over_limit(what, value, limit)) } else { Ok(()) }
    }

    fn over_limit(&self, what: &'static str, value: u64, limit: u64) -> FormatError {
        FormatError::OverLimit { path: self.path.to_owned(), what, offset: self.offset, value, limit }
    }

    pub(crate) fn fill(&mut self, into: &mut [u8], what: &'static str) -> Result<(), FormatError> {
        self.require(into.len() as u64, what)?;
        self.reader.read_exact(into).map_err(|source| FormatError::Io {
            path: self.path.to_owned(),
            action: "read the header of",
            source,
        })?;
        self.offset += into.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        self.require(N as u64, what)?;
        // Headers are mostly short fields, so the case that everything is buffered is worth a path of its
        // own.
        if let Some(&bytes) = self.reader.buffer().first_chunk::<N>() {
            self.reader.consume(N);
            self.offset += N as u64;
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        let bytes = self.bytes(what)?;
        Ok(u32::from_file(bytes, self.byte_order))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, FormatError> {
        let bytes = self.bytes(what)?;
        Ok(u64::from_file(bytes, self.byte_order))
    }

    pub(crate) fn number<T: Number<N>, const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<T, FormatError> {
        let bytes = self.bytes::<N>(what)?;
        Ok(T::from_file(bytes, self.byte_order))
    }

    /// `count` numbers of `N` bytes. The caller has checked `count` against a limit.
    pub(crate) fn numbers<T: Number<N>, const N: usize>(
        &mut self,
        count: u64,
        what: &'static str,
    ) -> Result<Vec<T>, FormatError> {
        self.require(count.saturating_mul(N as u64), what)?;
        let mut numbers = Vec::with_capacity(count as usize);
        let mut chunk = [0_u8; 4096];
        let mut left = count as usize * N;
        while left > 0 {
            let step = left.min(chunk.len());
            self.fill(&mut chunk[..step], what)?;
            let (elements, _) = chunk[..step].as_chunks::<N>();
            numbers.extend(elements.iter().map(|&bytes| T::from_file(bytes, self.byte_order)));
            left -= step;
        }
        Ok(numbers)
    }

    /// The 64-bit length of a string, checked against the rest of the file and `limit`.
    pub(crate) fn string_length(&mut self, limit: u64, what: &'static str) -> Result<usize, FormatError> {
        let length = self.u64(what)?;
        self.require(length, what)?;
        self.within(length, limit, what)?;
        Ok(length as usize)
    }

    /// A string with its 64-bit length in front.
    pub(crate) fn string(&mut self, limit: u64, what: &'static str) -> Result<Vec<u8>, FormatError> {
        let length = self.string_length(limit, what)?;
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }
}

/// A number with `N` bytes in a file.
pub(crate) trait Number<const N: usize>: Sized {
    fn from_file(bytes: [u8; N], order: ByteOrder) -> Self;
}

macro_rules! numbers {
    ($($type:ty, $size:literal;)*) => {
        $(impl Number<$size> for $type {
            fn from_file(bytes: [u8; $size], order: ByteOrder) -> $type {
                match order {
                    ByteOrder::Little => <$type>::from_le_bytes(bytes),
                    ByteOrder::Big => <$type>::from_be_bytes(bytes),
                }
            }
        })*
    };
}

numbers! { u8, 1; i8, 1; u16, 2; i16, 2; u32, 4; i32, 4; f32, 4; u64, 8; i64, 8; f64, 8; }
