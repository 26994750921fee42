//! The physical limit of a part of a run: it can end no sooner than its computing and no sooner than its reads.
//!
//! Computing is measured: wall time without waiting for the disk and without making records of what was read, of a resident
//! configuration at the same depth where the bench has one and it is shorter, else of the run itself. Reading is the bytes of
//! the experts that were missed, at the best rate of random reads of the same size from the same file, measured after the
//! configurations. Assumed: both overlap completely, and no cache policy misses less.
//! Residencies that read through the page cache have no reading time, because memory may have answered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use coldpress::{Bytes, EngineError, RandomReads, Residency, measure_random_reads};
use serde_json::{Value, json};

use super::measure::{Part, Run};
use super::{Measured, Measurement};
use crate::load::Bars;
use crate::output::milliseconds;

/// Time of one measurement of the disk.
const PROBE: Duration = Duration::from_millis(900);
/// No measurement of the disk is begun after this many, so that a long list of budgets stays quick.
const PROBES_MAX: usize = 4;
/// Words for the JSON object.
const MEASURED: &str = "computing: wall time without disk_wait and arrange, of the resident configuration at the same depth \
     where there is one and it is shorter, else of the run itself; reading: bytes of missed experts at the best rate of random \
     reads of that size from the same file, in this bench";
const ASSUMED: &str =
    "reading and computing overlap completely; the experts that were missed have to be read";

/// What bounds a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Computing,
    Reading,
}

impl Bound {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Computing => "computing",
            Self::Reading => "reading",
        }
    }
}

/// The limit of a part.
#[derive(Clone, Debug)]
pub struct Limit {
    computing: Duration,
    /// Whether `computing` comes from a resident configuration.
    resident: bool,
    missed_bytes: u64,
    /// `None` where the disk has no figure, with the reason.
    reading: Result<Duration, String>,
    wall: Duration,
}

impl Limit {
    /// The shortest time in which the part could have ended.
    pub fn time(&self) -> Duration {
        self.reading.as_ref().map_or(self.computing, |reading| self.computing.max(*reading))
    }

    /// Which of the two it is.
    pub fn bound(&self) -> Bound {
        match self.reading {
            Ok(reading) if reading > self.computing => Bound::Reading,
            _ => Bound::Computing,
        }
    }

    /// What the run reached of its limit; above 100 when it read faster than the measurement of the disk.
    pub fn percent(&self) -> f64 {
        100.0 * self.time().as_secs_f64() / self.wall.as_secs_f64().max(1e-9)
    }

    /// Time of reading alone, if known.
    pub fn reading(&self) -> Option<Duration> {
        self.reading.as_ref().ok().copied()
    }

    /// For the JSON object.
    pub fn value(&self) -> Value {
        json!({
            "percent": self.percent(),
            "bound": self.bound().name(),
            "limit_ms": milliseconds(self.time()),
            "computing_ms": milliseconds(self.computing),
            "computing_from": if self.resident { "resident" } else { "this_run" },
            "reading_ms": self.reading().map(milliseconds),
            "reading_unknown": self.reading.as_ref().err(),
            "missed_bytes": self.missed_bytes,
        })
    }
}

/// What the limits of a bench rest on.
pub struct Limits {
    /// One per file and class of read sizes.
    disk: Vec<(PathBuf, u32, RandomReads)>,
    /// Per depth, prefill and decode: the shortest computing time of a resident configuration.
    resident: Vec<(usize, [Duration; 2])>,
}

impl Limits {
    /// Measures the disk where configurations have read from it, and looks for resident ones.
    ///
    /// # Errors
    /// A file cannot be read, or the user asks to stop.
    pub fn measure(model: &Path, all: &[Measured]) -> Result<Self, EngineError> {
        let mut limits = Self { disk: Vec::new(), resident: Vec::new() };
        // What bounds the smallest run bounds this too: nothing of it is loaded any more.
        let budget = all.iter().map(|measured| measured.status.plan.plan.budget).min();
        let memory_max = Bytes(budget.unwrap_or(Bytes::MAX).0 / 2);
        for measured in all {
            if measured.status.plan.residency == Residency::Resident {
                measured.measurements.iter().for_each(|measurement| limits.note_resident(measurement));
            }
            let Some((file, read_bytes)) = measured.reads(model) else { continue };
            let class = size_class(read_bytes);
            let known = limits.disk.iter().any(|(other, size, _)| *other == file && *size == class);
            if !known && limits.disk.len() < PROBES_MAX {
                let reads = measure_random_reads(&file, read_bytes, PROBE, memory_max, &mut Bars::default())?;
                limits.disk.push((file, class, reads));
            }
        }
        Ok(limits)
    }

