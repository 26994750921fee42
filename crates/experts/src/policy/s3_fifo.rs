//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New records enter a small queue that gets a tenth of the pool; those used at least twice there move on to the main queue,
//! the others give way and are remembered for a while. A record that comes back while remembered enters the main queue at
//! once. The main queue gives each used record another round. A use only raises a counter of two bits.
//!
//! The memory of what gave way needs no queue: per record the number of the departure, which is forgotten when the pool has
//! seen as many further departures as the main queue is long.

use super::split::PoolOrder;

const NONE: u32 = u32::MAX;
/// Uses are counted up to here.
const USES_MAX: u8 = 3;
/// Uses in the small queue that lead to the main queue.
const USES_FOR_MAIN: u8 = 2;

/// Slots from the oldest to the newest, linked through the nodes.
#[derive(Clone, Copy, Debug)]
struct Queue {
    oldest: u32,
    newest: u32,
    length: usize,
}

const EMPTY: Queue = Queue { oldest: NONE, newest: NONE, length: 0 };

#[derive(Clone, Copy, Debug)]
struct Node {
    older: u32,
    newer: u32,
    record: u32,
    pool: u32,
    uses: u8,
    in_main: bool,
}

const EMPTY_NODE: Node = Node { older: NONE, newer: NONE, record: 0, pool: 0, uses: 0, in_main: false };

#[derive(Clone, Debug)]
struct Pool {
    small: Queue,
    main: Queue,
    small_size: usize,
    /// Departures from the small queue so far.
    departures: u64,
    /// Departures that are remembered.
    memory: u64,
}

/// See the module header.
pub(super) struct S3Fifo {
    pools: Vec<Pool>,
    nodes: Vec<Node>,
    /// Per record: the number of its latest departure from the small queue, from 1.
    departed: Vec<u64>,
}

impl S3Fifo {
    /// `pools` pools of about `pool_size` of `slot_count` slots, for a model of `records` records.
    pub fn new(slot_count: usize, pools: usize, pool_size: usize, records: usize) -> Self {
        let pool = Pool { small: EMPTY, main: EMPTY, small_size: 0, departures: 0, memory: 0 };
        let mut made = Self { pools: vec![pool; pools], nodes: Vec::new(), departed: vec![0; records] };
        made.resize(slot_count, pool_size);
        made
    }

    fn queue(&mut self, slot: usize) -> &mut Queue {
        let Node { pool, in_main, .. } = self.nodes[slot];
        let pool = &mut self.pools[pool as usize];
        if in_main { &mut pool.main } else { &mut pool.small }
    }

    fn unlink(&mut self, slot: usize) {
        let Node { older, newer, .. } = self.nodes[slot];
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        let queue = self.queue(slot);
        if older == NONE {
            queue.oldest = newer;
        }
        if newer == NONE {
            queue.newest = older;
        }
        queue.length -= 1;
    }

    /// Makes `slot` the newest of its queue.
    fn link(&mut self, slot: usize) {
        let queue = self.queue(slot);
        let before = std::mem::replace(&mut queue.newest, slot as u32);
        if before == NONE {
            queue.oldest = slot as u32;
        }
        queue.length += 1;
        if before != NONE {
            self.nodes[before as usize].newer = slot as u32;
        }
        self.nodes[slot].older = before;
        self.nodes[slot].newer = NONE;
    }

    fn coldest_of_small(&mut self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        let mut next = self.pools[pool].small.oldest;
        while next != NONE {
            let slot = next as usize;
            next = self.nodes[slot].newer;
            if !is_candidate(slot) {
                continue;
            }
            if self.nodes[slot].uses < USES_FOR_MAIN {
                let departures = &mut self.pools[pool].departures;
                *departures += 1;
                self.departed[self.nodes[slot].record as usize] = *departures;
                return Some(slot);
            }
            self.unlink(slot);
            self.nodes[slot].in_main = true;
            self.nodes[slot].uses = 0;
            self.link(slot);
        }
        None
    }

    fn coldest_of_main(&mut self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        // A round takes a use from each candidate, so after the last round one without uses was met, if there is any.
        for _ in 0..=USES_MAX {
            let mut next = self.pools[pool].main.oldest;
            for _ in 0..self.pools[pool].main.length {
                let slot = next as usize;
                next = self.nodes[slot].newer;
                if !is_candidate(slot) {
                    continue;
                }
                if self.nodes[slot].uses == 0 {
                    return Some(slot);
                }
                self.nodes[slot].uses -= 1;
                self.unlink(slot);
                self.link(slot);
            }
        }
        None
    }
}

impl PoolOrder for S3Fifo {
    fn begin_visit(&mut self) {}

    fn insert(&mut self, pool: usize, slot: usize, record: usize, _stamp: u64) {
        let Pool { departures, memory, .. } = self.pools[pool];
        let departed = self.departed[record];
        let in_main = departed > 0 && departures - departed < memory;
        let node = &mut self.nodes[slot];
        (node.record, node.pool, node.uses, node.in_main) = (record as u32, pool as u32, 0, in_main);
        self.link(slot);
    }

    fn seed(&mut self, slot: usize, uses: u32) {
        self.nodes[slot].uses = u8::try_from(uses).map_or(USES_MAX, |uses| uses.min(USES_MAX));
    }

    fn touch(&mut self, slot: usize, _stamp: u64) {
        let uses = &mut self.nodes[slot].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn remove(&mut self, slot: usize) {
        self.unlink(slot);
    }

    fn len(&self, pool: usize) -> usize {
        self.pools[pool].small.length + self.pools[pool].main.length
    }

    fn coldest(&mut self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        let Pool { small, small_size, .. } = self.pools[pool];
        if small.length >= small_size
            && let Some(slot) = self.coldest_of_small(pool, is_candidate)
        {
            return Some(slot);
        }
        self.coldest_of_main(pool, is_candidate).or_else(|| self.coldest_of_small(pool, is_candidate))
    }

    fn resize(&mut self, numbers: usize, pool_size: usize) {
        self.nodes.resize(numbers, EMPTY_NODE);
        for pool in &mut self.pools {
            pool.small_size = (pool_size / 10).max(1);
            pool.memory = pool_size.saturating_sub(pool.small_size).max(1) as u64;
        }
    }
}
