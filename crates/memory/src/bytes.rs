//! Byte counts and the size figures a user types.
//!
//! Owns: [`Bytes`] (a count with checked arithmetic and one way to print it), [`apart`] (counts beside each other), [`SizeSpec`] (`6GiB`, `25%`, `unlimited`)
//! and [`BudgetSpec`] (those, and `50%model`). Refuses: guessing; an unclear figure is an error that shows the accepted forms.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MemoryError;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest count; stands for "no limit" in a ledger.
    pub const MAX: Self = Self(u64::MAX);

    /// `count` KiB (1024 bytes each).
    pub const fn from_kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` MiB (1024 KiB each).
    pub const fn from_mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` GiB (1024 MiB each).
    pub const fn from_gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, or `None` when it does not fit 64 bits.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` when `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The product, or `None` when it does not fit 64 bits.
    pub const fn checked_mul(self, factor: u64) -> Option<Self> {
        match self.0.checked_mul(factor) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }

    /// The sum, at most [`Bytes::MAX`].
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The product, at most [`Bytes::MAX`].
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// The next multiple of `alignment` (not zero), or `None` when it does not fit 64 bits.
    pub const fn checked_next_multiple_of(self, alignment: u64) -> Option<Self> {
        match self.0.checked_next_multiple_of(alignment) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }

    /// `percent` hundredths of the count, rounded down; exact for every count.
    pub fn percent(self, percent: f64) -> Self {
        self.hundredths(percent.clamp(0.0, 100.0))
    }

    fn hundredths(self, percent: f64) -> Self {
        // A percentage is kept to a millionth of a percent, so that the product is an integer.
        let millionths = (percent * 1e6).round() as u128;
        let product = u128::from(self.0).saturating_mul(millionths) / 100_000_000;
        Self(u64::try_from(product).unwrap_or(u64::MAX))
    }

    /// The count in MiB, for tables.
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }

    /// In the largest binary unit, with this many decimals.
    fn text(self, decimals: usize) -> String {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return format!("{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 1023.95 would print as "1024.0": go one unit up.
        let rounds_up_from = 1024.0 - 0.5 * 0.1_f64.powi(decimals as i32);
        while value >= rounds_up_from && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        format!("{value:.decimals$} {}", UNITS[unit])
    }
}

/// Decimals beyond which a plain number is easier to read.
const DECIMALS_MAX: usize = 3;

/// Counts for a message that sets them beside each other: printed as always where that tells different counts apart, else
/// with more decimals, else as plain numbers of bytes. "33.1 MiB are needed and 33.1 MiB are free" helps nobody.
pub fn apart<const N: usize>(counts: [Bytes; N]) -> [String; N] {
    let differ = |texts: &[String; N]| {
        (0..N).all(|left| (0..left).all(|right| counts[left] == counts[right] || texts[left] != texts[right]))
    };
    let rounded = (1..=DECIMALS_MAX).map(|decimals| counts.map(|count| count.text(decimals))).find(differ);
    rounded.unwrap_or_else(|| counts.map(|count| format!("{} B", count.0)))
}

impl From<u64> for Bytes {
    fn from(count: u64) -> Self {
        Self(count)
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

/// Saturates: a sum that large fits no budget anyway.
impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Self::saturating_add)
    }
}

/// Prints with one decimal in the largest binary unit: `512 B`, `1.5 KiB`, `12.3 MiB`, `6.0 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text(1))
    }
}

/// A size as the user names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeSpec {
    /// A fixed number of bytes.
    Exact(Bytes),
    /// A share of the usable memory, above 0 and at most 100.
    Percent(f64),
    /// No limit.
    Unlimited,
}

impl SizeSpec {
    /// The figure in bytes on a machine with `usable` bytes; [`Bytes::MAX`] for `unlimited`.
    pub fn resolve(self, usable: Bytes) -> Bytes {
        match self {
            Self::Exact(bytes) => bytes,
            Self::Percent(percent) => usable.percent(percent),
            Self::Unlimited => Bytes::MAX,
        }
    }
}

/// Largest share of a model's files in percent: more than any figure beside the weights comes to.
const MODEL_PERCENT_MAX: f64 = 1000.0;

/// A budget as the user names it: a size, or a share of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetSpec {
    /// A size that needs no model.
    Size(SizeSpec),
    /// A share of the bytes of the model's files in percent, above 0 and at most 1000.
    PercentOfModel(f64),
}

impl BudgetSpec {
    /// The size for a model whose files have `model` bytes.
    pub fn for_model(self, model: Bytes) -> SizeSpec {
        match self {
            Self::Size(size) => size,
            Self::PercentOfModel(percent) => {
                SizeSpec::Exact(model.hundredths(percent.clamp(0.0, MODEL_PERCENT_MAX)))
            }
        }
    }
}

