//! The tile registers of AMX and what its instructions do to them (palette 1: eight tiles of 16 rows of 64 bytes).

use super::Fault;
use super::decode::Signs;

const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;
/// Rows of the right factor (groups of four columns of the left one) that a product takes.
const PRODUCT_DEPTH: usize = 16;

/// Bytes of the configuration in memory.
const START_ROW_AT: usize = 1;
const COLUMN_BYTES_AT: usize = 16;
const ROWS_AT: usize = 48;

#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    column_bytes: usize,
    data: [[u8; ROW_BYTES]; ROWS],
}

/// Tile configuration and tile data of one thread.
pub struct TileState {
    configured: bool,
    start_row: usize,
    tiles: [Tile; TILES],
}

impl TileState {
    /// Not configured, all zeros.
    pub const INITIAL: TileState = TileState {
        configured: false,
        start_row: 0,
        tiles: [Tile { rows: 0, column_bytes: 0, data: [[0; ROW_BYTES]; ROWS] }; TILES],
    };

    /// LDTILECFG.
    pub fn configure(&mut self, memory: &[u8; 64]) -> Result<(), Fault> {
        match memory[0] {
            0 => {
                self.release();
                return Ok(());
            }
            1 => {}
            _ => return Err(Fault("a palette that does not exist")),
        }
        let reserved = memory[2..16].iter().chain(&memory[32..48]).chain(&memory[56..]);
        if reserved.copied().any(|byte| byte != 0) {
            return Err(Fault("reserved bytes of the configuration are not zero"));
        }
        let mut configured = TileState::INITIAL;
        for (index, tile) in configured.tiles.iter_mut().enumerate() {
            let at = COLUMN_BYTES_AT + 2 * index;
            tile.column_bytes = usize::from(u16::from_le_bytes([memory[at], memory[at + 1]]));
            tile.rows = usize::from(memory[ROWS_AT + index]);
            if tile.column_bytes > ROW_BYTES || tile.rows > ROWS {
                return Err(Fault("a tile larger than the palette's"));
            }
            if (tile.column_bytes == 0) != (tile.rows == 0) {
                return Err(Fault("a tile with rows and no columns, or the other way round"));
            }
        }
        configured.configured = true;
        configured.start_row = usize::from(memory[START_ROW_AT]);
        *self = configured;
        Ok(())
    }

    /// STTILECFG.
    pub fn configuration(&self) -> [u8; 64] {
        let mut memory = [0; 64];
        if self.configured {
            memory[0] = 1;
            memory[START_ROW_AT] = self.start_row as u8;
            for (index, tile) in self.tiles.iter().enumerate() {
                memory[COLUMN_BYTES_AT + 2 * index] = tile.column_bytes as u8;
                memory[ROWS_AT + index] = tile.rows as u8;
            }
        }
        memory
    }

    /// TILERELEASE.
    pub fn release(&mut self) {
        *self = TileState::INITIAL;
    }

    /// All 16 rows of 64 bytes of a tile.
    pub fn data(&self, tile: usize) -> &[[u8; ROW_BYTES]; ROWS] {
        &self.tiles[tile].data
    }

    fn usable(&self, tile: usize) -> Result<Tile, Fault> {
        if !self.configured {
            return Err(Fault("tiles are not configured"));
        }
        let tile = self.tiles[tile];
        if tile.rows == 0 { Err(Fault("a tile of no rows")) } else { Ok(tile) }
    }

    /// TILEZERO.
    pub fn zero(&mut self, tile: usize) -> Result<(), Fault> {
        self.usable(tile)?;
        self.tiles[tile].data = [[0; ROW_BYTES]; ROWS];
        self.start_row = 0;
        Ok(())
    }

    /// TILELOADD.
    ///
    /// # Safety
    /// The rows at `base`, `stride` bytes apart, must be readable.
    pub unsafe fn load(&mut self, tile: usize, base: usize, stride: usize) -> Result<(), Fault> {
        let mut loaded = self.usable(tile)?;
        for row in self.start_row..loaded.rows {
            let source = std::ptr::with_exposed_provenance::<u8>(base.wrapping_add(row.wrapping_mul(stride)));
            loaded.data[row] = [0; ROW_BYTES];
            // SAFETY: passed on from the caller; a row has at most 64 bytes.
            unsafe { source.copy_to_nonoverlapping(loaded.data[row].as_mut_ptr(), loaded.column_bytes) };
        }
        loaded.data[loaded.rows..].fill([0; ROW_BYTES]);
        self.tiles[tile] = loaded;
        self.start_row = 0;
        Ok(())
    }

    /// TILESTORED.
    ///
    /// # Safety
    /// The rows at `base`, `stride` bytes apart, must be writable.
    pub unsafe fn store(&mut self, tile: usize, base: usize, stride: usize) -> Result<(), Fault> {
        let stored = self.usable(tile)?;
        for row in self.start_row..stored.rows {
            let target =
                std::ptr::with_exposed_provenance_mut::<u8>(base.wrapping_add(row.wrapping_mul(stride)));
            // SAFETY: passed on from the caller; a row has at most 64 bytes.
            unsafe { target.copy_from_nonoverlapping(stored.data[row].as_ptr(), stored.column_bytes) };
        }
        self.start_row = 0;
        Ok(())
    }

    /// TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD: `sum[m][n] += left[m][4 k + i] * right[k][4 n + i]` over k and i.
    pub fn add_product(&mut self, sum: usize, left: usize, right: usize, signs: Signs) -> Result<(), Fault> {
        if sum == left || left == right || sum == right {
            return Err(Fault("the tiles of a product must be three"));
        }
        let (left, right) = (self.usable(left)?, self.usable(right)?);
        let mut result = self.usable(sum)?;
        if [&result, &left, &right].iter().any(|tile| !tile.column_bytes.is_multiple_of(4)) {
            return Err(Fault("columns of a product come in fours"));
        }
        let depth = left.column_bytes / 4;
        if result.rows != left.rows || depth != right.rows || result.column_bytes != right.column_bytes {
            return Err(Fault("shapes of the tiles do not fit together"));
        }
        if depth > PRODUCT_DEPTH {
            return Err(Fault("deeper than the multiplier"));
        }
        let extend = |byte: u8, signed: bool| {
            if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
        };
        for row in 0..result.rows {
            let mut sums = [0_u8; ROW_BYTES];
            for column in (0..result.column_bytes).step_by(4) {
                let lane = column..column + 4;
                let old = result.data[row][lane.clone()].try_into().expect("four bytes");
                let mut total = i32::from_le_bytes(old);
                for k in 0..depth {
                    for byte in 0..4 {
                        let factor = extend(left.data[row][4 * k + byte], signs[0]);
                        let other = extend(right.data[k][column + byte], signs[1]);
                        total = total.wrapping_add(factor * other);
                    }
                }
                sums[lane].copy_from_slice(&total.to_le_bytes());
            }
            result.data[row] = sums;
        }
        result.data[result.rows..].fill([0; ROW_BYTES]);
        self.tiles[sum] = result;
        self.start_row = 0;
        Ok(())
    }
}
