//! The grids of the IQ formats: points of a lattice, by index, expanded from `grids/grids.bin` when the crate is compiled.
//!
//! An entry has one byte per column, the first one lowest. The tables are facts of the formats; `grids/make_grids.py` says
//! where they were taken from and how the file is laid out.

const FILE: &[u8] = include_bytes!("grids/grids.bin");

/// Magnitudes of IQ2_XXS: 8, 25 or 43.
pub(crate) static IQ2_XXS: [u64; 256] = eight(0, [8, 25, 43]);
/// Magnitudes of IQ2_XS.
pub(crate) static IQ2_XS: [u64; 512] = eight(256, [8, 25, 43]);
/// Magnitudes of IQ2_S.
pub(crate) static IQ2_S: [u64; 1024] = eight(768, [8, 25, 43]);
/// Magnitudes of IQ3_XXS: eight values up to 62.
pub(crate) static IQ3_XXS: [u32; 256] = four(1792, [4, 12, 20, 28, 36, 44, 52, 62]);
/// Magnitudes of IQ3_S: odd values up to 15.
pub(crate) static IQ3_S: [u32; 512] = four(2048, [1, 3, 5, 7, 9, 11, 13, 15]);
/// Values of IQ1_S and IQ1_M, -1, 0 or 1, plus one and times eight.
pub(crate) static IQ1: [u64; 2048] = eight(2560, [0, 8, 16]);

const _: () = assert!(FILE.len() == 2 * (2560 + 2048));

const fn entry(index: usize) -> u16 {
    u16::from_le_bytes([FILE[2 * index], FILE[2 * index + 1]])
}

/// `N` entries of eight columns, from entry `first` of the file.
const fn eight<const N: usize>(first: usize, values: [u8; 3]) -> [u64; N] {
    let mut grid = [0; N];
    let mut index = 0;
    while index < N {
        let positions = entry(first + index);
        let mut column = 0;
        while column < 8 {
            grid[index] |= (values[(positions >> (2 * column) & 3) as usize] as u64) << (8 * column);
            column += 1;
        }
        index += 1;
    }
    grid
}

/// `N` entries of four columns, from entry `first` of the file.
const fn four<const N: usize>(first: usize, values: [u8; 8]) -> [u32; N] {
    let mut grid = [0; N];
    let mut index = 0;
    while index < N {
        let positions = entry(first + index);
        let mut column = 0;
        while column < 4 {
            grid[index] |= (values[(positions >> (3 * column) & 7) as usize] as u32) << (8 * column);
            column += 1;
        }
        index += 1;
    }
    grid
}
