//! A dense tensor arrives complete, in order, in whole rows, whatever its place in the file, the size of the pieces and the
//! faults of the reader; memory is two pieces; a tensor beyond the end of its file is an error and nothing hangs.

use coldpress_experts::{ExpertError, ReaderChoice, TensorRange, TensorStream};
use coldpress_formats::SourceFile;
use coldpress_memory::{Ledger, Purpose};
use coldpress_testkit::{FaultRates, Random, SimulatedReader};

const FILE_BYTES: usize = 300_001;

fn file(folder: &std::path::Path) -> (Vec<SourceFile>, Vec<u8>) {
    let mut bytes = vec![0; FILE_BYTES];
    Random::new(6).fill(&mut bytes);
    let path = folder.join("dense.bin");
    std::fs::write(&path, &bytes).unwrap();
    (vec![SourceFile { path, len: FILE_BYTES as u64, modified: None, header_len: 10 }], bytes)
}

fn readers(seed: u64) -> Vec<ReaderChoice> {
    let rates = FaultRates { short: 0.3, interrupted: 0.2, again: 0.1, ..FaultRates::default() };
    let simulated = SimulatedReader::new(seed, 2, rates);
    vec![ReaderChoice::Auto, ReaderChoice::Pread, ReaderChoice::Custom(Box::new(simulated))]
}

#[test]
fn every_row_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (files, bytes) = file(folder.path());
    let mut random = Random::new(1);
    for round in 0..40 {
        let row_bytes = 1 + random.below(900);
        let rows_multiple = 1 + random.below(17);
        let piece_bytes = row_bytes * rows_multiple + random.below(30_000);
        let rows = random.below(FILE_BYTES / row_bytes + 1);
        let offset = random.below(FILE_BYTES - rows * row_bytes + 1);
        let tensor = TensorRange {
            file: 0,
            offset: offset as u64,
            rows: rows as u64,
            row_bytes: row_bytes as u64,
            rows_multiple: rows_multiple as u64,
        };
        for reader in readers(round) {
            let ledger = Ledger::unlimited();
            let mut stream = TensorStream::open(&files, reader, &ledger, piece_bytes).unwrap();
            assert!(ledger.used_for(Purpose::ReadRing).0 as usize <= 2 * (piece_bytes + 3 * 4096));
            for _ in 0..2 {
                let mut next_row = 0;
                let streamed = stream.each_piece(&tensor, |first_row, piece| {
                    assert_eq!(first_row, next_row);
                    let start = offset + first_row as usize * row_bytes;
                    assert!(piece == &bytes[start..start + piece.len()], "bytes of row {first_row}");
                    assert!(piece.len().is_multiple_of(row_bytes) && piece.len() <= piece_bytes);
                    next_row += (piece.len() / row_bytes) as u64;
                    assert!(next_row == rows as u64 || next_row.is_multiple_of(rows_multiple as u64));
                    Ok::<(), ExpertError>(())
                });
                streamed.unwrap();
                assert_eq!(next_row, rows as u64);
            }
        }
    }
}

#[test]
fn an_error_of_the_caller_ends_the_stream_and_leaves_it_usable() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = file(folder.path());
    let tensor = TensorRange { file: 0, offset: 5, rows: 1000, row_bytes: 100, rows_multiple: 1 };
    for reader in readers(3) {
        let mut stream = TensorStream::open(&files, reader, &Ledger::unlimited(), 4096).unwrap();
        for _ in 0..3 {
            let mut pieces = 0;
            let stopped = stream.each_piece(&tensor, |_, _| {
                pieces += 1;
                if pieces == 3 { Err(ExpertError::Cancelled) } else { Ok(()) }
            });
            assert!(matches!(stopped, Err(ExpertError::Cancelled)) && pieces == 3);
        }
    }
}

#[test]
fn nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = file(folder.path());
    let good = TensorRange { file: 0, offset: 0, rows: 10, row_bytes: 10, rows_multiple: 1 };
    let mut stream = TensorStream::open(&files, ReaderChoice::Auto, &Ledger::unlimited(), 4096).unwrap();
    for (tensor, wanted) in [
        (TensorRange { offset: FILE_BYTES as u64 - 99, ..good }, "cut short"),
        (TensorRange { rows: u64::MAX, ..good }, "cut short"),
        (TensorRange { offset: u64::MAX, ..good }, "cut short"),
        (TensorRange { file: 1, ..good }, "there are 1 files"),
        (TensorRange { row_bytes: 5000, ..good }, "do not fit"),
    ] {
        let message =
            stream.each_piece(&tensor, |_, _| Ok::<(), ExpertError>(())).expect_err(wanted).to_string();
        assert!(message.contains(wanted), "{message}");
    }
    for empty in [TensorRange { rows: 0, ..good }, TensorRange { row_bytes: 0, ..good }] {
        stream
            .each_piece(&empty, |_, piece| {
                assert!(piece.is_empty());
                Ok::<(), ExpertError>(())
            })
            .unwrap();
    }
}
