//! The emulator in `emulator/` does what the Intel manual says, so that kernels which run on it are tested by more than
//! their own opinion.
//!
//! What could go wrong: operands of a product exchanged, a wrong sign, an address form decoded wrongly, rows or columns
//! beyond the configured shape, registers that keep upper halves. Expected values come from plain loops over matrices. On a
//! processor that has the instructions, the tests that execute machine code run on the processor itself.

use std::arch::asm;
use std::arch::x86_64::{__m256i, _mm256_set1_epi32};

use crate::common::Random;
use crate::emulator::tiles::TileState;
use crate::emulator::vectors::{ProductKind, product_lane};
use coldpress_kernels::Isa;

/// A configuration in memory: palette 1 and the (rows, bytes of a row) of the first tiles.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

impl Configuration {
    fn new(shapes: &[(u8, u8)]) -> Configuration {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (index, &(rows, column_bytes)) in shapes.iter().enumerate() {
            bytes[16 + 2 * index] = column_bytes;
            bytes[48 + index] = rows;
        }
        Configuration(bytes)
    }

    fn load(&self) {
        // SAFETY: 64 readable bytes; the code that Rust compiles never uses tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self.0.as_ptr(), options(nostack, preserves_flags)) };
    }
}

fn release() {
    // SAFETY: the code that Rust compiles never uses tiles.
    unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
}

fn prepare_tiles() {
    if !Isa::AmxInt8.is_supported() {
        crate::emulator::install();
    }
}

fn random_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count)
        .map(|_| match random.below(6) {
            0 => 0x80,
            1 => 0x7f,
            2 => 0xff,
            _ => random.next() as u8,
        })
        .collect()
}

/// `sum[m][n] += left[m][4 k + i] * right[k][4 n + i]` with 64-bit sums, cut to 32 bits at the end.
fn naive_product(
    shape: (usize, usize, usize),
    left: &[u8],
    right: &[u8],
    start: &[i32],
    signs: (bool, bool),
) -> Vec<i32> {
    let (rows, depth, columns) = shape;
    let value = |byte: u8, signed: bool| if signed { i64::from(byte as i8) } else { i64::from(byte) };
    let mut sums = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = i64::from(start[row * columns + column]);
            for inner in 0..4 * depth {
                let factor = left[row * 4 * depth + inner];
                // Column-major inside groups of four: element `inner` of column `column` of the right matrix.
                let other = right[inner / 4 * 4 * columns + 4 * column + inner % 4];
                sum += value(factor, signs.0) * value(other, signs.1);
            }
            sums.push(sum as i32);
        }
    }
    sums
}

macro_rules! tile_product_with {
    ($instruction:literal, $left:expr, $right:expr, $start:expr, $shape:expr) => {{
        let (rows, depth, columns) = $shape;
        let (left, right): (&[u8], &[u8]) = ($left, $right);
        let start: &[i32] = $start;
        let mut sums = vec![0_i32; rows * columns];
        // SAFETY: the matrices have the shapes of the configuration.
        unsafe {
            asm!(
                "tileloadd tmm0, [{start} + {column_bytes}*1]",
                "tileloadd tmm3, [{left} + {depth}*4]",
                "tileloaddt1 tmm7, [{right} + {column_bytes}*1]",
                concat!($instruction, " tmm0, tmm3, tmm7"),
                "tilestored [{sums} + {column_bytes}*1], tmm0",
                start = in(reg) start.as_ptr(),
                left = in(reg) left.as_ptr(),
                right = in(reg) right.as_ptr(),
                sums = in(reg) sums.as_mut_ptr(),
                depth = in(reg) depth,
                column_bytes = in(reg) 4 * columns,
                options(nostack, preserves_flags),
            );
        }
        sums
    }};
}

