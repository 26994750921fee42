//! JSON values inside a schema: constants, counts, bounds.
//!
//! The compiler computes with f64 and 32-bit integers. What would be rounded there is refused here.

use serde_json::Value;

use super::limits::{COUNT_MAX, INTEGER_MAX};

/// Why a constant cannot be enforced, if it cannot. Nesting is bounded by the caller's count of values.
pub(super) fn refuse_constant(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(_) => None,
        Value::Number(number) => {
            let integer = number.is_i64() || number.is_u64();
            let value = number.as_f64().unwrap_or(f64::INFINITY);
            let exact = if integer { value.abs() <= INTEGER_MAX } else { value.is_finite() };
            (!exact).then(|| format!("the number {number} is beyond what is compared exactly (2^53 - 1)"))
        }
        Value::String(text) => refuse_text(text),
        Value::Array(items) => items.iter().find_map(refuse_constant),
        Value::Object(members) => members.values().find_map(refuse_constant),
    }
}

/// Strings are written with the short escapes of JSON only, so that each has one spelling.
fn refuse_text(text: &str) -> Option<String> {
    let short = ['\n', '\r', '\t', '\u{8}', '\u{c}'];
    let control =
        text.chars().find(|&character| character.is_ascii_control() && !short.contains(&character))?;
    Some(format!("the constant holds the control character U+{:04X}", u32::from(control)))
}

/// A length or count.
pub(super) fn count(value: &Value) -> Result<u64, String> {
    match value.as_u64() {
        Some(count) if count <= COUNT_MAX => Ok(count),
        Some(count) => Err(format!("{count} is above the largest length or count, {COUNT_MAX}")),
        None => Err(format!("expected a whole number from 0 on, found {}", shown(value))),
    }
}

/// A bound of numbers.
pub(super) fn bound(value: &Value) -> Result<(), String> {
    match value.as_f64() {
        Some(bound) if bound.abs() <= INTEGER_MAX => Ok(()),
        Some(bound) => Err(format!("the bound {bound} is beyond what is compared exactly (2^53 - 1)")),
        None => Err(format!("expected a number, found {}", shown(value))),
    }
}

/// The factors of a schema as decimal fractions, to see whether their common multiples stay exact.
#[derive(Default)]
pub(super) struct Factors(Vec<(u64, u32)>);

impl Factors {
    /// Adds a `multipleOf`.
    pub(super) fn add(&mut self, value: &Value) -> Result<(), String> {
        let factor = value.as_f64().ok_or_else(|| format!("expected a number, found {}", shown(value)))?;
        if !(factor > 0.0 && factor <= u32::MAX.into()) {
            return Err(format!("{factor} is not between 0 and 2^32"));
        }
        // As the compiler does it, so that both see the same digits.
        let (mut scaled, mut digits) = (factor, 0u32);
        while scaled.fract() != 0.0 {
            scaled *= 10.0;
            digits += 1;
        }
        if scaled > u32::MAX.into() {
            return Err(format!("{factor} has too many digits"));
        }
        self.0.push((scaled as u64, digits));
        if self.common_multiple_is_exact() {
            return Ok(());
        }
        Err("this factor together with the others of the schema has too many digits (the common multiple \
             times the largest factor must be below 2^32)"
            .to_owned())
    }

    fn common_multiple_is_exact(&self) -> bool {
        let digits_max = self.0.iter().map(|&(_, digits)| digits).max().unwrap_or(0);
        let (mut common, mut largest) = (1u64, 1u64);
        for &(factor, digits) in &self.0 {
            let scale = 10u64.checked_pow(digits_max - digits);
            let Some(scaled) = scale.and_then(|scale| factor.checked_mul(scale)) else { return false };
            largest = largest.max(scaled);
            match (common / greatest_common_divisor(common, scaled)).checked_mul(scaled) {
                Some(product) => common = product,
                None => return false,
            }
        }
        common.checked_mul(largest).is_some_and(|product| product <= u32::MAX.into())
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// A value as part of a message. Lists and objects are named only: they may be deep, and printing recurses.
pub(super) fn shown(value: &Value) -> String {
    const CHARACTERS_MAX: usize = 60;
    let text = match value {
        Value::Array(members) if members.is_empty() => return "an empty list".to_owned(),
        Value::Array(_) => return "a list".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        other => other.to_string(),
    };
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
