//! Large memory that carries its own reservation.
//!
//! Owns: zeroed, page-aligned anonymous memory, fit for direct reads and for vector loads. Refuses: growing.
//!
//! Pages count as resident from the first touch on, but the whole length is charged at once: what the plan promised is
//! what the ledger shows.

use crate::sys::Mapping;
use crate::{Bytes, Ledger, MemoryError, Purpose, Reservation};

/// Zeroed anonymous memory. Aligned to at least 4096 bytes, and to 2 MiB (with huge pages asked for) from 4 MiB on.
#[derive(Debug)]
pub struct Buffer {
    // Fields drop in this order: the memory is gone before its bytes are free in the ledger.
    mapping: Mapping,
    reservation: Reservation,
    len: usize,
}

impl Buffer {
    /// Charges `bytes` (rounded up to whole pages) to `purpose` and maps them.
    pub fn new(ledger: &Ledger, purpose: Purpose, bytes: Bytes) -> Result<Self, MemoryError> {
        let refused = |kind: std::io::ErrorKind| MemoryError::Refused {
            purpose: purpose.name(),
            bytes,
            source: kind.into(),
        };
        let page = crate::sys::page_size() as u64;
        let too_large = || refused(std::io::ErrorKind::OutOfMemory);
        let mapped = bytes.checked_next_multiple_of(page).ok_or_else(too_large)?;
        let reservation = ledger.reserve(purpose, mapped)?;
        let len = usize::try_from(bytes.0).map_err(|_| too_large())?;
        let mapped_len = usize::try_from(mapped.0).map_err(|_| too_large())?;
        let mapping = Mapping::anonymous(mapped_len).map_err(|source| MemoryError::Refused {
            purpose: purpose.name(),
            bytes,
            source,
        })?;
        Ok(Self { mapping, reservation, len })
    }

    /// Usable length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it is for.
    pub fn purpose(&self) -> Purpose {
        self.reservation.purpose()
    }

    /// Bytes charged to the ledger: the length in whole pages.
    pub fn reserved(&self) -> Bytes {
        self.reservation.bytes()
    }

    /// The memory.
    pub fn as_bytes(&self) -> &[u8] {
        &self.mapping.as_slice()[..self.len]
    }

    /// The memory, writable.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.mapping.as_mut_slice()[..self.len]
    }

    /// The memory as whole elements of `T`; a remainder of the length is left out.
    pub fn as_slice_of<T: bytemuck::Pod>(&self) -> &[T] {
        bytemuck::cast_slice(whole_elements::<T>(self.as_bytes()))
    }

    /// The memory as whole writable elements of `T`; a remainder of the length is left out.
    pub fn as_mut_slice_of<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let len = whole_elements::<T>(self.as_bytes()).len();
        bytemuck::cast_slice_mut(&mut self.as_bytes_mut()[..len])
    }

    /// Start of the memory, for the slot module that shares parts of it between threads and the kernel. Reading or
    /// writing through it is subject to the usual rules of aliasing; the pointer is valid for [`Buffer::len`] bytes while
    /// the buffer lives, and moving the buffer does not move the memory.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.as_mut_slice().as_mut_ptr()
    }

    /// Makes the system find memory for `range` now, not at the first touch. It may run beside any use of the memory, which keeps
    /// its contents. An error costs time only: the memory then comes with its first touch.
    pub fn populate(&self, range: std::ops::Range<usize>) -> std::io::Result<()> {
        self.mapping.populate(range)
    }

    /// Gives the pages behind `part` back to the system, for the slot module, whose parts have one owner each. They read as
    /// zero afterwards and stay charged. An error costs memory only: the pages stay.
    ///
    /// # Errors
    /// `part` is not of this buffer, or the system does not want to.
    pub fn discard_part(&self, part: &mut [u8]) -> std::io::Result<()> {
        self.mapping.discard_part(part)
    }

    /// Gives the pages behind `range` back to the system; they read as zero afterwards and stay charged. Only whole
    /// pages inside the range are given back.
    pub fn discard(&mut self, range: std::ops::Range<usize>) -> Result<(), MemoryError> {
        let end = range.end.min(self.len);
        let purpose = self.purpose().name();
        self.mapping.discard(range.start.min(end)..end).map_err(|source| MemoryError::Refused {
            purpose,
            bytes: Bytes((end - range.start.min(end)) as u64),
            source,
        })
    }
}

fn whole_elements<T>(bytes: &[u8]) -> &[u8] {
    let size = size_of::<T>().max(1);
    &bytes[..bytes.len() / size * size]
}
