//! A stop string ends the answer at the right character: with tokens that hold more than it, in pieces that cut it,
//! and with several that overlap. Text that only looked like one is not lost.

use coldpress_text::StopStrings;
use proptest::prelude::*;

/// The answer, the stop string found, and whether the last push said so.
fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
    let mut strings = StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect());
    let mut out = String::new();
    for piece in pieces {
        let found = strings.push(piece, &mut out);
        assert_eq!(found, strings.found().is_some());
    }
    strings.finish(&mut out);
    (out, strings.found().map(str::to_owned))
}

fn found(text: &str, stop: &str) -> (String, Option<String>) {
    (text.to_owned(), Some(stop.to_owned()))
}

#[test]
fn text_before_a_stop_is_kept_and_text_after_it_dropped() {
    assert_eq!(run(&["\n\n"], ["one\ntwo\n\nthree"]), found("one\ntwo", "\n\n"));
}

#[test]
fn a_stop_may_be_cut_by_pieces() {
    assert_eq!(run(&["STOP"], ["a S", "T", "O", "P b", "c"]), found("a ", "STOP"));
}

#[test]
fn a_stop_at_the_start_leaves_nothing() {
    assert_eq!(run(&["User:"], ["User: hi"]), found("", "User:"));
}

#[test]
fn the_earliest_of_several_wins() {
    assert_eq!(run(&["world", "lo"], ["hello world"]), found("hel", "lo"));
}

#[test]
fn of_overlapping_stops_the_first_that_is_whole_wins() {
    assert_eq!(run(&["abcd", "bc"], ["xabcd"]), found("xa", "bc"));
    assert_eq!(run(&["bc", "abc"], ["xabcd"]), found("x", "abc"));
    assert_eq!(run(&["aab"], ["aaab"]), found("a", "aab"));
}

#[test]
fn characters_of_several_bytes_are_whole() {
    assert_eq!(run(&["終わり"], ["これで終", "わ", "りです"]), found("これで", "終わり"));
    assert_eq!(run(&["🙂🙃"], ["🙂", "🙂", "🙃"]), found("🙂", "🙂🙃"));
}

#[test]
fn what_only_began_like_a_stop_is_handed_on() {
    assert_eq!(run(&["STOP"], ["a STO", " b ST"]), ("a STO b ST".to_owned(), None));
}

#[test]
fn only_the_beginning_of_a_stop_is_held_back() {
    let mut strings = StopStrings::new(vec!["STOP".to_owned()]);
    let mut out = String::new();
    assert!(!strings.push("SSST", &mut out));
    assert_eq!(out, "SS");
}

#[test]
fn no_stops_and_empty_ones_stop_nothing() {
    assert_eq!(run(&[], ["a"]), ("a".to_owned(), None));
    assert_eq!(run(&[""], ["a"]), ("a".to_owned(), None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The reference looks at the text after every character, as the definition says.
    #[test]
    fn the_result_is_the_definition_however_the_text_is_cut(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        text in "[abé]{0,30}",
        cuts in prop::collection::vec(0usize..30, 0..6),
    ) {
        let mut expected = (text.clone(), None);
        for (start, character) in text.char_indices() {
            let so_far = &text[..start + character.len_utf8()];
            if let Some(stop) = stops.iter().filter(|stop| so_far.ends_with(*stop)).max_by_key(|stop| stop.len()) {
                expected = found(&so_far[..so_far.len() - stop.len()], stop);
                break;
            }
        }
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let mut places: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(run(&stops, pieces), expected);
    }
}
