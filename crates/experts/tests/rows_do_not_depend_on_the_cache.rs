//! Rows of tables on disk: the same values whatever the cache, the order, the reader and its faults; bounded memory; errors
//! that name file, tensor and row; reads that are under way before anybody waits for them.

use std::path::Path;

use coldpress_experts::reader::PreadPool;
use coldpress_experts::{
    ExpertError, ReaderChoice, RowOrder, RowShard, RowStore, RowStoreConfig, RowTable, row_store_bytes,
    row_store_bytes_minimum,
};
use coldpress_formats::SourceFile;
use coldpress_kernels::WeightFormat;
use coldpress_memory::{Bytes, Ledger, Purpose};
use coldpress_testkit::{FaultRates, FaultyReader, Random, SimulatedReader};

/// Tables over three files, and the values of every row.
struct Tables {
    tables: Vec<RowTable>,
    files: Vec<SourceFile>,
    values: Vec<Vec<Vec<f32>>>,
}

fn stored(format: WeightFormat, value: f32) -> (Vec<u8>, f32) {
    match format {
        WeightFormat::F16 => {
            let half = half::f16::from_f32(value);
            (half.to_le_bytes().to_vec(), half.to_f32())
        }
        WeightFormat::BF16 => {
            let half = half::bf16::from_f32(value);
            (half.to_le_bytes().to_vec(), half.to_f32())
        }
        _ => (value.to_le_bytes().to_vec(), value),
    }
}

/// Every format; shards of uneven lengths in turns over the files, at offsets that are aligned to nothing.
fn tables(folder: &Path) -> Tables {
    let mut random = Random::new(5);
    let mut contents = vec![vec![0_u8; 37]; 3];
    let mut made = Tables { tables: Vec::new(), files: Vec::new(), values: Vec::new() };
    let shapes = [(WeightFormat::F32, 9, 61), (WeightFormat::F16, 128, 40), (WeightFormat::BF16, 2100, 7)];
    for (number, (format, columns, rows)) in shapes.into_iter().enumerate() {
        let (mut shards, mut values) = (Vec::new(), Vec::new());
        let mut left = rows;
        while left > 0 {
            let rows = (1 + random.below(20)).min(left);
            let file = random.below(3);
            let name = format!("table_{number}.shard_{}", shards.len());
            shards.push(RowShard { name, file, offset: contents[file].len() as u64, rows: rows as u64 });
            for _ in 0..rows {
                let row = (0..columns).map(|_| {
                    let (bytes, value) = stored(format, random.below(1 << 20) as f32 / 1024.0 - 300.0);
                    contents[file].extend(bytes);
                    value
                });
                values.push(row.collect());
            }
            contents[file].extend(vec![0xa5; random.below(50)]);
            left -= rows;
        }
        made.tables.push(RowTable { name: format!("table_{number}"), format, columns, shards });
        made.values.push(values);
    }
    made.files = (0..3).map(|file| source_file(&folder.join(format!("{file}")), &contents[file])).collect();
    made
}

fn source_file(path: &Path, content: &[u8]) -> SourceFile {
    std::fs::write(path, content).expect("write");
    let metadata = std::fs::metadata(path).expect("there");
    SourceFile {
        path: path.to_owned(),
        len: metadata.len(),
        modified: metadata.modified().ok(),
        header_len: 0,
    }
}

fn open(tables: &Tables, slots: usize, reader: ReaderChoice) -> RowStore {
    let bytes = row_store_bytes(&tables.tables, slots);
    let ledger = Ledger::new(bytes);
    RowStore::open(config(tables, bytes, reader, &ledger)).expect("opens")
}

fn config(tables: &Tables, bytes: Bytes, reader: ReaderChoice, ledger: &Ledger) -> RowStoreConfig {
    RowStoreConfig {
        tables: tables.tables.clone(),
        files: tables.files.clone(),
        ledger: ledger.clone(),
        bytes,
        reader,
        order: RowOrder::default(),
    }
}

