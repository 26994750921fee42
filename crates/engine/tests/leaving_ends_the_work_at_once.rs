//! Whoever leaves must not be computed for: not in the queue, not in a long prompt, not in an answer. What went wrong
//! elsewhere: a closed window left the server busy for minutes with a prompt that nobody waited for.

mod asking;
mod common;

use std::time::Instant;

use asking::{ask, configuration, prompt, service, serving, wait_until, was_cancelled};
use coldpress::service::{Event, Request, SubmitError};

fn endless(seed: u32, prompt_tokens: usize) -> Request {
    let mut request = Request::new(prompt(seed, prompt_tokens), 10_000);
    request.ignore_eos = true;
    request
}

#[test]
fn in_the_queue_the_prompt_and_the_answer() {
    let service = service(&configuration(serving(1)));
    let client = service.client();
    // What a whole prompt and a whole layer take.
    let mut first = ask(&client, endless(1, 900));
    first.until(|event| matches!(event, Event::Started { .. }));
    let began = Instant::now();
    first.until(|event| matches!(event, Event::Prefill { done: 900, .. }));
    let whole = began.elapsed();
    first.until(|event| matches!(event, Event::Token { .. }));

    let mut waiting = ask(&client, endless(2, 900));
    waiting.until(|event| matches!(event, Event::Queued { .. }));
    drop(waiting.ticket.take());
    waiting.until(was_cancelled);
    assert_eq!(client.status().running.len(), 1, "the other one goes on");

    // In the answer: the next one begins at once.
    let mut next = ask(&client, endless(3, 900));
    drop(first.ticket.take());
    first.until(was_cancelled);
    next.until(|event| matches!(event, Event::Prefill { .. }));
    // In the prompt, after its first layer.
    let began = Instant::now();
    drop(next.ticket.take());
    next.until(was_cancelled);
    let took = began.elapsed();
    println!("left a prompt of {whole:?} after {took:?}");
    assert!(took < whole / 2, "{took:?} of {whole:?}");
    wait_until("nothing runs", || client.status().running.is_empty());
    // Its place is free before the pass ends, its prompt goes with the pass.
    wait_until("every request gave its memory back", || client.status().requests.held.0 == 0);
}

#[test]
fn the_queue_has_a_bound_and_the_end_of_the_service_reaches_everybody() {
    let serving = coldpress::service::Serving { queue: 2, ..serving(1) };
    let service = service(&configuration(serving));
    let client = service.client();
    let mut running = ask(&client, endless(1, 50));
    running.until(|event| matches!(event, Event::Token { .. }));
    let waiting: Vec<_> = (2..4).map(|seed| ask(&client, endless(seed, 50))).collect();
    let refused = client.submit(endless(9, 50), Box::new(|_| panic!("refused requests are told nothing")));
    assert!(matches!(refused, Err(SubmitError::QueueFull { waiting: 2, limit: 2 })), "{refused:?}");
    service.stop();
    for mut asked in waiting.into_iter().chain([running]) {
        asked.until(was_cancelled);
    }
    let late = client.submit(endless(9, 50), Box::new(|_| panic!("refused requests are told nothing")));
    assert!(matches!(late, Err(SubmitError::Stopped)), "{late:?}");
}

#[test]
fn what_cannot_be_answered_is_refused_with_its_numbers() {
    let service = service(&configuration(serving(1)));
    let client = service.client();
    let refuse = |request: Request| {
        client
            .submit(request, Box::new(|_| panic!("refused requests are told nothing")))
            .expect_err("refused")
    };
    assert!(matches!(refuse(endless(1, 1025)), SubmitError::TooLong { prompt: 1025, context: 1024 }));
    assert!(matches!(refuse(endless(1, 0)), SubmitError::BadOption(_)));
    assert!(matches!(refuse(Request::new(vec![u32::MAX], 5)), SubmitError::BadOption(_)));
    let mut hot = endless(1, 5);
    hot.sampling.temperature = -1.0;
    assert!(matches!(refuse(hot), SubmitError::BadOption(_)));
    let small = coldpress::service::Serving { request_bytes: coldpress::Bytes(4096), ..serving(1) };
    let service = asking::service(&configuration(small));
    let refused = service.client().submit(endless(1, 1000), Box::new(|_| {}));
    assert!(matches!(refused, Err(SubmitError::NoRoom { .. })), "{refused:?}");
}