    fn note_resident(&mut self, measurement: &Measurement) {
        let shortest = |part: fn(&Run) -> Part| {
            let times = measurement.runs.iter().map(|run| part(run).computing());
            times.min().unwrap_or(Duration::MAX)
        };
        let times = [shortest(|run| run.prefill), shortest(|run| run.decode)];
        match self.resident.iter_mut().find(|(depth, _)| *depth == measurement.depth) {
            Some((_, known)) => *known = [known[0].min(times[0]), known[1].min(times[1])],
            None => self.resident.push((measurement.depth, times)),
        }
    }

    /// The limit of a run's prefill (`part` 0) or decode (1).
    pub fn of(&self, model: &Path, measured: &Measured, depth: usize, part: usize, run: &Run) -> Limit {
        let ran = [run.prefill, run.decode][part];
        let own = ran.computing();
        let resident = self.resident.iter().find(|(other, _)| *other == depth).map(|(_, times)| times[part]);
        let resident = resident.filter(|resident| *resident <= own);
        let missed_bytes = ran.experts.bytes_read;
        Limit {
            computing: resident.unwrap_or(own),
            resident: resident.is_some(),
            missed_bytes,
            reading: self.reading(model, measured, missed_bytes),
            wall: ran.wall,
        }
    }

    /// Time that the disk takes for `bytes` of a configuration at the measured rate, or why that is not known.
    pub fn reading(&self, model: &Path, measured: &Measured, bytes: u64) -> Result<Duration, String> {
        if matches!(measured.status.plan.residency, Residency::Paged | Residency::Mapped) {
            return Err("the page cache may have answered".to_owned());
        }
        if bytes == 0 {
            return Ok(Duration::ZERO);
        }
        let wanted = measured.reads(model);
        let fits = |(file, class, _): &&(PathBuf, u32, RandomReads)| {
            wanted.as_ref().is_some_and(|(other, size)| file == other && *class == size_class(*size))
        };
        let Some((_, _, reads)) = self.disk.iter().find(fits) else {
            return Err("the disk was not measured for this size of read".to_owned());
        };
        match reads.bytes_per_second() {
            Some(rate) => Ok(Duration::from_secs_f64(bytes as f64 / rate.max(1.0))),
            None => Err(reads.not_a_figure().unwrap_or("the disk has no figure").to_owned()),
        }
    }

    /// For the JSON object.
    pub fn value(&self) -> Value {
        let disk: Vec<&RandomReads> = self.disk.iter().map(|(_, _, reads)| reads).collect();
        json!({ "measured": MEASURED, "assumed": ASSUMED, "disk": disk })
    }

    /// What was measured of the disk, a line each.
    pub fn lines(&self) -> Vec<String> {
        self.disk.iter().map(|(_, _, reads)| describe(reads)).collect()
    }
}

fn describe(reads: &RandomReads) -> String {
    let size = reads.figures.first().map_or(0, |figure| figure.read_bytes);
    let size = coldpress::Bytes(size as u64);
    let Some(rate) = reads.bytes_per_second() else {
        return format!("disk: no figure ({})", reads.not_a_figure().unwrap_or("nothing was read"));
    };
    let short = if reads.short_file { ", a short file that the device may cache" } else { "" };
    format!("disk: {:.2} GB/s in random reads of {size} from {}{short}", rate / 1e9, reads.file_bytes)
}

/// Sizes of reads up to a power of two share a measurement.
fn size_class(read_bytes: usize) -> u32 {
    read_bytes.next_power_of_two().ilog2()
}

impl Measured {
    /// The file that experts came from and the mean size of a read; `None` where nothing was read past the page cache.
    fn reads(&self, model: &Path) -> Option<(PathBuf, usize)> {
        if self.status.plan.residency != Residency::Streamed {
            return None;
        }
        let experts =
            || self.measurements.iter().flat_map(|one| &one.runs).map(|run| [run.prefill, run.decode]);
        let (mut bytes, mut reads) = (0, 0);
        for part in experts().flatten() {
            bytes += part.experts.device_bytes_read;
            reads += part.experts.reads;
        }
        let mean = usize::try_from(bytes.checked_div(reads)?).ok().filter(|mean| *mean > 0)?;
        let file = self.status.plan.pack.clone().unwrap_or_else(|| model.to_owned());
        Some((file, mean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(computing: u64, reading: Result<u64, &str>, wall: u64) -> Limit {
        Limit {
            computing: Duration::from_millis(computing),
            resident: false,
            missed_bytes: 1,
            reading: reading.map(Duration::from_millis).map_err(str::to_owned),
            wall: Duration::from_millis(wall),
        }
    }

    #[test]
    fn the_longer_of_two_times_is_the_limit() {
        let reads = limit(10, Ok(30), 60);
        assert_eq!((reads.bound(), reads.percent()), (Bound::Reading, 50.0));
        let computes = limit(30, Ok(10), 40);
        assert_eq!((computes.bound(), computes.percent()), (Bound::Computing, 75.0));
        let unknown = limit(30, Err("no figure"), 60);
        assert_eq!((unknown.bound(), unknown.percent()), (Bound::Computing, 50.0));
        assert!(unknown.value()["reading_ms"].is_null());
    }
}
