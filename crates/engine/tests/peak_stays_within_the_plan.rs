//! The process never holds more than the plan says, measured by the operating system and not by the ledger.
//!
//! Each case runs in a process of its own, because the high-water mark of a process never falls. The budget is a little
//! above the smallest one that works, so that there is no slack to hide in.

mod common;

use std::path::Path;
use std::process::Command;

use coldpress::{
    Bytes, ForceMode, GenerateOptions, LoadConfiguration, PackUse, Residency, Silent, SizeSpec, pack_model,
};
use common::{demo, load, outside};

/// Runs this test binary again for one case and returns (peak resident bytes, budget).
fn measured(case: &str, pack: Option<&Path>) -> (u64, u64) {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .args(["--ignored", "--exact", "case", "--nocapture"])
        .env("COLDPRESS_TEST_CASE", case)
        .envs(pack.map(|pack| ("COLDPRESS_TEST_PACK", pack)))
        .output()
        .expect("the case runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{case}: {text} {}", String::from_utf8_lossy(&output.stderr));
    let figures =
        text.lines().find_map(|line| line.strip_prefix("figures ")).expect("the case prints figures");
    let mut figures = figures.split(' ').map(|figure| figure.parse().expect("a number"));
    (figures.next().expect("peak"), figures.next().expect("budget"))
}

#[test]
#[ignore = "started by the tests of this file, one process per case"]
fn case() {
    let case = std::env::var("COLDPRESS_TEST_CASE").expect("the case has a name");
    let model = match case.as_str() {
        "large vocabulary" => outside("SmolLM2-135M-Instruct.Q4_1.gguf").expect("the test has looked"),
        _ => demo(),
    };
    let pack =
        std::env::var_os("COLDPRESS_TEST_PACK").map_or(PackUse::Never, |path| PackUse::File(path.into()));
    let packed = LoadConfiguration::default().context(512).pack(pack);
    let configuration = match case.as_str() {
        "large vocabulary" => LoadConfiguration::default().context(512),
        "smallest" => LoadConfiguration::default().context(512),
        "filling" => {
            let folder = std::env::var_os("COLDPRESS_TEST_PACK").expect("the parent names the folder");
            LoadConfiguration::default().context(512).pack(PackUse::Fill(folder.into()))
        }
        "cold" => LoadConfiguration::default().context(512).cold_fraction(0.75),
        "resident" => LoadConfiguration::default().context(1024),
        "paged" => packed.residency(Residency::Paged),
        "mapped softly" => packed.residency(Residency::Mapped),
        "mapped with force" => packed.residency(Residency::Mapped).force_mode(ForceMode::Force),
        other => panic!("unknown case {other}"),
    };
    let refused = coldpress::plan(&model, &configuration.clone().budget(SizeSpec::Exact(Bytes(1))));
    let Err(coldpress::EngineError::DoesNotFit(refused)) = refused else { panic!("one byte is not enough") };
    let budget = match case.as_str() {
        "resident" => Bytes(refused.smallest_budget.0 + (64 << 20)),
        // Room for the staging buffers: at the smallest budget nothing is written.
        "filling" => Bytes(refused.smallest_budget.0 + (1 << 20)),
        _ => refused.smallest_budget,
    };
    let mut runtime = load(&model, &configuration.budget(SizeSpec::Exact(budget)));
    let mut session = runtime.session().expect("the cache was planned");
    let prompt: Vec<u32> = (0..400).map(|i| 300 + i * 97 % 7000).collect();
    let options = GenerateOptions { max_tokens: 32, ignore_eos: true, ..GenerateOptions::default() };
    runtime.generate(&mut session, &prompt, &options, &mut Silent).expect("generates");
    let status = runtime.status();
    assert!(status.ledger.peak <= budget, "the ledger itself exceeded the budget");
    println!("figures {} {}", status.peak.rss.0, budget.0);
}

#[test]
#[ignore = "needs COLDPRESS_REFERENCE_MODELS; tools/get_smollm2.sh fetches the model"]
fn with_a_large_vocabulary() {
    if outside("SmolLM2-135M-Instruct.Q4_1.gguf").is_none() {
        return;
    }
    let (peak, budget) = measured("large vocabulary", None);
    println!("large vocabulary: peak {peak} of {budget}");
    assert!(peak <= budget, "peak {peak} is above the budget {budget}");
}

#[test]
fn at_the_smallest_budget_with_a_cold_cache_and_resident() {
    for name in ["smallest", "cold", "resident"] {
        let (peak, budget) = measured(name, None);
        println!("{name}: peak {peak} of {budget}");
        assert!(peak <= budget, "{name}: peak {peak} is above the budget {budget}");
        assert!(peak * 3 > budget, "{name}: peak {peak} is so far below {budget} that nothing was measured");
    }
}

#[test]
fn while_a_pack_fills() {
    let folder = tempfile::tempdir().expect("a folder");
    for start in ["first", "second"] {
        let (peak, budget) = measured("filling", Some(folder.path()));
        println!("{start} start: peak {peak} of {budget}");
        assert!(peak <= budget, "{start} start: peak {peak} is above the budget {budget}");
    }
}

/// Resident pages of a mapped file count as much as memory of the process's own.
#[test]
fn through_the_page_cache_and_mapped() {
    let folder = tempfile::tempdir().expect("a folder");
    let pack = folder.path().join("model.cpack");
    pack_model(&demo(), &pack, None, &mut Silent).expect("packs");
    for name in ["paged", "mapped softly", "mapped with force"] {
        let (peak, budget) = measured(name, Some(&pack));
        println!("{name}: peak {peak} of {budget}");
        assert!(peak <= budget, "{name}: peak {peak} is above the budget {budget}");
    }
}
