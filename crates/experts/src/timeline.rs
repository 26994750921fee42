//! What the store does over time, written down while somebody asks for it: every read, and when the caller waited.
//!
//! Off by default and then one look at an `Option` per read. On, it fills memory of fixed size and allocates nothing. Times
//! are whole microseconds from an origin that the caller chooses, so that they can be laid beside those of a forward pass.
//! A read has arrived when the store takes it back from the reader, which may be later than the device was done.

use std::time::Instant;

use crate::geometry::ExpertKey;

/// Most reads and most stretches that are written down between two origins.
const EVENTS_MAX: usize = 4096;

/// How a read ended, as far as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// It was still on its way, or nobody had said yet whether it is needed.
    Open,
    /// Its record could be used.
    Used,
    /// It was begun ahead and nobody asked for it.
    Forgotten,
    /// It failed.
    Failed,
}

/// One expert on its way into memory. Times are microseconds from the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSpan {
    /// Routed layer (in the store's numbering) and expert.
    pub key: ExpertKey,
    /// Bytes of the record that were begun.
    pub bytes: u64,
    /// Whether it was begun before a router asked for it.
    pub ahead: bool,
    /// Whether it was begun before the origin.
    pub carried: bool,
    /// When it was begun; 0 for carried ones.
    pub begun_us: u64,
    /// When a router asked for it; `None` if none has.
    pub needed_us: Option<u64>,
    /// When the store had it back from the reader.
    pub arrived_us: Option<u64>,
    /// When its record was verified or arranged, or given up.
    pub landed_us: Option<u64>,
    /// How it ended.
    pub end: ReadEnd,
    /// The slot it goes to.
    pub slot: usize,
}

/// What the caller's thread did in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWork {
    /// Waiting for the device with nothing else to do.
    Wait,
    /// Verifying or arranging a record.
    Arrange,
}

/// A stretch of the caller's time. Times are microseconds from the origin; stretches do not overlap and are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSpan {
    /// What was done.
    pub work: StoreWork,
    /// When it began.
    pub begin_us: u64,
    /// When it ended.
    pub end_us: u64,
}

/// Writes down what a store does; see the module header.
#[derive(Debug)]
pub struct StoreTimeline {
    origin: Instant,
    reads: Vec<ReadSpan>,
    work: Vec<WorkSpan>,
    cut_off: bool,
    /// When reads were last taken back from the reader.
    reaped_us: u64,
}

impl StoreTimeline {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            reads: Vec::with_capacity(EVENTS_MAX),
            work: Vec::with_capacity(EVENTS_MAX),
            cut_off: false,
            reaped_us: 0,
        }
    }

    /// Every read that was on its way, in the order in which they were begun.
    pub fn reads(&self) -> &[ReadSpan] {
        &self.reads
    }

    /// Waiting and arranging, in order.
    pub fn work(&self) -> &[WorkSpan] {
        &self.work
    }

    /// Whether more happened than there is room for.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Forgets what has ended; what is on its way goes on from the new origin.
    pub fn restart(&mut self, origin: Instant) {
        self.origin = origin;
        self.reads.retain(|read| read.landed_us.is_none());
        for read in &mut self.reads {
            *read = ReadSpan { carried: true, begun_us: 0, needed_us: read.needed_us.map(|_| 0), ..*read };
            read.arrived_us = read.arrived_us.map(|_| 0);
        }
        self.work.clear();
        self.cut_off = false;
        self.reaped_us = 0;
    }

    fn now_us(&self) -> u64 {
        Instant::now().saturating_duration_since(self.origin).as_micros() as u64
    }

    pub(crate) fn begun(&mut self, key: ExpertKey, slot: usize, bytes: usize, ahead: bool) {
        if self.reads.len() == EVENTS_MAX {
            self.cut_off = true;
            return;
        }
        let begun_us = self.now_us();
        self.reads.push(ReadSpan {
            key,
            bytes: bytes as u64,
            ahead,
            carried: false,
            begun_us,
            needed_us: (!ahead).then_some(begun_us),
            arrived_us: None,
            landed_us: None,
            end: ReadEnd::Open,
            slot,
        });
    }

    /// The read that is on its way into `slot`; `None` if there was no room for it.
    fn open(&mut self, slot: usize) -> Option<&mut ReadSpan> {
        self.reads.iter_mut().rev().find(|read| read.slot == slot && read.landed_us.is_none())
    }

    /// A router asked for what was begun ahead: `bytes` in all.
    pub(crate) fn needed(&mut self, slot: usize, bytes: usize) {
        let now = self.now_us();
        if let Some(read) = self.open(slot) {
            read.needed_us = Some(now);
            read.bytes = bytes as u64;
        }
    }

    /// Nobody needs what was begun ahead.
    pub(crate) fn forgotten(&mut self, slot: usize) {
        if let Some(read) = self.open(slot) {
            read.end = ReadEnd::Forgotten;
        }
    }

    /// Reads were taken back from the reader just now.
    pub(crate) fn reaped(&mut self) {
        self.reaped_us = self.now_us();
    }

    /// A call for a record that began at `began` waited and arranged for so many microseconds, in this order.
    pub(crate) fn worked(&mut self, began: Instant, wait_us: u64, arrange_us: u64) {
        let begin_us = began.saturating_duration_since(self.origin).as_micros() as u64;
        let end_us = self.now_us();
        let spans = [
            (StoreWork::Wait, begin_us, begin_us + wait_us),
            (StoreWork::Arrange, end_us.saturating_sub(arrange_us), end_us),
        ];
        for (work, begin_us, end_us) in spans {
            if begin_us == end_us {
                continue;
            }
            if self.work.len() == EVENTS_MAX {
                self.cut_off = true;
                return;
            }
            self.work.push(WorkSpan { work, begin_us, end_us });
        }
    }

    /// A load has ended. `had_arrived` says whether it was back before the call that made its record whole, which took
    /// `arrange_us` for that.
    pub(crate) fn landed(&mut self, slot: usize, had_arrived: bool, arrange_us: u64, result: Result<(), ()>) {
        let now = self.now_us();
        if !had_arrived {
            self.reaped_us = now.saturating_sub(arrange_us);
        }
        let arrived = self.reaped_us;
        if let Some(read) = self.open(slot) {
            read.arrived_us = Some(arrived.max(read.begun_us));
            read.landed_us = Some(now);
            read.end = match (read.end, result) {
                (ReadEnd::Forgotten, _) => ReadEnd::Forgotten,
                (_, Ok(())) => ReadEnd::Used,
                (_, Err(())) => ReadEnd::Failed,
            };
        }
    }
}