#[test]
fn tile_products_equal_a_plain_loop_for_all_signs_and_shapes() {
    prepare_tiles();
    let mut random = Random::new(21);
    for shape @ (rows, depth, columns) in
        [(16, 8, 16), (16, 4, 16), (16, 16, 16), (1, 1, 1), (5, 3, 7), (8, 8, 16), (3, 16, 2)]
    {
        let left = random_bytes(&mut random, rows * 4 * depth);
        let right = random_bytes(&mut random, depth * 4 * columns);
        let start: Vec<i32> = (0..rows * columns).map(|_| random.next() as i32).collect();
        let (rows8, depth8, columns8) = (rows as u8, depth as u8, columns as u8);
        let mut shapes = [(0, 0); 8];
        shapes[0] = (rows8, 4 * columns8);
        shapes[3] = (rows8, 4 * depth8);
        shapes[7] = (depth8, 4 * columns8);
        Configuration::new(&shapes).load();
        let expected = |signs| naive_product(shape, &left, &right, &start, signs);
        let signed = tile_product_with!("tdpbssd", &left, &right, &start, shape);
        assert_eq!(signed, expected((true, true)), "tdpbssd {shape:?}");
        let mixed = tile_product_with!("tdpbsud", &left, &right, &start, shape);
        assert_eq!(mixed, expected((true, false)), "tdpbsud {shape:?}");
        let mixed = tile_product_with!("tdpbusd", &left, &right, &start, shape);
        assert_eq!(mixed, expected((false, true)), "tdpbusd {shape:?}");
        let unsigned = tile_product_with!("tdpbuud", &left, &right, &start, shape);
        assert_eq!(unsigned, expected((false, false)), "tdpbuud {shape:?}");
        release();
    }
}

#[test]
fn loads_and_stores_take_every_address_form_and_touch_only_the_configured_bytes() {
    prepare_tiles();
    let source: Vec<u8> = (0..1024).map(|index| (index * 7 + index / 256) as u8).collect();
    Configuration::new(&[(3, 8), (2, 64)]).load();
    let copy = |from: usize, stride: usize| -> Vec<u8> {
        (0..3).flat_map(|row| source[from + row * stride..][..8].to_vec()).collect()
    };
    let mut found = vec![0xee_u8; 5 * 8 * 4];
    // SAFETY: all addresses lie inside `source` and `found`.
    unsafe {
        asm!(
            "tileloadd tmm0, [r13 + r14*1]",
            "tilestored [r12 + rax*1], tmm0",
            "tileloadd tmm0, [r13 + r14*2 + 16]",
            "tilestored [r12 + rax*1 + 40], tmm0",
            "tileloadd tmm0, [r13 + r14*8 + 300]",
            "tilestored [r12 + rax*1 + 80], tmm0",
            "tileloadd tmm0, [r13 - 100000 + r14*4 + 100000]",
            "tilezero tmm0",
            "tilestored [r12 + rax*1 + 120], tmm0",
            in("r12") found.as_mut_ptr(),
            in("r13") source.as_ptr(),
            in("r14") 40_usize,
            in("rax") 8_usize,
            options(nostack, preserves_flags),
        );
    }
    let rest = [0xee; 16];
    let parts = [copy(0, 40), copy(16, 80), copy(300, 320), vec![0; 24]];
    let expected: Vec<u8> = parts.iter().flat_map(|part| [part.as_slice(), &rest].concat()).collect();
    assert_eq!(found, expected);
    // Another tile keeps its data while tmm0 changes, and a stride of zero reads one row again and again.
    let mut kept = [0_u8; 128];
    // SAFETY: as above.
    unsafe {
        asm!(
            "tileloadd tmm1, [{source}]",
            "tilezero tmm0",
            "tilestored [{kept} + {stride}], tmm1",
            source = in(reg) source.as_ptr(),
            kept = in(reg) kept.as_mut_ptr(),
            stride = in(reg) 64_usize,
            options(nostack, preserves_flags),
        );
    }
    assert_eq!(kept[..64], source[..64]);
    assert_eq!(kept[64..], source[..64]);
    release();
}