#[test]
fn any_order_any_duplicates_and_a_tiny_cache_give_the_same_values() {
    let folder = tempfile::tempdir().expect("folder");
    let tables = tables(folder.path());
    let rates = FaultRates { short: 0.2, interrupted: 0.1, again: 0.1, ..FaultRates::default() };
    for (case, slots) in [1, 2, 3, 17, 300].into_iter().enumerate() {
        let reader = match case % 3 {
            0 => ReaderChoice::Custom(Box::new(SimulatedReader::new(case as u64, 5, rates))),
            1 => ReaderChoice::Auto,
            _ => ReaderChoice::Pread,
        };
        let mut store = open(&tables, slots, reader);
        let mut random = Random::new(case as u64);
        let (mut asked, mut out) = (0, vec![f32::NAN; 40 * 2100]);
        for _ in 0..40 {
            let table = random.below(3);
            let values = &tables.values[table];
            let mut rows = |count: usize| -> Vec<u32> {
                let mut row = |_| {
                    let most = random.below(values.len()) + 1;
                    random.below(most) as u32
                };
                (0..count).map(&mut row).collect()
            };
            let (wanted, guessed) = (rows(40), rows(9));
            if wanted[0] % 3 == 0 {
                store.begin_pass();
            }
            // What is announced need not be what is asked for.
            let begun = store.prefetch(table, &wanted[..(wanted[1] % 41) as usize]).expect("prefetch");
            assert!(begun <= 40);
            store.prefetch(table, &guessed).expect("prefetch");
            let columns = store.columns(table);
            let out = &mut out[..40 * columns];
            out.fill(f32::NAN);
            store.fetch(table, &wanted, out).expect("fetch");
            for (row, out) in wanted.iter().zip(out.chunks_exact(columns)) {
                assert!(out == values[*row as usize], "row {row} of table {table}, {slots} slots");
            }
            asked += 40;
        }
        let seen = store.statistics();
        assert_eq!(seen.asked, asked);
        assert_eq!(seen.duplicates + seen.hits + seen.misses, asked, "{slots} slots");
        assert!(seen.latency.count() > 0 && seen.hits > 0);
        assert_eq!(seen.evictions == 0, slots == 300, "{slots} slots, {} evictions", seen.evictions);
    }
}

#[test]
fn a_table_of_gigabytes_is_read_within_a_small_ledger() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("large");
    let file = std::fs::File::create(&path).expect("create");
    // Sparse: the rows that are asked for are all that is stored.
    const ROWS: u64 = 20_000_000;
    file.set_len(ROWS * 256).expect("a sparse file");
    let content = |row: u64| half::bf16::from_f32((row % 251) as f32);
    let row_of = |step: u64| step.wrapping_mul(7_919_777) % ROWS;
    for step in 0..500 {
        let bytes = content(row_of(step)).to_le_bytes().repeat(128);
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, row_of(step) * 256).expect("write");
    }
    file.sync_all().expect("on disk");
    let half = ROWS / 2;
    let shard = |name: &str, offset| RowShard { name: name.to_owned(), file: 0, offset, rows: half };
    let tables = Tables {
        tables: vec![RowTable {
            name: "large".to_owned(),
            format: WeightFormat::BF16,
            columns: 128,
            shards: vec![shard("first", 0), shard("second", half * 256)],
        }],
        files: vec![SourceFile { path, len: ROWS * 256, modified: None, header_len: 0 }],
        values: Vec::new(),
    };
    let bytes = Bytes::from_mib(1);
    assert!(row_store_bytes_minimum(&tables.tables) < bytes);
    let ledger = Ledger::new(bytes);
    let mut store = RowStore::open(config(&tables, bytes, ReaderChoice::Auto, &ledger)).expect("opens");
    assert!(ledger.used_for(Purpose::RowCache) > Bytes(bytes.0 * 9 / 10), "{}", ledger.used());
    let rows: Vec<u32> = (0..500).map(|step| row_of(step) as u32).collect();
    let mut out = vec![0.0; 500 * 128];
    store.fetch(0, &rows, &mut out).expect("reads");
    for (row, out) in rows.iter().zip(out.chunks_exact(128)) {
        assert!(out.iter().all(|value| *value == content(u64::from(*row)).to_f32()), "row {row}");
    }
    assert_eq!(ledger.used(), ledger.snapshot().peak);
    let seen = store.statistics();
    assert_eq!((seen.misses, seen.bytes_read), (500, 500 * 256));
    assert!(seen.device_bytes_read <= 500 * 8192);
}

