//! Environment variables of the program, read once at start. Nothing below the program reads the environment.
//!
//! Every setting has a variable; the table in `choices.rs` names them all and says what their values mean. An empty variable
//! counts as not set. A value that means nothing is an error that names the variable; a name that begins like ours and is
//! none is a note, with the nearest one where that is near. A flag wins over its variable.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::choices::{Choices, ROWS};
use crate::flags::{Flags, Given};

/// The key of `serve`, which is no setting of a load and is shown nowhere.
const API_KEY: &str = "COLDPRESS_API_KEY";
/// What all our variables begin with.
const PREFIX: &str = "COLDPRESS_";
/// Names with more changes between them are not mistaken for each other.
const CHANGES_MAX: usize = 2;

/// What the environment asks for.
#[derive(Debug)]
pub struct Environment {
    /// The settings that are given, at most one of each.
    pub variables: Vec<Given>,
    /// Folder for packs where nobody names one; `None` where no cache folder is known.
    cache_folder: Option<PathBuf>,
    /// Folder for what lives as long as a login; `None` where the system has none.
    runtime_folder: Option<PathBuf>,
    /// Key that clients of the server must send.
    pub api_key: Option<String>,
    /// What the user should know of the variables.
    pub notes: Vec<String>,
}

impl Environment {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// A variable with a value that means nothing, by name; two variables for one setting.
    pub fn read() -> Result<Self> {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        Self::from(names, |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from(names: impl Iterator<Item = String>, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut variables: Vec<Given> = Vec::new();
        for row in &ROWS {
            let Some(value) = set(row.variable()) else { continue };
            if let Err(reason) = row.check(&value) {
                bail!("{} is '{}': {reason}", row.variable(), value.escape_debug());
            }
            if let Some(earlier) = variables.iter().find(|given| given.row.key == row.key) {
                bail!(
                    "{}={} and {}={} both choose the {}: leave one of them out",
                    earlier.row.variable(),
                    earlier.value.escape_debug(),
                    row.variable(),
                    value.escape_debug(),
                    row.key.name()
                );
            }
            variables.push(Given { row, value });
        }
        let folder = |name: &str| set(name).map(PathBuf::from);
        let cache_folder = if cfg!(target_os = "macos") {
            folder("HOME").map(|home| home.join("Library/Caches/coldpress"))
        } else {
            folder("XDG_CACHE_HOME")
                .or_else(|| folder("HOME").map(|home| home.join(".cache")))
                .map(|cache| cache.join("coldpress"))
        };
        let mut unknown: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
        unknown.retain(|name| name != API_KEY && set(name).is_some());
        unknown.retain(|name| ROWS.iter().all(|row| row.variable() != name.as_str()));
        unknown.sort_unstable();
        let runtime_folder =
            folder("XDG_RUNTIME_DIR").filter(|folder| folder.is_absolute() && folder.is_dir());
        Ok(Self {
            variables,
            cache_folder,
            runtime_folder,
            api_key: set(API_KEY),
            notes: unknown.iter().map(|name| unknown_note(name)).collect(),
        })
    }

    /// What the environment and the flags of a command come to.
    pub fn choices(&self, flags: &Flags) -> Choices {
        Choices::of(&self.variables, flags, self.cache_folder.clone())
    }

    /// Where running programs keep their states, this one in the first: another program may have seen another environment.
    pub fn status_folders(&self) -> Vec<PathBuf> {
        let lasting = self.cache_folder.as_ref().map(|folder| folder.join("run"));
        let passing = self.runtime_folder.as_ref().map(|folder| folder.join("coldpress"));
        passing.into_iter().chain(lasting).collect()
    }

    /// What the environment alone comes to.
    pub fn alone(&self) -> Choices {
        self.choices(&Flags::default())
    }
}

fn unknown_note(name: &str) -> String {
    let nearest = ROWS.iter().map(|row| row.variable()).min_by_key(|known| changes(name, known));
    // Of a short name, two letters are most of it.
    let is_near = |known: &&str| {
        let changes = changes(name, known);
        changes <= CHANGES_MAX && 2 * changes <= known.len() - PREFIX.len()
    };
    let nearest = nearest.filter(is_near);
    let meant = nearest.map_or_else(String::new, |known| format!("; did you mean {known}?"));
    // The name comes from outside and goes to a terminal.
    let name: String = name.escape_debug().take(80).collect();
    format!("the environment variable {name} is unknown and has no effect{meant}")
}

/// Letters to add, drop or replace to make one name of the other (Levenshtein).
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for column in 0..b.len() {
            let replaced = diagonal + usize::from(b[column] != letter);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldpress::PackUse;

    fn read(variables: &[(&str, &str)]) -> Result<Environment> {
        let names = variables.iter().map(|&(name, _)| name.to_owned());
        Environment::from(names, |name| {
            variables.iter().find(|&&(known, _)| known == name).map(|&(_, value)| value.to_owned())
        })
    }

    #[test]
    fn the_cache_folder_follows_the_most_specific_variable() {
        let folder = |variables| read(variables).expect("valid").alone().pack_folder;
        assert_eq!(folder(&[]), None);
        assert_eq!(
            folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("COLDPRESS_PRESTACK_CACHE_DIR", "/p")]),
            Some(PathBuf::from("/p"))
        );
        assert!(folder(&[("HOME", "/h")]).is_some_and(|path| path.starts_with("/h")));
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_name() {
        let wrong = [
            ("COLDPRESS_ISA", "mmx"),
            ("COLDPRESS_PRESTACK", "yes"),
            ("COLDPRESS_FORCE_MODE", "hard"),
            ("COLDPRESS_DISK_PROBE", "maybe"),
            ("COLDPRESS_PREFETCH", "sometimes"),
            ("COLDPRESS_BUDGET", "much"),
            ("COLDPRESS_PRESS", "1.5"),
            ("COLDPRESS_MAX_RESIDENT", "30%"),
            ("COLDPRESS_THREADS", "0"),
            ("COLDPRESS_LOW_RAM", "2"),
        ];
        for (name, value) in wrong {
            let message = read(&[(name, value)]).expect_err("refused").to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
            assert!(read(&[(name, "")]).is_ok_and(|read| read.variables.is_empty()), "{name} is not set");
        }
    }

    #[test]
    fn two_variables_for_one_setting_are_refused() {
        let both = [("COLDPRESS_PRESS", "auto"), ("COLDPRESS_COLD_FRACTION", "0.5")];
        let message = read(&both).expect_err("refused").to_string();
        assert!(both.iter().all(|(name, value)| message.contains(&format!("{name}={value}"))), "{message}");
    }

    #[test]
    fn names_that_are_none_of_ours_are_noted() {
        let notes = read(&[("COLDPRESS_BUGDET", "1"), ("COLDPRESS_SOMETHING_ELSE", "1"), ("PATH", "x")]);
        let notes = notes.expect("valid").notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].ends_with("did you mean COLDPRESS_BUDGET?"), "{notes:?}");
        assert!(notes[1].contains("COLDPRESS_SOMETHING_ELSE") && !notes[1].contains("mean"), "{notes:?}");
    }

    #[test]
    fn only_names_that_are_near_are_suggested() {
        let note = |name: &str| read(&[(name, "1")]).expect("valid").notes.remove(0);
        for (name, meant) in
            [("CXT", None), ("KW", Some("KV")), ("IDEL_AFTER", Some("IDLE_AFTER")), ("PACKS", Some("PACK"))]
        {
            let note = note(&format!("COLDPRESS_{name}"));
            let wanted = meant.map(|meant| format!("did you mean COLDPRESS_{meant}?"));
            assert_eq!(note.split("; ").nth(1), wanted.as_deref(), "{note}");
        }
        for far in ["COLDPRESS_CACHE", "COLDPRESS_X", "COLDPRESS_DEBUG", "COLDPRESS_HOME", "COLDPRESS_"] {
            assert!(!note(far).contains("mean"), "{}", note(far));
        }
    }

    #[test]
    fn an_unknown_variable_that_is_empty_is_not_set() {
        assert!(read(&[("COLDPRESS_BUGDET", "")]).expect("valid").notes.is_empty());
    }

    #[test]
    fn changes_are_counted() {
        assert_eq!([changes("", "ab"), changes("ab", ""), changes("kitten", "sitting")], [2, 2, 3]);
        assert_eq!(changes("same", "same"), 0);
    }

    #[test]
    fn words_of_earlier_versions_still_work() {
        let environment = read(&[("HOME", "/h"), ("COLDPRESS_PRESTACK", "1")]).expect("valid");
        assert!(matches!(environment.alone().pack_use(), PackUse::BuildIfAbsent(_)));
        let lazy = read(&[("HOME", "/h"), ("COLDPRESS_PRESTACK", "lazy")]).expect("valid");
        assert!(matches!(lazy.alone().pack_use(), PackUse::Fill(_)));
        let never = read(&[("HOME", "/h"), ("COLDPRESS_PRESTACK", "0")]).expect("valid");
        assert!(matches!(never.alone().pack_use(), PackUse::IfPresent(_)));
    }
}