#[test]
fn the_configuration_can_be_read_back_until_it_is_released() {
    prepare_tiles();
    let configuration = Configuration::new(&[(16, 64), (8, 64), (7, 12)]);
    configuration.load();
    let stored = || {
        let mut bytes = [0xee_u8; 64];
        // SAFETY: 64 writable bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) bytes.as_mut_ptr(), options(nostack, preserves_flags)) };
        bytes
    };
    assert_eq!(stored(), configuration.0);
    release();
    assert_eq!(stored(), [0; 64]);
}

#[test]
fn rows_above_the_shape_are_cleared_and_a_new_configuration_clears_everything() {
    let mut tiles = TileState::INITIAL;
    let bytes = [1_u8; 1024];
    let address = bytes.as_ptr().expose_provenance();
    tiles.configure(&Configuration::new(&[(16, 64), (16, 64), (16, 64)]).0).expect("a valid configuration");
    // SAFETY: 16 rows of 64 bytes.
    unsafe {
        tiles.load(1, address, 64).expect("configured");
        tiles.load(2, address, 64).expect("configured");
    }
    tiles.add_product(0, 1, 2, [true, true]).expect("shapes fit");
    assert_eq!(tiles.data(0)[15][60..], 64_i32.to_le_bytes());
    tiles.configure(&Configuration::new(&[(2, 8), (2, 4), (1, 8)]).0).expect("a valid configuration");
    assert!(tiles.data(0).iter().flatten().all(|&byte| byte == 0));
    // SAFETY: the rows lie inside the bytes.
    unsafe {
        tiles.load(1, address, 64).expect("configured");
        tiles.load(2, address, 64).expect("configured");
    }
    tiles.add_product(0, 1, 2, [true, true]).expect("shapes fit");
    for (row, data) in tiles.data(0).iter().enumerate() {
        for (lane, bytes) in data.chunks(4).enumerate() {
            let expected: i32 = if row < 2 && lane < 2 { 4 } else { 0 };
            assert_eq!(bytes, expected.to_le_bytes(), "row {row}, lane {lane}");
        }
    }
}

#[test]
fn what_the_manual_forbids_is_a_fault() {
    let configure = |change: fn(&mut [u8; 64])| {
        let mut bytes = Configuration::new(&[(16, 64), (16, 32), (8, 64)]).0;
        change(&mut bytes);
        let mut tiles = TileState::INITIAL;
        tiles.configure(&bytes)
    };
    assert!(configure(|_| {}).is_ok());
    assert!(configure(|bytes| bytes[0] = 2).is_err(), "palette");
    assert!(configure(|bytes| bytes[2] = 1).is_err(), "reserved");
    assert!(configure(|bytes| bytes[32] = 1).is_err(), "a ninth tile");
    assert!(configure(|bytes| bytes[16] = 65).is_err(), "columns");
    assert!(configure(|bytes| bytes[48] = 17).is_err(), "rows");
    assert!(configure(|bytes| bytes[55] = 1).is_err(), "rows without columns");

    let mut tiles = TileState::INITIAL;
    assert!(tiles.zero(0).is_err(), "not configured");
    tiles.configure(&Configuration::new(&[(16, 64), (16, 32), (8, 64), (8, 32)]).0).expect("valid");
    assert!(tiles.add_product(0, 1, 2, [true; 2]).is_ok());
    assert!(tiles.add_product(0, 1, 1, [true; 2]).is_err(), "one tile twice");
    assert!(tiles.add_product(0, 2, 1, [true; 2]).is_err(), "factors exchanged");
    assert!(tiles.add_product(0, 3, 2, [true; 2]).is_err(), "rows differ");
    assert!(tiles.zero(7).is_err(), "a tile without a shape");
}

/// Eight lanes to and from vectors.
fn lanes(value: __m256i) -> [u32; 8] {
    // SAFETY: same size, every bit pattern is valid.
    unsafe { std::mem::transmute(value) }
}

