//! How a loaded model reads its experts and what the cache does, as JSON and as words; shared by `run`, `bench` and `tune`.

use coldpress::{PageCacheUse, Reading, Status};
use serde_json::{Value, json};

/// How experts are read, with the reader that was really opened; `null` for dense models.
pub fn reading_value(status: &Status) -> Value {
    if status.plan.plan.records_total == 0 {
        return Value::Null;
    }
    let reading = &status.plan.reading;
    json!({
        "reader": status.reader,
        "depth": reading.depth,
        "split": reading.split,
        "access": reading.access,
        "direct": reading.access == PageCacheUse::Direct,
        "basis": reading.basis,
    })
}

/// Whether experts are read ahead and who chose that; `null` for dense models.
pub fn prefetch_value(status: &Status) -> Value {
    if status.plan.plan.records_total == 0 { Value::Null } else { json!(status.plan.policy.prefetch) }
}

/// How experts are read, in one line; `reader` is the one that was opened.
pub fn reading(reading: &Reading, reader: &str) -> String {
    let depth = reading.depth.map_or("default depth".to_owned(), |depth| format!("{depth} reads in flight"));
    let split = match reading.split {
        1 => "1 read per expert".to_owned(),
        split => format!("{split} reads per expert"),
    };
    format!("reader {reader}, {depth}, {split}, {} ({})", reading.access.name(), reading.basis.name())
}

/// How a loaded model reads and what the cache does, in one line; empty for dense models.
pub fn describe(status: &Status) -> String {
    if status.plan.plan.records_total == 0 {
        return String::new();
    }
    let policy = &status.plan.policy;
    format!(
        "{}; policy {} ({}); prefetch {} ({})",
        reading(&status.plan.reading, status.reader),
        status.policy,
        policy.origin.name(),
        policy.prefetch.setting.name(),
        policy.prefetch.origin.name()
    )
}
