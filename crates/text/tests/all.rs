//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod answers;
mod common;
mod grammar_support;

mod an_answer_that_was_begun_is_continued;
mod answers_are_valid_under_their_schema;
mod answers_split_into_reasoning_content_and_calls;
mod byte_pairs_equal_the_tokenizers_crate;
mod dialects_are_detected_from_templates;
mod events_do_not_depend_on_cuts_and_lose_nothing;
mod grammar_figures;
mod grammars_begin_after_reasoning;
mod ids_equal_the_reference_tokenizers;
mod malformed_tokenizer_files_are_named_errors;
mod malformed_vocabularies_are_named_errors;
mod masks_equal_brute_force;
mod rank_files_give_the_reference_ids;
mod schemas_are_enforced_or_refused_by_path;
mod stop_strings_end_an_answer;
mod streamed_pieces_join_to_the_decoded_text;
mod templates_render_like_jinja2;
mod tokenizer_files_give_the_reference_ids;
mod user_text_never_becomes_a_control_token;
