//! Helps to see why a tensor is missing: an incomplete download leaves gaps in the layers, another
//! architecture or an old conversion has other names.

use crate::ranges::Ranges;

const MOST_SUGGESTIONS: usize = 3;

/// One or two sentences about a name that is not among `names`.
pub(crate) fn explain_missing<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let present = layers_with(wanted, names.clone());
    if !present.is_empty() {
        let known = Ranges::of(present);
        let gaps =
            if known.gaps().is_empty() { String::new() } else { format!(", not for {}", known.gaps()) };
        return format!(
            "It exists for layers {known}{gaps}. The file is incomplete: finish its download or convert it again"
        );
    }
    let similar = most_similar(wanted, names.clone());
    if similar.is_empty() {
        let count = names.count();
        return format!(
            "None of the {count} tensors of the file has a similar name; it may be another architecture"
        );
    }
    format!("The nearest names are {}", similar.join(", "))
}

/// Takes `blk.17.ffn_up.weight` apart at its first number.
fn numbered(name: &str) -> Option<(&str, u64, &str)> {
    let mut start = 0;
    for piece in name.split('.') {
        let end = start + piece.len();
        if !piece.is_empty() && piece.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some((&name[..start], piece.parse().ok()?, &name[end..]));
        }
        start = end + 1;
    }
    None
}

/// The layers, in rising order, that have the tensor `wanted` names for its own layer.
fn layers_with<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let Some((before, _, after)) = numbered(wanted) else { return Vec::new() };
    let same =
        |(found_before, _, found_after): &(&str, u64, &str)| *found_before == before && *found_after == after;
    let mut layers: Vec<u64> = names.filter_map(numbered).filter(same).map(|(_, layer, _)| layer).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// Names that share at least half of their bytes with `wanted` at their start and end, best first.
fn most_similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let score = |name: &'a str| {
        let shared = |left: &mut dyn Iterator<Item = u8>, right: &mut dyn Iterator<Item = u8>| {
            left.zip(right).take_while(|(left, right)| left == right).count()
        };
        let start = shared(&mut wanted.bytes(), &mut name.bytes());
        let end = shared(&mut wanted.bytes().rev(), &mut name.bytes().rev());
        ((start + end).min(wanted.len()).min(name.len()), name)
    };
    let longest = |name: &str| wanted.len().max(name.len());
    let mut scored: Vec<(usize, &str)> =
        names.map(score).filter(|&(score, name)| score * 2 >= longest(name)).collect();
    scored.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));
    scored.truncate(MOST_SUGGESTIONS);
    scored.into_iter().map(|(_, name)| format!("{name:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(wanted: &str, names: &[&str]) -> String {
        explain_missing(wanted, names.iter().copied())
    }

    #[test]
    fn a_gap_in_the_layers_is_named() {
        let names = ["blk.0.a.weight", "blk.1.a.weight", "blk.3.a.weight", "blk.2.b.weight"];
        let text = explain("blk.2.a.weight", &names);
        assert!(text.starts_with("It exists for layers 0, 1 and 3, not for 2."), "{text}");
        let text = explain("blk.4.a.weight", &names[..2]);
        assert!(text.starts_with("It exists for layers 0 and 1. "), "{text}");
    }

    #[test]
    fn near_names_are_listed_and_far_ones_are_not() {
        let names = ["output_norm.weight", "token_embd.weight", "rope_freqs"];
        assert_eq!(explain("output.weight", &names), "The nearest names are \"output_norm.weight\"");
        assert!(explain("zzz", &names).starts_with("None of the 3 tensors"));
    }
}
