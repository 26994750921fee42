//! Every setting of a run in one table: its flag, its environment variable, and what a value does.
//!
//! The flags of the commands, the variables that are read, the check of a value and the precedence (default, then profile,
//! environment, flag; a later one wins) all come from [`ROWS`]. A new setting is a row here and a name in the library's
//! `SettingKey`. The profile is applied in the library, to what nobody chose here. Guard: `every_row_of_the_table`.

use std::path::{Path, PathBuf};

use clap::Arg;
use coldpress::{
    BudgetSpec, ChoiceOrigin, ForceMode, GivenAs, IdleRelease, Isa, KvType, LoadConfiguration, MemoryGate,
    PackUse, Prefetch, Press, ReaderKind, Residency, SettingKey, SizeSpec, Thinking,
};

use crate::flags::{Flags, Given};
use crate::values::{
    count, exact, expert_type, experts_per_token, fraction, named, path, policy, resident_cap, seconds,
    switch, thread_count,
};

/// A way to give a setting.
pub struct Row {
    /// The setting.
    pub key: SettingKey,
    /// Flag and variable, where they are not the setting's own: another way to say the same.
    other: Option<(&'static str, &'static str)>,
    value_name: &'static str,
    help: &'static str,
    /// What the flag means without a value.
    bare: Option<&'static str>,
    /// Whether a series of measurements has a list of its own for it.
    pub listed: bool,
    apply: fn(&mut Choices, &str) -> Result<(), String>,
}

impl Row {
    /// The flag, without dashes.
    pub fn flag(&self) -> &'static str {
        self.other.map_or(self.key.flag(), |(flag, _)| flag).trim_start_matches('-')
    }

    /// The words for `value` of this setting.
    fn given_as(&self, value: &str) -> GivenAs {
        let flag = self.other.map_or(self.key.flag(), |(flag, _)| flag);
        GivenAs { flag, variable: self.variable(), value: value.to_owned() }
    }

    /// The environment variable.
    pub fn variable(&self) -> &'static str {
        self.other.map_or(self.key.variable(), |(_, variable)| variable)
    }

    /// Whether `text` is a value of this setting.
    ///
    /// # Errors
    /// What it must be.
    pub fn check(&self, text: &str) -> Result<(), String> {
        (self.apply)(&mut Choices::default(), text)
    }

    /// The flag for a command.
    pub fn arg(&'static self) -> Arg {
        let arg = Arg::new(self.flag())
            .long(self.flag())
            .value_name(self.value_name)
            .help(self.help)
            .value_parser(move |text: &str| self.check(text).map(|()| text.to_owned()));
        match (self.bare, self.other) {
            (Some(bare), _) => arg.num_args(0..=1).require_equals(true).default_missing_value(bare),
            (None, Some(_)) => arg.conflicts_with(self.key.flag().trim_start_matches('-')),
            (None, None) => arg,
        }
    }
}

const ROW: Row = Row {
    key: SettingKey::Budget,
    other: None,
    value_name: "VALUE",
    help: "",
    bare: None,
    listed: false,
    apply: |_, _| Ok(()),
};

