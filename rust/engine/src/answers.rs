//! Answers as values, in no protocol's terms.

use std::sync::Arc;

use crate::idempotency::Remembered;
use crate::lanes::Source;
use crate::reason::Reason;
use crate::timings::Timings;

/// An answer under the id of its decision.
pub struct Answer<A> {
    /// The decision's id: the caller's, or a new UUID (version 7).
    pub id: String,
    /// What is answered.
    pub value: A,
    /// The answer was given before, and is repeated.
    pub replayed: bool,
}

/// A score.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Who answered.
    pub source: Arc<Source>,
    /// 0 to 1.
    pub score: f64,
    /// Log-odds, or whatever the bundle's margin is.
    pub margin: f64,
    /// The band's label, or a static answer's.
    pub label: Arc<str>,
    /// The decision is recorded as the checkpoint's durability demands.
    pub logged: bool,
    /// Why the model did not answer alone.
    pub fallback: Option<Reason>,
    /// Where the time went.
    pub timings: Timings,
}

/// A selection.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Who answered.
    pub source: Arc<Source>,
    /// The action's place in the catalogue.
    pub index: u32,
    /// The probability with which it was chosen.
    pub propensity: f64,
    /// The calibrated expectation of its reward; 0 for a static answer.
    pub expected_reward: f64,
    /// Every action's probability, if it was asked for.
    pub pmf: Option<Arc<[f32]>>,
    /// The decision is recorded as the checkpoint's durability demands.
    pub logged: bool,
    /// Why the model and its policy did not decide alone.
    pub fallback: Option<Reason>,
    /// Where the time went.
    pub timings: Timings,
}

/// The scores of a batch.
pub struct ScoredBatch {
    /// Who answered.
    pub source: Arc<Source>,
    /// In the order of the request.
    pub rows: Vec<BatchRow>,
    /// The labels of the bundle's bands, ascending, and behind them those of static answers in this batch.
    pub labels: Vec<Arc<str>>,
    /// Where the time went.
    pub timings: Timings,
    /// Rows that are not recorded as the checkpoint's durability demands.
    pub unlogged: u32,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow {
    /// 0 to 1.
    pub score: f64,
    /// Log-odds, or whatever the bundle's margin is.
    pub margin: f64,
    /// Place of its label.
    pub label: usize,
    /// Why the model did not answer alone.
    pub fallback: Option<Reason>,
}

/// Which label a score has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// That of the bundle's band at this place.
    Of(usize),
    /// That of the checkpoint's fallback.
    Fallback,
    /// That of the answer beyond the exposure caps.
    BeyondCaps,
}

/// One row's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Log-odds, or whatever the bundle's margin is; 0 for a static answer, which has none.
    pub margin: f64,
    /// 0 to 1.
    pub score: f64,
    /// Which label it has.
    pub band: Band,
}

impl Remembered for Scored {
    fn extra_bytes(&self) -> usize {
        0
    }

    fn recorded_at_us(&self) -> Option<i64> {
        self.logged.then_some(self.timings.decided_at_us)
    }

    fn is_fallback(&self) -> bool {
        self.fallback.is_some()
    }
}

impl Remembered for Selected {
    fn extra_bytes(&self) -> usize {
        self.pmf.as_deref().map_or(0, size_of_val)
    }

    fn recorded_at_us(&self) -> Option<i64> {
        self.logged.then_some(self.timings.decided_at_us)
    }

    fn is_fallback(&self) -> bool {
        self.fallback.is_some()
    }
}
