//! Requests that share passes get the answers of their own runs from models whose rows carry more than the residual stream from one
//! layer to the next: the positions that were chosen for them (GLM-5), what experts add later (LongCat-Flash).
//!
//! What could go wrong: a choice taken from the row of another request, and rows that move to the front of the pass when others
//! leave it, without what belongs to them.

use std::path::Path;
use std::sync::mpsc::channel;

use crate::asking::{self, Asked, PATIENCE, ask, tiny_prompt as prompt, was_cancelled};
use crate::checkpoint::Reference;
use crate::common::load;
use coldpress::service::{Event, Request, Service, Serving};
use coldpress::{Bytes, GenerateOptions, LoadConfiguration, Residency, Silent};

const ANSWER: usize = 12;

fn configuration(parallel: usize) -> LoadConfiguration {
    let serving =
        Serving { parallel, kv_positions: Some(2048), request_bytes: Bytes(8 << 20), ..Serving::default() };
    LoadConfiguration::default()
        .residency(Residency::Streamed)
        .slots(4)
        .context(512)
        .chunk_tokens(512)
        .threads(2)
        .serving(serving)
}

fn request(ids: &[u32]) -> Request {
    asking::request(ids.to_vec(), ANSWER)
}

fn alone(folder: &Path, ids: &[u32]) -> Vec<u32> {
    let mut runtime = load(folder, &configuration(1));
    let mut session = runtime.session().expect("a session");
    let options = GenerateOptions { max_tokens: ANSWER, ignore_eos: true, ..GenerateOptions::default() };
    runtime.generate(&mut session, ids, &options, &mut Silent).expect("answers").tokens
}

#[test]
fn answers_are_those_of_runs_alone_also_when_others_leave_the_pass() {
    for name in ["glm_moe_dsa", "longcat_flash"] {
        let Some(reference) = Reference::open(name) else { continue };
        let folder = reference.linked("config.json");
        let service = Service::start(load(folder.path(), &configuration(4))).expect("starts");
        let client = service.client();
        // Holds the service until all are there, so that one pass carries them.
        let (go, may_go) = channel::<()>();
        let (holds, held) = channel();
        let sink = Box::new(move |event| {
            if matches!(event, Event::Token { .. }) {
                let _ = holds.send(());
                let _ = may_go.recv_timeout(PATIENCE);
            }
        });
        let _first = client.submit(Request::new(prompt(2, 10), 1), sink).expect("is taken");
        held.recv_timeout(PATIENCE).expect("a token");
        let mut leaving = ask(&client, request(&prompt(8, 70)));
        let (layer_done, layers) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let (tell, events) = channel();
        let sink = Box::new(move |event| {
            if matches!(event, Event::Prefill { .. }) {
                let _ = layer_done.send(());
                let _ = may_go_on.recv_timeout(PATIENCE);
            }
            let _ = tell.send(event);
        });
        let staying = prompt(6, 90);
        let ticket = client.submit(request(&staying), sink).expect("is taken");
        let watched = Asked { ticket: Some(ticket), events, seen: Vec::new() };
        let short = prompt(9, 5);
        let beside = ask(&client, request(&short));
        go.send(()).expect("the service waits");
        layers.recv_timeout(PATIENCE).expect("a first layer");
        drop(leaving.ticket.take());
        drop(go_on);
        leaving.until(was_cancelled);
        assert_eq!(watched.answer().tokens, alone(folder.path(), &staying), "{name}: who stayed");
        assert_eq!(beside.answer().tokens, alone(folder.path(), &short), "{name}: who was beside");
        // A beginning that was computed for another request.
        let mut longer = staying.clone();
        longer.extend(prompt(3, 40));
        let told = ask(&client, request(&longer)).answer();
        assert!(told.cached >= 64, "{name}: nothing was shared");
        assert_eq!(told.tokens, alone(folder.path(), &longer), "{name}: who began alike");
    }
}
