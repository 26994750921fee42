//! A store over a mapped pack hands out the right bytes, checks them, and keeps no more in memory than its places.
//!
//! Nothing but advice bounds a mapping: without it every record ever touched stays in the process and in the page cache, and the
//! budget is a wish. Damage must be noticed on the first touch, and a pack that was cut short must be an error, not a signal.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertError, ExpertKey, ExpertStore, Fingerprint, PackFile, Residency, StoreConfig, mapped_place_bytes,
};
use coldpress_memory::sys::{ReleaseMode, drop_page_cache, page_cache_bytes, process_memory};
use coldpress_memory::{Bytes, Ledger};
use coldpress_testkit::{ExpertSource, SourceShape, visit_records};
use coldpress_workers::Workers;

const PLACES: usize = 4;

/// What a process has mapped is one figure: tests that map take turns.
static TURN: Mutex<()> = Mutex::new(());

fn packed(folder: &Path, workers: &Workers, shape: &SourceShape) -> (ExpertSource, PackFile) {
    let source = ExpertSource::create(folder, shape);
    let destination = folder.join("model.cpack");
    let ledger = Ledger::unlimited();
    let cancel = std::sync::atomic::AtomicBool::new(false);
    workers
        .enter(|team| write_pack(source.pack_config(&destination, &ledger), team, &cancel, |_, _| {}))
        .expect("packs");
    (source.clone(), open(&source, folder))
}

fn open(source: &ExpertSource, folder: &Path) -> PackFile {
    let fingerprint = Fingerprint::of(&source.files, &source.layers).expect("reads");
    PackFile::open(&folder.join("model.cpack"), &source.geometry(), &fingerprint).expect("opens")
}

fn store(source: &ExpertSource, pack: PackFile, release: ReleaseMode, ledger: &Ledger) -> ExpertStore {
    let residency = Residency::Mapped { places: PLACES, release };
    let config =
        StoreConfig { pack: Some(pack), residency, ledger: ledger.clone(), ..source.store_config(1) };
    ExpertStore::open(config).expect("opens")
}

#[test]
fn in_the_process_and_with_force_in_the_page_cache() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let workers = Workers::new(1);
    let shape = SourceShape::with_record_bytes(2, 16, 2 << 20);
    let (source, pack) = packed(folder.path(), &workers, &shape);
    let expected = source.expected_records();
    let file = File::open(pack.file().path()).expect("opens");
    let whole = pack.layout().file_bytes();
    let bound = (PLACES * mapped_place_bytes(source.geometry().record_bytes_max())) as u64;
    assert!(bound < whole / 4, "the test shows something");
    for release in [ReleaseMode::Soft, ReleaseMode::Force] {
        drop_page_cache(&file, 0..whole).expect("drops");
        let droppable = page_cache_bytes(&file, whole).expect("tells") == Bytes::ZERO;
        let ledger = Ledger::unlimited();
        let mut store = store(&source, pack.clone(), release, &ledger);
        assert_eq!(ledger.snapshot().used.0, bound);
        let before = process_memory().expect("tells").file.0;
        for _ in 0..2 {
            for layer in 0..2 {
                let experts: Vec<u32> = (0..16).collect();
                let records =
                    workers.enter(|team| visit_records(&mut store, team, layer, &experts)).expect("reads");
                for (expert, record) in records {
                    assert!(record == expected[&ExpertKey { layer: layer as u32, expert }]);
                }
                let mapped = process_memory().expect("tells").file.0.saturating_sub(before);
                // Pages of the program itself that the test touches for the first time.
                assert!(
                    mapped <= bound + (1 << 20),
                    "{release:?}: {mapped} bytes are mapped, {bound} allowed"
                );
                if release == ReleaseMode::Force && droppable {
                    let cached = page_cache_bytes(&file, whole).expect("tells").0;
                    assert!(cached <= bound, "{cached} bytes are cached, {bound} allowed");
                }
            }
        }
        let statistics = store.statistics();
        assert_eq!(statistics.misses, statistics.reads);
        if release == ReleaseMode::Force && droppable {
            let needed = statistics.misses * source.geometry().record_bytes_max() as u64;
            assert_eq!(statistics.device_bytes_read, needed, "each record came from the disk");
        }
    }
}

