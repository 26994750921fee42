//! A wrapper that lets a test change what another reader delivers.

use std::io;

use coldpress_experts::reader::{Completion, ExpertReader, ReadRequest};

type Spoil = Box<dyn FnMut(&mut Completion) + Send>;

/// Passes everything through, except that `spoil` sees each completion first and may change bytes or result.
pub struct FaultyReader {
    inner: Box<dyn ExpertReader>,
    spoil: Spoil,
}

impl FaultyReader {
    /// Wraps `inner`.
    pub fn new(inner: Box<dyn ExpertReader>, spoil: impl FnMut(&mut Completion) + Send + 'static) -> Self {
        Self { inner, spoil: Box::new(spoil) }
    }
}

impl ExpertReader for FaultyReader {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        self.inner.submit(requests)
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        let before = completions.len();
        self.inner.reap(wait, completions)?;
        completions[before..].iter_mut().for_each(&mut self.spoil);
        Ok(())
    }
}
