//! Quotes text that a caller sent in error messages.

/// Length of the longest quotation in characters.
const MOST: usize = 64;
/// Text with this many digits or more may hold a card, account or telephone number.
const DIGITS: usize = 8;

/// Returns at most 64 characters of text that a caller sent, for an error message. If the text has eight or more
/// digits, each digit is replaced by `#`, because the caller may have put a personal number into the wrong field.
#[must_use]
pub fn quotable(text: &str) -> String {
    let hide = text.chars().filter(|character| character.is_numeric()).take(DIGITS).count() == DIGITS;
    let shown = |character: char| if hide && character.is_numeric() { '#' } else { character };
    text.chars().take(MOST).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_numbers_are_not() {
        for name in ["amount", "feature_12", "v1.2.3", ""] {
            assert_eq!(quotable(name), name);
        }
        assert_eq!(quotable("card 4111111111111111"), "card ################");
        assert_eq!(quotable("4111-1111"), "####-####");
        assert_eq!(quotable("\u{ff14}\u{ff11}111111"), "########");
        assert_eq!(quotable(&"x".repeat(100)).len(), 64);
        // Digits are hidden also if most of them are beyond the part that is shown.
        assert!(!quotable(&format!("{}4111111111111111", "x".repeat(60))).contains('4'));
    }
}