impl FromStr for BudgetSpec {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let lower = text.trim().to_ascii_lowercase();
        let Some(number) = lower.strip_suffix("model").and_then(|rest| rest.trim_end().strip_suffix('%'))
        else {
            return text.parse().map(Self::Size);
        };
        let number = number.trim_end();
        let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
        match number.parse::<f64>() {
            Ok(percent) if plain && percent > 0.0 && percent <= MODEL_PERCENT_MAX => {
                Ok(Self::PercentOfModel(percent))
            }
            _ => Err(MemoryError::BadSize {
                text: text.chars().take(40).collect(),
                reason: "a share of the model is above 0 and at most 1000 percent".to_owned(),
            }),
        }
    }
}

/// Unit names, in any case when typed, and their sizes in bytes. A number alone is in bytes.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Units that no machine needs yet, and how they are written in those that are known.
const LARGER_UNITS: [(&str, &str); 4] =
    [("PiB", "1024TiB"), ("EiB", "1048576TiB"), ("PB", "1000TB"), ("EB", "1000000TB")];

/// What is wrong with a size of 2^64 bytes or more.
const TOO_LARGE: &str = "too large, sizes end below 16777216TiB";

/// Size of a unit in bytes; the error names all units.
fn unit_scale(unit: &str) -> Result<u64, String> {
    if unit.is_empty() {
        return Ok(1);
    }
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.map(|(_, scale)| *scale).ok_or_else(|| {
        let [names @ .., last] = UNITS.map(|(name, _)| name);
        let larger = LARGER_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let instead =
            larger.map_or_else(String::new, |(name, written)| format!("; 1{name} is written {written}"));
        format!("unknown unit, the known ones are {} and {last}{instead}", names.join(", "))
    })
}

impl FromStr for SizeSpec {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let fault = |reason: &str| MemoryError::BadSize {
            text: text.chars().take(40).collect(),
            reason: reason.to_owned(),
        };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let number_len = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(number_len);
        let unit = unit.trim();
        if number.is_empty() {
            return Err(fault("no number in front"));
        }
        if unit == "%" {
            let percent: f64 = number.parse().map_err(|_| fault("not a number"))?;
            if !(percent > 0.0 && percent <= 100.0) {
                return Err(fault("a percentage is above 0 and at most 100"));
            }
            return Ok(Self::Percent(percent));
        }
        let scale = unit_scale(unit).map_err(|reason| fault(&reason))?;
        let bytes = parse_decimal(number, scale).map_err(fault)?;
        if bytes == 0 {
            return Err(fault("the size is zero"));
        }
        Ok(Self::Exact(Bytes(bytes)))
    }
}

