//! The reasons for declared defaults in place of computed features.

/// Why computed features have their declared defaults. The order is that of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defaulted {
    /// The request has no key of an entity.
    NoKey,
    /// The source did not answer in time.
    Late,
    /// The source failed.
    Failed,
}

// === impl Defaulted ===

impl Defaulted {
    /// All reasons, in the order of their counters.
    pub const ALL: [Defaulted; 3] = [Defaulted::NoKey, Defaulted::Late, Defaulted::Failed];

    /// The name in replies, records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Defaulted::NoKey => "no_key",
            Defaulted::Late => "late",
            Defaulted::Failed => "failed",
        }
    }
}
