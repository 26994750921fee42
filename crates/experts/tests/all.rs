//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod a_panic_while_reading_ends_the_visit;
mod belady_equals_exhaustive_search;
mod cancelled_visit_leaves_no_read_behind;
mod dense_tensors_stream_in_order;
mod each_expert_is_read_once_per_visit;
mod every_flipped_pack_byte_is_detected;
mod eviction_never_picks_a_busy_slot;
mod foreign_or_damaged_packs_are_refused_by_name;
mod heads_are_completed_or_forgotten;
mod hostile_traces_get_named_errors;
mod mapped_records_stay_within_their_places;
mod memory_goes_back_in_the_middle_of_a_visit;
mod packing_stays_in_bounded_memory;
mod parts_of_a_record_come_together_again;
mod quantised_records_are_what_their_values_say;
mod reader_faults_never_reach_a_kernel;
#[cfg(target_os = "linux")]
mod reader_refuses_o_direct;
mod records_do_not_depend_on_their_way_into_memory;
mod rows_do_not_depend_on_the_cache;
mod slot_is_not_reused_while_pinned;
mod slots_come_and_go_while_experts_are_read;
mod the_default_policy_wins_on_recorded_routing;
mod what_is_loaded_before_anybody_asks_is_not_counted;
