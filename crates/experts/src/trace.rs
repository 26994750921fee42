//! Recorded routing: which experts the tokens of real text chose, pass by pass and layer by layer.
//!
//! A trace says nothing about text or weights. It is what a cache policy can be judged by, offline (`simulate`).
//! Recording is bounded and stops quietly at its bound; reading takes nothing on trust.
//!
//! File, little-endian: magic `CPTRACE\0`, u32 version (1), u32 layers, u32 experts per token, u32 bytes per choice (1 or 2), u64 passes,
//! 32 bytes fingerprint of the model, u32 `1` if recording stopped at its bound; u32 experts of each layer; each pass: u32
//! rows, then per layer the choices `[rows, experts per token]`, best first; at the end u32 CRC-32C of all before.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::ExpertError;
use crate::pack::Fingerprint;

/// First bytes of a trace file.
pub const TRACE_MAGIC: &[u8; 8] = b"CPTRACE\0";
/// Bytes of choices that a recording keeps unless told otherwise.
pub const TRACE_BYTES_DEFAULT: usize = 8 << 20;

const VERSION: u32 = 1;
/// Longer files are refused before they are read.
const FILE_BYTES_MAX: u64 = 256 << 20;
const LAYERS_MAX: u32 = 4096;
const EXPERTS_MAX: u32 = 1 << 16;

/// The choices of some forward passes of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingTrace {
    fingerprint: Fingerprint,
    expert_counts: Vec<usize>,
    top_k: usize,
    /// Rows of each complete pass.
    rows: Vec<u32>,
    /// `[passes][layers][rows, top_k]`, and at the end the layers of a pass that is not complete.
    choices: Vec<u16>,
    /// Choices of complete passes.
    complete: usize,
    /// Layers of the pass that is being recorded, and its rows.
    open: (usize, usize),
    choices_max: usize,
    stopped: bool,
}

/// One forward pass of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Tokens that passed the model together.
    pub rows: usize,
    top_k: usize,
    choices: &'a [u16],
}

impl<'a> Pass<'a> {
    /// Chosen experts of `layer` `[rows, top_k]`, best first.
    pub fn layer(&self, layer: usize) -> &'a [u16] {
        let length = self.rows * self.top_k;
        &self.choices[layer * length..(layer + 1) * length]
    }
}

impl RoutingTrace {
    /// An empty trace of a model with `expert_counts` experts in its routed layers, `top_k` per token, that keeps at most
    /// `bytes_max` bytes of choices.
    pub fn new(fingerprint: Fingerprint, expert_counts: Vec<usize>, top_k: usize, bytes_max: usize) -> Self {
        Self {
            fingerprint,
            // All of it at once: growing would copy, and take up to three times as much meanwhile.
            rows: Vec::with_capacity(passes_max(expert_counts.len(), top_k, bytes_max)),
            choices: Vec::with_capacity(bytes_max / size_of::<u16>()),
            expert_counts,
            top_k,
            complete: 0,
            open: (0, 0),
            choices_max: bytes_max / size_of::<u16>(),
            stopped: false,
        }
    }

    /// Bytes that [`RoutingTrace::new`] takes for `layers` routed layers. They become resident as choices are recorded.
    pub fn memory_bytes(layers: usize, top_k: usize, bytes_max: usize) -> usize {
        passes_max(layers, top_k, bytes_max) * size_of::<u32>() + bytes_max
    }

    /// Adds the choices of all rows in `layer`, best first in each row. Layers come in order; layer 0 begins a pass, and a
    /// pass that did not reach the last layer is forgotten. What goes beyond the bound is not kept.
    pub fn record(&mut self, layer: usize, choices: impl ExactSizeIterator<Item = u32>) {
        let layers = self.expert_counts.len();
        if layer == 0 {
            self.choices.truncate(self.complete);
            self.open = (0, choices.len());
            self.stopped |= self.complete + layers * choices.len() > self.choices_max;
        }
        let (next, length) = self.open;
        if self.stopped || layer != next || choices.len() != length || !length.is_multiple_of(self.top_k) {
            return;
        }
        self.choices.extend(choices.map(|expert| expert as u16));
        self.open.0 += 1;
        if self.open.0 == layers {
            self.rows.push((length / self.top_k) as u32);
            self.complete = self.choices.len();
        }
    }

    /// The model it was recorded with.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Experts of each routed layer.
    pub fn expert_counts(&self) -> &[usize] {
        &self.expert_counts
    }

    /// Experts of all layers.
    pub fn record_count(&self) -> usize {
        self.expert_counts.iter().sum()
    }

    /// Experts per token.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Whether recording stopped at its bound.
    pub fn is_cut(&self) -> bool {
        self.stopped
    }

