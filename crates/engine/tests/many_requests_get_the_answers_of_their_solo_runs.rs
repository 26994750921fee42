//! A server that mixes up two conversations, or lets one change the other, is worse than none. Sixteen conversations at once,
//! some of them aborted at every stage, must each get the bits of a run of their own.

use crate::asking::{ask, configuration, prompt, service, serving, was_cancelled};
use crate::common::{demo, load};
use coldpress::service::{Event, Request};
use coldpress::{GenerateOptions, LoadConfiguration, Sampling, Silent};

/// Conversation `index`: some greedy, some drawn, short and long prompts, common beginnings and none.
fn canary(index: u32) -> Request {
    let mut ids = prompt(index % 5, 20 + 37 * (index as usize % 5));
    ids.extend(prompt(100 + index, 5 + 61 * (index as usize % 7)));
    let mut request = Request::new(ids, 12 + index as usize % 9);
    request.ignore_eos = true;
    request.client = format!("client {}", index % 3);
    if index % 2 == 1 {
        request.sampling =
            Sampling { temperature: 0.8, top_p: 0.95, seed: u64::from(index), ..Sampling::default() };
        request.sampling.repetition_penalty = 1.1;
    }
    request
}

fn solo(configuration: &LoadConfiguration, request: &Request) -> Vec<u32> {
    let mut runtime = load(&demo(), configuration);
    let mut session = runtime.session().expect("a session");
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        sampling: request.sampling,
        ignore_eos: true,
        continuation: false,
    };
    runtime.generate(&mut session, &request.prompt, &options, &mut Silent).expect("answers").tokens
}

#[test]
fn sixteen_at_once_with_aborts_between_them() {
    let configuration = configuration(serving(16));
    let expected: Vec<Vec<u32>> = (0..16).map(|index| solo(&configuration, &canary(index))).collect();
    let service = service(&configuration);
    let client = service.client();
    for round in 0..2 {
        let mut asked: Vec<_> = (0..16).map(|index| ask(&client, canary(index))).collect();
        // Others come and leave: in the queue, in the prompt, in the answer.
        for stage in 0..3 {
            let mut other = ask(&client, canary(40 + stage));
            match stage {
                0 => {}
                1 => drop(other.until(|event| matches!(event, Event::Prefill { .. }))),
                _ => drop(other.until(|event| matches!(event, Event::Token { .. }))),
            }
            drop(other.ticket.take());
            other.until(was_cancelled);
        }
        for (index, asked) in asked.drain(..).enumerate() {
            let told = asked.answer();
            assert_eq!(told.tokens, expected[index], "conversation {index}, round {round}");
            assert_eq!(told.finished.completion_tokens, told.tokens.len());
        }
    }
    let totals = client.status().totals;
    assert_eq!((totals.finished, totals.cancelled, totals.failed), (32, 6, 0));
    assert!(totals.cached_tokens > 0, "the second round finds what the first has computed");
}

#[test]
fn any_number_at_once_gives_the_same_answers() {
    let base = configuration(serving(1));
    let expected: Vec<Vec<u32>> = (0..6).map(|index| solo(&base, &canary(index))).collect();
    for parallel in [1, 2, 3, 8] {
        let service = service(&configuration(serving(parallel)));
        let asked: Vec<_> = (0..6).map(|index| ask(&service.client(), canary(index))).collect();
        for (told, expected) in asked.into_iter().map(crate::asking::Asked::answer).zip(&expected) {
            assert_eq!(&told.tokens, expected, "{parallel} at once");
        }
    }
}

#[test]
fn with_too_little_room_for_all_the_youngest_waits_and_nobody_loses_a_token() {
    // 20 pages for four requests of up to 6 pages each, and a prefix tree that wants all of them.
    let little = coldpress::service::Serving { kv_positions: Some(1024), ..serving(4) };
    let configuration = configuration(little);
    let requests = || {
        (0..6).map(|index| {
            let mut request = Request::new(prompt(index, 330), 40);
            request.ignore_eos = true;
            request
        })
    };
    let expected: Vec<Vec<u32>> = requests().map(|request| solo(&configuration, &request)).collect();
    let service = service(&configuration);
    let client = service.client();
    let asked: Vec<_> = requests().map(|request| ask(&client, request)).collect();
    for (told, expected) in asked.into_iter().map(crate::asking::Asked::answer).zip(&expected) {
        assert_eq!(&told.tokens, expected);
    }
    let status = client.status();
    assert_eq!(status.totals.finished, 6);
    assert!(status.prefix.pages == 16, "{:?}", status.prefix);
}