#[test]
fn damage_and_a_cut_are_errors_of_their_record() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let workers = Workers::new(1);
    let (source, pack) = packed(folder.path(), &workers, &SourceShape::default());
    let path = folder.path().join("model.cpack");
    let damaged = ExpertKey { layer: 1, expert: 3 };
    let writer = File::options().write(true).open(&path).expect("opens");
    let at = pack.offset(damaged) + 4097;
    let mut byte = [0];
    File::open(&path).expect("opens").read_exact_at(&mut byte, at).expect("reads");
    writer.write_all_at(&[byte[0] ^ 1], at).expect("writes");

    let ledger = Ledger::unlimited();
    let mut mapped = store(&source, open(&source, folder.path()), ReleaseMode::Force, &ledger);
    let found = workers.enter(|team| visit_records(&mut mapped, team, 1, &[3]));
    assert!(matches!(found, Err(ExpertError::Damaged { key, .. }) if key == damaged), "{found:?}");
    assert_eq!(mapped.statistics().records_read_again, 1);
    workers.enter(|team| visit_records(&mut mapped, team, 1, &[2, 4])).expect("the others are whole");

    if cfg!(target_os = "linux") {
        writer.set_len(pack.offset(ExpertKey { layer: 2, expert: 0 })).expect("cuts");
        let found = workers.enter(|team| visit_records(&mut mapped, team, 2, &[7]));
        assert!(matches!(found, Err(ExpertError::Truncated { .. })), "{found:?}");
    }
}

#[test]
fn only_a_pack_can_be_mapped() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let residency = Residency::Mapped { places: 2, release: ReleaseMode::Soft };
    let refused = ExpertStore::open(StoreConfig { residency, ..source.store_config(1) });
    let Err(error) = refused else { panic!("it was accepted") };
    assert!(error.to_string().contains("coldpress pack"), "{error}");
}

#[test]
fn what_a_layer_uses_most_stays_within_its_own_cap() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let workers = Workers::new(1);
    let shape = SourceShape::with_record_bytes(2, 16, 2 << 20);
    let (source, pack) = packed(folder.path(), &workers, &shape);
    let expected = source.expected_records();
    let file = File::open(pack.file().path()).expect("opens");
    let whole = pack.layout().file_bytes();
    drop_page_cache(&file, 0..whole).expect("drops");
    if page_cache_bytes(&file, whole).expect("tells") != Bytes::ZERO {
        println!("SKIPPED: pages of files stay in memory here");
        return;
    }
    let place = mapped_place_bytes(source.geometry().record_bytes_max()) as u64;
    let places = PLACES as u64 * place;
    // One expert in each of the two layers.
    let cap = Bytes(2 * place);
    let ledger = Ledger::unlimited();
    let mut store = store(&source, pack, ReleaseMode::Force, &ledger);
    store.advise(cap, &ledger).expect("room");
    assert_eq!(ledger.snapshot().used.0, places + cap.0);
    for round in 0..40_u32 {
        for layer in 0..2 {
            // One expert in every visit, the others in turn.
            let experts = [5, 6 + round % 5, 11 + round % 5];
            let records =
                workers.enter(|team| visit_records(&mut store, team, layer, &experts)).expect("reads");
            for (expert, record) in records {
                assert!(record == expected[&ExpertKey { layer: layer as u32, expert }]);
            }
            let cached = page_cache_bytes(&file, whole).expect("tells").0;
            assert!(cached <= places + cap.0, "{cached} bytes are cached, {} allowed", places + cap.0);
        }
    }
    // Both hot experts lose their places to others and stay.
    for layer in 0..2 {
        workers.enter(|team| visit_records(&mut store, team, layer, &[0, 1, 2, 3])).expect("reads");
    }
    let before = store.statistics();
    for layer in 0..2 {
        workers.enter(|team| visit_records(&mut store, team, layer, &[5])).expect("reads");
    }
    let hot = store.statistics().since(&before);
    assert_eq!((hot.misses, hot.device_bytes_read), (2, 0), "they are checked again, from memory");
    let before = store.statistics();
    workers.enter(|team| visit_records(&mut store, team, 0, &[8])).expect("reads");
    assert!(store.statistics().since(&before).device_bytes_read > 0, "another one comes from the disk");
}
