//! Finds card numbers (primary account numbers) in text.
//!
//! A card number has 13 to 19 digits, begins with the leading digits of a payment network and passes the Luhn check.
//! Its digits may be in groups with one separator between them. A part of a longer sequence of digits is not a card
//! number. UUIDs and hexadecimal digests of 32 or more characters are skipped, because one in some hundred of them
//! would contain a card number by chance.
//!
//! Numbers that are encoded (base64, percent-encoding) or whose groups are in several fields are not found.

use std::ops::Range;

/// Number of digits of the shortest card number.
const SHORTEST: usize = 13;
/// Number of digits of the longest card number.
const LONGEST: usize = 19;
/// Length from which a sequence of letters and digits that are all hexadecimal is treated as a digest.
const DIGEST: usize = 32;

/// Returns whether the text contains a card number. Does not allocate memory.
#[must_use]
pub fn is_in(text: &str) -> bool {
    find(text).is_some()
}

/// Returns the byte range of the first card number in the text.
#[must_use]
pub fn find(text: &str) -> Option<Range<usize>> {
    if text.len() < SHORTEST || is_uuid(text.as_bytes()) {
        return None;
    }
    if text.is_ascii() && text.bytes().filter(u8::is_ascii_digit).count() < SHORTEST {
        return None;
    }
    let mut window = Window::new(text);
    for (at, character) in text.char_indices() {
        if let Some(found) = window.push(at, character) {
            return Some(found);
        }
    }
    window.end_group(text.len());
    window.found
}

/// Returns the text with each card number replaced by the result of `with`, which is called with its digits.
#[must_use]
pub fn replace(text: &str, mut with: impl FnMut(&str) -> String) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(found) = find(rest) {
        let digits: String = rest[found.clone()].chars().filter_map(digit).map(char::from).collect();
        out.push_str(&rest[..found.start]);
        out.push_str(&with(&digits));
        rest = &rest[found.end..];
    }
    out.push_str(rest);
    out
}

/// Returns whether `value` is an integer whose decimal digits are a card number.
#[must_use]
pub fn is_number(value: f64) -> bool {
    if !(value.fract() == 0.0 && (1e12..1e19).contains(&value)) {
        return false;
    }
    let (mut digits, mut left, mut at) = ([b'0'; LONGEST], value as u64, LONGEST);
    while left > 0 && at > 0 {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    is_card(&digits[at..])
}

/// The most recent groups of digits, with [`LONGEST`] digits at most, which may together be a card number.
struct Window<'a> {
    text: &'a str,
    /// The most recent digits. Older ones are removed with their group.
    digits: [u8; LONGEST],
    len: usize,
    /// Start of each group: its index in `digits`, and its byte offset in `text`.
    groups: [(usize, usize); LONGEST],
    count: usize,
    state: State,
    /// A card number to which a further group may still belong.
    found: Option<Range<usize>>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Not in a group. The next group does not continue the previous ones.
    Outside,
    /// In a group that is not longer than a card number.
    Inside,
    /// In a group that is longer than a card number.
    Skipping,
    /// After a group and one separator.
    Between,
}

// === impl Window ===

