//! Sequences that share pages do not see each other's writes, and every page is counted.
//!
//! What could go wrong: a page written while somebody else has it, rows left out of a copy, a page that nobody has and that is
//! not free, a full pool that has half done what it refused. A model keeps, for each sequence, what was written to it; after
//! each of many random steps all of it is compared.

use std::collections::HashMap;

use coldpress_memory::Ledger;
use coldpress_testkit::Random;
use coldpress_workers::Workers;

use super::*;

/// Numbers of a row in each layer: one block of the types that store blocks, and two.
const ROWS: [usize; 2] = [32, 64];
/// Numbers of the index keys of the second layer: no whole block. The first layer has none.
const INDEX: usize = 24;
/// Numbers of a row that are compared.
const COMPARED: [usize; 4] = [0, 1, 17, 31];
const PAGES: usize = 24;
const CONTEXT: usize = 400;

fn pool(kv_type: KvType, pages: usize) -> KvPool {
    let [first, second] = ROWS.map(CacheRow::from);
    pool_of([first, second.with_index(INDEX)], kv_type, pages)
}

fn pool_of<R: Into<CacheRow>>(rows: [R; 2], kv_type: KvType, pages: usize) -> KvPool {
    let ledger = Ledger::new(Bytes::from_mib(16));
    let states = StatePool::new(&ledger, std::iter::empty(), 0).expect("no states");
    KvPool::with_rows(&ledger, rows.into_iter(), kv_type, pages, states).expect("there is room")
}

/// A sequence, and the stamp of each of its positions.
struct Known {
    sequence: Sequence,
    stamps: Vec<u32>,
}

/// What is written for a stamp: number `index` of the keys (0), values (1) or index keys (2) of a layer. Whole numbers that every type stores exactly,
/// because the first one of a block makes its scale 1.
fn element(kv_type: KvType, stamp: u32, layer: usize, part: usize, index: usize) -> f32 {
    let mixed = stamp as usize * 31 + layer * 7 + part * 3 + index;
    match (kv_type, index % BLOCK_NUMBERS) {
        (KvType::F16 | KvType::F32, _) => (mixed % 2003) as f32,
        (KvType::Q8, 0) => 127.0,
        (KvType::Q8, _) => (mixed % 251) as f32 - 125.0,
        (KvType::Q4, 0) => -8.0,
        (KvType::Q4, _) => (mixed % 15) as f32 - 7.0,
    }
}

fn write(pool: &mut KvPool, team: &Team<'_>, sequence: &Sequence, stamps: &[u32]) {
    for (layer, row) in ROWS.into_iter().enumerate() {
        let rows = |part| -> Vec<f32> {
            let kv_type = pool.kv_type();
            let row = |&stamp| (0..row).map(move |index| element(kv_type, stamp, layer, part, index));
            stamps.iter().flat_map(row).collect()
        };
        let (keys, values) = (rows(0), rows(1));
        pool.write(team, Kernels::detect(), layer, sequence, sequence.len(), &keys, &values);
    }
    let kv_type = pool.kv_type();
    let row = |&stamp| (0..INDEX).map(move |index| element(kv_type, stamp, 1, 2, index));
    let index: Vec<f32> = stamps.iter().flat_map(row).collect();
    pool.write_index(team, Kernels::detect(), 1, sequence, sequence.len(), &index);
}

/// Number `index` of the index key of a position.
fn read_index(pool: &KvPool, sequence: &Sequence, position: usize, index: usize) -> f32 {
    let rows = pool.index_rows(1, sequence);
    let page = rows.pages[position / PAGE_POSITIONS] as usize * rows.page_elements;
    let at = page + rows.keys_offset + position % PAGE_POSITIONS * INDEX + index;
    match rows.pool {
        KvElements::F16(elements) => elements[at].to_f32(),
        KvElements::F32(elements) => elements[at],
        _ => panic!("index keys are floats"),
    }
}

