//! What tests of the service share: a service on the bundled model, and a caller that waits for answers.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use coldpress::service::{Ending, Event, Finished, Request, Service, ServiceClient, Serving, Ticket};
use coldpress::{Bytes, LoadConfiguration, Residency};

use crate::common::{demo, load};

/// Longer than any step of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The bundled model with a quarter of its experts in memory.
pub fn configuration(serving: Serving) -> LoadConfiguration {
    LoadConfiguration::default()
        .residency(Residency::Streamed)
        .cold_fraction(0.75)
        .context(1024)
        .threads(2)
        .serving(serving)
}

pub fn serving(parallel: usize) -> Serving {
    Serving { parallel, kv_positions: Some(4 * 1024), request_bytes: Bytes(8 << 20), ..Serving::default() }
}

pub fn service(configuration: &LoadConfiguration) -> Service {
    Service::start(load(&demo(), configuration)).expect("starts")
}

/// A request that runs.
pub struct Asked {
    pub ticket: Option<Ticket>,
    pub events: Receiver<Event>,
    pub seen: Vec<Event>,
}

/// What a request has been told.
#[derive(Debug)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub text: String,
    pub cached: usize,
    pub finished: Finished,
}

pub fn ask(client: &ServiceClient, request: Request) -> Asked {
    let (tell, events) = channel();
    let sink = Box::new(move |event| {
        // A caller that went away listens no more.
        let _ = tell.send(event);
    });
    let ticket = client.submit(request, sink).expect("is taken");
    Asked { ticket: Some(ticket), events, seen: Vec::new() }
}

impl Asked {
    pub fn next(&mut self) -> Event {
        let event = self.events.recv_timeout(PATIENCE).expect("a further event");
        self.seen.push(event.clone());
        event
    }

    /// Waits for an event that `is` so.
    pub fn until(&mut self, is: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next();
            assert!(!matches!(&event, Event::Failed(_)), "{event:?}");
            if is(&event) {
                return event;
            }
        }
    }

    /// Waits for the end.
    pub fn answer(mut self) -> Told {
        let mut told = None;
        while told.is_none() {
            match self.next() {
                Event::Finished(finished) => told = Some(*finished),
                Event::Failed(error) => panic!("no answer: {error}"),
                _ => {}
            }
        }
        let finished = told.expect("the loop ended");
        let mut answer = Told { tokens: Vec::new(), text: String::new(), cached: 0, finished };
        for event in &self.seen {
            match event {
                Event::Started { cached_tokens } => answer.cached = *cached_tokens,
                Event::Token { id, text, .. } => {
                    answer.tokens.push(*id);
                    answer.text.push_str(text);
                }
                _ => {}
            }
        }
        answer.text.push_str(&answer.finished.text);
        answer
    }
}

pub fn was_cancelled(event: &Event) -> bool {
    matches!(event, Event::Finished(finished) if finished.ending == Ending::Cancelled)
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: still not so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ids of a prompt of exactly `tokens` tokens that differs from those of other seeds from its first token on.
pub fn prompt(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|index| 300 + (seed * 7919 + index * 97 + index * index * seed) % 7000).collect()
}

/// As [`prompt`] for tiny models, with ids below 280 that no vocabulary of theirs uses for control.
pub fn tiny_prompt(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|index| 10 + (seed * 37 + index * 7 + index * index * (seed + 3)) % 270).collect()
}

/// Asks for exactly `tokens` tokens after `ids`.
pub fn request(ids: Vec<u32>, tokens: usize) -> Request {
    let mut request = Request::new(ids, tokens);
    request.ignore_eos = true;
    request
}