#[test]
fn a_row_that_is_not_there_is_named_with_tensor_and_file() {
    let folder = tempfile::tempdir().expect("folder");
    let tables = tables(folder.path());
    let text = |error: Result<RowStore, ExpertError>| error.err().expect("refused").to_string();
    let ledger = Ledger::unlimited();
    let bytes = row_store_bytes_minimum(&tables.tables);
    // The last shard of a file loses its last byte.
    let shards = tables.tables.iter().flat_map(|table| table.shards.iter().map(move |shard| (table, shard)));
    let (table, shard) = shards.max_by_key(|(_, shard)| (shard.file, shard.offset)).expect("shards");
    let end = shard.offset + shard.rows * table.row_bytes() as u64;
    let path = &tables.files[2].path;
    let whole = std::fs::read(path).expect("read");
    std::fs::write(path, &whole[..end as usize - 1]).expect("cut");
    let message = text(RowStore::open(config(&tables, bytes, ReaderChoice::Pread, &ledger)));
    let (last, path_text) = (shard.rows - 1, path.display().to_string());
    for part in [&format!("row {last} of {}", shard.name), &path_text, &format!("ends at byte {}", end - 1)] {
        assert!(message.contains(part), "{message} without {part}");
    }
    // The same, while the store is open.
    std::fs::write(path, &whole).expect("write");
    let mut store = RowStore::open(config(&tables, bytes, ReaderChoice::Pread, &ledger)).expect("opens");
    std::fs::OpenOptions::new().write(true).open(path).expect("open").set_len(shard.offset).expect("cut");
    let number = tables.tables.iter().position(|other| other.name == table.name).expect("there");
    let before: u64 = table.shards.iter().take_while(|other| *other != shard).map(|other| other.rows).sum();
    let row = before as u32;
    let mut out = vec![0.0; table.columns];
    // A failed prefetch says nothing; whoever needs the row is told.
    store.prefetch(number, &[row]).expect("begins");
    let message = store.fetch(number, &[row], &mut out).expect_err("cut").to_string();
    assert!(message.contains(&format!("row 0 of {}", shard.name)), "{message}");
    assert!(message.contains(&path_text), "{message}");
    std::fs::write(path, &whole).expect("write");
    store.fetch(number, &[row], &mut out).expect("the store goes on working");
    let beyond = table.rows() as u32;
    let message = store.fetch(number, &[beyond], &mut out).expect_err("no such row").to_string();
    assert!(message.contains(&format!("row {beyond} of {}", table.name)), "{message}");
    assert!(store.prefetch(9, &[0]).is_err() && store.fetch(9, &[], &mut []).is_err());
    let message = text(RowStore::open(config(&tables, Bytes(100), ReaderChoice::Pread, &ledger)));
    assert!(message.contains("100 B") || message.contains("100 bytes"), "{message}");
}

#[test]
fn a_broken_device_is_an_error_and_no_value() {
    let folder = tempfile::tempdir().expect("folder");
    let tables = tables(folder.path());
    let mut reads = 0;
    let inner = Box::new(PreadPool::new(2, 8).expect("threads"));
    let reader = FaultyReader::new(inner, move |completion| {
        reads += 1;
        if reads % 13 == 0 {
            completion.result = Err(std::io::Error::from_raw_os_error(5));
        }
    });
    let mut store = open(&tables, 6, ReaderChoice::Custom(Box::new(reader)));
    let (mut good, mut bad) = (0, 0);
    let mut random = Random::new(3);
    let mut out = vec![0.0; 8 * 9];
    for _ in 0..100 {
        let rows: Vec<u32> = (0..8).map(|_| random.below(61) as u32).collect();
        out.fill(f32::NAN);
        match store.fetch(0, &rows, &mut out) {
            Ok(()) => {
                let same = rows.iter().zip(out.chunks_exact(9));
                assert!(same.into_iter().all(|(row, out)| out == tables.values[0][*row as usize]));
                good += 1;
            }
            Err(error) => {
                assert!(matches!(error, ExpertError::Row { .. }), "{error}");
                bad += 1;
            }
        }
    }
    assert!(good > 5 && bad > 5, "{good} good, {bad} bad");
}

#[test]
fn reads_are_under_way_before_anybody_waits() {
    let folder = tempfile::tempdir().expect("folder");
    let tables = tables(folder.path());
    let reader = SimulatedReader::new(1, 64, FaultRates::default());
    let mut store = open(&tables, 80, ReaderChoice::Custom(Box::new(reader)));
    let rows = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];
    store.begin_pass();
    assert_eq!(store.prefetch(0, &rows).expect("begins"), rows.len());
    let begun = store.statistics();
    assert_eq!(
        (begun.reads, begun.prefetched, begun.asked, begun.wait_us),
        (7, 7, 0, 0),
        "one per distinct row"
    );
    // Time for other work: rows land whenever somebody looks, without waiting.
    (0..40).for_each(|_| assert_eq!(store.prefetch(0, &[]).expect("looks"), 0));
    let mut out = vec![0.0; rows.len() * 9];
    store.fetch(0, &rows, &mut out).expect("rows");
    let seen = store.statistics();
    assert_eq!((seen.reads, seen.misses, seen.duplicates, seen.hits), (7, 7, 4, 0));
    assert_eq!(seen.prefetch_ready, 7, "nobody waited");
    // A second request finds them; what is new in it is read while the first rows are handed out.
    store.fetch(0, &rows, &mut out).expect("rows");
    assert_eq!((store.statistics().reads, store.statistics().hits), (7, 7));
    // No more than half of the cache is kept for what was announced.
    let many: Vec<u32> = (0..61).collect();
    store.begin_pass();
    let taken = store.prefetch(0, &many).expect("begins");
    assert_eq!(taken, 40);
}
