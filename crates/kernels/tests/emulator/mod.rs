//! An emulator, for tests only, of instructions that the processor may lack: AMX tiles with int8 products, and AVX-VNNI.
//!
//! [`install`] catches the illegal instruction signal. The handler decodes the instruction it stopped at (`decode.rs`),
//! runs it on a software tile state of the thread (`tiles.rs`) or on the vector registers of the signal frame
//! (`vectors.rs`), and goes on behind it. So the same machine code runs that a processor with these instructions would run.
//! What the instructions do is written after the Intel 64 Software Developer's Manual, volume 2; anything the manual answers with a
//! fault, and any other instruction, ends the process with the signal, as without the emulator. Linux on x86-64 only.
#![allow(dead_code)] // each test file uses its part

mod decode;
pub mod tiles;
pub mod vectors;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use decode::{Instruction, decode};
use tiles::TileState;
use vectors::VectorRegisters;

/// What an instruction may not do: the manual's #UD and #GP.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault(pub &'static str);

thread_local! {
    // Constant and without a destructor, so that a signal handler may use it.
    static TILES: UnsafeCell<TileState> = const { UnsafeCell::new(TileState::INITIAL) };
}

static TILE_PRODUCTS: AtomicU64 = AtomicU64::new(0);
static VECTOR_PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// Tile products emulated so far, by all threads.
pub fn tile_products() -> u64 {
    TILE_PRODUCTS.load(Ordering::Relaxed)
}

/// Vector products emulated so far, by all threads.
pub fn vector_products() -> u64 {
    VECTOR_PRODUCTS.load(Ordering::Relaxed)
}

/// Numbers of the general registers in the order of their encoding.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Emulates from now on, in all threads of the process.
pub fn install() {
    vectors::find_layout();
    // SAFETY: an all-zero `sigaction` is a valid value; the handler only uses its arguments, constant thread-local memory
    // and atomics, so it may run at any instruction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_illegal_instruction;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0, "no handler for SIGILL");
    }
}

extern "C" fn on_illegal_instruction(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the third argument is the `ucontext_t` of the interrupted thread, ours until we return.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let registers = REGISTERS.map(|number| context.uc_mcontext.gregs[number as usize] as usize);
    // SAFETY: the processor has just read an instruction at `at`, and `decode` reads no further than the instruction goes.
    let done = unsafe { decode(at, &registers) }.and_then(|(instruction, length)| {
        // SAFETY: the instruction and its addresses are the program's own; `fpregs` is the vector state of this frame.
        unsafe { execute(instruction, context.uc_mcontext.fpregs.cast()) }.ok()?;
        Some(length)
    });
    match done {
        Some(length) => context.uc_mcontext.gregs[libc::REG_RIP as usize] += length as i64,
        // SAFETY: `signal` may be called in a handler. The instruction runs again and now ends the process.
        None => unsafe {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        },
    }
}

/// # Safety
/// The memory that the instruction names must be readable or writable as it needs; `frame` is the vector state of a signal.
unsafe fn execute(instruction: Instruction, frame: *mut u8) -> Result<(), Fault> {
    TILES.with(|tiles| {
        // SAFETY: only the handler uses the state, and it cannot interrupt itself: the signal is blocked while it runs.
        let tiles = unsafe { &mut *tiles.get() };
        // SAFETY: passed on from the caller.
        unsafe {
            match instruction {
                Instruction::LoadConfiguration { address } => {
                    tiles.configure(&address_as::<[u8; 64]>(address).read_unaligned())
                }
                Instruction::StoreConfiguration { address } => {
                    address_as::<[u8; 64]>(address).write_unaligned(tiles.configuration());
                    Ok(())
                }
                Instruction::Release => {
                    tiles.release();
                    Ok(())
                }
                Instruction::Zero { tile } => tiles.zero(tile),
                Instruction::LoadTile { tile, base, stride } => tiles.load(tile, base, stride),
                Instruction::StoreTile { tile, base, stride } => tiles.store(tile, base, stride),
                Instruction::TileProduct { sum, left, right, signs } => {
                    TILE_PRODUCTS.fetch_add(1, Ordering::Relaxed);
                    tiles.add_product(sum, left, right, signs)
                }
                Instruction::VectorProduct { kind, bytes, sum, left, right } => {
                    VECTOR_PRODUCTS.fetch_add(1, Ordering::Relaxed);
                    VectorRegisters::of_frame(frame)?.add_product(kind, bytes, sum, left, right);
                    Ok(())
                }
            }
        }
    })
}

fn address_as<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}
