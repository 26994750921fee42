//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod machine;

#[cfg(target_os = "linux")]
mod direct_reads_leave_no_page_cache;
mod facts_come_from_any_machine;
mod pressure_comes_from_any_machine;
mod refusal_shows_the_sum;
mod reservations_never_exceed_the_budget;
mod slots_follow_the_memory_of_others;
mod smallest_budget_is_exact;
mod system_facts_come_from_any_machine;
mod the_longest_context_fits_and_one_more_does_not;
mod usage_follows_own_memory_only;
