//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod attention_support;
mod common;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulator;
mod vector_support;

mod activations_follow_their_rule;
mod attention_depends_on_the_query_alone;
mod attention_matches_f64;
mod attention_never_reads_hidden_keys;
mod blocks_equal_the_gguf_package;
mod codes_compute_as_their_values_in_f32;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulated_instructions_follow_the_manual;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulated_kernels_equal_scalar;
mod every_kernel_equals_scalar;
mod fused_operations_equal_their_parts;
mod packing_loses_nothing;
mod probes_bound_the_kernels;
mod products_match_dequantised_weights;
mod quantised_rows_are_close_and_the_same_everywhere;
mod recurrent_steps_match_f64;
mod rotated_rows_match_f64;
mod searched_blocks_are_closer_than_llama_cpps;
mod sparse_attention_chooses_the_best_positions;
mod state_space_steps_match_f64;
mod the_kernel_document_lists_every_kernel;
mod vector_functions_are_close_to_f64;
mod vector_rows_match_f64;
mod vector_same_bits_on_every_isa;