macro_rules! vector_product_with {
    ($instruction:literal, $kind:expr, $random:expr) => {{
        let words: [u32; 24] = std::array::from_fn(|_| {
            let bytes = random_bytes($random, 4);
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        });
        let (sum, rest) = words.split_at(8);
        let (left, right) = rest.split_at(8);
        let vector = |words: &[u32]| -> __m256i {
            // SAFETY: 32 readable bytes, any alignment.
            unsafe { words.as_ptr().cast::<__m256i>().read_unaligned() }
        };
        let expected: [u32; 8] =
            std::array::from_fn(|lane| product_lane($kind, sum[lane] as i32, left[lane], right[lane]) as u32);
        let (mut low, mut high, mut from_memory) = (vector(sum), vector(sum), vector(sum));
        let mut half = vector(sum);
        // SAFETY: registers and 32 readable bytes.
        unsafe {
            asm!(
                concat!("{{vex}} ", $instruction, " ymm1, ymm2, ymm3"),
                concat!("{{vex}} ", $instruction, " ymm9, ymm2, ymm3"),
                concat!("{{vex}} ", $instruction, " ymm4, ymm2, [{memory} + {index}*8 + 8]"),
                concat!("{{vex}} ", $instruction, " xmm15, xmm2, xmmword ptr [{memory} + 32]"),
                memory = in(reg) right.as_ptr().wrapping_byte_sub(32),
                index = in(reg) 3_usize,
                inout("ymm1") low,
                in("ymm2") vector(left),
                in("ymm3") vector(right),
                inout("ymm9") high,
                inout("ymm4") from_memory,
                inout("ymm15") half,
                options(nostack, preserves_flags, readonly),
            );
        }
        assert_eq!(lanes(low), expected, $instruction);
        assert_eq!(lanes(high), expected, $instruction);
        assert_eq!(lanes(from_memory), expected, $instruction);
        let mut lower = expected;
        lower[4..].fill(0);
        assert_eq!(lanes(half), lower, $instruction);
    }};
}

#[test]
fn vector_products_work_on_registers_and_memory_of_both_widths() {
    if !Isa::Avx2.is_supported() {
        return;
    }
    if !Isa::AvxVnni.is_supported() {
        crate::emulator::install();
    }
    // SAFETY: the processor has AVX2.
    unsafe { vector_products() };
}

#[target_feature(enable = "avx2")]
fn vector_products() {
    let mut random = Random::new(22);
    let kind = |words, saturates| ProductKind { words, saturates };
    for _ in 0..200 {
        vector_product_with!("vpdpbusd", kind(false, false), &mut random);
        vector_product_with!("vpdpbusds", kind(false, true), &mut random);
        vector_product_with!("vpdpwssd", kind(true, false), &mut random);
        vector_product_with!("vpdpwssds", kind(true, true), &mut random);
    }
    let ones = _mm256_set1_epi32(1);
    assert_eq!(lanes(ones), [1; 8], "registers survive the signals");
}

#[test]
fn lanes_of_vector_products_are_those_of_the_manual() {
    let bytes = ProductKind { words: false, saturates: false };
    // 255 * -128 + 1 * 2 + 0 * 5 + 16 * 16, from 10.
    let (left, right) = (u32::from_le_bytes([255, 1, 0, 16]), u32::from_le_bytes([0x80, 2, 5, 16]));
    assert_eq!(product_lane(bytes, 10, left, right), 10 - 32640 + 2 + 256);
    let words = ProductKind { words: true, saturates: false };
    let pair = |low: i16, high: i16| u32::from(low as u16) | u32::from(high as u16) << 16;
    assert_eq!(product_lane(words, -1, pair(-32768, 3), pair(-32768, -7)), (1 << 30) - 22);
    assert_eq!(product_lane(bytes, i32::MAX, pair(1, 0), pair(1, 0)), i32::MIN);
    let saturated = ProductKind { saturates: true, ..bytes };
    assert_eq!(product_lane(saturated, i32::MAX, pair(1, 0), pair(1, 0)), i32::MAX);
    assert_eq!(product_lane(saturated, i32::MIN, pair(1, 0), pair(0xff, 0)), i32::MIN);
}
