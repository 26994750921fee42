//! The bytes of blocks from their integers: the inverses of the readers beside this folder.

use super::super::k_scales::write_scales_and_minimums;
use super::super::q4::write_nibbles;
use super::super::q5::write_five_bits;

/// What Q4_K and Q5_K blocks begin with.
pub(super) struct KHeader {
    /// Bits of the f16 scale.
    pub scale: u16,
    /// Bits of the f16 minimum.
    pub minimum: u16,
    pub sub_scales: [u8; 8],
    pub sub_minimums: [u8; 8],
}

pub(super) fn q4_0(scale: u16, quants: &[u8; 32], out: &mut [u8]) {
    out[..2].copy_from_slice(&scale.to_le_bytes());
    write_nibbles(quants, &mut out[2..]);
}

pub(super) fn q5_0(scale: u16, quants: &[u8; 32], out: &mut [u8]) {
    out[..2].copy_from_slice(&scale.to_le_bytes());
    write_five_bits(quants, &mut out[2..]);
}

fn k_header(header: &KHeader, out: &mut [u8]) {
    out[..2].copy_from_slice(&header.scale.to_le_bytes());
    out[2..4].copy_from_slice(&header.minimum.to_le_bytes());
    write_scales_and_minimums(&header.sub_scales, &header.sub_minimums, &mut out[4..16]);
}

pub(super) fn q4_k(header: &KHeader, quants: &[u8; 256], out: &mut [u8]) {
    k_header(header, out);
    nibble_runs(quants, &mut out[16..]);
}

pub(super) fn q5_k(header: &KHeader, quants: &[u8; 256], out: &mut [u8]) {
    k_header(header, out);
    let fifth_bits = &mut out[16..48];
    fifth_bits.fill(0);
    for (sub_block, quants) in quants.chunks_exact(32).enumerate() {
        for (bits, quant) in fifth_bits.iter_mut().zip(quants) {
            *bits |= (quant >> 4) << sub_block;
        }
    }
    nibble_runs(quants, &mut out[48..]);
}

/// 256 values to 128 bytes, in runs of 64 columns and 32 bytes; bits above the fourth are dropped.
fn nibble_runs(quants: &[u8; 256], out: &mut [u8]) {
    for (columns, run) in quants.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        let (low, high) = columns.split_at(32);
        for ((byte, low), high) in run.iter_mut().zip(low).zip(high) {
            *byte = (low & 0x0f) | (high << 4);
        }
    }
}

pub(super) fn q6_k(scale: u16, sub_scales: &[u8; 16], quants: &[u8; 256], out: &mut [u8]) {
    let (low, rest) = out.split_at_mut(128);
    let (high, rest) = rest.split_at_mut(64);
    let halves = low.chunks_exact_mut(64).zip(high.chunks_exact_mut(32));
    for ((nibbles, pairs), quants) in halves.zip(quants.chunks_exact(128)) {
        for index in 0..32 {
            let columns: [u8; 4] = std::array::from_fn(|run| quants[32 * run + index]);
            nibbles[index] = (columns[0] & 0x0f) | (columns[2] << 4);
            nibbles[index + 32] = (columns[1] & 0x0f) | (columns[3] << 4);
            pairs[index] = columns.iter().rev().fold(0, |bits, column| bits << 2 | column >> 4);
        }
    }
    rest[..16].copy_from_slice(sub_scales);
    rest[16..].copy_from_slice(&scale.to_le_bytes());
}
