//! Rows of several sequences pass a layer together, and a long prompt in pieces; each sequence's state must be advanced by its own
//! rows, in order and from where it was. A kind of mixer that takes the rows of a neighbour, or begins a piece at the first row of
//! the pass, gives other answers here.

use coldpress::service::{Request, Service, Serving};
use coldpress::{Bytes, GenerateOptions, LoadConfiguration, Silent};

use crate::asking::{self, ask, tiny_prompt as prompt};
use crate::checkpoint::Reference;
use crate::common::load;
use crate::families::{bits, exact, logits_of};

/// One family for each kind of mixer.
const FAMILIES: [&str; 3] = ["lfm2_moe", "granitemoehybrid", "minimax"];

/// Sequences that are computed together.
const SEQUENCES: u32 = 6;

/// More rows than a mixer gets at a time.
const LONG: usize = 300;

fn configuration(parallel: usize) -> LoadConfiguration {
    let serving =
        Serving { parallel, kv_positions: Some(4096), request_bytes: Bytes(8 << 20), ..Serving::default() };
    exact().context(512).threads(2).serving(serving)
}

/// Sequence `index`: longer than those before it, and so is its answer.
fn request(index: u32) -> Request {
    asking::request(prompt(index, 3 + 53 * index as usize), 12 + index as usize)
}

#[test]
fn together_they_answer_as_alone() {
    for name in FAMILIES {
        let Some(reference) = Reference::open(name) else { continue };
        let folder = reference.linked("config.json");
        let mut runtime = load(folder.path(), &configuration(1));
        let mut alone = |index| {
            let request = request(index);
            let mut session = runtime.session().expect("a session");
            let max_tokens = request.max_tokens;
            let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
            runtime.generate(&mut session, &request.prompt, &options, &mut Silent).expect("answers").tokens
        };
        let expected: Vec<Vec<u32>> = (0..SEQUENCES).map(&mut alone).collect();
        let service =
            Service::start(load(folder.path(), &configuration(SEQUENCES as usize))).expect("starts");
        let asked: Vec<_> = (0..SEQUENCES).map(|index| ask(&service.client(), request(index))).collect();
        for (index, (asked, expected)) in asked.into_iter().zip(&expected).enumerate() {
            assert_eq!(&asked.answer().tokens, expected, "{name}: sequence {index}");
        }
    }
}

#[test]
fn pieces_of_a_long_prompt_follow_each_other() {
    let ids = prompt(1, LONG);
    for name in FAMILIES {
        let Some(reference) = Reference::open(name) else { continue };
        let folder = reference.linked("config.json");
        let run = |chunk| bits(&logits_of(folder.path(), &exact().context(512).chunk_tokens(chunk), &ids));
        let expected = run(1);
        for chunk in [100, 129, 512] {
            assert!(run(chunk) == expected, "{name}: other bits in chunks of {chunk}");
        }
    }
}
