//! The values that settings take, from text. Every function says what the value must be where the text is none.

use std::path::PathBuf;
use std::time::Duration;

use coldpress::{Bytes, ExpertType, MemoryError, ResidentCap, SizeSpec};

/// A name of a table.
pub fn named<T: Copy>(table: &[(&'static str, T)], text: &str) -> Result<T, String> {
    let found = table.iter().find(|&&(name, _)| name == text).map(|&(_, value)| value);
    let names = || table.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("it must be one of {}", names()))
}

/// What experts are held as.
pub fn expert_type(text: &str) -> Result<ExpertType, String> {
    named(&ExpertType::ALL, text)
}

/// `on` or `off`.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("it must be on or off (or 1, 0)".to_owned()),
    }
}

/// A number between 0 and 1.
pub fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "it must be a number between 0 and 1".to_owned())
}

/// A number of bytes.
pub fn exact(text: &str) -> Result<Bytes, String> {
    size(text, "512MiB")
}

/// A number of bytes; `example` is a fitting one.
pub fn size(text: &str, example: &str) -> Result<Bytes, String> {
    match text.parse::<SizeSpec>() {
        Ok(SizeSpec::Exact(bytes)) if bytes != Bytes::MAX => Ok(bytes),
        Ok(_) => Err(format!("it must be a number of bytes such as {example}")),
        Err(MemoryError::BadSize { reason, .. }) => {
            Err(format!("{reason}; it must be a size such as {example}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A bound on the bytes of experts in memory.
pub fn resident_cap(text: &str) -> Result<ResidentCap, String> {
    if text == "unlimited" {
        return Ok(ResidentCap::Unlimited);
    }
    if let Some(share) = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0) {
        return Ok(ResidentCap::Fraction(share));
    }
    let wrong = "it must be a size such as 6GiB, a share of the routed experts' bytes above 0 and up to 1, or unlimited";
    exact(text).map(ResidentCap::Bytes).map_err(|_| wrong.to_owned())
}

/// A number of at least 1.
pub fn count(text: &str) -> Result<u32, String> {
    let value = text.parse::<u32>().ok().filter(|value| *value > 0);
    value.ok_or_else(|| format!("it must be a number between 1 and {}", u32::MAX))
}

/// A number of experts: `4`, or as llama.cpp writes an override, `[ARCHITECTURE.]expert_used_count=[int:]4`.
pub fn experts_per_token(text: &str) -> Result<u32, String> {
    let number = match text.split_once('=') {
        Some((key, value)) if key.rsplit('.').next() == Some("expert_used_count") => {
            value.strip_prefix("int:").unwrap_or(value)
        }
        Some(_) => return Err("the only key that can be given is expert_used_count".to_owned()),
        None => text,
    };
    count(number)
}

/// A number of threads.
pub fn thread_count(text: &str) -> Result<usize, String> {
    let most = coldpress::THREADS_MAX;
    let value = text.parse::<usize>().ok().filter(|value| (1..=most).contains(value));
    value.ok_or_else(|| format!("it must be a number between 1 and {most}"))
}

/// A path.
pub fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("it must be a path".to_owned()) } else { Ok(PathBuf::from(text)) }
}

/// The name of a policy.
pub fn policy(text: &str) -> Result<String, String> {
    if coldpress::POLICIES.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is not a policy; known: {}", coldpress::POLICIES.join(", ")))
    }
}

/// A time in seconds, above 0, or `never`.
pub fn seconds(text: &str) -> Result<Option<Duration>, String> {
    if text == "never" {
        return Ok(None);
    }
    let wrong = || "it must be a number of seconds above 0, or never".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    Ok(Some(time.ok_or_else(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_a_number_or_an_override() {
        for text in
            ["4", "expert_used_count=4", "expert_used_count=int:4", "qwen3moe.expert_used_count=int:4"]
        {
            assert_eq!(experts_per_token(text), Ok(4), "{text}");
        }
        for wrong in
            ["0", "-1", "four", "", "expert_count=4", "=4", "expert_used_count=", "expert_used_count=float:4"]
        {
            assert!(experts_per_token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_cap_is_a_share_up_to_1_and_bytes_above() {
        assert_eq!(resident_cap("0.3"), Ok(ResidentCap::Fraction(0.3)));
        assert_eq!(resident_cap("1"), Ok(ResidentCap::Fraction(1.0)));
        assert_eq!(resident_cap("2MiB"), Ok(ResidentCap::Bytes(Bytes::from_mib(2))));
        assert_eq!(resident_cap("unlimited"), Ok(ResidentCap::Unlimited));
        for wrong in ["0", "30%", "-1", "nan", "50%model", "x", ""] {
            assert!(resident_cap(wrong).is_err(), "{wrong}");
        }
    }
}
