//! `docs/models.md` lists what is registered, and claims a comparison only where a test makes it.
//!
//! What could go wrong: a family that nobody can find, a name that is not taken, "folder, GGUF" where only one of them was compared.

use std::collections::BTreeSet;

use crate::families::MIXTURES;

const PAGE: &str = include_str!("../../../docs/models.md");

/// The cells of a row: family, names in GGUF files, values of `model_type`, router, compared with.
fn rows() -> Vec<[&'static str; 5]> {
    let (_, from) = PAGE.split_once("\n## Families\n").expect("the section of families");
    let (table, _) = from.split_once("\n## ").expect("a section after it");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|cells| panic!("{cells:?} are not five cells"))
    })
    .collect()
}

/// Words between backticks.
fn names(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn what_is_registered_is_listed_and_what_is_listed_is_registered() {
    let rows = rows();
    let listed: BTreeSet<&str> = rows.iter().flat_map(|row| names(row[2])).collect();
    let known: BTreeSet<&str> = coldpress_model::hugging_face_model_types().collect();
    assert!(known.is_subset(&listed), "registered and not listed: {:?}", known.difference(&listed));
    // A row may also name larger models whose text model is a registered one.
    for row in rows.iter().filter(|row| !row[4].contains("inside a larger configuration")) {
        assert!(names(row[2]).any(|name| known.contains(name)), "{}: nothing of it is registered", row[0]);
    }
    let listed: BTreeSet<&str> = rows.iter().flat_map(|row| names(row[1])).collect();
    let known: BTreeSet<&str> = coldpress_model::family_names().collect();
    assert!(listed.is_subset(&known), "listed and not registered: {:?}", listed.difference(&known));
    // Some have no converter, so that no file has their name.
    let without = rows.iter().filter(|row| row[1] == "none").count();
    assert_eq!(known.difference(&listed).count(), without, "not listed: {:?}", known.difference(&listed));
}

#[test]
fn a_comparison_is_claimed_where_a_test_makes_it() {
    let rows = rows();
    for (folder, file) in MIXTURES {
        let model_type = folder.trim_end_matches("_mxfp4").trim_end_matches("_fp8");
        let row = rows.iter().find(|row| names(row[2]).any(|name| name == model_type));
        let row = row.unwrap_or_else(|| panic!("no row has the model_type {model_type}"));
        assert!(row[4].contains("transformers (folder"), "{}: {}", row[0], row[4]);
        assert!(file.is_none() || row[4].contains("GGUF"), "{}: {}", row[0], row[4]);
    }
    // And only there: a mixture that claims it is in the table of the tests.
    for row in rows.iter().filter(|row| !row[3].is_empty() && row[4].starts_with("transformers")) {
        let compared = |of: Option<bool>| {
            let has = |(folder, file): &(&str, Option<&str>)| {
                names(row[2]).any(|name| name == *folder) && of.is_none_or(|of| file.is_some() == of)
            };
            MIXTURES.iter().any(has)
        };
        assert!(compared(None), "{} is not compared in the tests of families", row[0]);
        assert!(!row[4].contains("GGUF") || compared(Some(true)), "{}: no file is compared", row[0]);
    }
}
