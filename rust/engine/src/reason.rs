//! The reasons for which the drawn lane's model and policy did not decide.

/// The reason why an answer is a fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The evaluation panicked.
    Panic,
    /// A score was NaN or infinite.
    NonFinite,
    /// The evaluation rejected an input that earlier stages should have rejected.
    Error,
    /// The decision log cannot store the propensity.
    Log,
    /// No decision log is configured.
    LogOff,
    /// The evaluation could not end in time.
    Late,
    /// The request was shed.
    Overload,
    /// The bundle's breaker is open, and no other bundle can answer.
    Breaker,
    /// The bundle's breaker is open, and the bundle before it answered.
    Previous,
    /// The fallback has reached its exposure cap.
    Cap,
    /// The rules of the bundle leave none of the request's eligible actions.
    NothingAllowed,
    /// The evaluation of the rules failed, and a static answer replaces the model's.
    RulesFailed,
    /// The evaluation of the rules failed, and the model's decision is given without them.
    WithoutRules,
}

// === impl Reason ===

impl Reason {
    /// Number of reasons.
    pub const COUNT: usize = 13;
    /// Every reason.
    pub const ALL: [Reason; Reason::COUNT] = [
        Reason::Panic,
        Reason::NonFinite,
        Reason::Error,
        Reason::Log,
        Reason::LogOff,
        Reason::Late,
        Reason::Overload,
        Reason::Breaker,
        Reason::Previous,
        Reason::Cap,
        Reason::NothingAllowed,
        Reason::RulesFailed,
        Reason::WithoutRules,
    ];

    /// The source of the answer: the model's best action if only exploration is stopped, the model without its rules,
    /// the previous bundle, or a static answer of the checkpoint.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Reason::Panic
            | Reason::NonFinite
            | Reason::Error
            | Reason::Late
            | Reason::Overload
            | Reason::Breaker
            | Reason::NothingAllowed
            | Reason::RulesFailed => "static",
            Reason::Previous => "previous",
            Reason::Cap => "on_cap",
            Reason::Log | Reason::LogOff => "greedy",
            Reason::WithoutRules => "model",
        }
    }

    /// The name of the reason in replies, records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Panic => "panic",
            Reason::NonFinite => "non_finite",
            Reason::Error => "error",
            Reason::Log => "log_unavailable",
            Reason::LogOff => "log_off",
            Reason::Late => "late",
            Reason::Overload => "overload",
            Reason::Breaker | Reason::Previous => "breaker_open",
            Reason::Cap => "exposure_cap",
            Reason::NothingAllowed => "rules_leave_nothing",
            Reason::RulesFailed | Reason::WithoutRules => "rules_failed",
        }
    }
}
