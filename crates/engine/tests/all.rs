//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod asking;
mod checkpoint;
mod common;
mod families;

mod a_file_written_from_a_folder_equals_it;
mod a_model_that_does_not_add_up_is_refused_by_name;
mod a_panic_ends_every_request;
mod a_prefix_is_computed_once;
mod a_remembered_measurement_is_checked;
mod a_replayed_trace_has_the_hits_of_the_run;
mod a_text_model_inside_a_larger_one_is_read_alone;
mod blocks_for_later_tokens_cost_nothing;
mod compressed_attention_agrees_with_transformers;
mod conversations_share_the_kv_cache;
mod doctor_judges_any_machine;
mod every_constant_of_a_family_counts;
mod every_pair_of_settings_gives_the_same_bits;
mod every_weight_format_computes_what_its_values_say;
mod experts_without_weights_are_not_asked_for;
mod folders_that_cannot_be_used_are_refused_by_name;
mod hugging_face_folders_agree_with_transformers;
mod latent_attention_keeps_one_row_per_position;
mod layer_kinds_and_spellings_mean_what_they_say;
mod layers_with_a_delta_rule_equal_float64;
mod logits_agree_with_transformers;
mod logits_do_not_depend_on_budget;
mod long_prompts_read_each_expert_once;
mod lossy_settings_are_compared_with_exact_ones;
mod many_requests_get_the_answers_of_their_solo_runs;
mod recurrent_states_are_kept_for_later;
mod sequences_in_one_pass_have_states_of_their_own;
mod sparse_attention_sees_the_positions_it_chooses;
mod rows_of_n_grams_stay_on_disk;
mod who_leaves_a_shared_pass_is_out_after_its_layer;