/// `number` × `scale`, rounded down, in integers, so that `0.1GiB` and `9007199254740993` lose nothing.
fn parse_decimal(number: &str, scale: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err("not a number");
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| TOO_LARGE)? };
    // Digits beyond 18 change nothing below one byte of a TiB.
    let digits = &fraction[..fraction.len().min(18)];
    let numerator: u128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| "not a number")? };
    let part = numerator * u128::from(scale) / 10u128.pow(digits.len() as u32);
    u64::try_from(u128::from(whole) * u128::from(scale) + part).map_err(|_| TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        let cases = [
            ("6GiB", SizeSpec::Exact(Bytes::from_gib(6))),
            ("800MiB", SizeSpec::Exact(Bytes::from_mib(800))),
            ("3GB", SizeSpec::Exact(Bytes(3_000_000_000))),
            ("1.5 GiB", SizeSpec::Exact(Bytes::from_mib(1536))),
            (".5kib", SizeSpec::Exact(Bytes(512))),
            ("123456", SizeSpec::Exact(Bytes(123_456))),
            ("9007199254740993", SizeSpec::Exact(Bytes(9_007_199_254_740_993))),
            ("18446744073709551615", SizeSpec::Exact(Bytes::MAX)),
            ("25%", SizeSpec::Percent(25.0)),
            ("12.5 %", SizeSpec::Percent(12.5)),
            ("Unlimited", SizeSpec::Unlimited),
        ];
        for (text, wanted) in cases {
            assert_eq!(text.parse::<SizeSpec>().expect(text), wanted, "{text}");
        }
    }

    #[test]
    fn unclear_sizes_are_one_line_errors() {
        for text in [
            "",
            " ",
            "GiB",
            "6G",
            "6Gi",
            "0",
            "0.0MiB",
            "-1GiB",
            "1.2.3GiB",
            ".",
            "0%",
            "101%",
            "nan%",
            "1e9",
            "18446744073709551616",
            "99999999999TiB",
            "6GiB6",
            "∞",
            "٣GiB",
        ] {
            let error = text.parse::<SizeSpec>().expect_err(text).to_string();
            assert!(!error.contains('\n') && error.contains("6GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn an_unknown_unit_is_answered_with_the_known_ones() {
        for text in ["1PiB", "6G", "6GiB6", "3 potatoes"] {
            let error = text.parse::<SizeSpec>().expect_err(text).to_string();
            let known = "unknown unit, the known ones are B, KiB, MiB, GiB, TiB, KB, MB, GB and TB";
            assert!(error.contains(known), "{text}: {error}");
        }
        let larger = "1PiB".parse::<SizeSpec>().expect_err("no unit").to_string();
        assert!(larger.contains("\"1PiB\"") && larger.contains("1PiB is written 1024TiB"), "{larger}");
        let huge = "16777216TiB".parse::<SizeSpec>().expect_err("too large").to_string();
        assert!(huge.contains("16777216TiB\": too large, sizes end below 16777216TiB"), "{huge}");
        assert_eq!(
            "16777215TiB".parse::<SizeSpec>().expect("a size"),
            SizeSpec::Exact(Bytes(16_777_215 << 40))
        );
        for (name, scale) in UNITS {
            let size = format!("3{name}").parse::<SizeSpec>();
            assert_eq!(size.expect(name), SizeSpec::Exact(Bytes(3 * scale)), "{name}");
        }
    }

    #[test]
    fn budgets_are_sizes_or_shares_of_the_model() {
        let cases = [
            ("6GiB", BudgetSpec::Size(SizeSpec::Exact(Bytes::from_gib(6)))),
            ("25%", BudgetSpec::Size(SizeSpec::Percent(25.0))),
            ("unlimited", BudgetSpec::Size(SizeSpec::Unlimited)),
            ("50%model", BudgetSpec::PercentOfModel(50.0)),
            (" 12.5 % Model ", BudgetSpec::PercentOfModel(12.5)),
            ("120%model", BudgetSpec::PercentOfModel(120.0)),
        ];
        for (text, wanted) in cases {
            assert_eq!(text.parse::<BudgetSpec>().expect(text), wanted, "{text}");
        }
        for text in [
            "0%model",
            "-5%model",
            "nan%model",
            "1001%model",
            "%model",
            "50model",
            "1e2%model",
            "model",
            "5%%model",
            "50%models",
        ] {
            let error = text.parse::<BudgetSpec>().expect_err(text).to_string();
            assert!(!error.contains('\n') && error.contains("6GiB"), "{text}: {error}");
        }
        let half = BudgetSpec::PercentOfModel(50.0);
        assert_eq!(half.for_model(Bytes(1001)), SizeSpec::Exact(Bytes(500)));
        let large = BudgetSpec::PercentOfModel(1000.0);
        assert_eq!(large.for_model(Bytes::MAX), SizeSpec::Exact(Bytes::MAX));
        let size = BudgetSpec::Size(SizeSpec::Percent(25.0));
        assert_eq!(size.for_model(Bytes(1)), SizeSpec::Percent(25.0));
    }

    #[test]
    fn counts_print_in_the_largest_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (12_897_485, "12.3 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (6 << 30, "6.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, wanted) in cases {
            assert_eq!(Bytes(count).to_string(), wanted);
        }
    }

    #[test]
    fn counts_beside_each_other_look_different_when_they_are() {
        let texts = |counts: [u64; 2]| apart(counts.map(Bytes));
        assert_eq!(texts([34 << 20, 33 << 20]), ["34.0 MiB", "33.0 MiB"]);
        assert_eq!(texts([34_707_001, 34_686_525]), ["33.10 MiB", "33.08 MiB"]);
        assert_eq!(texts([34_707_001, 34_707_000]), ["34707001 B", "34707000 B"]);
        assert_eq!(texts([1 << 30, 1 << 30]), ["1.0 GiB", "1.0 GiB"], "equal counts look equal");
        assert_eq!(texts([1 << 30, (1 << 30) - (1 << 19)]), ["1.0 GiB", "1023.5 MiB"]);
        let mut random = 1_u64;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let count = random >> (random % 60);
            let [left, right] = texts([count, count.saturating_sub(random % 5000)]);
            assert_eq!(left == right, random.is_multiple_of(5000) || count == 0, "{left} {right}");
        }
    }

    #[test]
    fn percentages_are_exact_for_large_counts() {
        assert_eq!(Bytes::MAX.percent(100.0), Bytes::MAX);
        assert_eq!(Bytes(u64::MAX - 1).percent(100.0), Bytes(u64::MAX - 1));
        assert_eq!(Bytes(1000).percent(12.5), Bytes(125));
        assert_eq!(SizeSpec::Percent(25.0).resolve(Bytes::from_gib(24)), Bytes::from_gib(6));
    }
}
