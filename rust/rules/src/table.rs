//! Lowers the cells of decision tables to conditions in CEL.

/// The condition of one cell on its input; `None` if the cell accepts everything.
///
/// A cell is `-` (anything), a comparison without its left side (`> 500`, `in ["NL", "DE"]`), an interval in DMN's
/// notation (`[1..5)`), or a value that the input must equal.
pub(crate) fn condition(input: &str, cell: &str) -> Option<String> {
    let cell = cell.trim();
    if cell.is_empty() || cell == "-" {
        return None;
    }
    if let Some((low, high)) = interval(cell) {
        return Some(format!("({input}) {low} && ({input}) {high}"));
    }
    let comparison =
        ["==", "!=", "<=", ">=", "<", ">", "in ", "in["].iter().any(|start| cell.starts_with(start));
    if comparison { Some(format!("({input}) {cell}")) } else { Some(format!("({input}) == ({cell})")) }
}

/// The comparisons of an interval, such as `>= 1` and `< 5`.
fn interval(cell: &str) -> Option<(String, String)> {
    let low_open = match cell.chars().next()? {
        '[' => false,
        '(' | ']' => true,
        _ => return None,
    };
    let high_open = match cell.chars().next_back()? {
        ']' => false,
        ')' | '[' => true,
        _ => return None,
    };
    let (low, high) = cell.get(1..cell.len() - 1)?.split_once("..")?;
    let (low, high) = (low.trim(), high.trim());
    let number = |text: &str| text.parse::<f64>().is_ok();
    (number(low) && number(high)).then(|| {
        let symbol =
            |open: bool, symbol: &'static str| if open { symbol.to_owned() } else { format!("{symbol}=") };
        (format!("{} {low}", symbol(low_open, ">")), format!("{} {high}", symbol(high_open, "<")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        for (cell, expected) in [
            ("-", None),
            ("  ", None),
            ("> 500.0", Some("(x) > 500.0")),
            ("in ['NL']", Some("(x) in ['NL']")),
            ("!= 'NL'", Some("(x) != 'NL'")),
            ("'NL'", Some("(x) == ('NL')")),
            ("-5", Some("(x) == (-5)")),
            ("[1..5)", Some("(x) >= 1 && (x) < 5")),
            ("(1.5 .. 5]", Some("(x) > 1.5 && (x) <= 5")),
            ("]1..5[", Some("(x) > 1 && (x) < 5")),
            ("(1 + 2)", Some("(x) == ((1 + 2))")),
            ("é", Some("(x) == (é)")),
        ] {
            assert_eq!(condition("x", cell).as_deref(), expected, "{cell}");
        }
    }
}