/// A number as attention would find it.
fn read(pool: &KvPool, sequence: &Sequence, layer: usize, part: usize, position: usize, index: usize) -> f32 {
    let rows = pool.rows(layer, sequence);
    let offset = [rows.keys_offset, rows.values_offset][part];
    let page = rows.pages[position / PAGE_POSITIONS] as usize * rows.page_elements;
    let (together, _) = pool.kv_type().element();
    let at = page + offset + position % PAGE_POSITIONS * (ROWS[layer] / together) + index / together;
    match rows.pool {
        KvElements::F16(elements) => elements[at].to_f32(),
        KvElements::F32(elements) => elements[at],
        KvElements::Q8(blocks) => blocks[at].numbers()[index % together],
        KvElements::Q4(blocks) => blocks[at].numbers()[index % together],
    }
}

/// A pool with the model of what is in it.
struct World {
    pool: KvPool,
    known: Vec<Known>,
    /// Single pages that are kept, with the bytes they had.
    kept: Vec<(u32, Vec<u8>)>,
    stamps: u32,
    refused: usize,
}

impl World {
    fn check(&self) {
        let mut owners: HashMap<u32, usize> = HashMap::new();
        for known in &self.known {
            let sequence = &known.sequence;
            assert_eq!(sequence.len(), known.stamps.len());
            for &page in sequence.pages() {
                *owners.entry(page).or_default() += 1;
            }
            for (position, &stamp) in known.stamps.iter().enumerate() {
                for (layer, part) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    for index in COMPARED.map(|index| (index + 32 * position) % ROWS[layer]) {
                        let found = read(&self.pool, sequence, layer, part, position, index);
                        let expected = element(self.pool.kv_type(), stamp, layer, part, index);
                        assert_eq!(found, expected, "position {position} of {:?}", self.pool.kv_type());
                    }
                }
                for index in [0, INDEX - 1] {
                    let found = read_index(&self.pool, sequence, position, index);
                    let expected = element(self.pool.kv_type(), stamp, 1, 2, index);
                    assert_eq!(found, expected, "index of position {position}");
                }
            }
        }
        for (page, bytes) in &self.kept {
            *owners.entry(*page).or_default() += 1;
            assert!(self.pool.page(*page) == bytes, "page {page} was written while it was kept");
        }
        assert_eq!(self.pool.pages_free(), PAGES - owners.len());
        for page in 0..PAGES as u32 {
            assert_eq!(self.pool.owners(page), owners.get(&page).copied().unwrap_or(0), "page {page}");
        }
    }

    /// Appends some positions; what is not committed was a forward pass that failed.
    fn append(&mut self, team: &Team<'_>, which: usize, count: usize, commits: bool) {
        let known = &mut self.known[which];
        let before = (known.sequence.pages().to_vec(), self.pool.pages_free());
        if let Err(full) = self.pool.extend(&mut known.sequence, count) {
            assert!(full.needed > full.free && full.free == before.1, "{full:?}");
            assert_eq!((known.sequence.pages().to_vec(), self.pool.pages_free()), before);
            self.refused += 1;
            return;
        }
        assert!(self.pool.is_extended(&known.sequence, count));
        let stamps: Vec<u32> = (self.stamps..).take(count).collect();
        self.stamps += count as u32;
        write(&mut self.pool, team, &known.sequence, &stamps);
        if commits {
            known.sequence.commit(count);
            known.stamps.extend(stamps);
        }
    }

    fn fork(&mut self, which: usize, length: usize) {
        let (known, free) = (&self.known[which], self.pool.pages_free());
        let length = length.min(known.stamps.len());
        match self.pool.fork(&known.sequence, length) {
            Ok(sequence) => {
                assert_eq!(
                    free - self.pool.pages_free(),
                    usize::from(!length.is_multiple_of(PAGE_POSITIONS))
                );
                let stamps = known.stamps[..length].to_vec();
                self.known.push(Known { sequence, stamps });
            }
            Err(full) => {
                assert_eq!((full, free), (PoolFull { part: PoolPart::Pages, needed: 1, free: 0 }, 0))
            }
        }
    }

    fn step(&mut self, team: &Team<'_>, random: &mut Random) {
        let which = random.below(self.known.len().max(1));
        match random.below(10) {
            7 | 8 if self.known.len() > 8 => {
                let known = self.known.swap_remove(which);
                self.pool.release(known.sequence);
            }
            _ if self.known.is_empty() => {
                self.known.push(Known { sequence: Sequence::new(CONTEXT), stamps: Vec::new() });
            }
            0 => self.known.push(Known { sequence: Sequence::new(CONTEXT), stamps: Vec::new() }),
            1..=3 => {
                let room = CONTEXT - self.known[which].stamps.len();
                let count = random.below(room.min(150) + 1);
                self.append(team, which, count, random.chance(0.8));
            }
            4 | 5 => self.fork(which, random.below(CONTEXT)),
            6 => {
                let known = &mut self.known[which];
                let length = random.below(CONTEXT);
                self.pool.truncate(&mut known.sequence, length);
                known.stamps.truncate(length);
                assert_eq!(known.sequence.pages().len(), known.stamps.len().div_ceil(PAGE_POSITIONS));
            }
            7 => {
                let known = self.known.swap_remove(which);
                self.pool.release(known.sequence);
            }
            // As a tree of prefixes does: a whole page stays when its sequence is gone, and begins another one.
            8 => {
                let whole = self.known[which].stamps.len() / PAGE_POSITIONS;
                if let Some(&page) = self.known[which].sequence.pages()[..whole].first() {
                    self.pool.retain(page);
                    self.kept.push((page, self.pool.page(page).to_vec()));
                    let stamps = self.known[which].stamps[..PAGE_POSITIONS].to_vec();
                    let sequence = self.pool.sequence_of(&[page], CONTEXT);
                    self.known.push(Known { sequence, stamps });
                }
            }
            _ => {
                if let Some((page, _)) = self.kept.pop() {
                    self.pool.release_page(page);
                }
            }
        }
    }
}

