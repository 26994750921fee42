//! The integration tests of this crate as one program: linking each file on its own took most of a build.
//! What watches the whole process (its memory, its heap, the clock) is a program of its own, named in `Cargo.toml`.

mod common;

mod anthropic_messages_have_their_shape;
mod clients_that_misbehave_do_no_harm;
mod dropped_reasoning_comes_back;
mod errors_have_the_apis_shape;
mod fields_are_named_and_never_swallowed;
mod half_a_call_is_never_run;
mod ollama_answers_have_their_shape;
mod only_those_who_may_ask_are_answered;
mod openai_chat_has_its_shape;
mod openai_completions_have_their_shape;
mod openai_responses_have_their_shape;
mod the_bundled_model_is_served;
mod what_the_server_tells_about_itself;
