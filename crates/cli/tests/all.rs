//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod common;

mod a_disk_in_memory_has_no_figures;
mod a_folder_is_taken_like_a_file;
mod a_hotlist_warms_the_next_start;
mod a_run_stops_cleanly;
mod a_trace_is_compared_by_simulate;
mod bench_draws_one_page;
mod convert_writes_one_file_that_loads_alone;
mod endless_input_is_refused;
mod every_setting_has_one_precedence;
mod exit_codes_tell_what_happened;
mod experts_of_another_type_are_packed_and_said;
mod inspect_is_a_page;
mod json_is_one_object;
mod nothing_of_the_users_is_overwritten;
mod plan_needs_only_headers;
mod pull_brings_a_model_that_runs;
mod serve_lets_answers_end;
mod serve_refuses_what_cannot_work;
mod status_tells_what_runs;
#[cfg(target_os = "linux")]
mod the_memory_gate_counts_address_space;
mod the_press_bounds_what_stays_in_memory;
mod tune_is_remembered_and_flags_win;
mod what_has_no_effect_is_said;
mod what_is_lossy_is_asked_for_shown_and_measured;
