//! The flags of the table in `choices.rs`, for the parser of the command line.

use clap::{ArgMatches, Command};

use crate::choices::{ROWS, Row};

/// A value that was given in one way.
#[derive(Clone)]
pub struct Given {
    /// How.
    pub row: &'static Row,
    /// The value, checked.
    pub value: String,
}

impl std::fmt::Debug for Given {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}={}", self.row.flag(), self.value)
    }
}

/// The flags of a command that loads a model.
#[derive(Clone, Debug, Default)]
pub struct Flags(pub Vec<Given>);

/// The same without those that a series of measurements has lists for.
#[derive(Clone, Debug, Default)]
pub struct SeriesFlags(pub Flags);

fn with_args(command: Command, rows: impl Iterator<Item = &'static Row>) -> Command {
    rows.fold(command, |command, row| command.arg(row.arg()))
}

fn given(matches: &ArgMatches, rows: impl Iterator<Item = &'static Row>) -> Flags {
    let value = |row: &'static Row| {
        let value = matches.get_one::<String>(row.flag())?.clone();
        Some(Given { row, value })
    };
    Flags(rows.filter_map(value).collect())
}

fn series_rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| !row.listed)
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(given(matches, ROWS.iter()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        with_args(command, ROWS.iter())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for SeriesFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(given(matches, series_rows())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for SeriesFlags {
    fn augment_args(command: Command) -> Command {
        with_args(command, series_rows())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