#[test]
fn pages_of_others_are_never_written_and_all_are_counted() {
    let mut refused = 0;
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let (_, kv_type) = KvType::ALL[seed as usize % KvType::ALL.len()];
        let mut world =
            World { pool: pool(kv_type, PAGES), known: Vec::new(), kept: Vec::new(), stamps: 0, refused: 0 };
        Workers::new(1).enter(|team| {
            for _ in 0..120 {
                world.step(team, &mut random);
                world.check();
            }
        });
        refused += world.refused;
        let World { mut pool, known, kept, .. } = world;
        known.into_iter().for_each(|known| pool.release(known.sequence));
        kept.into_iter().for_each(|(page, _)| pool.release_page(page));
        assert_eq!(pool.pages_free(), PAGES);
        assert!((0..PAGES as u32).all(|page| pool.owners(page) == 0));
    }
    assert!(refused > 50, "the pool was full {refused} times only");
}

#[test]
fn a_page_takes_what_its_positions_are_planned_to_take() {
    let [first, second] = ROWS.map(CacheRow::from);
    for (_, kv_type) in KvType::ALL {
        let position = kv_type.position_bytes(first) + kv_type.position_bytes(second.with_index(INDEX));
        let pool = pool(kv_type, 3);
        assert_eq!(pool.page_bytes(), PAGE_POSITIONS * position, "{}", kv_type.name());
        assert!(
            kv_type.position_bytes(second.with_index(INDEX)) >= kv_type.position_bytes(second) + 2 * INDEX
        );
    }
}

#[test]
fn rows_that_are_put_together_are_those_of_their_positions() {
    let chosen: [u32; 6] = [0, 1, 63, 64, 130, 199];
    for (_, kv_type) in KvType::ALL {
        let mut pool = pool(kv_type, 6);
        // The pages of the sequence do not lie in order.
        let first = pool.take().expect("free");
        let mut sequence = Sequence::new(CONTEXT);
        pool.extend(&mut sequence, 64).expect("free");
        pool.release_page(first);
        pool.extend(&mut sequence, 200).expect("free");
        let stamps: Vec<u32> = (5..205).collect();
        Workers::new(2).enter(|team| {
            write(&mut pool, team, &sequence, &stamps);
            for (layer, row) in ROWS.into_iter().enumerate() {
                let mut bytes = vec![0u32; PAGE_POSITIONS * row];
                let bytes = bytemuck::cast_slice_mut(&mut bytes);
                pool.gather(team, layer, &sequence, &chosen, bytes);
                let rows = pool.rows_of_bytes(layer, bytes, &[0]);
                let (together, _) = kv_type.element();
                for (at, &position) in chosen.iter().enumerate() {
                    for index in [0, 1, row - 1] {
                        let place = at * (row / together) + index / together;
                        let found = match rows.pool {
                            KvElements::F16(elements) => elements[place].to_f32(),
                            KvElements::F32(elements) => elements[place],
                            KvElements::Q8(blocks) => blocks[place].numbers()[index % together],
                            KvElements::Q4(blocks) => blocks[place].numbers()[index % together],
                        };
                        let expected = element(kv_type, stamps[position as usize], layer, 0, index);
                        assert_eq!(found, expected, "position {position} as {}", kv_type.name());
                    }
                }
            }
        });
        pool.release(sequence);
    }
}

