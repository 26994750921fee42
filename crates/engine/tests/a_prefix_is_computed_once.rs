//! With a streamed model the prompt is the cost. A conversation that goes on, a second one with the same beginning, and both
//! after a restart must not compute again what was computed.

use crate::asking::{Told, ask, configuration, prompt, service, serving};
use coldpress::Bytes;
use coldpress::service::{Request, ServiceClient, Serving};

fn tell(client: &ServiceClient, ids: Vec<u32>) -> Told {
    let mut request = Request::new(ids, 24);
    request.ignore_eos = true;
    ask(client, request).answer()
}

/// Ten turns like those of an agent: each prompt is everything so far and some new words. Returns the answers, the tokens
/// that were computed again, and the tokens of all prompts.
fn agent(client: &ServiceClient) -> (Vec<Vec<u32>>, usize, usize) {
    let (mut again, mut all) = (0, 0);
    let mut history = prompt(77, 200);
    let mut answers = Vec::new();
    let mut computed = 0;
    for turn in 0..10 {
        history.extend(prompt(1000 + turn, 35));
        let told = tell(client, history.clone());
        again += computed - told.cached.min(computed);
        all += history.len();
        history.extend(&told.tokens);
        // The last token of an answer is chosen and not computed.
        computed = history.len() - 1;
        answers.push(told.tokens);
    }
    (answers, again, all)
}

#[test]
fn ten_turns_compute_nothing_again() {
    let service = service(&configuration(serving(2)));
    let (first, again, all) = agent(&service.client());
    println!("{again} of {all} tokens computed again");
    assert_eq!(again, 0);
    let (second, again, _) = agent(&service.client());
    assert_eq!((second, again), (first, 0));
}

#[test]
fn a_restart_goes_on_from_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let with_snapshots =
        || Serving { snapshots: Some((folder.path().to_owned(), Bytes(1 << 30))), ..serving(2) };
    let first = service(&configuration(with_snapshots()));
    let (answers, _, _) = agent(&first.client());
    first.stop();

    let second = service(&configuration(with_snapshots()));
    let client = second.client();
    let mut history = prompt(77, 200);
    for (turn, answer) in answers.iter().enumerate() {
        history.extend(prompt(1000 + turn as u32, 35));
        history.extend(answer);
    }
    let last = answers.last().expect("ten turns").len();
    history.truncate(history.len() - last);
    let told = tell(&client, history.clone());
    println!("{} of {} tokens came from the disk", told.cached, history.len());
    // All but the new words of the last turn: also the end of a conversation is kept, which fills no page.
    assert!(told.cached >= history.len() - 1 - 35, "{} of {}", told.cached, history.len());
    assert_eq!(told.tokens, answers[9], "a page from the disk has the same bits");
}

/// What went wrong: only whole pages were found again, so a conversation that parted from an earlier one in the middle of a page,
/// or went on behind the last whole one, computed up to 63 known tokens after each restart.
#[test]
fn a_page_that_agrees_in_part_is_used_as_far_as_it_agrees() {
    let folder = tempfile::tempdir().expect("a folder");
    let serving = || Serving { snapshots: Some((folder.path().to_owned(), Bytes(1 << 30))), ..serving(2) };
    let ids = prompt(21, 150);
    let mut parted = ids[..100].to_vec();
    parted.extend(prompt(22, 30));
    let alone = service(&configuration(crate::asking::serving(2)));
    let expected = tell(&alone.client(), parted.clone()).tokens;
    alone.stop();
    let first = service(&configuration(serving()));
    tell(&first.client(), ids);
    first.stop();
    let second = service(&configuration(serving()));
    let told = tell(&second.client(), parted);
    assert_eq!((told.cached, told.tokens), (100, expected));
    second.stop();
    // The end of the first conversation, of which the second one has 100 of 173 tokens, is still there.
    let third = service(&configuration(serving()));
    let told = tell(&third.client(), prompt(21, 150));
    assert_eq!(told.cached, 149);
}

/// A conversation that goes on leaves one end in the folder, not one for each turn.
#[test]
fn a_longer_end_takes_the_place_of_a_shorter_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let serving = Serving { snapshots: Some((folder.path().to_owned(), Bytes(1 << 30))), ..serving(2) };
    let service = service(&configuration(serving));
    let mut history = prompt(3, 70);
    for _ in 0..4 {
        let mut request = Request::new(history.clone(), 10);
        request.ignore_eos = true;
        history.extend(ask(&service.client(), request).answer().tokens);
    }
    service.stop();
    let model =
        std::fs::read_dir(folder.path()).expect("there").next().expect("one").expect("readable").path();
    let files = std::fs::read_dir(model).expect("there").map(|entry| entry.expect("readable").path());
    let pages = files.filter(|file| file.extension().is_some_and(|kind| kind == "kvpage")).count();
    assert_eq!(pages, 2, "109 tokens are a whole page and an end");
}

#[test]
fn damaged_and_foreign_snapshots_are_computed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let serving = || Serving { snapshots: Some((folder.path().to_owned(), Bytes(1 << 30))), ..serving(2) };
    let ids = prompt(5, 300);
    let first = service(&configuration(serving()));
    let expected = tell(&first.client(), ids.clone()).tokens;
    first.stop();
    let model =
        std::fs::read_dir(folder.path()).expect("there").next().expect("one model").expect("readable").path();
    let mut files: Vec<_> =
        std::fs::read_dir(&model).expect("there").map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "kvpage"));
    files.sort();
    assert_eq!(files.len(), 5, "324 tokens are five whole pages");
    for (index, file) in files.iter().enumerate() {
        match index {
            0 => std::fs::write(file, b"not a page").expect("written"),
            1 => {
                let mut bytes = std::fs::read(file).expect("there");
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                std::fs::write(file, bytes).expect("written");
            }
            _ => {}
        }
    }
    std::fs::write(model.join("readme.txt"), "mine").expect("written");
    let second = service(&configuration(serving()));
    let told = tell(&second.client(), ids);
    assert_eq!(told.tokens, expected);
    second.stop();
    assert!(model.join("readme.txt").exists(), "nothing of the user's is removed");
}

#[test]
fn the_folder_stays_within_its_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = service(&configuration(serving(1)));
    let page = first.client().status().prefix.page_bytes;
    first.stop();
    let most = Bytes(page.0 * 4);
    let serving = Serving { snapshots: Some((folder.path().to_owned(), most)), ..serving(1) };
    let service = service(&configuration(serving));
    for seed in 0..4 {
        tell(&service.client(), prompt(seed, 200));
    }
    service.stop();
    let model =
        std::fs::read_dir(folder.path()).expect("there").next().expect("one model").expect("readable").path();
    let bytes: u64 = std::fs::read_dir(model)
        .expect("there")
        .map(|entry| entry.expect("readable").metadata().expect("readable").len())
        .sum();
    assert!(bytes > 0 && bytes <= most.0, "{bytes} of {most}");
}

#[test]
fn two_that_come_together_share_what_they_have_in_common() {
    let service = service(&configuration(serving(4)));
    let client = service.client();
    let asked: Vec<_> = (0..4)
        .map(|seed| {
            let mut ids = prompt(9, 640);
            ids.extend(prompt(200 + seed, 20));
            let mut request = Request::new(ids, 8);
            request.ignore_eos = true;
            ask(&client, request)
        })
        .collect();
    asked.into_iter().for_each(|asked| drop(asked.answer()));
    let totals = client.status().totals;
    // The common part once, and each one's rest.
    assert!(totals.prefill_tokens <= 640 + 4 * 84, "{} tokens computed", totals.prefill_tokens);
}
