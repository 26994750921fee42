//! The timeline of a token is the token's time: its stretches follow each other without gap or overlap, add up to what a clock
//! outside measures, and its reads are those that the store counted.
//!
//! What could go wrong: waiting counted twice (by the clock and by the store), a read that never ends, heads of records that
//! are forgotten or lost, what the tokens before have left behind, and a recorder that changes the answer.

mod common;

use std::time::{Duration, Instant};

use coldpress::{
    ChoiceOrigin, GenerateObserver, GenerateOptions, LoadConfiguration, Prefetch, ReadEnd, Residency,
    Runtime, TokenTimeline,
};

const TOKENS: usize = 40;

/// When each token came.
struct Times(Vec<Instant>);

impl GenerateObserver for Times {
    fn token(&mut self, _id: u32) {
        self.0.push(Instant::now());
    }
}

fn answer(runtime: &mut Runtime) -> (Vec<u32>, Vec<Instant>) {
    let prompt = runtime.encode("The old house stood at the end of the lane, and", false).expect("a prompt");
    let options = GenerateOptions { max_tokens: TOKENS, ignore_eos: true, ..GenerateOptions::default() };
    let mut session = runtime.session().expect("a session");
    let mut times = Times(Vec::with_capacity(TOKENS));
    let answer = runtime.generate(&mut session, &prompt, &options, &mut times).expect("an answer");
    (answer.tokens, times.0)
}

fn check(timeline: &TokenTimeline, times: &[Instant]) {
    assert_eq!(timeline.recorded, TOKENS - 1);
    assert!(!timeline.cut_off);
    let mut at = 0;
    for stretch in &timeline.stretches {
        assert_eq!(stretch.begin_us, at, "no gap and no overlap before {stretch:?}");
        assert!(stretch.begin_us < stretch.end_us, "{stretch:?}");
        at = stretch.end_us;
    }
    assert_eq!(at, timeline.wall_us);
    let outside = (times[timeline.token] - times[timeline.token - 1]).as_micros() as u64;
    // Between the end of a token and the call of the observer the thread may lose the processor for a moment.
    assert!(
        timeline.wall_us.abs_diff(outside) <= outside / 100 + 500,
        "{} us, outside {outside} us",
        timeline.wall_us
    );
    let phases = timeline.phases();
    let rounding = timeline.stretches.len() as u64;
    for (phase, counted) in
        [(phases.disk_wait, timeline.experts.disk_wait_us), (phases.arrange, timeline.experts.arrange_us)]
    {
        assert!(
            (phase.as_micros() as u64).abs_diff(counted) <= rounding,
            "{phases:?}, {:?}",
            timeline.experts
        );
    }

    let count = |is: fn(&&coldpress::ReadSpan) -> bool| timeline.reads.iter().filter(is).count() as u64;
    let experts = &timeline.experts;
    assert_eq!(count(|read| read.needed_us.is_some()), experts.misses, "{experts:?}");
    assert_eq!(count(|read| read.ahead && !read.carried), experts.prefetched, "{experts:?}");
    assert_eq!(count(|read| read.ahead && read.needed_us.is_some()), experts.prefetch_used, "{experts:?}");
    assert_eq!(count(|read| read.end == ReadEnd::Used), experts.misses, "what is needed is used");
    assert_eq!(count(|read| read.end == ReadEnd::Failed), 0);
    for read in &timeline.reads {
        let (Some(arrived), Some(landed)) = (read.arrived_us, read.landed_us) else {
            assert!(read.ahead && read.needed_us.is_none(), "{read:?}");
            continue;
        };
        assert!(read.begun_us <= arrived && arrived <= landed && landed <= timeline.wall_us, "{read:?}");
        assert!(read.bytes > 0, "{read:?}");
    }
    let layers: Vec<u32> = timeline.stretches.iter().filter_map(|stretch| stretch.layer).collect();
    assert!(layers.is_sorted() && layers.first() == Some(&0), "every layer once, in order");
    assert!(timeline.reading_us() <= timeline.wall_us);
    assert_eq!(timeline.reading_us() > 0, !timeline.reads.is_empty());
}

#[test]
fn of_every_way_to_read() {
    for (residency, prefetch) in [
        (Residency::Streamed, Prefetch::Off),
        (Residency::Streamed, Prefetch::On),
        (Residency::Resident, Prefetch::Off),
    ] {
        let mut configuration = LoadConfiguration::default()
            .residency(residency)
            .context(256)
            .threads(2)
            .prefetch(prefetch, ChoiceOrigin::Flag);
        if residency == Residency::Streamed {
            configuration = configuration.slots(64);
        }
        let mut runtime = common::load(&common::demo(), &configuration);
        let (plain, _) = answer(&mut runtime);
        assert!(runtime.finish_timeline().is_none(), "off unless asked for");

        let mut walls = Vec::new();
        let (mut reads, mut ahead) = (0, 0);
        for typical in [Duration::ZERO, Duration::from_millis(3), Duration::from_secs(3600)] {
            runtime.start_timeline(typical).expect("there is room");
            let (tokens, times) = answer(&mut runtime);
            let timeline = runtime.finish_timeline().expect("a timeline");
            assert_eq!(tokens, plain, "recording changes no token");
            check(&timeline, &times);
            walls.push(timeline.wall_us);
            reads += timeline.reads.len();
            ahead += timeline.reads.iter().filter(|read| read.ahead).count();
        }
        assert!(walls[0] < walls[2], "the fastest token and the slowest one: {walls:?}");
        assert_eq!(reads > 0, residency == Residency::Streamed);
        assert_eq!(ahead > 0, prefetch == Prefetch::On);
        assert!(runtime.finish_timeline().is_none(), "it has ended");
    }
}
