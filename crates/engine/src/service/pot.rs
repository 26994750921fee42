//! Memory set aside for requests: their text, ids and parsed form, as long as they wait and are computed.
//!
//! The ledger pays for the pot as a whole when the service begins, so that a request is refused with numbers and never
//! makes the process grow beyond its budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coldpress_memory::{Bytes, Reservation};

use super::request::SubmitError;

/// See the module header.
#[derive(Clone)]
pub struct RequestPot {
    inner: Arc<Inner>,
}

struct Inner {
    taken: AtomicU64,
    paid: Reservation,
}

/// A part of the pot, given back when dropped.
pub struct Held {
    pot: RequestPot,
    bytes: u64,
}

impl RequestPot {
    pub(super) fn new(paid: Reservation) -> Self {
        Self { inner: Arc::new(Inner { taken: AtomicU64::new(0), paid }) }
    }

    /// Bytes of the whole pot.
    pub fn size(&self) -> Bytes {
        self.inner.paid.bytes()
    }

    /// Bytes taken.
    pub fn taken(&self) -> Bytes {
        Bytes(self.inner.taken.load(Ordering::Relaxed))
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// So much is not left.
    pub fn take(&self, bytes: Bytes) -> Result<Held, SubmitError> {
        let size = self.size().0;
        let more = |taken: u64| taken.checked_add(bytes.0).filter(|&sum| sum <= size);
        match self.inner.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Held { pot: self.clone(), bytes: bytes.0 }),
            Err(taken) => Err(SubmitError::NoRoom { needed: bytes, free: Bytes(size - taken) }),
        }
    }
}

impl Held {
    /// Bytes held.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Takes `more` as well.
    ///
    /// # Errors
    /// So much is not left.
    pub fn grow(&mut self, more: Bytes) -> Result<(), SubmitError> {
        let mut taken = self.pot.take(more)?;
        self.bytes += std::mem::take(&mut taken.bytes);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pot.inner.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use coldpress_memory::{Ledger, Purpose};

    use super::*;

    #[test]
    fn nobody_takes_more_than_there_is_and_everything_comes_back() {
        let ledger = Ledger::new(Bytes(100));
        let pot = RequestPot::new(ledger.reserve(Purpose::Scratch, Bytes(100)).expect("fits"));
        let mut first = pot.take(Bytes(60)).expect("fits");
        assert!(matches!(
            pot.take(Bytes(41)),
            Err(SubmitError::NoRoom { needed: Bytes(41), free: Bytes(40) })
        ));
        first.grow(Bytes(40)).expect("fits");
        assert!(first.grow(Bytes(1)).is_err() && pot.take(Bytes(u64::MAX)).is_err());
        assert_eq!((pot.taken(), first.bytes()), (Bytes(100), Bytes(100)));
        drop(first);
        assert_eq!(pot.taken(), Bytes::ZERO);
    }
}
