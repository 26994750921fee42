//! Test support for coldpress; never part of a product.
//!
//! Owns small random expert files with independently computed records ([`ExpertSource`]), readers that misbehave on purpose
//! ([`SimulatedReader`], [`FaultyReader`]) and seeded random numbers ([`Random`]). Everything is reproducible from a seed.
//! What is expected is worked out here from the format documents, not by calling the code under test.
#![forbid(unsafe_code)]

mod expert_source;
mod faulty_reader;
mod random;
mod simulated_reader;

pub use expert_source::{ExpertSource, SourceShape, crc32c, visit_records};
pub use faulty_reader::FaultyReader;
pub use random::Random;
pub use simulated_reader::{FaultRates, SimulatedReader};
