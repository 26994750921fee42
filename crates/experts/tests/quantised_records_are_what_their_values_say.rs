//! Experts quantised on the way into records: each row is the quantiser's blocks of that row's values, whatever the reader, the slots and
//! the threads, from the model file and from a pack; such a pack is never taken for one of the file's own types.
//!
//! What could go wrong: rows or matrices mixed up between threads, a scratch that still holds another expert, a fingerprint that does not
//! know the types, a plan without the scratch, values that a type cannot hold turned into nonsense in silence.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::{VerifyConfig, write_pack};
use coldpress_experts::{
    ExpertKey, ExpertStore, Fingerprint, Geometry, PackFile, RecordRef, Residency, StoreConfig,
    read_ring_bytes,
};
use coldpress_kernels::WeightFormat::{self, BF16, F16, F32, Mxfp4, Q4_0, Q4K, Q5_0, Q8_0};
use coldpress_kernels::blocks::{dequantize, quantize_with_search};
use coldpress_kernels::layout::unpack_row;
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, SourceShape, visit_records};
use coldpress_workers::Workers;

/// Layers of floats that are numbers of usual sizes, and what they become.
fn source(folder: &Path) -> ExpertSource {
    let formats = vec![[BF16; 3], [F16; 3], [F32, BF16, F16], [BF16; 3]];
    let shape = SourceShape { formats, experts: 3, hidden: 256, inner: 288, ..SourceShape::default() };
    let mut source = ExpertSource::create(folder, &shape);
    for file in &source.files {
        let mut bytes = std::fs::read(&file.path).expect("it was written");
        // Exponents of bfloat16 from -7 to 0; as f16 the same bits are numbers too.
        for word in bytes.as_chunks_mut::<2>().0 {
            word[1] = word[1] & 0x83 | 0x3c;
        }
        std::fs::write(&file.path, bytes).expect("writes");
    }
    let quantised = [Some([Q4K, Q4K, Q5_0]), Some([Q8_0; 3]), Some([Mxfp4, Q4_0, F16]), None];
    for (layer, quantised) in source.layers.iter_mut().zip(quantised) {
        layer.quantised = quantised;
    }
    source
}

/// The values of a row of an expert in its record, worked out from the file.
fn expected_row(source: &ExpertSource, key: ExpertKey, matrix: usize, row: usize) -> Vec<f32> {
    let layer = &source.layers[key.layer as usize];
    let projection = layer.projections()[matrix];
    let bytes = std::fs::read(&source.files[projection.file].path).expect("it was written");
    let row_bytes = projection.format.row_bytes(projection.columns);
    let start = projection.offsets.offset(key.expert as usize).expect("it exists") as usize + row * row_bytes;
    let mut values = vec![0.0; projection.columns];
    dequantize(projection.format, &bytes[start..start + row_bytes], &mut values);
    let format: WeightFormat = layer.record_formats()[matrix];
    if format != projection.format {
        let mut blocks = vec![0; format.row_bytes(values.len())];
        quantize_with_search(format, &values, &mut blocks).expect("it has a quantiser");
        dequantize(format, &blocks, &mut values);
    }
    values
}

fn assert_record(source: &ExpertSource, geometry: &Geometry, key: ExpertKey, bytes: &[u8]) {
    let record = RecordRef::new(geometry.layer(key.layer as usize), bytes);
    for (matrix, packed) in [record.gate(), record.up(), record.down()].into_iter().enumerate() {
        let mut found = vec![f32::NAN; packed.columns()];
        for row in [0, 1, 15, 16, 100, packed.rows() - 1] {
            unpack_row(&packed, row, &mut found);
            assert!(found == expected_row(source, key, matrix, row), "{key}, matrix {matrix}, row {row}");
        }
    }
}

