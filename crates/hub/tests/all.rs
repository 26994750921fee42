//! The integration tests of this crate as one program, against a hub on the loopback interface.

mod common;

mod a_model_in_the_cache_is_found_without_the_hub;
mod a_pull_fills_the_cache_of_the_hub;
mod hostile_answers_are_refused;
mod only_what_was_announced_becomes_a_blob;
mod the_hub_may_ask_to_wait;
mod the_token_stays_with_the_hub;
mod two_pulls_do_not_disturb_each_other;
mod what_was_cut_goes_on_where_it_stopped;
