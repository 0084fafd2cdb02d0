//! What is wrong with a rule, and where.

use std::fmt;

/// The reason why an expression or a rule set was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The rule's id; empty if the fault concerns the whole file.
    pub rule: String,
    /// Line of the source, from 1.
    pub line: u32,
    /// Column of the line in characters, from 1.
    pub column: u32,
    /// The rule that is broken, and the remedy.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rule.is_empty() {
            write!(formatter, "rule {:?}, ", self.rule)?;
        }
        write!(formatter, "line {}, column {}: {}", self.line, self.column, self.problem)
    }
}

impl std::error::Error for Fault {}

/// A fault at a byte of an expression, before its rule and line are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) at: usize,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(at: usize, text: impl Into<String>) -> Problem {
        Problem { at, text: text.into() }
    }

    /// Names the rule, and computes line and column.
    pub(crate) fn locate(self, rule: &str, source: &str) -> Fault {
        let (line, column) = position(source, self.at);
        Fault { rule: rule.to_owned(), line, column, problem: self.text }
    }
}

/// Line and column of a byte, both from 1.
pub(crate) fn position(source: &str, at: usize) -> (u32, u32) {
    let mut at = at.min(source.len());
    while !source.is_char_boundary(at) {
        at -= 1;
    }
    let before = &source[..at];
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[start..].chars().count() + 1;
    (line.try_into().unwrap_or(u32::MAX), column.try_into().unwrap_or(u32::MAX))
}

/// Names the candidate that is most like `name`, in words for a message; empty if none is like it.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let limit = 1 + name.chars().count() / 3;
    candidates
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map_or_else(String::new, |(_, candidate)| format!("; the nearest name is {candidate:?}"))
}

/// Levenshtein's distance of the first 64 characters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, left) in left.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(left != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters() {
        assert_eq!(position("é < 1\nx > y", 0), (1, 1));
        assert_eq!(position("é < 1\nx > y", 3), (1, 3));
        assert_eq!(position("é < 1\nx > y", 11), (2, 5));
        assert_eq!(position("é", 1), (1, 1));
        assert_eq!(position("a", 99), (1, 2));
    }

    #[test]
    fn the_nearest_name() {
        let names = ["amount", "country", "amounts_24h"];
        assert_eq!(nearest("amont", names.into_iter()), "; the nearest name is \"amount\"");
        assert_eq!(nearest("velocity", names.into_iter()), "");
    }
}
