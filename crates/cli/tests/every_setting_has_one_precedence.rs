//! Every setting that a user can give has a default, a variable that wins over it and a flag that wins over both, and `plan`
//! says what each came to and who chose it.
//!
//! What could go wrong: a setting that only one of the ways reaches, a variable that wins over a flag, an origin that is not
//! the one that counted, a setting that `plan` does not list, a new one that this table does not know.

use std::path::Path;

use crate::common::{coldpress, demo, object, run, stderr, stdout};
use serde_json::Value;

/// A setting with a variable and its value, a flag and its value, and what `plan` shows for both.
struct Case {
    name: &'static str,
    variable: (&'static str, String, String),
    flag: (&'static str, String, String),
}

fn case(name: &'static str, variable: [&'static str; 3], flag: [&'static str; 3]) -> Case {
    let owned = |[key, value, shown]: [&'static str; 3]| (key, value.to_owned(), shown.to_owned());
    Case { name, variable: owned(variable), flag: owned(flag) }
}

fn cases(folder: &Path) -> Vec<Case> {
    let place = |name: &str| folder.join(name).to_str().expect("a UTF-8 path").to_owned();
    let paths = |name, variable, flag, first: &str, second: &str| Case {
        name,
        variable: (variable, place(first), place(first)),
        flag: (flag, place(second), place(second)),
    };
    vec![
        case("budget", ["COLDPRESS_BUDGET", "2GiB", "2.0 GiB"], ["--budget", "1GiB", "1.0 GiB"]),
        case("residency", ["COLDPRESS_RESIDENCY", "streamed", "streamed"], ["--residency", "paged", "paged"]),
        case(
            "press",
            ["COLDPRESS_PRESS", "0.5", "enabled, cold fraction 0.5"],
            ["--press", "disabled", "disabled"],
        ),
        case(
            "press",
            ["COLDPRESS_COLD_FRACTION", "0.5", "enabled, cold fraction 0.5"],
            ["--cold-fraction", "0.25", "enabled, cold fraction 0.25"],
        ),
        case("press", ["COLDPRESS_PRESS", "disabled", "disabled"], ["--cold-fraction", "0.25", "enabled"]),
        case(
            "resident cap",
            ["COLDPRESS_MAX_RESIDENT", "0.5", "0.5 of the routed experts"],
            ["--max-resident", "2MiB", "2.0 MiB"],
        ),
        case("force mode", ["COLDPRESS_FORCE_MODE", "force", "force"], ["--force-mode", "soft", "soft"]),
        case(
            "policy",
            ["COLDPRESS_POLICY", "global-lru", "global-lru"],
            ["--policy", "least-stale", "least-stale"],
        ),
        case("prefetch", ["COLDPRESS_PREFETCH", "on", "on"], ["--prefetch", "off", "off"]),
        case("reader", ["COLDPRESS_READER", "pread", "pread"], ["--reader", "auto", "auto"]),
        case("split", ["COLDPRESS_SPLIT", "2", "2"], ["--split", "4", "4"]),
        case("prestack", ["COLDPRESS_PRESTACK", "lazy", "lazy"], ["--prestack", "on", "on"]),
        paths("prestack folder", "COLDPRESS_PRESTACK_CACHE_DIR", "--prestack-dir", "one", "two"),
        paths("pack", "COLDPRESS_PACK", "--pack", "one.cpack", "two.cpack"),
        case("hotlist", ["COLDPRESS_HOTLIST", "0", "off"], ["--hotlist", "on", "on"]),
        case("disk probe", ["COLDPRESS_DISK_PROBE", "0", "off"], ["--disk-probe", "on", "on"]),
        case("context", ["COLDPRESS_CTX", "256", "256"], ["--ctx", "128", "128"]),
        case("chunk", ["COLDPRESS_CHUNK", "64", "64"], ["--chunk", "32", "32"]),
        case("experts", ["COLDPRESS_EXPERTS", "q4_0", "q4_0"], ["--experts", "keep", "keep"]),
        case("kv", ["COLDPRESS_KV", "f32", "f32"], ["--kv", "f16", "f16"]),
        case(
            "experts per token",
            ["COLDPRESS_EXPERTS_PER_TOKEN", "1", "1"],
            ["--experts-per-token", "expert_used_count=2", "2"],
        ),
        case("cache bias", ["COLDPRESS_CACHE_BIAS", "0.25", "0.25"], ["--cache-bias", "0.5", "0.5"]),
        case("threads", ["COLDPRESS_THREADS", "3", "3"], ["--threads", "1", "1"]),
        case("isa", ["COLDPRESS_ISA", "scalar", "scalar"], ["--isa", "scalar", "scalar"]),
        case("router advice", ["COLDPRESS_ROUTER_ADVICE", "on", "on"], ["--router-advice", "off", "off"]),
        case(
            "router advice cap",
            ["COLDPRESS_ROUTER_ADVICE_CAP", "1MiB", "unused"],
            ["--router-advice-cap", "2MiB", "unused"],
        ),
        case(
            "route telemetry",
            ["COLDPRESS_ROUTE_TELEMETRY", "on", "on, "],
            ["--route-telemetry", "off", "off"],
        ),
        case("memory gate", ["COLDPRESS_MEMORY_GATE", "off", "off"], ["--memory-gate", "on", "on"]),
        case("low ram", ["COLDPRESS_LOW_RAM", "1", "on"], ["--low-ram", "off", "off"]),
        case("thinking", ["COLDPRESS_THINKING", "on", "on"], ["--thinking", "off", "off"]),
        case("idle after", ["COLDPRESS_IDLE_AFTER", "90", "90 s"], ["--idle-after", "0.5", "0.5 s"]),
        case(
            "idle release",
            ["COLDPRESS_IDLE_RELEASE", "all", "all"],
            ["--idle-release", "experts", "experts"],
        ),
        case(
            "pre-tokenizer",
            ["COLDPRESS_PRE_TOKENIZER", "qwen2", "qwen2"],
            ["--pre-tokenizer", "llama-bpe", "llama-bpe"],
        ),
    ]
}

/// The settings of a plan.
fn settings(home: &Path, variables: &[(&str, &str)], flags: &[String]) -> Vec<Value> {
    let demo = demo();
    let mut command = coldpress(&["plan", demo.to_str().expect("a UTF-8 path"), "--json", "--no-probe"]);
    command.args(flags).env("HOME", home).envs(variables.iter().copied());
    let plan = object(&command.output().expect("the program starts"));
    plan["settings"].as_array().expect("a list").clone()
}

/// Value and origin of one.
fn shown(settings: &[Value], name: &str) -> (String, String) {
    let setting = settings.iter().find(|setting| setting["name"] == name).expect(name);
    let word = |key: &str| setting[key].as_str().expect("a word").to_owned();
    (word("value"), word("origin"))
}

fn flag((name, value, _): &(&str, String, String)) -> Vec<String> {
    vec![format!("{name}={value}")]
}

#[test]
fn every_row_of_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let demo = demo();
    let first = home.join("one.cpack");
    let packed = run(&["pack", demo.to_str().expect("UTF-8"), "--out", first.to_str().expect("UTF-8")]);
    assert!(packed.status.success(), "{}", stderr(&packed));
    std::fs::copy(&first, home.join("two.cpack")).expect("copied");
    let defaults = settings(home, &[], &[]);
    for setting in &defaults {
        assert_eq!(setting["origin"], "default", "{setting}");
    }
    let cases = cases(home);
    for setting in &defaults {
        assert!(cases.iter().any(|case| case.name == setting["name"]), "no case for {setting}");
    }
    for case in &cases {
        let variable = [(case.variable.0, case.variable.1.as_str())];
        for (origin, wanted, seen) in [
            ("environment", &case.variable.2, settings(home, &variable, &[])),
            ("flag", &case.flag.2, settings(home, &[], &flag(&case.flag))),
            ("flag", &case.flag.2, settings(home, &variable, &flag(&case.flag))),
        ] {
            let (value, by) = shown(&seen, case.name);
            assert!(value.starts_with(wanted.as_str()), "{}: {value}, wanted {wanted}", case.name);
            assert_eq!(by, origin, "{}", case.name);
            for other in seen.iter().filter(|other| other["name"] != case.name) {
                assert!(
                    other["origin"] == "default" || other["origin"] == "profile" && case.name == "low ram",
                    "{} changes {other}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn the_text_of_a_plan_lists_them_all_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = demo();
    let mut command = coldpress(&["plan", demo.to_str().expect("a UTF-8 path"), "--no-probe", "--low-ram"]);
    command.env("HOME", folder.path()).env("COLDPRESS_CHUNK", "64");
    let text = stdout(&command.output().expect("the program starts"));
    let line = |name: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("{name} is missing in\n{text}"))
    };
    for setting in settings(folder.path(), &[], &[]) {
        line(setting["name"].as_str().expect("a name"));
    }
    assert!(line("low ram ").contains("on (flag)"), "{text}");
    assert!(line("chunk ").contains("64 (environment)"), "{text}");
    assert!(line("thinking ").contains("off (profile)"), "{text}");
    assert!(line("hotlist ").contains("off (profile)"), "{text}");
}

#[test]
fn two_words_for_one_setting_and_unknown_variables_are_told() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let both = run(&["plan", demo, "--press", "auto", "--cold-fraction", "0.5"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
    let plan = ["plan", demo, "--no-probe", "--json"];
    let mistyped = coldpress(&plan).env("COLDPRESS_BUGDET", "1GiB").output().expect("the program starts");
    object(&mistyped);
    let said = stderr(&mistyped);
    assert!(said.contains("COLDPRESS_BUGDET") && said.contains("did you mean COLDPRESS_BUDGET?"), "{said}");
    let unset = coldpress(&plan).env("COLDPRESS_BUGDET", "").output().expect("the program starts");
    assert!(!stderr(&unset).contains("COLDPRESS_BUGDET"), "an empty variable is not set: {}", stderr(&unset));
    let wrong = coldpress(&plan).env("COLDPRESS_MAX_RESIDENT", "30%").output().expect("the program starts");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("COLDPRESS_MAX_RESIDENT is '30%'"), "{}", stderr(&wrong));
}

#[test]
fn settings_that_contradict_each_other_name_both_and_who_chose_them() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let output = coldpress(&["plan", demo, "--no-probe", "--press", "disabled"])
        .env("COLDPRESS_MAX_RESIDENT", "1MiB")
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    for part in ["flag --press disabled", "environment COLDPRESS_MAX_RESIDENT=1MiB", "1.0 MiB"] {
        assert!(said.contains(part), "{said} lacks {part}");
    }
}

#[test]
fn a_setting_with_two_words_is_named_by_the_one_that_was_used() {
    let demo = demo();
    let about = |variables: &[(&str, &str)], arguments: &[&str]| {
        let all =
            [&["plan", demo.to_str().expect("a UTF-8 path"), "--no-probe", "--json"], arguments].concat();
        coldpress(&all).envs(variables.iter().copied()).output().expect("the program starts")
    };
    let resident = ["--residency", "resident"];
    for (variables, arguments, said, other) in [
        (&[][..], &["--cold-fraction", "0.50"][..], "flag --cold-fraction 0.50", "--press"),
        (&[], &["--press", "0.50"], "flag --press 0.50", "--cold-fraction"),
        (&[("COLDPRESS_COLD_FRACTION", "0.5")], &[], "environment COLDPRESS_COLD_FRACTION=0.5", "PRESS="),
        (&[("COLDPRESS_PRESS", "0.5")], &[], "environment COLDPRESS_PRESS=0.5", "COLD_FRACTION"),
        (&[("COLDPRESS_PRESS", "0.5")], &["--cold-fraction", "1"], "flag --cold-fraction 1", "PRESS="),
    ] {
        let refused = about(variables, &[&resident, arguments].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        let message = stderr(&refused);
        assert!(
            message.contains(said) && message.contains("flag --residency resident"),
            "{message} lacks {said}"
        );
        assert!(
            !message.replace("COLDPRESS_", "").contains(&other.replace("COLDPRESS_", "")),
            "{message} names {other}"
        );
        let plan = object(&about(variables, arguments));
        let settings = plan["settings"].as_array().expect("a list");
        let press = settings.iter().find(|setting| setting["name"] == "press").expect("the press");
        let used = |name: &str| said.contains(press[name].as_str().expect("a word"));
        assert!(used("flag") || used("variable"), "{press}, {said}");
    }
    // The same of a value that cannot work.
    let small = about(&[("COLDPRESS_MAX_RESIDENT", "1KiB")], &[]);
    let message = stderr(&small);
    assert!(message.contains("environment COLDPRESS_MAX_RESIDENT=1KiB"), "{message}");
    assert!(message.contains("give COLDPRESS_MAX_RESIDENT="), "{message}");
}
