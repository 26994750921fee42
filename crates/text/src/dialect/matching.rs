//! Finding markers in text that comes character by character.

/// How a text relates to a set of markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match<T> {
    /// It begins with this marker.
    Whole(T),
    /// It is the beginning of a marker.
    Prefix,
    /// Neither.
    None,
}

/// Relates `text`, which is not empty, to markers given with a value each. No marker may begin with another.
pub(super) fn find<T: Copy>(text: &str, markers: impl IntoIterator<Item = (&'static str, T)>) -> Match<T> {
    let mut result = Match::None;
    for (marker, value) in markers {
        if text.starts_with(marker) {
            return Match::Whole(value);
        }
        if marker.starts_with(text) {
            result = Match::Prefix;
        }
    }
    result
}

/// Takes the first character out of `text`, which is not empty.
pub(super) fn take_first(text: &mut String) -> char {
    text.remove(0)
}

#[cfg(test)]
mod tests {
    use super::{Match, find};

    #[test]
    fn a_text_is_a_marker_or_its_beginning_or_neither() {
        let markers = [("<a>", 1), ("</a>", 2)];
        assert_eq!(find("<", markers), Match::Prefix);
        assert_eq!(find("</a", markers), Match::Prefix);
        assert_eq!(find("</a>", markers), Match::Whole(2));
        assert_eq!(find("<a>x", markers), Match::Whole(1));
        assert_eq!(find("<b", markers), Match::None);
    }
}