    /// Rows of all passes.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|rows| *rows as usize).sum()
    }

    /// Choices of all passes.
    pub fn choice_count(&self) -> usize {
        self.complete
    }

    /// Every pass in order.
    pub fn passes(&self) -> impl ExactSizeIterator<Item = Pass<'_>> {
        let mut rest = self.choices.as_slice();
        self.rows.iter().map(move |rows| {
            let rows = *rows as usize;
            let (choices, after) = rest.split_at(rows * self.top_k * self.expert_counts.len());
            rest = after;
            Pass { rows, top_k: self.top_k, choices }
        })
    }

    /// The bytes of a trace file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("memory takes all bytes");
        bytes
    }

    /// Writes a trace file to `file` and returns its length.
    ///
    /// # Errors
    /// What `file` says.
    pub fn write(&self, file: &mut dyn Write) -> io::Result<u64> {
        let wide = self.expert_counts.iter().any(|count| *count > 256);
        let width = if wide { 2 } else { 1 };
        let mut file = Checked { file, check: 0, bytes: 0 };
        file.put(TRACE_MAGIC)?;
        for value in [VERSION, self.expert_counts.len() as u32, self.top_k as u32, width as u32] {
            file.put(&value.to_le_bytes())?;
        }
        file.put(&(self.rows.len() as u64).to_le_bytes())?;
        file.put(self.fingerprint.as_bytes())?;
        file.put(&u32::from(self.stopped).to_le_bytes())?;
        for count in &self.expert_counts {
            file.put(&(*count as u32).to_le_bytes())?;
        }
        for pass in self.passes() {
            file.put(&(pass.rows as u32).to_le_bytes())?;
            for choice in pass.choices {
                file.put(&choice.to_le_bytes()[..width])?;
            }
        }
        let check = file.check;
        file.put(&check.to_le_bytes())?;
        file.file.flush()?;
        Ok(file.bytes)
    }

    /// Reads a trace file.
    ///
    /// # Errors
    /// [`ExpertError::Trace`] names the file, the byte and what is wrong there; [`ExpertError::Io`] if it cannot be read.
    pub fn read(path: &Path) -> Result<Self, ExpertError> {
        let failed = |action, source| ExpertError::Io { action, path: path.to_owned(), offset: 0, source };
        let file = File::open(path).map_err(|source| failed("open", source))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|source| failed("read", source))?;
        Self::from_bytes(&bytes, path)
    }

    /// Reads the bytes of a trace file; `path` is for messages.
    ///
    /// # Errors
    /// As [`RoutingTrace::read`].
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, ExpertError> {
        Parser { bytes, at: 0, path: path.to_owned() }.trace()
    }
}

/// Passes of one row, the shortest, that hold `bytes_max` bytes of choices.
fn passes_max(layers: usize, top_k: usize, bytes_max: usize) -> usize {
    bytes_max / (size_of::<u16>() * layers * top_k).max(1)
}

/// Counts and checks what is written.
struct Checked<'a> {
    file: &'a mut dyn Write,
    check: u32,
    bytes: u64,
}

impl Checked<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check = crc32c::crc32c_append(self.check, bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    path: PathBuf,
}