/// Every way to give a setting.
pub static ROWS: [Row; SettingKey::ALL.len() + 1] = [
    Row {
        key: SettingKey::IdleAfter,
        value_name: "SECONDS",
        help: "Give memory back after this long without a request; the next one takes it again [default: never]",
        apply: |choices, text| {
            let after = seconds(text)?;
            choices.set(|configuration| configuration.idle_after(after))
        },
        ..ROW
    },
    Row {
        key: SettingKey::IdleRelease,
        value_name: "WHAT",
        help: "What --idle-after gives back: experts, or all but the program and the tokenizer [default: experts]",
        apply: |choices, text| {
            let release = named(&IdleRelease::ALL, text)?;
            choices.set(|configuration| configuration.idle_release(release))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Budget,
        value_name: "SIZE",
        help: "Bound on the memory of the whole process: 6GiB, 800MB, 25% (of usable memory), 50%model (of the model's \
               files), unlimited [default: 70%]",
        listed: true,
        apply: |choices, text| {
            choices.budget = Some(text.parse::<BudgetSpec>().map_err(|error| error.to_string())?);
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::Residency,
        value_name: "MODE",
        help: "Who holds the experts' bytes: auto, resident, streamed, paged, mapped [default: auto]",
        listed: true,
        apply: |choices, text| {
            let residency = named(&Residency::ALL, text)?;
            choices.residency = residency;
            choices.set(|configuration| configuration.residency(residency))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Press,
        value_name: "PRESS",
        help: "Whether experts may leave memory: auto, disabled (all are loaded or the run is refused), or the share of \
               their bytes, 0 to 1, that may live only on disk [default: auto]",
        apply: |choices, text| {
            let press = match text {
                "auto" => Press::Auto,
                "disabled" => Press::Disabled,
                share => Press::Enabled {
                    cold_fraction: fraction(share)
                        .map_err(|_| "it must be auto, disabled or a number between 0 and 1".to_owned())?,
                },
            };
            choices.set(|configuration| configuration.press(press))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Press,
        other: Some(("--cold-fraction", "COLDPRESS_COLD_FRACTION")),
        value_name: "F",
        help: "Share of the routed-expert bytes, 0 to 1, that may live only on disk; --press F says the same",
        apply: |choices, text| {
            let cold_fraction = fraction(text)?;
            choices.set(|configuration| configuration.press(Press::Enabled { cold_fraction }))
        },
        ..ROW
    },
    Row {
        key: SettingKey::ResidentCap,
        value_name: "CAP",
        help: "Bound on the routed-expert bytes in memory: 6GiB, a share of them up to 1 such as 0.3, unlimited \
               [default: unlimited]",
        apply: |choices, text| {
            let cap = resident_cap(text)?;
            choices.set(|configuration| configuration.max_resident_bytes(cap))
        },
        ..ROW
    },
    Row {
        key: SettingKey::ForceMode,
        value_name: "MODE",
        help: "How --residency mapped gives experts back to the system: soft, force [default: soft]",
        apply: |choices, text| {
            let mode = named(&ForceMode::ALL, text)?;
            choices.set(|configuration| configuration.force_mode(mode))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Policy,
        value_name: "NAME",
        help: "Cache policy [default: what `tune` found best for the model, else per-layer-lfu]",
        apply: |choices, text| {
            policy(text)?;
            choices.set(|configuration| configuration.policy(text, ChoiceOrigin::Flag))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Prefetch,
        value_name: "WHEN",
        help: "Whether experts are read before a router asks for them: auto, on, off [default: what `tune` found best for \
               the model, else auto: while it pays]",
        apply: |choices, text| {
            let prefetch = named(&Prefetch::ALL, text)?;
            choices.set(|configuration| configuration.prefetch(prefetch, ChoiceOrigin::Flag))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Reader,
        value_name: "KIND",
        help: "How experts are read: auto, uring, pread [default: auto]",
        apply: |choices, text| {
            let reader = named(&ReaderKind::ALL, text)?;
            choices.set(|configuration| configuration.reader(reader))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Split,
        value_name: "N",
        help: "Parallel reads that an expert of a pack is cut into [default: as measured for the disk, else 1]",
        apply: |choices, text| {
            let parts = count(text)?;
            choices.set(|configuration| configuration.split(parts as usize))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Prestack,
        value_name: "WHEN",
        help: "When the model's pack is written: on (before the first token), lazy (expert by expert as they are used), off \
               (only by `coldpress pack`) [default: off]",
        apply: |choices, text| {
            choices.prestack = match text {
                "lazy" => Prestack::Lazy,
                _ if switch(text).map_err(|_| "it must be off, on or lazy (or 0, 1)".to_owned())? => {
                    Prestack::Before
                }
                _ => Prestack::Never,
            };
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::PrestackFolder,
        value_name: "FOLDER",
        help: "Where packs, profiles and hotlists lie [default: the user's cache folder]",
        apply: |choices, text| {
            choices.pack_folder = Some(path(text)?);
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::Pack,
        value_name: "FILE",
        help: "Pack file to read experts from [default: the one in the prestack folder, if there is one]",
        apply: |choices, text| {
            choices.pack_file = Some(path(text)?);
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::Hotlist,
        value_name: "WHEN",
        help: "Whether `run` and `chat` start with the experts that earlier runs used: on, off [default: on]",
        apply: |choices, text| {
            choices.hotlist = switch(text)?;
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::DiskProbe,
        value_name: "WHEN",
        help: "Whether the first load from a disk measures it: on, off [default: on]",
        apply: |choices, text| {
            choices.disk_probe = switch(text)?;
            Ok(())
        },
        ..ROW
    },
    Row {
        key: SettingKey::Context,
        value_name: "TOKENS",
        help: "Positions of the KV cache [default: up to 8192, as the model and the budget allow]",
        listed: true,
        apply: |choices, text| {
            let tokens = count(text)?;
            choices.set(|configuration| configuration.context(tokens))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Chunk,
        value_name: "TOKENS",
        help: "Prompt tokens that pass each layer together [default: up to 4096, as context and budget allow]",
        apply: |choices, text| {
            let tokens = count(text)?;
            choices.set(|configuration| configuration.chunk_tokens(tokens))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Kv,
        value_name: "TYPE",
        help: "Precision of the KV cache: f16, f32, or smaller and lossy: q8, q4 [default: f16]",
        apply: |choices, text| {
            let kv = named(&KvType::ALL, text)?;
            choices.set(|configuration| configuration.kv_type(kv))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Experts,
        value_name: "TYPE",
        help: "Experts of the pack that `pack --experts` wrote: q4_k, q4_0, q8_0, mxfp4: lossy; keep: as in the file [default: keep]",
        apply: |choices, text| expert_type(text).and_then(|to| choices.set(|all| all.experts(to))),
        ..ROW
    },
    Row {
        key: SettingKey::ExpertsPerToken,
        value_name: "N",
        help: "Experts that a token uses in each layer, fewer than the model was trained with: lossy; also expert_used_count=N, as \
               llama.cpp names it [default: as many as the model says]",
        apply: |choices, text| {
            let experts = experts_per_token(text)?;
            choices.set(|configuration| configuration.experts_per_token(experts))
        },
        ..ROW
    },
    Row {
        key: SettingKey::CacheBias,
        value_name: "X",
        help: "How far tokens of answers prefer experts in memory, 0 to 1: X times the distance between the router's best and worst \
               score; lossy, and answers depend on the budget [default: 0]",
        apply: |choices, text| {
            let share = fraction(text)? as f32;
            choices.set(|configuration| configuration.cache_bias(share))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Threads,
        value_name: "N",
        help: "Threads that compute [default: the processors this process may use]",
        apply: |choices, text| {
            let threads = thread_count(text)?;
            choices.set(|configuration| configuration.threads(threads))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Isa,
        value_name: "NAME",
        help: "Instruction set of the kernels [default: the best one of this machine]",
        apply: |choices, text| {
            let known = || Isa::ALL.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
            let isa = Isa::parse(text).ok_or_else(|| format!("known instruction sets: {}", known()))?;
            choices.isa = Some(isa);
            choices.set(|configuration| configuration.isa(isa))
        },
        ..ROW
    },
    Row {
        key: SettingKey::RouterAdvice,
        value_name: "WHEN",
        help: "Whether --residency mapped keeps the experts that each layer uses most beyond their places: on, off \
               [default: off]",
        apply: |choices, text| {
            let on = switch(text)?;
            choices.set(|configuration| configuration.router_advice(on))
        },
        ..ROW
    },
    Row {
        key: SettingKey::RouterAdviceCap,
        value_name: "SIZE",
        help: "How many bytes of them, part of the budget [default: one token's experts, at most an eighth of the budget]",
        apply: |choices, text| {
            let cap = exact(text)?;
            choices.set(|configuration| configuration.router_advice_cap(cap))
        },
        ..ROW
    },
    Row {
        key: SettingKey::RouteTelemetry,
        value_name: "WHEN",
        help: "Whether uses and hits of every expert are counted, in memory of fixed size: on, off [default: off]",
        apply: |choices, text| {
            let on = switch(text)?;
            choices.set(|configuration| configuration.route_telemetry(on))
        },
        ..ROW
    },
    Row {
        key: SettingKey::MemoryGate,
        value_name: "GATE",
        help: "Whether a run that needs more memory than can be had now is refused: on, off (it may swap, be killed, or fail) \
               [default: on]",
        apply: |choices, text| {
            let gate = if switch(text)? { MemoryGate::On } else { MemoryGate::Off };
            choices.set(|configuration| configuration.memory_gate(gate))
        },
        ..ROW
    },
    Row {
        key: SettingKey::LowRam,
        value_name: "WHEN",
        help: "The low-RAM profile, for what is not chosen otherwise: context 2048, chunk 128, no hotlist, thinking off",
        bare: Some("on"),
        apply: |choices, text| {
            let on = switch(text)?;
            choices.set(|configuration| configuration.low_ram(on))
        },
        ..ROW
    },
    Row {
        key: SettingKey::Thinking,
        value_name: "WHEN",
        help: "What a chat template that takes enable_thinking is told: auto (nothing), on, off [default: auto]",
        apply: |choices, text| {
            let thinking = named(&Thinking::ALL, text)?;
            choices.set(|configuration| configuration.thinking(thinking))
        },
        ..ROW
    },
    Row {
        key: SettingKey::PreTokenizer,
        value_name: "NAME",
        help: "Rules that split text before byte-pair encoding, for a file that names unknown ones",
        apply: |choices, text| choices.set(|configuration| configuration.pre_tokenizer(text)),
        ..ROW
    },
];

/// When a model's pack is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Prestack {
    /// Only by `coldpress pack`.
    #[default]
    Never,
    /// While the model runs, expert by expert.
    Lazy,
    /// Before the first token.
    Before,
}

/// What environment and flags came to.
#[derive(Clone, Debug)]
pub struct Choices {
    configuration: LoadConfiguration,
    budget: Option<BudgetSpec>,
    prestack: Prestack,
    pack_file: Option<PathBuf>,
    hotlist: bool,
    disk_probe: bool,
    chosen: Vec<(Given, ChoiceOrigin)>,
    /// Who holds the experts' bytes, as asked.
    pub residency: Residency,
    /// Folder for packs, profiles and hotlists; `None` where no cache folder is known.
    pub pack_folder: Option<PathBuf>,
    /// Forced instruction set.
    pub isa: Option<Isa>,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            configuration: LoadConfiguration::default(),
            budget: None,
            prestack: Prestack::Never,
            pack_file: None,
            hotlist: true,
            disk_probe: true,
            chosen: Vec::new(),
            residency: Residency::Auto,
            pack_folder: None,
            isa: None,
        }
    }
}

impl Choices {
    /// What variables and flags come to where packs lie in `cache_folder` unless somebody says otherwise.
    pub fn of(variables: &[Given], flags: &Flags, cache_folder: Option<PathBuf>) -> Self {
        let mut choices = Self { pack_folder: cache_folder, ..Self::default() };
        for (level, origin) in
            [(variables, ChoiceOrigin::Environment), (flags.0.as_slice(), ChoiceOrigin::Flag)]
        {
            for given in level {
                (given.row.apply)(&mut choices, &given.value).expect("a value is checked when it is read");
                choices.chosen.push((given.clone(), origin));
            }
        }
        choices
    }

    fn set(&mut self, change: impl FnOnce(LoadConfiguration) -> LoadConfiguration) -> Result<(), String> {
        self.configuration = change(std::mem::take(&mut self.configuration));
        Ok(())
    }

    /// How packs are used.
    pub fn pack_use(&self) -> PackUse {
        match (&self.pack_file, &self.pack_folder) {
            (Some(file), _) => PackUse::File(file.clone()),
            (None, Some(folder)) => match self.prestack {
                Prestack::Never => PackUse::IfPresent(folder.clone()),
                Prestack::Lazy => PackUse::Fill(folder.clone()),
                Prestack::Before => PackUse::BuildIfAbsent(folder.clone()),
            },
            (None, None) => PackUse::Never,
        }
    }

    /// The configuration for a model; `talks` where the command starts with what earlier runs used.
    pub fn configuration(&self, model: &Path, talks: bool) -> LoadConfiguration {
        let mut configuration = self.configuration.clone().pack(self.pack_use());
        if let Some(budget) = self.budget.and_then(|budget| size(budget, model)) {
            configuration = configuration.budget(budget);
        }
        if let Some(folder) = &self.pack_folder {
            configuration = configuration.profiles(folder.clone());
            if self.disk_probe {
                configuration = configuration.disk_probe(folder.clone());
            }
            if self.hotlist && talks {
                configuration = configuration.hotlists(folder.clone());
            }
        }
        // What was set above for everybody is nobody's choice.
        SettingKey::ALL.into_iter().fold(configuration, |configuration, key| {
            let last = self.chosen.iter().rev().find(|(given, _)| given.row.key == key);
            let Some((Given { row, value }, origin)) = last else {
                return configuration.chosen_by(key, ChoiceOrigin::Default);
            };
            configuration.chosen_by(key, *origin).given_as(key, row.given_as(value))
        })
    }

    /// Why the flag or variable for when packs are written changes nothing; `None` where it does.
    pub fn prestack_unused(&self) -> Option<&'static str> {
        match (self.prestack, &self.pack_file, &self.pack_folder) {
            (Prestack::Never, ..) => None,
            (_, Some(_), _) => Some("a pack was named, and it is used as it is"),
            (_, None, None) => {
                Some("no cache folder is known (HOME is not set): name one with --prestack-dir")
            }
            (_, None, Some(_)) => None,
        }
    }
}

/// What a budget means for a model; `None` for a share of a model that cannot be opened, which the load or plan that
/// follows says better.
pub fn size(budget: BudgetSpec, model: &Path) -> Option<SizeSpec> {
    match budget {
        BudgetSpec::Size(size) => Some(size),
        BudgetSpec::PercentOfModel(_) => {
            coldpress::model_file_bytes(model).ok().map(|bytes| budget.for_model(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(flag: &str) -> &'static Row {
        ROWS.iter().find(|row| row.flag() == flag).expect("a flag of the table")
    }

    #[test]
    fn every_setting_has_its_row_and_every_row_names_of_its_own() {
        for key in SettingKey::ALL {
            assert!(ROWS.iter().any(|row| row.key == key && row.other.is_none()), "{key:?}");
        }
        for (index, row) in ROWS.iter().enumerate() {
            assert!(!row.help.is_empty(), "{}", row.flag());
            for other in &ROWS[index + 1..] {
                assert!(row.flag() != other.flag() && row.variable() != other.variable(), "{}", row.flag());
            }
        }
    }

    #[test]
    fn a_flag_wins_over_its_variable_and_over_another_word_for_it() {
        let given = |flag, value: &str| Given { row: row(flag), value: value.to_owned() };
        let folder = Some(PathBuf::from("/p"));
        let variables = [given("prestack", "1"), given("press", "disabled")];
        let alone = Choices::of(&variables, &Flags::default(), folder.clone());
        assert!(matches!(alone.pack_use(), PackUse::BuildIfAbsent(_)));
        let flags = Flags(vec![given("prestack", "lazy"), given("cold-fraction", "0.5")]);
        let both = Choices::of(&variables, &flags, folder.clone());
        assert!(matches!(both.pack_use(), PackUse::Fill(_)));
        let configuration = both.configuration(Path::new("m"), false);
        assert_eq!(configuration.origin(SettingKey::Press), ChoiceOrigin::Flag);
        assert_eq!(configuration.origin(SettingKey::Hotlist), ChoiceOrigin::Default);
        let file = Flags(vec![given("pack", "x.cpack")]);
        assert_eq!(Choices::of(&variables, &file, folder).pack_use(), PackUse::File("x.cpack".into()));
    }
}
