//! A request that is not wanted any more leaves a pass that it shares with others after the layer that is being computed: its
//! place and its pages are free then, and the others get the bits they would have had. What went wrong: where others had more
//! rows in the pass, it was computed to the end for nobody, up to all layers of thousands of tokens.

use std::sync::mpsc::channel;

use crate::asking::{self, Asked, PATIENCE, ask, configuration, prompt, service, serving, was_cancelled};
use coldpress::service::{Event, Request};

/// Has half of the pass.
const LONG: usize = 950;
/// Has the rest of it.
const LEAVING: usize = 400;
/// Has no row in it.
const RESTING: usize = 940;
const BESIDE: usize = 200;

#[test]
fn its_place_and_its_pages_are_free_one_layer_later() {
    let service = service(&configuration(serving(4)));
    let client = service.client();
    let alone = ask(&client, Request::new(prompt(5, LONG), 12)).answer();
    let stayed = ask(&client, Request::new(prompt(9, BESIDE), 12)).answer();

    // Holds the service until all are there, so that one pass carries them.
    let (go, may_go) = channel::<()>();
    let (holds, held) = channel();
    let sink = Box::new(move |event| {
        if matches!(event, Event::Token { .. }) {
            holds.send(()).expect("the test listens");
            may_go.recv_timeout(PATIENCE).expect("the others are there");
        }
    });
    let _first = client.submit(Request::new(prompt(2, 10), 1), sink).expect("is taken");
    held.recv_timeout(PATIENCE).expect("a token");

    // Tells each finished layer and waits, so that the test looks at the service between two layers.
    let (layer_done, layers) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let (tell, events) = channel();
    // Other tokens than before, or nothing would be left to compute.
    let mut other = prompt(6, LONG);
    other[0] = 7;
    let sink = Box::new(move |event| {
        if matches!(event, Event::Prefill { .. }) {
            let _ = layer_done.send(());
            let _ = may_go_on.recv_timeout(PATIENCE);
        }
        let _ = tell.send(event);
    });
    let ticket = client.submit(Request::new(other.clone(), 12), sink).expect("is taken");
    let staying = Asked { ticket: Some(ticket), events, seen: Vec::new() };
    let mut leaving = ask(&client, Request::new(prompt(8, LEAVING), 50));
    let mut resting = ask(&client, Request::new(prompt(4, RESTING), 50));
    let beside = ask(&client, Request::new(prompt(9, BESIDE), 12));
    go.send(()).expect("the service waits");

    let computed = || {
        let mut prompts: Vec<usize> =
            client.status().running.iter().map(|running| running.prompt_tokens).collect();
        prompts.sort_unstable();
        prompts
    };
    layers.recv_timeout(PATIENCE).expect("a first layer");
    assert_eq!(computed(), [BESIDE, LEAVING, RESTING, LONG]);
    drop(leaving.ticket.take());
    drop(resting.ticket.take());
    go_on.send(()).expect("the service waits");
    layers.recv_timeout(PATIENCE).expect("a second layer");
    assert_eq!(computed(), [BESIDE, LONG], "one layer later");
    let prefix = client.status().prefix;
    let others = LONG.div_ceil(64) + BESIDE.div_ceil(64);
    let free = prefix.free_pages + prefix.cached_pages;
    assert!(free + others >= prefix.pages, "{free} of {} pages can be had", prefix.pages);
    drop(go_on);
    leaving.until(was_cancelled);
    resting.until(was_cancelled);
    // The same prompt once more, with nobody beside it and nothing computed before.
    let shared = staying.answer();
    assert_eq!(beside.answer().tokens, stayed.tokens);
    service.stop();
    let service = asking::service(&configuration(serving(1)));
    let again = ask(&service.client(), Request::new(other, 12)).answer();
    assert_eq!(shared.tokens, again.tokens, "others leaving changes no bit");
    assert!(!alone.tokens.is_empty());
}