impl Parser<'_> {
    fn wrong(&self, detail: String) -> ExpertError {
        ExpertError::Trace { path: self.path.clone(), offset: self.at as u64, detail }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], ExpertError> {
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(self.wrong(format!("{count} bytes are needed and {left} are left")));
        }
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn number(&mut self) -> Result<u32, ExpertError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes were taken")))
    }

    fn number_within(
        &mut self,
        what: &str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<u32, ExpertError> {
        let value = self.number()?;
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.wrong(format!("{value} {what}; wanted {} to {}", range.start(), range.end())))
    }

    fn trace(mut self) -> Result<RoutingTrace, ExpertError> {
        if self.bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(self.wrong(format!("longer than {FILE_BYTES_MAX} bytes")));
        }
        if self.take(TRACE_MAGIC.len())? != TRACE_MAGIC {
            return Err(self.wrong("not a trace: its first bytes are not CPTRACE".to_owned()));
        }
        let version = self.number()?;
        if version != VERSION {
            return Err(self.wrong(format!("version {version}; this program reads version {VERSION}")));
        }
        let layers = self.number_within("layers", 1..=LAYERS_MAX)? as usize;
        let top_k = self.number_within("experts per token", 1..=EXPERTS_MAX)? as usize;
        let width = self.number_within("bytes per choice", 1..=2)? as usize;
        let passes = u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes were taken"));
        let fingerprint = Fingerprint::from_bytes(self.take(32)?.try_into().expect("32 bytes were taken"));
        let stopped = self.number_within("as the mark of a cut", 0..=1)? == 1;
        let mut expert_counts = Vec::new();
        for _ in 0..layers {
            let fewest = u32::try_from(top_k).unwrap_or(u32::MAX);
            expert_counts.push(self.number_within("experts in a layer", fewest..=EXPERTS_MAX)? as usize);
        }
        let mut trace = RoutingTrace::new(fingerprint, expert_counts, top_k, 0);
        trace.choices_max = usize::MAX;
        for _ in 0..passes {
            self.pass(&mut trace, width)?;
        }
        trace.stopped = stopped;
        let check = crc32c::crc32c(&self.bytes[..self.at]);
        let stated = self.number()?;
        if check != stated {
            return Err(self.wrong(format!("the checksum is {check:08x}, the file says {stated:08x}")));
        }
        if self.at != self.bytes.len() {
            return Err(self.wrong(format!("{} bytes too many", self.bytes.len() - self.at)));
        }
        Ok(trace)
    }

    fn pass(&mut self, trace: &mut RoutingTrace, width: usize) -> Result<(), ExpertError> {
        let rows = self.number_within("rows in a pass", 1..=u32::MAX)? as usize;
        let length = rows.checked_mul(trace.top_k);
        let bytes = length.and_then(|length| length.checked_mul(width * trace.expert_counts.len()));
        let (Some(length), Some(bytes)) = (length, bytes) else {
            return Err(self.wrong(format!("a pass of {rows} rows is longer than any file")));
        };
        let start = self.at;
        let (top_k, layers) = (trace.top_k, trace.expert_counts.len());
        let choices: Vec<u32> = self
            .take(bytes)?
            .chunks_exact(width)
            .map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
            .collect();
        for (index, row) in choices.chunks_exact(top_k).enumerate() {
            let experts = trace.expert_counts[index * top_k / length];
            let twice = |rank: usize| row[..rank].contains(&row[rank]);
            if let Some(rank) = (0..top_k).find(|rank| row[*rank] as usize >= experts || twice(*rank)) {
                self.at = start + (index * top_k + rank) * width;
                let expert = row[rank];
                return Err(self.wrong(format!("expert {expert} of {experts} cannot be chosen here")));
            }
        }
        for layer in 0..layers {
            trace.record(layer, choices[layer * length..(layer + 1) * length].iter().copied());
        }
        Ok(())
    }
}

/// Lists the distinct experts among `choices` `[rows, top_k]`, best first in each row, in the order of their last use: by
/// row, and within a row the best one last. This is the order in which a visit should name them, so that after a prompt the
/// experts of its last tokens are the warmest. `last_use` is working memory; neither vector allocates once it is large enough.
pub fn order_by_last_use(
    choices: impl Iterator<Item = u32>,
    top_k: usize,
    expert_count: usize,
    last_use: &mut Vec<u32>,
    experts: &mut Vec<u32>,
) {
    last_use.clear();
    last_use.resize(expert_count, 0);
    experts.clear();
    for (index, expert) in choices.enumerate() {
        let (row, rank) = (index / top_k, index % top_k);
        let last = &mut last_use[expert as usize];
        if *last == 0 {
            experts.push(expert);
        }
        *last = 1 + (row * top_k + (top_k - 1 - rank)) as u32;
    }
    experts.sort_unstable_by_key(|expert| last_use[*expert as usize]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_expert_of_the_last_row_comes_last() {
        let (mut last_use, mut experts) = (Vec::new(), Vec::new());
        order_by_last_use([5, 1, 2, 5, 1, 7].into_iter(), 2, 8, &mut last_use, &mut experts);
        assert_eq!(experts, [5, 2, 7, 1]);
    }

    #[test]
    fn a_recording_keeps_whole_passes_within_its_bound() {
        let fingerprint = Fingerprint::from_bytes([7; 32]);
        // Two layers of two choices: 8 bytes per pass of one row.
        let mut trace = RoutingTrace::new(fingerprint, vec![300, 4], 2, 20);
        trace.record(0, [299, 1].into_iter());
        trace.record(1, [0, 1].into_iter());
        trace.record(0, [9, 9].into_iter());
        trace.record(0, [3, 4].into_iter());
        trace.record(1, [2, 3].into_iter());
        assert!(!trace.is_cut());
        for _ in 0..2 {
            trace.record(0, [3, 4].into_iter());
            trace.record(1, [2, 3].into_iter());
        }
        assert!(trace.is_cut());
        let layers: Vec<_> = trace.passes().flat_map(|pass| [pass.layer(0), pass.layer(1)]).collect();
        assert_eq!(layers, [[299, 1], [0, 1], [3, 4], [2, 3]]);
        let again = RoutingTrace::from_bytes(&trace.to_bytes(), Path::new("t")).expect("readable");
        assert_eq!(again.to_bytes(), trace.to_bytes());
        assert!(again.is_cut());
    }
}
