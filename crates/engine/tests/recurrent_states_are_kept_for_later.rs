//! A model with recurrent layers can go on only where a state was kept. Conversations that go on, prompts with a common beginning,
//! prompts whose end is edited, and all of them after a restart must find one, and none may get an answer from another's state.

use std::path::Path;

use crate::asking::{self, Told, ask, tiny_prompt as prompt, was_cancelled};
use crate::common::{fixture, load};
use coldpress::service::{Event, Request, Service, ServiceClient, Serving};
use coldpress::{Bytes, GenerateOptions, LoadConfiguration, Residency, Runtime, Silent};

const ANSWER: usize = 9;

fn configuration(serving: Serving) -> LoadConfiguration {
    LoadConfiguration::default()
        .residency(Residency::Streamed)
        .slots(4)
        .context(512)
        .chunk_tokens(64)
        .threads(2)
        .serving(serving)
}

fn serving(parallel: usize) -> Serving {
    Serving { parallel, kv_positions: Some(2048), request_bytes: Bytes(8 << 20), ..Serving::default() }
}

fn with_snapshots(folder: &Path) -> Serving {
    Serving { snapshots: Some((folder.to_owned(), Bytes(1 << 30))), ..serving(2) }
}

fn runtime(serving: Serving) -> Runtime {
    load(&fixture("lfm2moe.gguf"), &configuration(serving))
}

fn service(serving: Serving) -> Service {
    Service::start(runtime(serving)).expect("starts")
}

fn request(ids: &[u32]) -> Request {
    asking::request(ids.to_vec(), ANSWER)
}

fn tell(client: &ServiceClient, ids: &[u32]) -> Told {
    ask(client, request(ids)).answer()
}

/// Answers of a run that has computed nothing before.
struct Alone(Runtime);

impl Alone {
    fn answer(&mut self, ids: &[u32]) -> Vec<u32> {
        let mut session = self.0.session().expect("a session");
        let options = GenerateOptions { max_tokens: ANSWER, ignore_eos: true, ..GenerateOptions::default() };
        self.0.generate(&mut session, ids, &options, &mut Silent).expect("answers").tokens
    }
}

/// Ids of `parts`, one after the other.
fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn conversations_edits_and_common_beginnings_go_on_from_kept_states() {
    let mut alone = Alone(runtime(serving(1)));
    let service = service(serving(2));
    let client = service.client();
    let mut check = |ids: &[u32], cached: usize, what: &str| {
        let told = tell(&client, ids);
        assert_eq!(told.tokens, alone.answer(ids), "{what}: not the answer of a run of its own");
        assert_eq!(told.cached, cached, "{what}");
        told.tokens
    };
    // A conversation computes nothing again; the last token of an answer is chosen and not computed.
    let mut history = prompt(1, 150);
    let mut there = 0;
    for turn in 0..5 {
        let answer = check(&history, there, "a conversation that goes on");
        history.extend(answer);
        there = history.len() - 1;
        history.extend(prompt(100 + turn, 21));
    }
    // The end of a prompt is edited, or it is asked again: the page before its end.
    let asked = prompt(2, 200);
    check(&asked, 0, "a new prompt");
    check(&asked, 192, "the same prompt");
    check(&joined(&[&asked[..195], &prompt(50, 9)]), 192, "another end");
    // The second of a kind shows where they part; the third goes on from there.
    let common = prompt(3, 150);
    check(&joined(&[&common, &prompt(60, 70)]), 0, "the first of a kind");
    check(&joined(&[&common, &prompt(61, 70)]), 0, "the second");
    check(&joined(&[&common, &prompt(62, 70)]), 128, "the third");
    check(&joined(&[&common, &prompt(63, 5)]), 128, "one that ends soon");
    check(&common[..100], 0, "less than what is common");
    let status = client.status();
    assert_eq!(status.totals.failed, 0);
    // Two that compute need four slots, and what is kept is bounded.
    assert_eq!((status.prefix.state_slots, status.prefix.state_bytes), (8, Bytes(2 * 64 * 4)));
    assert_eq!(status.prefix.cached_states + status.prefix.free_state_slots, 8);
}

#[test]
fn many_at_once_with_a_common_beginning_and_some_that_leave() {
    let mut alone = Alone(runtime(serving(1)));
    let common = prompt(4, 200);
    let all: Vec<Vec<u32>> =
        (0..6).map(|seed| joined(&[&common, &prompt(70 + seed, 11 * seed as usize + 3)])).collect();
    let expected: Vec<Vec<u32>> = all.iter().map(|ids| alone.answer(ids)).collect();
    for parallel in [1, 2, 4] {
        let service = service(serving(parallel));
        let client = service.client();
        for round in 0..3 {
            let asked: Vec<_> = all.iter().map(|ids| ask(&client, request(ids))).collect();
            let mut other = ask(&client, request(&joined(&[&common, &prompt(90 + round, 150)])));
            match round {
                0 => drop(other.until(|event| matches!(event, Event::Prefill { .. }))),
                _ => drop(other.until(|event| matches!(event, Event::Token { .. }))),
            }
            drop(other.ticket.take());
            other.until(was_cancelled);
            for (asked, expected) in asked.into_iter().zip(&expected) {
                assert_eq!(&asked.answer().tokens, expected, "{parallel} at once, round {round}");
            }
        }
        let totals = client.status().totals;
        assert_eq!((totals.finished, totals.failed), (18, 0));
        // The common part once or twice, and each one's rest, instead of everything three times.
        assert!(totals.cached_tokens > 8 * 192, "{} tokens found again", totals.cached_tokens);
    }
}

