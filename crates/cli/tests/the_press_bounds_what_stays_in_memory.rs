//! Press, resident cap, memory gate and low-RAM profile do to a plan and a run what they say, and change no token.
//!
//! What could go wrong: a cap that is a wish, a disabled press that streams all the same, a refusal whose figure does not
//! work, a gate that lets through what cannot be had or refuses a small model for a large budget, a profile that changes text.

use crate::common::{about_demo, coldpress, demo, object, run_demo, stderr};
use serde_json::Value;

fn plan(arguments: &[&str]) -> Value {
    object(&about_demo("plan", &[&["--json", "--no-probe", "--ctx", "512"], arguments].concat()))
}

fn number(plan: &Value, path: &str) -> u64 {
    plan.pointer(path).and_then(Value::as_u64).expect(path)
}

#[test]
fn a_cap_holds_to_the_byte_and_the_smallest_one_is_named() {
    let free = plan(&[]);
    let (record, total) = (number(&free, "/plan/record_bytes"), number(&free, "/plan/records_total"));
    assert_eq!(number(&free, "/plan/slot_count"), total);
    for held in [total / 2, total - 1, 12] {
        for (cap, wanted) in [(held * record, held), ((held + 1) * record - 1, held)] {
            let capped = plan(&["--max-resident", &cap.to_string()]);
            assert_eq!(number(&capped, "/plan/slot_count"), wanted, "{cap}");
            assert_eq!(capped["residency"], "streamed");
        }
    }
    assert_eq!(number(&plan(&["--max-resident", "0.5"]), "/plan/slot_count"), total / 2);
    assert_eq!(number(&plan(&["--max-resident", "1"]), "/plan/slot_count"), total);
    let both = plan(&["--max-resident", "0.5", "--cold-fraction", "0.75"]);
    assert_eq!(number(&both, "/plan/slot_count"), total / 4, "the smaller one counts");
    let both = plan(&["--max-resident", "0.25", "--cold-fraction", "0.5"]);
    assert_eq!(number(&both, "/plan/slot_count"), total / 4);

    let refused = about_demo("plan", &["--no-probe", "--max-resident", "1KiB"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let said = stderr(&refused);
    let named = said.split("give --max-resident ").nth(1).expect("a cap that works");
    let named: u64 = named.split(' ').next().and_then(|word| word.parse().ok()).expect("bytes");
    plan(&["--max-resident", &named.to_string()]);
    let below = about_demo("plan", &["--no-probe", "--max-resident", &(named - 1).to_string()]);
    assert_eq!(below.status.code(), Some(2));
}

#[test]
fn a_disabled_press_is_resident_or_refused_with_the_sum() {
    let free = plan(&["--press", "disabled"]);
    assert_eq!(free["residency"], "resident");
    let all = number(&free, "/room/resident_budget");
    let fits = run_demo(&["--press", "disabled", "--raw", "-p", "A", "--max-tokens", "2", "--json"]);
    assert_eq!(object(&fits)["experts"]["evictions"], 0);
    let smaller = (all / 2).to_string();
    let refused = run_demo(&["--press", "disabled", "--budget", &smaller, "--raw", "-p", "A"]);
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    for part in ["expert slots", "--press auto", "missing"] {
        assert!(stderr(&refused).contains(part), "{} lacks {part}", stderr(&refused));
    }
}

#[test]
fn what_cannot_be_had_is_refused_before_it_is_loaded_and_the_override_says_what_it_risks() {
    // A context that no machine has the memory for.
    let huge = ["--budget", "unlimited", "--ctx", "4000000000"];
    let run = |variables: &[(&str, &str)], command: &str, more: &[&str]| {
        let demo = demo();
        let mut all = vec![command, demo.to_str().expect("a UTF-8 path")];
        all.extend(huge.iter().chain(more));
        coldpress(&all).envs(variables.iter().copied()).output().expect("the program starts")
    };
    let refused = run(&[], "run", &["-p", "x"]);
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    for part in ["can be had now", "nothing was loaded", "no budget that works fits now", "--memory-gate off"]
    {
        assert!(stderr(&refused).contains(part), "{} lacks {part}", stderr(&refused));
    }
    let shown = object(&run(&[], "plan", &["--json", "--no-probe"]));
    assert_eq!(shown["gate"]["passes"], false);
    let notes = shown["notes"].to_string();
    assert!(notes.contains("a run is refused now"), "{notes}");
    let open = object(&run(&[("COLDPRESS_MEMORY_GATE", "off")], "plan", &["--json", "--no-probe"]));
    let notes = open["notes"].to_string();
    assert!(notes.contains("memory gate off") && notes.contains("kills"), "{notes}");
    assert_eq!(open["gate"]["setting"]["origin"], "environment");
    // A large budget of which a small model takes little risks nothing.
    let small = run_demo(&["--budget", "9000GiB", "--raw", "-p", "A", "--max-tokens", "1"]);
    assert_eq!(small.status.code(), Some(0), "{}", stderr(&small));
}

#[test]
fn the_low_ram_profile_takes_less_and_answers_the_same() {
    let plan = |arguments: &[&str]| {
        object(&about_demo("plan", &[&["--json", "--no-probe", "--budget", "unlimited"], arguments].concat()))
    };
    let (usual, low) = (plan(&[]), plan(&["--low-ram"]));
    let share = |plan: &Value, name: &str| number(plan, &format!("/plan/{name}"));
    for name in ["fixed", "dense", "slots", "slot_count"] {
        assert_eq!(share(&usual, name), share(&low, name), "{name}");
    }
    assert!(share(&low, "scratch") < share(&usual, "scratch"), "{low}");
    assert!(share(&low, "kv") <= share(&usual, "kv"), "{low}");
    assert_eq!(low["plan"]["chunk_tokens"], 128);
    assert_eq!(low["kv_type"], usual["kv_type"]);
    let origin = |plan: &Value, name: &str| {
        let settings = plan["settings"].as_array().expect("a list");
        settings.iter().find(|setting| setting["name"] == name).expect(name)["origin"].clone()
    };
    for name in ["context", "chunk", "hotlist", "thinking"] {
        assert_eq!(origin(&low, name), "profile", "{name}");
    }
    let asked = plan(&["--low-ram", "--chunk", "64"]);
    assert_eq!((&asked["plan"]["chunk_tokens"], origin(&asked, "chunk")), (&64.into(), "flag".into()));

    let tokens = |arguments: &[&str]| {
        let answer = ["run", "--raw", "-p", "The old house stood at the end", "--max-tokens", "24", "--json"];
        let all = [&answer[1..], &["--cold-fraction", "0.75"], arguments].concat();
        object(&about_demo("run", &all))["tokens"].clone()
    };
    assert_eq!(tokens(&[]), tokens(&["--low-ram"]));
}

#[test]
fn telemetry_and_advice_are_part_of_the_plan_and_say_where_they_have_no_effect() {
    let (off, on) =
        (plan(&["--cold-fraction", "0.5"]), plan(&["--cold-fraction", "0.5", "--route-telemetry", "on"]));
    let taken = number(&on, "/telemetry_bytes");
    assert!(taken > 0 && number(&off, "/telemetry_bytes") == 0);
    assert_eq!(number(&on, "/plan/scratch"), number(&off, "/plan/scratch") + taken);
    let advised = plan(&["--cold-fraction", "0.5", "--router-advice", "on"]);
    assert_eq!(number(&advised, "/advice_bytes"), 0);
    assert!(advised["notes"].to_string().contains("no effect here"), "{advised}");
}
