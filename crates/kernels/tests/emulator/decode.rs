//! Decodes the VEX-encoded instructions of the emulator, after the manual's chapter on instruction format.
//!
//! All of them have the three-byte prefix C4 with map 0F38 and W0; anything else is not ours and gives `None`.

use super::vectors::{ProductKind, Source};

/// Which factor of a tile product is signed: the left, the right.
pub type Signs = [bool; 2];

/// An instruction with its operands; addresses are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    LoadConfiguration { address: usize },
    StoreConfiguration { address: usize },
    Release,
    Zero { tile: usize },
    LoadTile { tile: usize, base: usize, stride: usize },
    StoreTile { tile: usize, base: usize, stride: usize },
    TileProduct { sum: usize, left: usize, right: usize, signs: Signs },
    VectorProduct { kind: ProductKind, bytes: usize, sum: usize, left: usize, right: Source },
}

/// Reads the bytes of an instruction one after the other.
struct Cursor {
    at: usize,
    read: usize,
}

impl Cursor {
    /// # Safety
    /// The next byte must be readable.
    unsafe fn byte(&mut self) -> u8 {
        let address = std::ptr::with_exposed_provenance::<u8>(self.at + self.read);
        self.read += 1;
        // SAFETY: passed on from the caller.
        unsafe { address.read() }
    }

    /// # Safety
    /// The next four bytes must be readable.
    unsafe fn signed_word(&mut self) -> isize {
        // SAFETY: passed on from the caller.
        let bytes: [u8; 4] = std::array::from_fn(|_| unsafe { self.byte() });
        i32::from_le_bytes(bytes) as isize
    }
}

/// The fields of the prefix and of ModRM.
struct Fields {
    prefix: u8,
    wide: bool,
    vvvv: usize,
    mode: u8,
    reg: usize,
    rm: u8,
    extend_index: usize,
    extend_base: usize,
}

/// The memory operand: base plus displacement, and scaled index.
struct Memory {
    base: usize,
    index: usize,
    has_sib: bool,
}

/// The instruction at `at` and its length in bytes.
///
/// # Safety
/// An instruction that the processor could read begins at `at`.
pub unsafe fn decode(at: usize, registers: &[usize; 16]) -> Option<(Instruction, usize)> {
    let mut cursor = Cursor { at, read: 0 };
    // SAFETY: bytes are read only as far as the prefix read so far says that the instruction goes on.
    unsafe {
        if cursor.byte() != 0xc4 {
            return None;
        }
        let first = cursor.byte();
        let second = cursor.byte();
        if first & 0x1f != 2 || second & 0x80 != 0 {
            return None;
        }
        let opcode = cursor.byte();
        let modrm = cursor.byte();
        let extension = |bit: u8| if first & bit == 0 { 8 } else { 0 };
        let fields = Fields {
            prefix: second & 3,
            wide: second & 4 != 0,
            vvvv: usize::from(!second >> 3 & 15),
            mode: modrm >> 6,
            reg: usize::from(modrm >> 3 & 7) + extension(0x80),
            rm: modrm & 7,
            extend_index: extension(0x40),
            extend_base: extension(0x20),
        };
        let memory = if fields.mode == 3 { None } else { Some(memory(&mut cursor, &fields, registers)) };
        let instruction = match opcode {
            0x49 => configuration(&fields, memory, modrm),
            0x4b => tile_move(&fields, memory),
            0x5e => tile_product(&fields),
            0x50..=0x53 => vector_product(&fields, memory, opcode),
            _ => None,
        }?;
        Some((instruction, cursor.read))
    }
}