/// A pool with room for two of these conversations: pages and states are evicted, requests make room for others.
#[test]
fn answers_are_the_same_when_there_is_room_for_few() {
    let mut alone = Alone(runtime(serving(1)));
    let all: Vec<Vec<u32>> = (0..8).map(|seed| prompt(20 + seed, 180 + 30 * (seed as usize % 3))).collect();
    let expected: Vec<Vec<u32>> = all.iter().map(|ids| alone.answer(ids)).collect();
    let service = service(Serving { kv_positions: Some(512), ..serving(4) });
    for round in 0..2 {
        let asked: Vec<_> = all.iter().map(|ids| ask(&service.client(), request(ids))).collect();
        for (asked, expected) in asked.into_iter().zip(&expected) {
            assert_eq!(&asked.answer().tokens, expected, "round {round}");
        }
    }
}

#[test]
fn a_restart_goes_on_from_the_disk_and_damaged_states_are_computed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = service(with_snapshots(folder.path()));
    let asked = prompt(5, 170);
    let answer = tell(&first.client(), &asked).tokens;
    first.stop();

    let history = joined(&[&asked, &answer, &prompt(80, 15)]);
    let edited = joined(&[&asked[..165], &prompt(81, 15)]);
    let mut alone = Alone(runtime(serving(1)));
    let expected = [&history, &edited].map(|ids| alone.answer(ids));
    let second = service(with_snapshots(folder.path()));
    let told = tell(&second.client(), &history);
    // What was computed: everything but the last token of the answer.
    assert_eq!((told.cached, &told.tokens), (asked.len() + ANSWER - 1, &expected[0]));
    let told = tell(&second.client(), &edited);
    assert_eq!((told.cached, &told.tokens), (128, &expected[1]));
    second.stop();

    let model =
        std::fs::read_dir(folder.path()).expect("there").next().expect("one model").expect("readable").path();
    let mut states = 0;
    for entry in std::fs::read_dir(&model).expect("there") {
        let file = entry.expect("readable").path();
        if file.extension().is_some_and(|kind| kind == "kvstate") {
            let mut bytes = std::fs::read(&file).expect("there");
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(&file, bytes).expect("written");
            states += 1;
        }
    }
    assert!(states >= 3, "{states} states were written");
    let third = service(with_snapshots(folder.path()));
    let told = tell(&third.client(), &history);
    assert_eq!((told.cached, &told.tokens), (0, &expected[0]));
}

/// Without a service: a session that is cut goes on from the page before the end of its last prompt, or computes anew.
#[test]
fn a_session_that_is_cut_gives_the_answer_of_a_new_one() {
    let options = GenerateOptions { max_tokens: ANSWER, ignore_eos: true, ..GenerateOptions::default() };
    let plain = LoadConfiguration::default().context(512).chunk_tokens(48).threads(2);
    let mut runtime = load(&fixture("lfm2moe.gguf"), &plain);
    let mut alone = Alone(load(&fixture("lfm2moe.gguf"), &plain));
    let (mut session, mut other) =
        (runtime.session().expect("a session"), runtime.session().expect("a session"));
    let first = prompt(6, 140);
    let mut check = |session: &mut coldpress::Session, ids: &[u32], cached: usize, what: &str| {
        let answer = runtime.generate(session, ids, &options, &mut Silent).expect("answers");
        assert_eq!(answer.tokens, alone.answer(ids), "{what}");
        assert_eq!(answer.cached_tokens, cached, "{what}");
        answer.tokens
    };
    let answer = check(&mut session, &first, 0, "the first");
    let second = joined(&[&first, &answer, &prompt(30, 21)]);
    check(&mut session, &second, 148, "the conversation goes on");
    session.truncate(150);
    check(&mut session, &joined(&[&second[..150], &prompt(31, 9)]), 148, "cut behind the end of an answer");
    session.truncate(140);
    check(&mut session, &joined(&[&second[..140], &prompt(34, 9)]), 128, "cut behind a kept state");
    check(&mut other, &prompt(7, 100), 0, "another conversation");
    check(&mut other, &prompt(7, 100), 64, "the same once more");
    check(&mut session, &joined(&[&second[..140], &prompt(32, 9)]), 0, "cut after another took its slot");
    session.truncate(100);
    check(&mut session, &joined(&[&second[..100], &prompt(33, 9)]), 0, "cut before a kept state");
}

/// More conversations than slots: those that rested longest give theirs up, and compute again.
#[test]
fn more_sessions_than_slots_get_their_answers() {
    let options = GenerateOptions { max_tokens: ANSWER, ignore_eos: true, ..GenerateOptions::default() };
    let plain = LoadConfiguration::default().context(512).threads(2);
    let mut runtime = load(&fixture("lfm2moe.gguf"), &plain.clone().kv_positions(2048));
    let mut alone = Alone(load(&fixture("lfm2moe.gguf"), &plain));
    let mut sessions: Vec<_> =
        (0..6).map(|seed| (runtime.session().expect("a session"), prompt(40 + seed, 70))).collect();
    for round in 0..2 {
        for (session, history) in &mut sessions {
            let answer = runtime.generate(session, history, &options, &mut Silent).expect("answers");
            assert_eq!(answer.tokens, alone.answer(history), "round {round}");
            history.extend(answer.tokens);
            history.extend(prompt(50, 5));
        }
    }
}
