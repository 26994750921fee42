//! Records used where they lie: in a pack that is mapped into memory.
//!
//! There is no slot memory and no copy: the page cache holds the bytes, and a *place* stands for the right to keep one record
//! in it. A load starts the reading of its pages, waits for them and verifies the record; when the record leaves its place,
//! its pages are given back. A record is verified each time it comes to a place. Between two visits the system may drop pages
//! of a record that is in a place and read them again unseen; that they are then the same bytes is up to the disk.
//! With router advice the pages of the experts that a layer uses most stay when they lose their place, within a cap of their
//! own (`advice`); they are verified again when they come to a place, as all are.
//! Read next: `coldpress_memory::sys::FileMapping`, which says what happens to a file that is cut short.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::Instant;

use coldpress_memory::sys::{FAULT_AROUND_BYTES, ReleaseMode, page_size};
use coldpress_memory::{Bytes, Ledger};
use coldpress_workers::Team;

use crate::advice::RouterAdvice;
use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry};
use crate::loader::{Destination, Landed, LoadStatistics, RecordLoader};
use crate::pack::PackFile;
use crate::reader::{MappedFile, ReadStatistics};
use crate::reading::verify_packed;
use crate::slots::SlotMemory;

/// Memory that a place for a record of `record_bytes` bytes can take: its pages and what the system maps around them.
pub fn mapped_place_bytes(record_bytes: usize) -> usize {
    record_bytes.next_multiple_of(page_size()) + 2 * FAULT_AROUND_BYTES.max(page_size())
}

struct Load {
    key: ExpertKey,
    destination: Destination,
}

/// Router advice and what it has to know of the places.
struct Hot {
    advice: RouterAdvice,
    geometry: Geometry,
    /// Per record: whether it is in a place or on its way there.
    placed: Vec<bool>,
}

impl Hot {
    fn place(&mut self, key: ExpertKey, placed: bool) {
        self.placed[self.geometry.record_index(key)] = placed;
    }
}

/// See the module header.
pub(crate) struct MappedLoader {
    pack: PackFile,
    map: MappedFile,
    mode: ReleaseMode,
    /// In the order in which they were started, which is that of the disk.
    loads: VecDeque<Load>,
    /// Whose pages were asked for without anybody needing them yet.
    heads: Vec<Load>,
    /// Heads that nobody needs.
    cancelled: Vec<Load>,
    read_ahead: usize,
    hot: Option<Box<Hot>>,
    statistics: LoadStatistics,
    reads: ReadStatistics,
}

impl MappedLoader {
    /// Maps `pack`. Pages of up to `read_ahead` records are being read at the same time.
    pub(crate) fn new(pack: PackFile, mode: ReleaseMode, read_ahead: usize) -> Result<Self, ExpertError> {
        let map = MappedFile::open(pack.file()).map_err(|source| ExpertError::Io {
            action: "map",
            path: pack.file().path().to_owned(),
            offset: 0,
            source,
        })?;
        Ok(Self {
            pack,
            map,
            mode,
            loads: VecDeque::with_capacity(read_ahead),
            heads: Vec::with_capacity(read_ahead),
            cancelled: Vec::with_capacity(read_ahead),
            read_ahead,
            hot: None,
            statistics: LoadStatistics::default(),
            reads: ReadStatistics::default(),
        })
    }

    /// Where the record lies in the file, and so in the mapping.
    fn range(&self, key: ExpertKey) -> Range<usize> {
        let start = usize::try_from(self.pack.offset(key)).expect("the whole file is mapped");
        start..start + self.pack.record_bytes(key)
    }

    /// Asks for the pages of a record that comes to a place; what the page cache does not hold is what the device has to deliver.
    fn ask(&mut self, key: ExpertKey) {
        if let Some(hot) = &mut self.hot {
            hot.place(key, true);
        }
        let range = self.range(key);
        let resident = self.map.resident_bytes(range.clone()).unwrap_or(0);
        self.reads.reads += 1;
        self.reads.device_bytes += range.len().saturating_sub(resident) as u64;
        self.map.will_need(range);
    }

    /// Waits for the pages of a record and checks it, once more with fresh pages if it is damaged.
    fn bring(&mut self, team: &Team<'_>, key: ExpertKey) -> Result<(), ExpertError> {
        let mut again = false;
        loop {
            let started = Instant::now();
            let populated = self.map.populate(self.range(key));
            self.reads.wait_us += started.elapsed().as_micros() as u64;
            populated.map_err(|source| self.failed(key, source))?;
            let started = Instant::now();
            let verified = verify_packed(team, &self.pack, key, self.map.bytes(self.range(key)));
            self.statistics.arrange_us += started.elapsed().as_micros() as u64;
            match verified {
                Err(ExpertError::Damaged { .. }) if !again => {
                    again = true;
                    self.statistics.records_read_again += 1;
                    self.map.release(self.range(key), ReleaseMode::Force);
                    self.ask(key);
                }
                verified => return verified,
            }
        }
    }

    fn take_head(&mut self, destination: Destination) -> Load {
        let at = self.heads.iter().position(|head| head.destination == destination);
        self.heads.swap_remove(at.expect("a head is begun before it is finished or cancelled"))
    }

