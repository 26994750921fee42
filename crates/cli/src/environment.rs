//! Environment variables of the program, read once at start. Nothing below the program reads the environment.
//!
//! `COLDPRESS_ISA` forces an instruction set; `COLDPRESS_PRESTACK` = 1 writes a model's pack before the first token,
//! lazy fills it with experts as they are first used, 0 never writes one (a complete pack is used in any case); `COLDPRESS_PRESTACK_CACHE_DIR` is where packs live;
//! `COLDPRESS_FORCE_MODE` = soft or force is how mapped experts are given back; `COLDPRESS_DISK_PROBE` = 0 never measures a
//! disk at start and forgets earlier measurements.
//! `COLDPRESS_POLICY` names an eviction policy; `COLDPRESS_PREFETCH` = auto, on or off is whether to read ahead;
//! `COLDPRESS_HOTLIST` = 0 neither reads nor writes hotlists.
//! A flag wins over its variable.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use coldpress::{ForceMode, Isa, PackUse, Prefetch};

/// When a model's pack is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prestack {
    /// Only by `coldpress pack`.
    Never,
    /// While the model runs, expert by expert.
    Lazy,
    /// Before the first token.
    Before,
}

/// What the environment asks for.
#[derive(Debug)]
pub struct Environment {
    /// Forced instruction set.
    pub isa: Option<Isa>,
    /// When packs are written.
    pub prestack: Prestack,
    /// Eviction policy.
    pub policy: Option<String>,
    /// Whether to read ahead.
    pub prefetch: Option<Prefetch>,
    /// Folder for hotlists; `None` where they are not wanted or no cache folder is known.
    pub hotlist_folder: Option<PathBuf>,
    /// Folder for packs; `None` where no cache folder is known.
    pub pack_folder: Option<PathBuf>,
    /// How mapped experts are given back.
    pub force_mode: Option<ForceMode>,
    /// Folder for measurements of disks; `None` when nothing is to be measured.
    pub disk_probe: Option<PathBuf>,
}

impl Environment {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// A variable with a value that means nothing, by name.
    pub fn read() -> Result<Self> {
        Self::from(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let isa = match variable("COLDPRESS_ISA").filter(|value| !value.is_empty()) {
            None => None,
            Some(name) => Some(Isa::parse(&name).with_context(|| {
                let known = Isa::ALL.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
                format!("COLDPRESS_ISA is '{name}'; known instruction sets: {known}")
            })?),
        };
        let prestack = match variable("COLDPRESS_PRESTACK").as_deref() {
            None | Some("" | "0") => Prestack::Never,
            Some("lazy") => Prestack::Lazy,
            Some("1") => Prestack::Before,
            Some(other) => bail!("COLDPRESS_PRESTACK is '{other}'; it must be 0, 1 or lazy"),
        };
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let pack_folder = set("COLDPRESS_PRESTACK_CACHE_DIR").or_else(|| {
            if cfg!(target_os = "macos") {
                set("HOME").map(|home| home.join("Library/Caches/coldpress"))
            } else {
                set("XDG_CACHE_HOME")
                    .or_else(|| set("HOME").map(|home| home.join(".cache")))
                    .map(|cache| cache.join("coldpress"))
            }
        });
        let force_mode = match variable("COLDPRESS_FORCE_MODE").filter(|value| !value.is_empty()) {
            None => None,
            Some(name) => {
                let found = ForceMode::ALL.into_iter().find(|&(known, _)| known == name);
                let unknown = || format!("COLDPRESS_FORCE_MODE is '{name}'; it must be soft or force");
                Some(found.with_context(unknown)?.1)
            }
        };
        let disk_probe = match variable("COLDPRESS_DISK_PROBE").as_deref() {
            None | Some("" | "1") => pack_folder.clone(),
            Some("0") => None,
            Some(other) => bail!("COLDPRESS_DISK_PROBE is '{other}'; it must be 0 or 1"),
        };
        let hotlist_folder = match variable("COLDPRESS_HOTLIST").as_deref() {
            None | Some("" | "1") => pack_folder.clone(),
            Some("0") => None,
            Some(other) => bail!("COLDPRESS_HOTLIST is '{other}'; it must be 0 or 1"),
        };
        let policy = variable("COLDPRESS_POLICY").filter(|value| !value.is_empty());
        if let Some(name) = policy.as_deref().filter(|name| !coldpress::POLICIES.contains(name)) {
            bail!("COLDPRESS_POLICY is '{name}'; known policies: {}", coldpress::POLICIES.join(", "));
        }
        let prefetch = match variable("COLDPRESS_PREFETCH").filter(|value| !value.is_empty()) {
            None => None,
            Some(name) => {
                let found = Prefetch::ALL.into_iter().find(|&(known, _)| known == name);
                let unknown = || format!("COLDPRESS_PREFETCH is '{name}'; it must be auto, on or off");
                Some(found.with_context(unknown)?.1)
            }
        };
        Ok(Self { isa, policy, prefetch, hotlist_folder, prestack, pack_folder, force_mode, disk_probe })
    }

    /// How packs are used, given the `--pack` flag.
    pub fn pack_use(&self, flag: Option<&PathBuf>) -> PackUse {
        match (flag, &self.pack_folder) {
            (Some(file), _) => PackUse::File(file.clone()),
            (None, Some(folder)) => match self.prestack {
                Prestack::Never => PackUse::IfPresent(folder.clone()),
                Prestack::Lazy => PackUse::Fill(folder.clone()),
                Prestack::Before => PackUse::BuildIfAbsent(folder.clone()),
            },
            (None, None) => PackUse::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment> {
        Environment::from(|name| {
            variables.iter().find(|&&(known, _)| known == name).map(|&(_, value)| value.to_owned())
        })
    }

    #[test]
    fn the_cache_folder_follows_the_most_specific_variable() {
        let folder = |variables| read(variables).expect("valid").pack_folder;
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
        ];
        for (name, value) in wrong {
            let message = read(&[(name, value)]).expect_err("refused").to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }

    #[test]
    fn a_flag_wins() {
        let environment = read(&[("HOME", "/h"), ("COLDPRESS_PRESTACK", "1")]).expect("valid");
        assert!(matches!(environment.pack_use(None), PackUse::BuildIfAbsent(_)));
        let lazy = read(&[("HOME", "/h"), ("COLDPRESS_PRESTACK", "lazy")]).expect("valid");
        assert!(matches!(lazy.pack_use(None), PackUse::Fill(_)));
        let file = PathBuf::from("x.cpack");
        assert_eq!(environment.pack_use(Some(&file)), PackUse::File(file.clone()));
    }
}
