//! Alignment may add at most 5 % to the bytes asked of the device, for records of a mebibyte and more, with a pack and
//! without; and what the kernel counts for this process agrees. Read-ahead hints beside direct reads once doubled them.

use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::write_pack;
use coldpress_experts::{ExpertStore, Fingerprint, PackFile, ReaderChoice, StoreConfig};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, Random, SourceShape, visit_records};
use coldpress_workers::Workers;

/// Bytes that the kernel fetched from storage for this process.
fn storage_bytes_read() -> Option<u64> {
    let figures = std::fs::read_to_string("/proc/self/io").ok()?;
    figures.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

#[test]
fn at_most_five_percent_more() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = SourceShape { separate: true, ..SourceShape::with_record_bytes(2, 12, 1 << 20) };
    let source = ExpertSource::create(folder.path(), &shape);
    let path = folder.path().join("pack.cpack");
    Workers::new(2).enter(|team| {
        let ledger = Ledger::unlimited();
        write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).unwrap();
        let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
        let pack = PackFile::open(&path, &source.geometry(), &fingerprint).unwrap();
        for pack in [None, Some(pack)] {
            let direct = pack.as_ref().is_none_or(|pack| pack.file().io().is_direct());
            let config = StoreConfig { pack, reader: ReaderChoice::Pread, ..source.store_config(6) };
            let mut store = ExpertStore::open(config).unwrap();
            let direct = direct && store.notices().is_empty();
            let mut random = Random::new(4);
            let before = storage_bytes_read();
            for round in 0..20 {
                visit_records(&mut store, team, round % 2, &random.distinct(5, 12)).unwrap();
            }
            let after = storage_bytes_read();
            let statistics = store.statistics();
            let (device, needed) = (statistics.device_bytes_read, statistics.bytes_read);
            assert!(device >= needed, "{statistics:?}");
            assert!(device * 100 <= needed * 105, "{statistics:?}");
            if let (true, Some(before), Some(after)) = (direct, before, after) {
                let counted = after - before;
                assert!(counted.abs_diff(device) * 100 <= device, "kernel: {counted} bytes, store: {device}");
            }
        }
    });
}
