//! Names of architectures that an unknown one was probably meant to be, or is a relative of.

/// Names that are looked at; longer ones are no architecture.
const LENGTH_MAX: usize = 64;
/// Names that are shown.
const SHOWN: usize = 3;
/// Letters at the beginning that make two names relatives.
const BEGINNING: usize = 5;

fn letters(name: &str) -> Vec<char> {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Letters to insert, remove or replace (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The known names near `found`, the nearest first: a third of its letters differ at most, or both begin alike.
pub(super) fn near<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let found = letters(found);
    if found.is_empty() || found.len() > LENGTH_MAX {
        return Vec::new();
    }
    let of = |name: &'a str| {
        let letters = letters(name);
        let apart = distance(&found, &letters);
        let alike = found.iter().zip(&letters).take_while(|(a, b)| a == b).count();
        (apart * 3 <= found.len() || alike >= BEGINNING).then_some((apart, name))
    };
    let mut near: Vec<(usize, &str)> = known.filter_map(of).collect();
    near.sort_unstable();
    near.truncate(SHOWN);
    near.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_and_misspelt_names_are_found_and_others_are_not() {
        let known = ["qwen2_moe", "qwen3_moe", "qwen3", "mixtral", "deepseek_v3", "gpt_oss"];
        let near = |found| near(found, known.into_iter());
        assert_eq!(near("qwen3_vl_moe")[0], "qwen3_moe");
        assert_eq!(near("gptoss"), ["gpt_oss"]);
        assert_eq!(near("deepseek_v9"), ["deepseek_v3"]);
        assert!(near("bert").is_empty() && near("").is_empty() && near(&"q".repeat(1000)).is_empty());
    }
}
