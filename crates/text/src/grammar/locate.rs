//! Where in a schema the compiler's refusal comes from.
//!
//! llguidance says what it refuses and not where. The part is found by asking again: the deepest subschema that is refused on
//! its own, for the reason the whole was refused.

use std::collections::HashSet;

use serde_json::Value;

use super::limits::LOCATE_ATTEMPTS_MAX;
use super::schema::{Refusal, enforceable_part, target};

/// Keywords whose value is a schema, a list of schemas, or a mapping to schemas.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
const LIST: [&str; 5] = ["items", "prefixItems", "allOf", "anyOf", "oneOf"];
const MAPPING: [&str; 2] = ["properties", "patternProperties"];

/// Turns a reason into a refusal with a path. `refusal` says why the compiler refuses a document, if it does.
pub(super) fn locate(root: &Value, reason: String, refusal: impl Fn(Value) -> Option<String>) -> Refusal {
    let mut found = Refusal { path: "#".to_owned(), reason };
    let mut place = root;
    let mut seen = HashSet::from([found.path.clone()]);
    let mut attempts = 0;
    'deeper: loop {
        for (path, part) in parts(root, place, &found.path) {
            if !seen.insert(path.clone()) {
                continue;
            }
            attempts += 1;
            if attempts > LOCATE_ATTEMPTS_MAX {
                return found;
            }
            let Ok(document) = enforceable_part(root, part, &path) else { continue };
            if let Some(reason) = refusal(document).filter(|reason| found.reason.contains(innermost(reason)))
            {
                found = Refusal { path, reason };
                place = part;
                continue 'deeper;
            }
        }
        return found;
    }
}

/// The cause at the end of a chain of reasons.
fn innermost(reason: &str) -> &str {
    reason.rsplit(": ").next().unwrap_or(reason)
}

/// The schemas directly inside a schema, with their paths; references lead to what they name.
fn parts<'s>(root: &'s Value, schema: &'s Value, path: &str) -> Vec<(String, &'s Value)> {
    let Value::Object(keywords) = schema else { return Vec::new() };
    let mut parts = Vec::new();
    for (keyword, value) in keywords {
        let keyword = keyword.as_str();
        match value {
            Value::Object(members) if MAPPING.contains(&keyword) => {
                parts.extend(members.iter().map(|(name, part)| (join(&join(path, keyword), name), part)));
            }
            Value::Array(members) if LIST.contains(&keyword) => {
                let named = members.iter().enumerate();
                parts.extend(
                    named.map(|(index, part)| (join(&join(path, keyword), &index.to_string()), part)),
                );
            }
            Value::Object(_) if ONE.contains(&keyword) => parts.push((join(path, keyword), value)),
            Value::String(reference) if keyword == "$ref" => {
                parts.extend(target(root, reference).ok());
            }
            _ => {}
        }
    }
    parts
}

/// A JSON pointer one step further.
pub(super) fn join(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}