#[test]
fn a_shared_last_page_is_copied_before_it_is_appended_to() {
    let mut pool = pool(KvType::F32, 4);
    let mut first = Sequence::new(CONTEXT);
    pool.extend(&mut first, 128).expect("free");
    first.commit(128);
    let mut second = pool.fork(&first, 128).expect("nothing is copied");
    assert_eq!((first.pages(), pool.pages_free()), (second.pages(), 2));
    pool.truncate(&mut second, 100);
    assert!(!pool.is_extended(&second, 1), "the page is not its own");
    pool.extend(&mut second, 1).expect("free");
    assert_eq!(first.pages()[0], second.pages()[0]);
    assert_ne!(first.pages()[1], second.pages()[1]);
    assert_eq!(pool.pages_free(), 1);
    // A copy and a further page are more than there is.
    let third = pool.fork(&first, 128).expect("nothing is copied");
    pool.truncate(&mut first, 70);
    let full = pool.extend(&mut first, 64).expect_err("two pages where one is free");
    assert_eq!(full, PoolFull { part: PoolPart::Pages, needed: 2, free: 1 });
    pool.release(third);
    pool.extend(&mut first, 64).expect("nobody else has its page any more");
    let text = full.to_string();
    assert!(text.contains("1 free") && text.contains("2 are needed"), "{text}");
}

#[test]
#[should_panic(expected = "only owner")]
fn a_shared_page_is_not_handed_out_for_writing() {
    let mut pool = pool(KvType::F16, 1);
    let page = pool.take().expect("free");
    pool.page_mut(page).fill(1);
    pool.retain(page);
    pool.page_mut(page);
}

#[test]
fn quantised_rows_depend_on_themselves_alone() {
    for kv_type in [KvType::Q8, KvType::Q4] {
        let mut random = Random::new(7);
        let positions = 2 * PAGE_POSITIONS + 9;
        let mut noise = |row: usize| -> Vec<f32> {
            (0..positions * row).map(|_| (random.below(20_001) as f32 - 1e4) / 331.0).collect()
        };
        let rows = ROWS.map(|row| [noise(row), noise(row)]);
        // All rows at once, and one after the other in a page that held something else before.
        let pages = [positions, 1].map(|chunk| {
            let mut pool = pool_of(ROWS, kv_type, 4);
            let mut sequence = Sequence::new(CONTEXT);
            pool.extend(&mut sequence, positions).expect("free");
            for &page in sequence.pages() {
                pool.page_mut(page).fill(0x5a * u8::from(chunk == 1));
            }
            Workers::new(2).enter(|team| {
                for first in (0..positions).step_by(chunk) {
                    for (layer, [keys, values]) in rows.iter().enumerate() {
                        let part = first * ROWS[layer]..(first + chunk) * ROWS[layer];
                        let (keys, values) = (&keys[part.clone()], &values[part]);
                        pool.write(team, Kernels::detect(), layer, &sequence, first, keys, values);
                    }
                    sequence.commit(chunk);
                }
            });
            let whole = &sequence.pages()[..2];
            whole.iter().map(|&page| pool.page(page).to_vec()).collect::<Vec<_>>()
        });
        assert!(pages[0] == pages[1], "{} depends on the rows beside it", kv_type.name());
        assert_ne!(pages[0][0], pages[0][1]);
    }
}
