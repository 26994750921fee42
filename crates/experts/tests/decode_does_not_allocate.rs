//! After warm-up, beginning a visit, waiting for records and dropping them takes nothing from the heap, on any thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertStore, Fingerprint, LazyConfig, PackFile, ReaderChoice, RowOrder, RowShard, RowStore,
    RowStoreConfig, RowTable, StoreConfig, row_store_bytes,
};
use coldpress_kernels::WeightFormat;
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, Random, SourceShape};
use coldpress_workers::{Team, Workers};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn decode(store: &mut ExpertStore, team: &Team<'_>, random: &mut Random, tokens: usize) {
    let mut experts = [0; 4];
    for token in 0..tokens {
        for layer in 0..3 {
            let first = random.below(8) as u32;
            experts.iter_mut().enumerate().for_each(|(index, expert)| *expert = (first + index as u32) % 8);
            let mut visit = store.begin(layer, &experts).unwrap();
            let mut count = 0;
            while let Some(ready) = visit.next_ready(team).unwrap() {
                count += ready
                    .iter()
                    .map(|(_, record)| record.gate().rows() / record.gate().rows())
                    .sum::<usize>();
                if token % 7 == 3 {
                    break;
                }
            }
            assert!(count > 0);
        }
    }
}

fn look_up(store: &mut RowStore, random: &mut Random, out: &mut [f32], tokens: usize) {
    for _ in 0..tokens {
        let rows: [u32; 16] = std::array::from_fn(|_| {
            let most = 1 + random.below(600);
            random.below(most) as u32
        });
        store.begin_pass();
        store.prefetch(0, &rows).unwrap();
        store.fetch(0, &rows, out).unwrap();
    }
}

/// Rows of tables on disk, with more rows than slots.
fn rows_after_warm_up(source: &ExpertSource) {
    for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
        let shard = RowShard { name: "rows".to_owned(), file: 0, offset: 3, rows: 600 };
        let table = RowTable {
            name: "table".to_owned(),
            format: WeightFormat::BF16,
            columns: 8,
            shards: vec![shard],
        };
        let bytes = row_store_bytes(std::slice::from_ref(&table), 100);
        let mut store = RowStore::open(RowStoreConfig {
            tables: vec![table],
            files: source.files.clone(),
            ledger: Ledger::new(bytes),
            bytes,
            reader,
            order: RowOrder::default(),
        })
        .unwrap();
        let (mut random, mut out) = (Random::new(1), [0.0; 128]);
        look_up(&mut store, &mut random, &mut out, 50);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        look_up(&mut store, &mut random, &mut out, 200);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "rows");
        let seen = store.statistics();
        assert!(seen.evictions > 100 && seen.hits > 100 && seen.duplicates > 10, "{seen:?}");
    }
}

#[test]
fn nothing_after_warm_up() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let path = folder.path().join("pack.cpack");
    rows_after_warm_up(&source);
    Workers::new(2).enter(|team| {
        let ledger = Ledger::unlimited();
        write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).unwrap();
        let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
        let pack = PackFile::open(&path, &source.geometry(), &fingerprint).unwrap();
        for pack in [None, Some(pack)] {
            for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
                let config = StoreConfig { pack: pack.clone(), reader, ..source.store_config(9) };
                let mut store = ExpertStore::open(config).unwrap();
                let mut random = Random::new(8);
                decode(&mut store, team, &mut random, 50);
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                decode(&mut store, team, &mut random, 100);
                let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
                assert_eq!(allocated, 0, "reader {}, pack {}", store.reader_name(), pack.is_some());
                assert!(store.statistics().misses > 100);
            }
        }
        // So slow that the pack is not finished meanwhile.
        let lazy = LazyConfig::new(folder.path().join("lazy.cpack"), fingerprint);
        let lazy = LazyConfig { bytes_per_second: 100_000, free_disk_share: 0.0, ..lazy };
        let config = StoreConfig { lazy: Some(lazy), ..source.store_config(9) };
        let mut store = ExpertStore::open(config).unwrap();
        let mut random = Random::new(8);
        decode(&mut store, team, &mut random, 50);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        decode(&mut store, team, &mut random, 100);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "while a pack fills");
    });
}
