//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod support;

mod a_header_is_enough_for_a_plan;
mod agrees_with_gguf_py;
mod any_change_of_a_file_is_answered;
mod every_truncation_is_an_error;
mod fuzz_corpus_is_current;
mod hostile_checkpoints_get_named_errors;
mod hostile_files_get_named_errors;
mod metadata_getters_refuse_what_does_not_fit;
mod split_sets_open_from_any_part;
mod writer_output_is_byte_equal_to_gguf_py;