/// # Safety
/// As [`decode`], behind ModRM.
unsafe fn memory(cursor: &mut Cursor, fields: &Fields, registers: &[usize; 16]) -> Memory {
    // SAFETY: ModRM and SIB say which bytes follow.
    unsafe {
        let has_sib = fields.rm == 4;
        let mut index = 0;
        let mut number = usize::from(fields.rm);
        if has_sib {
            let sib = cursor.byte();
            number = usize::from(sib & 7);
            let index_number = usize::from(sib >> 3 & 7) + fields.extend_index;
            // Number 4 (the stack pointer) stands for no index.
            index = if index_number == 4 { 0 } else { registers[index_number] << (sib >> 6) };
        }
        let without_base = fields.mode == 0 && number == 5;
        let displacement = match fields.mode {
            1 => isize::from(cursor.byte().cast_signed()),
            2 => cursor.signed_word(),
            _ if without_base => cursor.signed_word(),
            _ => 0,
        };
        // Without SIB, "no base" means relative to the next instruction: none of ours has bytes behind the displacement.
        let base = match (without_base, has_sib) {
            (false, _) => registers[number + fields.extend_base],
            (true, true) => 0,
            (true, false) => cursor.at + cursor.read,
        };
        Memory { base: base.wrapping_add_signed(displacement), index, has_sib }
    }
}

/// The mandatory prefixes as the two bits of VEX encode them.
const NONE: u8 = 0;
const P66: u8 = 1;
const PF3: u8 = 2;
const PF2: u8 = 3;

/// Opcode 49: configuration, release and zero.
fn configuration(fields: &Fields, memory: Option<Memory>, modrm: u8) -> Option<Instruction> {
    if fields.wide || fields.vvvv != 0 {
        return None;
    }
    match (fields.prefix, memory) {
        (NONE, Some(memory)) if fields.reg == 0 => {
            Some(Instruction::LoadConfiguration { address: memory.base.wrapping_add(memory.index) })
        }
        (P66, Some(memory)) if fields.reg == 0 => {
            Some(Instruction::StoreConfiguration { address: memory.base.wrapping_add(memory.index) })
        }
        (NONE, None) if modrm == 0xc0 => Some(Instruction::Release),
        (PF2, None) if fields.rm == 0 && fields.reg < 8 => Some(Instruction::Zero { tile: fields.reg }),
        _ => None,
    }
}

/// Opcode 4B: loads and stores, always with SIB; the index register is the distance of rows.
fn tile_move(fields: &Fields, memory: Option<Memory>) -> Option<Instruction> {
    let memory = memory.filter(|memory| memory.has_sib)?;
    if fields.wide || fields.vvvv != 0 || fields.reg >= 8 {
        return None;
    }
    let (tile, base, stride) = (fields.reg, memory.base, memory.index);
    match fields.prefix {
        // The second one only hints at the caches.
        PF2 | P66 => Some(Instruction::LoadTile { tile, base, stride }),
        PF3 => Some(Instruction::StoreTile { tile, base, stride }),
        _ => None,
    }
}

/// Opcode 5E: int8 products.
fn tile_product(fields: &Fields) -> Option<Instruction> {
    let (sum, left, right) = (fields.reg, usize::from(fields.rm) + fields.extend_base, fields.vvvv);
    if fields.wide || fields.mode != 3 || [sum, left, right].iter().any(|&tile| tile >= 8) {
        return None;
    }
    let signs = match fields.prefix {
        PF2 => [true, true],
        PF3 => [true, false],
        P66 => [false, true],
        _ => [false, false],
    };
    Some(Instruction::TileProduct { sum, left, right, signs })
}

/// Opcodes 50 to 53: products of vectors.
fn vector_product(fields: &Fields, memory: Option<Memory>, opcode: u8) -> Option<Instruction> {
    if fields.prefix != P66 {
        return None;
    }
    let kind = ProductKind { words: opcode & 2 != 0, saturates: opcode & 1 != 0 };
    let right = match memory {
        Some(memory) => Source::Memory(memory.base.wrapping_add(memory.index)),
        None => Source::Register(usize::from(fields.rm) + fields.extend_base),
    };
    let bytes = if fields.wide { 32 } else { 16 };
    Some(Instruction::VectorProduct { kind, bytes, sum: fields.reg, left: fields.vvvv, right })
}