    fn failed(&self, key: ExpertKey, source: io::Error) -> ExpertError {
        let path = self.pack.file().path().to_owned();
        let range = self.range(key);
        let (offset, end) = (range.start as u64, range.end as u64);
        match self.pack.file().file().metadata() {
            Ok(now) if now.len() < end => ExpertError::Truncated { path, offset, end, length: now.len() },
            _ => ExpertError::Io { action: "read", path, offset, source },
        }
    }
}

impl RecordLoader for MappedLoader {
    fn disk_position(&self, key: ExpertKey) -> (usize, u64) {
        (0, self.pack.offset(key))
    }

    fn pack(&self) -> Option<&PackFile> {
        Some(&self.pack)
    }

    fn reader_name(&self) -> &'static str {
        "mapping"
    }

    fn statistics(&self) -> (LoadStatistics, ReadStatistics) {
        (self.statistics, self.reads)
    }

    fn has_room(&self) -> bool {
        self.in_flight() < self.read_ahead
    }

    fn in_flight(&self) -> usize {
        self.loads.len() + self.heads.len() + self.cancelled.len()
    }

    fn start(&mut self, key: ExpertKey, destination: Destination, memory: Option<SlotMemory>) {
        assert!(memory.is_none(), "places have no memory");
        self.ask(key);
        self.loads.push_back(Load { key, destination });
    }

    /// The whole record: pages are asked for at no cost to those that are needed before.
    fn start_head(
        &mut self,
        key: ExpertKey,
        destination: Destination,
        memory: Option<SlotMemory>,
        _bytes: usize,
    ) -> usize {
        assert!(memory.is_none(), "places have no memory");
        self.ask(key);
        self.heads.push(Load { key, destination });
        self.range(key).len()
    }

    fn finish_head(&mut self, destination: Destination) {
        let head = self.take_head(destination);
        self.loads.push_back(head);
    }

    fn cancel_head(&mut self, destination: Destination) {
        let head = self.take_head(destination);
        self.cancelled.push(head);
    }

    fn heads_have_arrived(&mut self) -> Result<bool, ExpertError> {
        let is_there = |head: &Load| {
            let range = self.range(head.key);
            self.map.resident_bytes(range.clone()).is_ok_and(|resident| resident == range.len())
        };
        Ok(self.heads.iter().all(is_there))
    }

    /// Reading has begun when the pages were asked for.
    fn submit(&mut self) -> Result<(), ExpertError> {
        Ok(())
    }

    /// Whether pages are there is found out record by record, so that experts compute between two of them.
    fn has_arrived(&self) -> bool {
        !self.cancelled.is_empty()
    }

    fn next_landed(
        &mut self,
        wait: bool,
        geometry: &Geometry,
        team: Option<&Team<'_>>,
    ) -> Result<Option<Landed>, ExpertError> {
        if let Some(Load { key, destination }) = self.cancelled.pop() {
            return Ok(Some(Landed { key, destination, memory: None, result: Err(ExpertError::Cancelled) }));
        }
        let Some(&Load { key, destination }) = self.loads.front() else { return Ok(None) };
        let range = self.range(key);
        if !wait && self.map.resident_bytes(range.clone()).is_ok_and(|resident| resident < range.len()) {
            return Ok(None);
        }
        self.loads.pop_front();
        let result = match team {
            None => Err(ExpertError::Cancelled),
            Some(team) => self.bring(team, key),
        };
        if result.is_ok() {
            self.statistics.bytes_read += geometry.layer(key.layer as usize).used_bytes as u64;
        }
        Ok(Some(Landed { key, destination, memory: None, result }))
    }

    fn in_place(&self, key: ExpertKey) -> Option<&[u8]> {
        Some(self.map.bytes(self.range(key)))
    }

    fn left(&mut self, key: ExpertKey) {
        if let Some(hot) = &mut self.hot {
            hot.place(key, false);
            if hot.advice.is_hot(key) {
                return;
            }
        }
        self.map.release(self.range(key), self.mode);
    }

    fn advise(&mut self, cap: Bytes, geometry: &Geometry, ledger: &Ledger) -> Result<(), ExpertError> {
        let advice = RouterAdvice::new(geometry, cap, mapped_place_bytes, ledger)?;
        let placed = vec![false; geometry.record_count()];
        self.hot = Some(Box::new(Hot { advice, geometry: geometry.clone(), placed }));
        Ok(())
    }

    /// What becomes hot is asked for, what is no longer hot is given back, unless it is in a place anyway.
    fn note_use(&mut self, layer: usize, experts: &[u32]) {
        let Some(mut hot) = self.hot.take() else { return };
        let Hot { advice, geometry, placed } = &mut *hot;
        let changes = advice.note_use(layer, experts);
        let cold = |expert: u32| {
            let key = ExpertKey { layer: layer as u32, expert };
            (!placed[geometry.record_index(key)]).then_some(key)
        };
        for key in changes.dropped.iter().filter_map(|&expert| cold(expert)) {
            self.map.release(self.range(key), self.mode);
        }
        for key in changes.entered.iter().filter_map(|&expert| cold(expert)) {
            // Reads like any other, for which nobody waits.
            let range = self.range(key);
            let resident = self.map.resident_bytes(range.clone()).unwrap_or(range.len());
            if resident < range.len() {
                self.reads.reads += 1;
                self.reads.device_bytes += (range.len() - resident) as u64;
                self.map.will_need(range);
            }
        }
        self.hot = Some(hot);
    }
}
