//! A reader that reads truly but behaves as badly as a seed says.

use std::io;

use coldpress_experts::reader::{Completion, ExpertReader, ReadRequest};

use crate::Random;

/// How often a read goes wrong. Probabilities from 0 to 1 of each outcome; what is left is a good read.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Fewer bytes than asked for (whole blocks of 4096, at least one).
    pub short: f64,
    /// `EINTR`.
    pub interrupted: f64,
    /// `EAGAIN`.
    pub again: f64,
    /// `EIO`.
    pub broken: f64,
    /// One bit of the bytes is wrong, and nobody says so.
    pub flipped: f64,
}

/// Reads when asked for completions, one request at a time, in random order: the latency of a read is the number of
/// others that overtake it.
#[derive(Debug)]
pub struct SimulatedReader {
    random: Random,
    rates: FaultRates,
    capacity: usize,
    waiting: Vec<ReadRequest>,
}

impl SimulatedReader {
    /// A reader with the behaviour of `seed`.
    pub fn new(seed: u64, capacity: usize, rates: FaultRates) -> Self {
        Self { random: Random::new(seed), rates, capacity, waiting: Vec::with_capacity(capacity) }
    }

    fn read(&mut self, request: &mut ReadRequest) -> io::Result<usize> {
        let FaultRates { short, interrupted, again, broken, flipped } = self.rates;
        let asked = request.length - request.filled;
        if self.random.chance(interrupted) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.random.chance(again) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.random.chance(broken) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let read = request.read_once()?;
        if self.random.chance(flipped) && read > 0 {
            let at = request.filled + self.random.below(read);
            request.memory[at] ^= 1 << self.random.below(8);
        }
        if self.random.chance(short) && asked > 4096 {
            let kept = read.min(4096 * (1 + self.random.below(asked / 4096)));
            // Who takes the rest for good finds rubbish there.
            request.memory[request.filled + kept..request.length].fill(0xa5);
            return Ok(kept);
        }
        Ok(read)
    }
}

impl ExpertReader for SimulatedReader {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        assert!(self.waiting.len() + requests.len() <= self.capacity, "more reads than the capacity");
        self.waiting.append(requests);
        Ok(())
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        let at_least = usize::from(wait && !self.waiting.is_empty());
        let count = at_least.max(self.random.below(self.waiting.len() + 1));
        for _ in 0..count {
            let at = self.random.below(self.waiting.len());
            let mut request = self.waiting.swap_remove(at);
            let result = self.read(&mut request);
            completions.push(Completion { request, result });
        }
        Ok(())
    }
}
