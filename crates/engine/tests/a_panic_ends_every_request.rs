//! A defect that ends the thread of a service must end all its requests. What went wrong: whoever waited then waited for ever,
//! new requests were taken into a queue that nobody read, and the service still called itself ready.

use std::sync::mpsc::channel;

use crate::asking::{self, PATIENCE, ask, configuration, prompt, service, serving};
use coldpress::EngineError;
use coldpress::service::{Event, Request, SubmitError};

fn endless(seed: u32) -> Request {
    let mut request = Request::new(prompt(seed, 20), 10_000);
    request.ignore_eos = true;
    request
}

#[test]
fn those_that_run_and_wait_are_told_and_new_ones_are_refused() {
    let service = service(&configuration(serving(2)));
    let client = service.client();
    let mut running = ask(&client, endless(1));
    running.until(|event| matches!(event, Event::Token { .. }));
    let (submitted, all_there) = channel::<()>();
    let (told, last) = channel();
    let sink = Box::new(move |event| match event {
        Event::Token { .. } => {
            all_there.recv_timeout(PATIENCE).expect("the others are there");
            panic!("a defect");
        }
        Event::Failed(error) => told.send(error).expect("the test listens"),
        _ => {}
    });
    let _defective = client.submit(endless(2), sink).expect("is taken");
    let waiting = ask(&client, endless(3));
    submitted.send(()).expect("the service waits");

    for (what, mut asked) in [("running", running), ("waiting", waiting)] {
        let end = loop {
            match asked.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: no end")) {
                Event::Finished(finished) => panic!("{what}: {finished:?}"),
                Event::Failed(error) => break error,
                _ => {}
            }
        };
        assert!(matches!(&*end, EngineError::Defect { .. }), "{what}: {end}");
        drop(asked.ticket.take());
    }
    assert!(matches!(&*last.recv_timeout(PATIENCE).expect("told"), EngineError::Defect { .. }));
    asking::wait_until("the failure is known", || client.failure().is_some());
    assert_eq!(client.failure(), Some("a defect"));
    let late = client.submit(endless(4), Box::new(|_| panic!("refused requests are told nothing")));
    assert!(matches!(&late, Err(SubmitError::Failed { reason }) if reason == "a defect"), "{late:?}");
    assert!(client.status().running.is_empty());
    service.stop();
}
