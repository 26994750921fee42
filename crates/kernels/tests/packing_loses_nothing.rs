//! Packing a matrix and unpacking a row gives the values of the source row, bit for bit, in every format.
//!
//! What could go wrong: a field of one lane overwritten by another, the rows that fill up the last group not zero when the
//! target memory held something else, a column group in the wrong plane.

use crate::common::{Random, column_counts, random_rows};
use coldpress_kernels::{
    KernelError, MatrixRef, WeightFormat, blocks::dequantize, pack_group, pack_rows, packed_bytes,
    packed_group_bytes, unpack_row,
};

#[test]
fn unpacked_rows_equal_dequantised_rows() {
    let mut random = Random::new(7);
    for format in WeightFormat::ALL {
        for columns in column_counts(format) {
            for rows in [1, 2, 15, 16, 17, 33, 64] {
                let source = random_rows(&mut random, format, rows, columns);
                let mut packed = vec![0x5a; packed_bytes(format, rows, columns)];
                pack_rows(format, rows, columns, &source, &mut packed);
                let matrix = MatrixRef::new(format, rows, columns, &packed).expect("shape fits");
                for (row, source) in source.chunks_exact(format.row_bytes(columns)).enumerate() {
                    let (mut expected, mut found) = (vec![0.0; columns], vec![1.0; columns]);
                    dequantize(format, source, &mut expected);
                    unpack_row(&matrix, row, &mut found);
                    let equal = expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(equal, "{format}: row {row} of {rows} x {columns}");
                }
            }
        }
    }
}

#[test]
fn missing_rows_are_zero_bytes() {
    let mut random = Random::new(8);
    for format in WeightFormat::ALL {
        let columns = column_counts(format)[1];
        let source = random_rows(&mut random, format, 5, columns);
        let mut short = vec![0xff; packed_group_bytes(format, columns)];
        pack_group(format, columns, &source, &mut short);
        let mut padded_source = source.clone();
        padded_source.resize(16 * format.row_bytes(columns), 0);
        let mut padded = vec![0xff; short.len()];
        pack_group(format, columns, &padded_source, &mut padded);
        assert_eq!(short, padded, "{format}");
    }
}

#[test]
fn packed_sizes_are_those_of_the_layout_description() {
    let group_bytes = |format: WeightFormat| packed_group_bytes(format, 256);
    let sizes = WeightFormat::ALL.map(group_bytes);
    let plain = |block: usize| 16 * block * 8;
    assert_eq!(
        sizes,
        [
            16 * 256 * 4,
            16 * 256 * 2,
            16 * 256 * 2,
            plain(34),
            plain(18),
            plain(20),
            plain(22),
            plain(24),
            2 * 32 + 2 * 128 + 8 * 256,
            2 * 32 + 2 * 128 + 8 * 320,
            16 * 210,
            plain(17),
            16 * 84,
            16 * 110,
            16 * 50,
            16 * 56,
            16 * 66,
            16 * 74,
            16 * 82,
            16 * 98,
            16 * 110,
            plain(18),
            16 * 136,
            16 * 54,
            16 * 66,
            16 * 4 * 36,
        ]
    );
    assert_eq!(packed_bytes(WeightFormat::Q4_0, 17, 64), 2 * packed_group_bytes(WeightFormat::Q4_0, 64));
}

#[test]
fn wrong_shapes_are_refused_with_the_numbers() {
    let format = WeightFormat::Q4K;
    let partial = MatrixRef::new(format, 16, 100, &[]).expect_err("100 is not a whole number of blocks");
    assert_eq!(partial, KernelError::PartialBlock { format, columns: 100 });
    let short = MatrixRef::new(format, 17, 256, &[0; 2368]).expect_err("two groups need twice the bytes");
    assert_eq!(
        short,
        KernelError::WrongLength { format, rows: 17, columns: 256, expected: 4736, found: 2368 }
    );
}