#[test]
fn every_way_gives_the_quantisers_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = source(folder.path());
    let geometry = source.geometry();
    let fingerprint = Fingerprint::of(&source.files, &source.layers).expect("readable");
    let mut packs = Vec::new();
    for threads in [1, 3] {
        let path = folder.path().join(format!("{threads}.cpack"));
        let ledger = Ledger::unlimited();
        Workers::new(threads).enter(|team| {
            write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {})
                .expect("packs");
            // Three slots, the ring and the scratch, which is part of it.
            let bound = 3 * geometry.record_bytes_max() as u64 + read_ring_bytes(&source.layers, 2);
            assert!(ledger.peak().0 <= bound, "{} of {bound}", ledger.peak());
            let pack = PackFile::open(&path, &geometry, &fingerprint).expect("the pack of these experts");
            let (layers, files) = (&source.layers[..], &source.files[..]);
            let config = VerifyConfig { layers, files, ledger: &ledger, read_ahead: 2 };
            pack.verify_against_source(config, team, |_, _| true).expect("quantised again it is the same");
            for (pack, residency) in [
                (None, Residency::Streamed { slots: 1 }),
                (None, Residency::Resident),
                (Some(pack), Residency::Streamed { slots: 2 }),
            ] {
                let config = StoreConfig { pack, residency, ..source.store_config(1) };
                let mut store = ExpertStore::open(config).expect("opens");
                for layer in 0..4 {
                    let records = visit_records(&mut store, team, layer, &[2, 0, 1]).expect("reads");
                    for (expert, bytes) in records {
                        assert_record(&source, &geometry, ExpertKey { layer: layer as u32, expert }, &bytes);
                    }
                }
            }
        });
        packs.push(std::fs::read(&path).expect("written"));
    }
    assert!(packs[0] == packs[1], "packs of one and of three threads differ");
}

#[test]
fn such_a_pack_is_another_one_than_that_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = source(folder.path());
    let path = folder.path().join("quantised.cpack");
    let ledger = Ledger::unlimited();
    Workers::new(2).enter(|team| {
        write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {})
            .expect("packs");
    });
    let formats = PackFile::formats(&path).expect("its header");
    let wanted = source.layers.iter().map(|layer| layer.record_formats().map(Some));
    assert_eq!(formats, wanted.collect::<Vec<_>>());
    let mut kept = source.layers.clone();
    kept.iter_mut().for_each(|layer| layer.quantised = None);
    let fingerprints = [&source.layers, &kept].map(|layers| Fingerprint::of(&source.files, layers).unwrap());
    assert_ne!(fingerprints[0], fingerprints[1]);
    let kept = Geometry::new(&kept).expect("fits together");
    let refused = PackFile::open(&path, &kept, &fingerprints[1]).expect_err("other shapes");
    assert!(refused.to_string().contains("routed layer 0"), "{refused}");
    // Equal shapes from other types would still be another pack.
    let refused =
        PackFile::open(&path, &source.geometry(), &fingerprints[1]).expect_err("another fingerprint");
    assert!(refused.to_string().contains(&fingerprints[0].to_string()), "{refused}");
}

#[test]
fn values_that_a_type_cannot_hold_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = source(folder.path());
    let down = &source.layers[0].down;
    let path = &source.files[down.file].path;
    let at = down.offsets.offset(1).expect("it exists") as usize + 2 * (17 * 288 + 5);
    for bits in [0x7fc0_u16, 0xff80, 0x4780] {
        let mut bytes = std::fs::read(path).expect("it was written");
        let before = [bytes[at], bytes[at + 1]];
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        std::fs::write(path, &bytes).expect("writes");
        let refused = Workers::new(2).enter(|team| {
            let mut store = ExpertStore::open(source.store_config(2)).expect("opens");
            visit_records(&mut store, team, 0, &[0]).expect("another expert");
            visit_records(&mut store, team, 0, &[1]).expect_err("a value that is not one")
        });
        let message = refused.to_string();
        assert!(message.contains("routed layer 0 expert 1: down") && message.contains("Q5_0"), "{message}");
        bytes[at..at + 2].copy_from_slice(&before);
        std::fs::write(path, &bytes).expect("writes");
    }
}