impl<'a> Window<'a> {
    fn new(text: &'a str) -> Window<'a> {
        Window {
            text,
            digits: [0; LONGEST],
            len: 0,
            groups: [(0, 0); LONGEST],
            count: 0,
            state: State::Outside,
            found: None,
        }
    }

    /// Processes the next character. Returns a card number when no further group can belong to it.
    fn push(&mut self, at: usize, character: char) -> Option<Range<usize>> {
        if let Some(digit) = digit(character) {
            self.push_digit(at, digit);
            return None;
        }
        self.end_group(at);
        self.state = match self.state {
            State::Inside if is_separator(character) => State::Between,
            _ => State::Outside,
        };
        if self.state == State::Outside { self.found.take() } else { None }
    }

    fn push_digit(&mut self, at: usize, digit: u8) {
        match self.state {
            State::Skipping => return,
            State::Inside => {}
            State::Outside | State::Between => {
                if self.state == State::Outside {
                    (self.len, self.count) = (0, 0);
                }
                self.drop_oldest(usize::from(self.count == LONGEST));
                self.groups[self.count] = (self.len, at);
                self.count += 1;
                self.state = State::Inside;
            }
        }
        while self.len == LONGEST {
            if self.count <= 1 {
                self.state = State::Skipping;
                (self.len, self.count) = (0, 0);
                return;
            }
            self.drop_oldest(1);
        }
        self.digits[self.len] = digit;
        self.len += 1;
    }

    /// Removes the oldest `groups` groups.
    fn drop_oldest(&mut self, groups: usize) {
        if groups == 0 {
            return;
        }
        let from = if groups < self.count { self.groups[groups].0 } else { self.len };
        self.digits.copy_within(from..self.len, 0);
        self.len -= from;
        self.groups.copy_within(groups..self.count, 0);
        self.count -= groups;
        for (place, _) in &mut self.groups[..self.count] {
            *place -= from;
        }
    }

    /// Records the longest card number that ends with the group before `end`, if there is one.
    fn end_group(&mut self, end: usize) {
        if self.state != State::Inside || self.len < SHORTEST {
            return;
        }
        let groups = &self.groups[..self.count];
        let found = groups
            .iter()
            .find(|&&(place, start)| is_card(&self.digits[place..self.len]) && !is_digest(self.text, start));
        if let Some(&(_, start)) = found
            && self.found.as_ref().is_none_or(|before| start <= before.start)
        {
            self.found = Some(start..end);
        }
    }
}

/// Returns the ASCII digit of a decimal digit in one of the supported scripts.
fn digit(character: char) -> Option<u8> {
    let zero = match character {
        '0'..='9' => return Some(character as u8),
        '\u{660}'..='\u{669}' => 0x660,
        '\u{6f0}'..='\u{6f9}' => 0x6f0,
        '\u{966}'..='\u{96f}' => 0x966,
        '\u{ff10}'..='\u{ff19}' => 0xff10,
        _ => return None,
    };
    Some(b'0' + (character as u32 - zero) as u8)
}

/// Returns whether the character can separate two groups of digits: a space, tab or usual punctuation mark, or a
/// character outside ASCII that is neither a letter nor a digit, such as an invisible one.
fn is_separator(character: char) -> bool {
    match character {
        ' ' | '-' | '.' | '_' | '/' | '\t' | ',' | '*' | ':' => true,
        _ => !character.is_ascii() && !character.is_alphanumeric(),
    }
}

/// Returns whether the ASCII digits are 13 to 19, have leading digits of a payment network and pass the Luhn check.
fn is_card(digits: &[u8]) -> bool {
    (SHORTEST..=LONGEST).contains(&digits.len()) && is_issued(digits) && passes_luhn(digits)
}

/// Returns whether payment networks issue cards of this length with these leading digits (ISO/IEC 7812). Without this
/// rule one in ten order numbers and times would be taken for a card number.
fn is_issued(digits: &[u8]) -> bool {
    let lead = digits[..4].iter().fold(0, |lead, digit| lead * 10 + u32::from(digit - b'0'));
    match lead {
        // 3: Amex, Diners, JCB. 4: Visa. 5: Maestro and Mastercard. 6: Maestro, Discover, UnionPay and RuPay.
        3000..=3999 => digits.len() >= 14,
        4000..=6999 => true,
        // In this order: Mir; Mastercard; RuPay and UnionPay; Troy.
        2200..=2204 | 2221..=2720 | 8100..=8299 | 9792 => digits.len() >= 16,
        _ => false,
    }
}

fn passes_luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| {
            let digit = u32::from(digit - b'0');
            match place % 2 {
                0 => digit,
                _ if digit > 4 => 2 * digit - 9,
                _ => 2 * digit,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Returns whether the whole text is a UUID in its canonical form.
fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Returns whether the sequence of letters and digits around `at` is hexadecimal, contains a letter and is at least
/// [`DIGEST`] characters long.
fn is_digest(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let before = bytes[..at].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let after = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let row = &bytes[at - before..at + after];
    row.len() >= DIGEST && row.iter().all(u8::is_ascii_hexdigit) && row.iter().any(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CARDS: [&str; 12] = [
        "4111111111111111",
        "4222222222222",
        "5555555555554444",
        "2223003122003222",
        "378282246310005",
        "30569309025904",
        "3530111333300000",
        "6011111111111117",
        "6200000000000005",
        "6304000000000000",
        "4917610000000000003",
        "2200000000000053",
    ];

    #[test]
    fn card_numbers_are_found_in_every_usual_form() {
        for card in CARDS {
            let grouped: Vec<&str> =
                card.as_bytes().chunks(4).map(|group| std::str::from_utf8(group).unwrap()).collect();
            let wide: String =
                card.chars().map(|digit| char::from_u32(digit as u32 - 0x30 + 0xff10).unwrap()).collect();
            for text in [
                card.to_owned(),
                format!("order{card}"),
                format!("{card}x"),
                format!("id={card};exp=1226"),
                format!("{card}=2612"),
                format!("17 {card}"),
                grouped.join(" "),
                grouped.join("-"),
                grouped.join("\u{a0}"),
                grouped.join("\u{200b}"),
                format!("order 17 {}", grouped.join(" ")),
                format!("{} 12", grouped.join(".")),
                wide,
                format!("caf\u{e9} {card}"),
            ] {
                let found = find(&text).unwrap_or_else(|| panic!("{text}"));
                let digits: String = text[found].chars().filter_map(digit).map(char::from).collect();
                assert_eq!(digits, card, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_card_number_passes() {
        for text in [
            "",
            "4111111111111112",
            "411111111111",
            "41111111111111111111",
            "00000000000000",
            "1795403700000",
            "20261123031500123",
            "2026-11-23 03:15:00.123456",
            "192.168.100.200:7700",
            "order-1234567890",
            "4111 1111  1111 1111",
            "41111111-1111-1111-1111-111111111111",
            "a41111111111111111b00000000000000000000000000000000000000000000f",
        ] {
            assert_eq!(find(text), None, "{text}");
        }
    }

    #[test]
    fn uuids_and_digests_pass_whatever_their_digits() {
        // Deterministic ids with many decimal digits.
        let mut state = 1_u64;
        for _ in 0..50_000 {
            let mut hex = String::new();
            for _ in 0..32 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                hex.push(char::from_digit((state >> 60) as u32, 16).unwrap());
            }
            let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
            assert!(!is_in(&uuid), "{uuid}");
            assert!(!is_in(&hex) || hex.bytes().all(|byte| byte.is_ascii_digit()), "{hex}");
        }
    }

    #[test]
    fn numbers_are_judged_as_they_are_written() {
        assert!(is_number(4_111_111_111_111_111.0));
        assert!(is_number(378_282_246_310_005.0));
        for value in [4_111_111_111_111_112.0, 4_111_111_111_111_111.5, 1.0, -4_111_111_111_111_111.0, 1e30] {
            assert!(!is_number(value), "{value}");
        }
        assert!(!is_number(f64::NAN) && !is_number(f64::INFINITY));
    }

    #[test]
    fn each_card_number_is_replaced() {
        let replaced =
            replace("a 4111111111111111, b 5555-5555-5555-4444!", |digits| format!("<{}>", digits.len()));
        assert_eq!(replaced, "a <16>, b <16>!");
        assert_eq!(replace("nothing", |_| String::new()), "nothing");
    }

    proptest! {
        #[test]
        fn any_text_is_searched_without_a_panic(text in "\\PC{0,80}|[0-9 -]{0,80}") {
            if let Some(found) = find(&text) {
                prop_assert!(text.get(found).is_some());
            }
            prop_assert!(!is_in(&replace(&text, |_| "#".to_owned())));
        }

        #[test]
        fn a_card_number_between_words_is_always_found(
            index in 0..CARDS.len(),
            before in "[a-z ]{0,20}",
            after in "[a-z ]{0,20}",
        ) {
            let text = format!("{before}{}{after}", CARDS[index]);
            prop_assert!(is_in(&text), "{}", text);
        }
    }
}
