//! The claims of a token about its decision.

/// The kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One score.
    Score,
    /// One action.
    Action,
    /// The scores of a batch: the decisions `<id>/0` to `<id>/<index - 1>`.
    Batch,
}

/// The claims of a token about its decision, besides the id, the checkpoint and the tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claims {
    /// The kind of the decision.
    pub kind: Kind,
    /// Whether a fallback answered.
    pub fallback: bool,
    /// The time of the decision, in milliseconds since the Unix epoch: 48 bits.
    pub decided_at_ms: u64,
    /// The first 8 bytes of the bundle's SHA-256.
    pub bundle: [u8; 8],
    /// The action's position in the bundle's catalogue, or the number of rows of a batch: 24 bits.
    pub index: u32,
    /// The probability with which the action was chosen; 1 for scores.
    pub propensity: f64,
}

// === impl Claims ===

impl Claims {
    /// Whether the token of decision `id` covers the decision `reported`: that decision, or one row of that batch.
    #[must_use]
    pub fn covers(&self, id: &str, reported: &str) -> bool {
        match self.kind {
            Kind::Score | Kind::Action => id == reported,
            Kind::Batch => reported
                .strip_prefix(id)
                .and_then(|rest| rest.strip_prefix('/'))
                .filter(|row| row.bytes().all(|byte| byte.is_ascii_digit()))
                .filter(|row| *row == "0" || !row.starts_with('0'))
                .and_then(|row| row.parse::<u32>().ok())
                .is_some_and(|row| row < self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(kind: Kind) -> Claims {
        Claims { kind, fallback: false, decided_at_ms: 1, bundle: [0; 8], index: 12, propensity: 1.0 }
    }

    #[test]
    fn a_token_covers_its_decision_or_the_rows_of_its_batch() {
        assert!(claims(Kind::Action).covers("d", "d"));
        assert!(claims(Kind::Score).covers("a/0", "a/0"));
        for other in ["e", "d/0", "", "dd"] {
            assert!(!claims(Kind::Action).covers("d", other), "{other}");
        }
        for row in ["b/0", "b/7", "b/11"] {
            assert!(claims(Kind::Batch).covers("b", row), "{row}");
        }
        for other in ["b", "b/", "b/12", "b/-1", "b/+1", "b/01", "b/1/1", "c/1", "b/99999999999", "b/ 1"] {
            assert!(!claims(Kind::Batch).covers("b", other), "{other}");
        }
    }
}
