//! Formats of strings (`date`, `uuid`) that are enforced, each as a regular expression.
//!
//! RFC 3339 for dates and times, RFC 4122, RFC 2673 for the first ones: written here because llguidance's `date` matches the
//! empty string and knows no leap years. Leap seconds are left out: whether a minute has one is in no grammar.
//! A format that is not in this table is refused; JSON Schema would let it pass unchecked.

/// How a format is handed to the compiler.
pub(super) enum Format {
    /// As a pattern of ours.
    Pattern(String),
    /// By its name: the compiler's own expression is exact.
    Compiler,
}

const YEAR: &str = "[0-9]{4}";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";

fn date() -> String {
    format!(
        "(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
    )
}

/// The format with this name.
pub(super) fn find(name: &str) -> Option<Format> {
    let pattern = match name {
        "date" => date(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{}T{TIME}", date()),
        "uuid" => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".to_owned(),
        "ipv4" => format!(r"{OCTET}(?:\.{OCTET}){{3}}"),
        "email" | "hostname" | "ipv6" | "uri" | "duration" => return Some(Format::Compiler),
        _ => return None,
    };
    Some(Format::Pattern(format!("^{pattern}$")))
}

/// All names, for messages.
pub(super) const NAMES: &str = "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid";
