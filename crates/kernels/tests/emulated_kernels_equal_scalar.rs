//! The kernels of instruction sets that this processor may lack give the bits of the scalar definition.
//!
//! The tests of `every_kernel_equals_scalar.rs` skip what the processor cannot run. Here the same machine code runs with its
//! missing instructions emulated (`emulator/`), or on the processor where it has them. What could go wrong: a right factor of
//! the wrong step, tiles that overwrite sums before they are stored, rows done twice or not at all, sub-scales of the other
//! half, zeros with a sign, tiles that stay configured for another format or number of rows.

use crate::common::product::{Case, bits};
use crate::common::{Random, column_counts};
use coldpress_kernels::{ActivationBlock, Isa, Kernels, WeightFormat};
use coldpress_workers::Workers;

/// Kernels of `isa`, which builds on `base`; `None` where the processor lacks even that.
fn kernels(isa: Isa, base: Isa) -> Option<Kernels> {
    if !base.is_supported() {
        return None;
    }
    if !isa.is_supported() {
        crate::emulator::install();
    }
    // SAFETY: the processor has what `isa` adds to `base`, or the emulator is installed for all threads.
    Some(unsafe { Kernels::assume(isa) })
}

fn equals_scalar(isa: Isa, base: Isa, input_rows: &[usize], columns: fn(WeightFormat) -> Vec<usize>) {
    let Some(kernels) = kernels(isa, base) else { return };
    let scalar = Kernels::for_isa(Isa::Scalar).expect("scalar kernels exist everywhere");
    let workers = [Workers::new(1), Workers::new(2)];
    let mut random = Random::new(31);
    for format in WeightFormat::ALL.into_iter().filter(|format| format.takes_int8()) {
        for columns in columns(format) {
            for rows in [16, 37, 130] {
                for &input_rows in input_rows {
                    let case = Case::random(&mut random, format, rows, columns, input_rows);
                    let expected = case.run(&workers[0], scalar);
                    for workers in &workers {
                        let found = case.run(workers, kernels);
                        let name = format!("{format} {isa}: {rows} x {columns}, {input_rows} inputs");
                        assert_eq!(bits(&expected), bits(&found), "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn amx_gives_the_bits_of_the_scalar_definition() {
    let before = crate::emulator::tile_products();
    equals_scalar(Isa::AmxInt8, Isa::Avx512Vnni, &[1, 8, 13, 15, 16, 17, 21, 33, 48], column_counts);
    if Isa::Avx512Vnni.is_supported() && !Isa::AmxInt8.is_supported() {
        assert!(crate::emulator::tile_products() > before + 10_000, "the tiles were used");
    }
}

#[test]
fn amx_passes_over_many_rows_begin_where_the_last_one_ended() {
    // Four tiles of 16 rows to a pass; the last pass has a whole pass, a full tile, a repeated one, or too few rows.
    equals_scalar(Isa::AmxInt8, Isa::Avx512Vnni, &[64, 67, 70, 128, 150], |format| {
        column_counts(format)[..1].to_vec()
    });
}

#[test]
fn avx_vnni_gives_the_bits_of_the_scalar_definition() {
    let before = crate::emulator::vector_products();
    equals_scalar(Isa::AvxVnni, Isa::Avx2, &[1, 2, 5, 8], |format| column_counts(format)[..1].to_vec());
    if Isa::Avx2.is_supported() && !Isa::AvxVnni.is_supported() {
        assert!(crate::emulator::vector_products() > before + 10_000, "the products were used");
    }
}

#[test]
fn sums_that_vanish_give_the_same_bits() {
    // Zero activations among others, and scales at the end of the range of f32, so that products vanish with either sign.
    for (isa, base) in [(Isa::AmxInt8, Isa::Avx512Vnni), (Isa::AvxVnni, Isa::Avx2)] {
        let Some(kernels) = kernels(isa, base) else { continue };
        let scalar = Kernels::for_isa(Isa::Scalar).expect("scalar kernels exist everywhere");
        let workers = Workers::new(1);
        let mut random = Random::new(32);
        for format in WeightFormat::ALL.into_iter().filter(|format| format.takes_int8()) {
            let mut case = Case::random(&mut random, format, 37, 256, 16);
            for (index, block) in case.blocks.iter_mut().enumerate() {
                let values = if index % 3 == 0 { [0; 32] } else { block.values };
                *block = ActivationBlock::from_values(values, f32::from_bits(1 + index as u32 % 3));
            }
            let expected = case.run(&workers, scalar);
            assert_eq!(bits(&expected), bits(&case.run(&workers, kernels)), "{format} {isa}");
        }
    }
}
