//! Packing takes a few records of memory and leaves little in the page cache, which a memory cgroup counts, however large the
//! model is. And it asks for the disk space before the first byte, with the figure.

use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::{PackConfig, WRITE_WINDOW_BYTES, partial_path, write_pack};
use coldpress_experts::{ExpertOffsets, read_ring_bytes};
use coldpress_memory::{Ledger, sys};
use coldpress_testkit::{ExpertSource, SourceShape};
use coldpress_workers::Workers;

#[test]
fn a_few_records_and_one_window() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::with_record_bytes(2, 24, 1 << 20));
    let path = folder.path().join("pack.cpack");
    let partial = partial_path(&path);
    let record_bytes = source.geometry().record_bytes_max() as u64;
    let bound = 3 * record_bytes + read_ring_bytes(&source.layers, 2);
    let ledger = Ledger::unlimited();
    let direct = sys::open_direct(&source.files[0].path).unwrap().1.is_direct();
    let mut cached_most = 0;
    Workers::new(2).enter(|team| {
        let progress = |_, _| {
            let file = std::fs::File::open(&partial).unwrap();
            cached_most = cached_most.max(sys::page_cache_bytes(&file, u64::MAX).unwrap().0);
        };
        write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), progress).unwrap();
    });
    assert!(ledger.peak().0 <= bound, "{} of {bound}", ledger.peak());
    assert_eq!(ledger.used().0, 0);
    if direct {
        let most = WRITE_WINDOW_BYTES + 2 * record_bytes;
        assert!(cached_most > 0 && cached_most <= most, "{cached_most} of {most} bytes in the page cache");
        let file = std::fs::File::open(&path).unwrap();
        let left = sys::page_cache_bytes(&file, u64::MAX).unwrap().0;
        assert!(left <= 64 << 10, "{left} bytes of the finished pack are still in the page cache");
    }
}

#[test]
fn a_disk_without_room_is_noticed_before_the_first_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = ExpertSource::create(folder.path(), &SourceShape::with_record_bytes(1, 1, 32 << 20));
    // Every expert at the same place: a small file with a pack of many tebibytes.
    let layer = &mut source.layers[0];
    layer.expert_count = 65_536;
    for projection in [&mut layer.gate, &mut layer.up, &mut layer.down] {
        let first = projection.offsets.offset(0).unwrap();
        projection.offsets = ExpertOffsets::Stride { first, stride: 0 };
    }
    let layers = vec![source.layers[0].clone(); 64];
    let path = folder.path().join("pack.cpack");
    let ledger = Ledger::unlimited();
    let refused = Workers::new(1).enter(|team| {
        let config = PackConfig { layers: &layers, ..source.pack_config(&path, &ledger) };
        write_pack(config, team, &AtomicBool::new(false), |_, _| panic!("nothing is written"))
            .expect_err("no room")
    });
    let message = refused.to_string();
    assert!(message.contains("more are needed") && message.contains("free"), "{message}");
    assert!(ledger.peak().0 == 0 && std::fs::metadata(partial_path(&path)).unwrap().len() <= 64 << 10);
}
