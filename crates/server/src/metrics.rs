//! The text that Prometheus reads (exposition format 0.0.4).
//!
//! Names and units follow its guide: base units, totals end in `_total`.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::state::{Health, ServerState};

/// All metrics of a server.
pub fn text(state: &ServerState) -> String {
    let mut out = String::new();
    let counters = &state.counters;
    let load = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed) as f64;
    let open = |value: &std::sync::atomic::AtomicUsize| value.load(Ordering::Relaxed) as f64;
    let ready = f64::from(u8::from(state.health() == Health::Ready));
    one(&mut out, "coldpress_ready", "gauge", "Whether the model answers.", ready);
    one(
        &mut out,
        "coldpress_uptime_seconds",
        "gauge",
        "Age of the server.",
        state.started.elapsed().as_secs_f64(),
    );
    head(&mut out, "coldpress_http_responses_total", "counter", "Answered requests by route and status.");
    for ((route, status), count) in counters.responses() {
        let route = label(&route);
        let _ =
            writeln!(out, "coldpress_http_responses_total{{route=\"{route}\",status=\"{status}\"}} {count}");
    }
    let server = [
        ("coldpress_http_connections", "gauge", "Open connections.", open(&counters.connections)),
        (
            "coldpress_http_connections_refused_total",
            "counter",
            "Connections turned away at the limit.",
            load(&counters.connections_refused),
        ),
        ("coldpress_answers_open", "gauge", "Answers that clients wait for.", open(&counters.answers_open)),
        (
            "coldpress_answers_total",
            "counter",
            "Answers that were completed.",
            load(&counters.answers_finished),
        ),
        (
            "coldpress_answers_abandoned_total",
            "counter",
            "Answers whose client left before they were complete.",
            load(&counters.answers_abandoned),
        ),
        (
            "coldpress_prompt_tokens_total",
            "counter",
            "Prompt tokens of answers.",
            load(&counters.prompt_tokens),
        ),
        (
            "coldpress_cached_tokens_total",
            "counter",
            "Prompt tokens that were not computed again.",
            load(&counters.cached_tokens),
        ),
        (
            "coldpress_completion_tokens_total",
            "counter",
            "Tokens of completed answers.",
            load(&counters.completion_tokens),
        ),
    ];
    let disk_wait = load(&counters.disk_wait_us) / 1e6;
    one(
        &mut out,
        "coldpress_disk_wait_seconds_total",
        "counter",
        "Time that answers waited for the disk.",
        disk_wait,
    );
    for (name, kind, help, value) in server {
        one(&mut out, name, kind, help, value);
    }
    if let Ok(backend) = state.backend() {
        engine(&mut out, &backend.status());
    }
    out
}

fn engine(out: &mut String, status: &crate::backend::BackendStatus) {
    let values = [
        ("coldpress_requests_running", "gauge", "Requests that compute.", status.running as f64),
        ("coldpress_requests_waiting", "gauge", "Requests that wait.", status.waiting as f64),
        ("coldpress_budget_bytes", "gauge", "The memory budget.", status.budget_bytes as f64),
        ("coldpress_held_bytes", "gauge", "Memory held.", status.held_bytes as f64),
        ("coldpress_peak_bytes", "gauge", "Most memory held so far.", status.peak_bytes as f64),
        (
            "coldpress_expert_hits_total",
            "counter",
            "Expert uses served from memory.",
            status.expert_hits as f64,
        ),
        ("coldpress_expert_misses_total", "counter", "Expert uses read first.", status.expert_misses as f64),
        ("coldpress_expert_read_bytes_total", "counter", "Bytes of experts read.", status.bytes_read as f64),
    ];
    for (name, kind, help, value) in values {
        one(out, name, kind, help, value);
    }
    head(out, "coldpress_memory_bytes", "gauge", "Memory held, by purpose.");
    for (purpose, bytes) in &status.memory {
        let _ = writeln!(out, "coldpress_memory_bytes{{purpose=\"{}\"}} {bytes}", label(purpose));
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn one(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    head(out, name, kind, help);
    let _ = writeln!(out, "{name} {value}");
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
