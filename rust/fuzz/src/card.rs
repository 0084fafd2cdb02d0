//! Card numbers in text.

/// Replaces the card numbers of a text. Checks that none is left, and that a text without one is unchanged.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut count = 0;
    let replaced = scorer_privacy::card::replace(text, |digits| {
        assert!((13..=19).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()));
        count += 1;
        "[card number]".to_owned()
    });
    assert_eq!(count > 0, scorer_privacy::card::is_in(text));
    assert!(count > 0 || replaced == text);
    assert!(!scorer_privacy::card::is_in(&replaced), "a card number is left");
}
