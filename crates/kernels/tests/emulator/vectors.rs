//! The vector registers in a signal frame (XSAVE area, not compacted) and the products of AVX-VNNI on them.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Fault;

/// VPDPBUSD and its relatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductKind {
    /// Two signed words per lane instead of four bytes (unsigned by signed).
    pub words: bool,
    /// The sum saturates instead of wrapping.
    pub saturates: bool,
}

/// The last operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Register(usize),
    Memory(usize),
}

/// One lane of a product: `sum` plus the products of the parts of `left` and `right`.
pub fn product_lane(kind: ProductKind, sum: i32, left: u32, right: u32) -> i32 {
    let products: i64 = if kind.words {
        let word = |value: u32, index: u32| i64::from((value >> (16 * index)) as u16 as i16);
        (0..2).map(|index| word(left, index) * word(right, index)).sum()
    } else {
        let byte = |value: u32, index: u32| (value >> (8 * index)) as u8;
        let product = |index| i64::from(byte(left, index)) * i64::from(byte(right, index).cast_signed());
        (0..4).map(product).sum()
    };
    let exact = i64::from(sum) + products;
    if kind.saturates { exact.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 } else { exact as i32 }
}

/// Offsets in the XSAVE area.
const SOFTWARE_BYTES_AT: usize = 464;
const FEATURES_IN_USE_AT: usize = 512;
const LOW_HALVES_AT: usize = 160;
/// The kernel's mark that the frame holds more than the legacy area (FP_XSTATE_MAGIC1).
const EXTENDED_FRAME: u32 = 0x4650_5853;

/// Bits of the features: XMM registers, upper halves of YMM, upper halves of ZMM 0 to 15.
const LOW: u64 = 1 << 1;
const UPPER: u64 = 1 << 2;
const WIDE: u64 = 1 << 6;

/// Where the processor puts the upper halves; 0 where it has none.
static UPPER_AT: AtomicUsize = AtomicUsize::new(0);
static WIDE_AT: AtomicUsize = AtomicUsize::new(0);

/// Asks the processor for the layout of the XSAVE area; to be called before the first signal.
pub fn find_layout() {
    let offset = |feature| if __cpuid(0).eax >= 13 { __cpuid_count(13, feature).ebx as usize } else { 0 };
    UPPER_AT.store(offset(2), Ordering::Relaxed);
    WIDE_AT.store(offset(6), Ordering::Relaxed);
}

/// The registers that the interrupted thread gets back.
pub struct VectorRegisters {
    area: *mut u8,
    /// Features that the frame holds.
    held: u64,
}

impl VectorRegisters {
    /// # Safety
    /// `area` is the `fpregs` of a signal frame and stays valid while the value lives.
    pub unsafe fn of_frame(area: *mut u8) -> Result<VectorRegisters, Fault> {
        // SAFETY: the legacy area of 512 bytes is always there.
        let (magic, held) = unsafe {
            let software = area.add(SOFTWARE_BYTES_AT);
            (software.cast::<u32>().read_unaligned(), software.add(8).cast::<u64>().read_unaligned())
        };
        if magic != EXTENDED_FRAME || held & UPPER == 0 || UPPER_AT.load(Ordering::Relaxed) == 0 {
            return Err(Fault("the signal frame has no YMM registers"));
        }
        Ok(VectorRegisters { area, held })
    }

    /// VPDPBUSD, VPDPBUSDS, VPDPWSSD or VPDPWSSDS with vectors of `bytes` bytes; the rest of `sum` becomes zero.
    ///
    /// # Safety
    /// A memory operand must be readable.
    pub unsafe fn add_product(
        &mut self,
        kind: ProductKind,
        bytes: usize,
        sum: usize,
        left: usize,
        right: Source,
    ) {
        let right = match right {
            Source::Register(number) => self.read(number),
            Source::Memory(address) => {
                let mut value = [0; 32];
                let source = std::ptr::with_exposed_provenance::<u8>(address);
                // SAFETY: passed on from the caller; `bytes` is 16 or 32.
                unsafe { source.copy_to_nonoverlapping(value.as_mut_ptr(), bytes) };
                value
            }
        };
        let (left, old) = (self.read(left), self.read(sum));
        let word = |value: &[u8; 32], at: usize| {
            u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
        };
        let mut result = [0; 32];
        for at in (0..bytes).step_by(4) {
            let lane = product_lane(kind, word(&old, at).cast_signed(), word(&left, at), word(&right, at));
            result[at..at + 4].copy_from_slice(&lane.to_le_bytes());
        }
        self.write(sum, &result);
    }

    fn features_in_use(&self) -> u64 {
        // SAFETY: `of_frame` has checked that the header follows the legacy area.
        unsafe { self.area.add(FEATURES_IN_USE_AT).cast::<u64>().read_unaligned() }
    }

    /// A register; parts that are not in use are zero.
    fn read(&self, number: usize) -> [u8; 32] {
        let in_use = self.features_in_use();
        let mut value = [0; 32];
        // SAFETY: 16 registers of 16 bytes lie at each of the offsets.
        unsafe {
            if in_use & LOW != 0 {
                let source = self.area.add(LOW_HALVES_AT + 16 * number);
                source.copy_to_nonoverlapping(value.as_mut_ptr(), 16);
            }
            if in_use & UPPER != 0 {
                let source = self.area.add(UPPER_AT.load(Ordering::Relaxed) + 16 * number);
                source.copy_to_nonoverlapping(value[16..].as_mut_ptr(), 16);
            }
        }
        value
    }

    /// Writes 256 bits and clears the bits above, as every VEX-encoded instruction does.
    fn write(&mut self, number: usize, value: &[u8; 32]) {
        let in_use = self.features_in_use();
        let upper_at = UPPER_AT.load(Ordering::Relaxed);
        let wide_at = WIDE_AT.load(Ordering::Relaxed);
        // SAFETY: as in `read`; ZMM upper halves are 16 times 32 bytes where the frame holds them.
        unsafe {
            // A part that was not in use holds no values for the other registers: they are zero.
            for (feature, at) in [(LOW, LOW_HALVES_AT), (UPPER, upper_at)] {
                if in_use & feature == 0 {
                    self.area.add(at).write_bytes(0, 16 * 16);
                }
            }
            self.area.add(LOW_HALVES_AT + 16 * number).copy_from_nonoverlapping(value.as_ptr(), 16);
            self.area.add(upper_at + 16 * number).copy_from_nonoverlapping(value[16..].as_ptr(), 16);
            if self.held & in_use & WIDE != 0 && wide_at != 0 {
                self.area.add(wide_at + 32 * number).write_bytes(0, 32);
            }
            self.area.add(FEATURES_IN_USE_AT).cast::<u64>().write_unaligned(in_use | LOW | UPPER);
        }
    }
}
