//! What this machine offers a run: processor, kernels, memory, reader, and two measured bounds.
//!
//! [`examine`] needs no model. The bounds are what speeds are to be read against: a decode step cannot read weights faster
//! than memory delivers them, a long prompt cannot multiply faster than the int8 peak. It takes a few seconds at most.

use std::time::Duration;

use coldpress_experts::reader::open_reader;
use coldpress_experts::{READ_AHEAD_DEFAULT, ReaderChoice};
use coldpress_kernels::{Isa, Kernels, WeightFormat, matmul, probe};
use coldpress_memory::{Buffer, Bytes, Ledger, MachineFacts, Purpose};
use coldpress_workers::Workers;

use crate::error::EngineError;
use crate::plan::kernels_for;

/// Memory that is read to measure its bandwidth: several times the last cache of most machines.
const READ_BYTES_MAX: u64 = 512 << 20;
/// Time for all bandwidth measurements together.
const READ_TIME: Duration = Duration::from_millis(1200);
/// Time for one int8 measurement.
const INT8_TIME: Duration = Duration::from_millis(250);

/// An instruction set that kernels may exist for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct InstructionSet {
    /// Its name, as in `COLDPRESS_ISA`.
    pub name: &'static str,
    /// Whether this machine can run it.
    pub supported: bool,
    /// Matrix kernels for it in this build.
    pub kernels: usize,
}

/// The matrix kernel that computes one weight format.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FormatKernel {
    /// The weight format.
    pub format: &'static str,
    /// The instruction set of its kernel.
    pub isa: &'static str,
}

/// How experts would be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReaderReport {
    /// The reader that `auto` takes.
    pub chosen: &'static str,
    /// Whether io_uring can be used.
    pub io_uring: bool,
    /// Why it cannot, if the system said so.
    pub notice: Option<String>,
}

/// Memory bandwidth of a plain read.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ReadBandwidth {
    /// Threads that read.
    pub threads: usize,
    /// Bytes per second, all threads together.
    pub bytes_per_second: f64,
}

/// The int8 peak of the chosen instruction set.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Int8Rate {
    /// Threads that computed.
    pub threads: usize,
    /// Multiplications and additions per second, counted separately, all threads together.
    pub operations_per_second: f64,
}

/// What [`examine`] found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MachineReport {
    /// The processor's own name, where it tells one.
    pub processor: Option<String>,
    /// Processors this process may use at once; the number of threads of a run.
    pub threads: usize,
    /// The instruction set that runs would use.
    pub isa: &'static str,
    /// All of them.
    pub instruction_sets: Vec<InstructionSet>,
    /// The kernel of every weight format.
    pub kernels: Vec<FormatKernel>,
    /// Memory and limits.
    pub memory: MachineFacts,
    /// The budget of a run that names none.
    pub default_budget: Bytes,
    /// How experts would be read.
    pub reader: ReaderReport,
    /// Bytes that each bandwidth measurement reads.
    pub bandwidth_probe: Bytes,
    /// Memory bandwidth by number of threads.
    pub bandwidth: Vec<ReadBandwidth>,
    /// The instruction of the int8 measurement.
    pub int8_instruction: &'static str,
    /// Int8 peak by number of threads.
    pub int8_peak: Vec<Int8Rate>,
}

/// Looks at this machine and measures its bounds; `isa` forces an instruction set.
///
/// # Errors
/// The machine cannot run `isa`, or tells nothing about its memory.
pub fn examine(isa: Option<Isa>) -> Result<MachineReport, EngineError> {
    let kernels = kernels_for(isa)?;
    let memory = MachineFacts::detect()?;
    let threads = memory.cpu_count;
    let (reader, notice) = open_reader(ReaderChoice::Auto, READ_AHEAD_DEFAULT)?;
    let chosen = reader.name();
    drop(reader);
    let (bandwidth_probe, bandwidth) = bandwidth(&memory)?;
    let (int8_instruction, int8_peak) = int8_peak(kernels, threads);
    Ok(MachineReport {
        processor: probe::processor_name(),
        threads,
        isa: kernels.isa().name(),
        instruction_sets: Isa::ALL.into_iter().map(instruction_set).collect(),
        kernels: WeightFormat::ALL.into_iter().map(|format| format_kernel(format, kernels.isa())).collect(),
        memory,
        default_budget: memory.default_budget(),
        reader: ReaderReport { chosen, io_uring: chosen == "io_uring", notice },
        bandwidth_probe,
        bandwidth,
        int8_instruction,
        int8_peak,
    })
}

fn instruction_set(isa: Isa) -> InstructionSet {
    let kernels = matmul::entries().filter(|&(_, of)| of == isa).count();
    InstructionSet { name: isa.name(), supported: isa.is_supported(), kernels }
}

/// The kernel of the instruction set itself, or of the best one below it that has one.
fn format_kernel(format: WeightFormat, isa: Isa) -> FormatKernel {
    let usable = |of: Isa| of <= isa && of.is_supported();
    let entries = matmul::entries().filter(|&(of_format, of)| of_format == format && usable(of));
    let best = entries.map(|(_, of)| of).max().unwrap_or(Isa::Scalar);
    FormatKernel { format: format.name(), isa: best.name() }
}

/// 1, 2, 4, ... and `threads`.
fn thread_counts(threads: usize) -> Vec<usize> {
    let doubling = std::iter::successors(Some(1), |count| Some(count * 2));
    doubling.take_while(|&count| count < threads).chain([threads]).collect()
}

fn bandwidth(memory: &MachineFacts) -> Result<(Bytes, Vec<ReadBandwidth>), EngineError> {
    // A machine that is short of memory is measured with less of it, and caches may then answer for a part.
    let bytes = Bytes(READ_BYTES_MAX.min(memory.available.0 / 4).max(1 << 20));
    let ledger = Ledger::unlimited();
    let mut buffer = Buffer::new(&ledger, Purpose::Scratch, bytes)?;
    let data = buffer.as_mut_slice_of::<u64>();
    Workers::new(memory.cpu_count)
        .enter(|team| team.for_each_part_mut(data, 1 << 17, |_, part, _| part.fill(0x0102_0304_0506_0708)));
    let data = buffer.as_slice_of::<u64>();
    let counts = thread_counts(memory.cpu_count);
    let time = READ_TIME / counts.len() as u32;
    let rates = counts.into_iter().map(|threads| ReadBandwidth {
        threads,
        bytes_per_second: Workers::new(threads).enter(|team| probe::read_bandwidth(team, data, time)),
    });
    Ok((bytes, rates.collect()))
}

fn int8_peak(kernels: Kernels, threads: usize) -> (&'static str, Vec<Int8Rate>) {
    let mut counts = vec![1, threads];
    counts.dedup();
    let mut instruction = "";
    let rates = counts.into_iter().map(|threads| {
        let peak = Workers::new(threads).enter(|team| probe::int8_peak(team, kernels, INT8_TIME));
        instruction = peak.instruction;
        Int8Rate { threads, operations_per_second: peak.operations_per_second }
    });
    let rates = rates.collect();
    (instruction, rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_double_and_end_with_all() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(6), [1, 2, 4, 6]);
        assert_eq!(thread_counts(8), [1, 2, 4, 8]);
    }

    #[test]
    fn every_format_has_a_kernel_of_a_supported_instruction_set() {
        let best = Kernels::detect().isa();
        for format in WeightFormat::ALL {
            let kernel = format_kernel(format, best);
            assert!(Isa::parse(kernel.isa).is_some_and(Isa::is_supported), "{kernel:?}");
            assert_eq!(format_kernel(format, Isa::Scalar).isa, "scalar");
        }
    }
}
