//! Answers, independent of the protocols that transmit them.

use std::sync::Arc;

use scorer_core::bundle::FunctionSet;
use scorer_core::explain::Contribution;

use crate::bundles::{FaultedFunctions, FiredRule, Loaded, ReasonColumn, Ruled, Shape};
use crate::defaulted::Defaulted;
use crate::idempotency::Remembered;
use crate::lanes::Source;
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::timings::Timings;

/// An answer with the id of its decision.
pub struct Answer<A> {
    /// The decision's id: the caller's, or a new UUID (version 7).
    pub id: String,
    /// The answer.
    pub value: A,
    /// Whether the answer was given before and comes from the idempotency cache.
    pub replayed: bool,
}

/// A score.
#[derive(Clone, Debug)]
pub struct Scored {
    /// The lane and bundle that answered.
    pub source: Arc<Source>,
    /// The score, from 0 to 1.
    pub score: f64,
    /// The bundle's margin, such as log-odds.
    pub margin: f64,
    /// The label of the band or of the static answer.
    pub label: Arc<str>,
    /// Whether the label is that of the strictest of the bundle's bands, which are at least two.
    pub strictest: bool,
    /// Whether the decision is recorded with the checkpoint's durability.
    pub logged: bool,
    /// The reason if the drawn lane's model did not answer.
    pub fallback: Option<Reason>,
    /// Times of the stages.
    pub timings: Timings,
    /// Why computed features have their defaults; `None` if none has.
    pub defaulted: Option<Defaulted>,
    /// The functions of the bundle that had no result.
    pub faulted: FaultedFunctions,
    /// The reasons that the request asked for.
    pub reasons: GivenReasons,
    /// What the bundle's rules did.
    pub rules: GivenRules,
}

/// A selection.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The lane and bundle that answered.
    pub source: Arc<Source>,
    /// Position of the action in the catalogue.
    pub index: u32,
    /// The probability with which it was chosen.
    pub propensity: f64,
    /// The calibrated expected reward; 0 for a static answer.
    pub expected_reward: f64,
    /// Whether the action's bundle received the score, and the decision of the score.
    pub passed: [bool; 2],
    /// The probability of every action, if the request asked for it.
    pub pmf: Option<Arc<[f32]>>,
    /// Whether the decision is recorded with the checkpoint's durability.
    pub logged: bool,
    /// The reason if the drawn lane's model and policy did not choose the action.
    pub fallback: Option<Reason>,
    /// Times of the stages.
    pub timings: Timings,
    /// Why computed features have their defaults; `None` if none has.
    pub defaulted: Option<Defaulted>,
    /// The functions of the bundle that had no result.
    pub faulted: FaultedFunctions,
    /// The reasons of the action's score that the request asked for.
    pub reasons: GivenReasons,
    /// What the bundle's rules did.
    pub rules: GivenRules,
}

/// The answer of a request with two decisions.
pub struct Decided {
    /// The score.
    pub score: Answer<Scored>,
    /// The action, or why there is none.
    pub action: ActionAnswer,
}

/// The answer of the second decision of a request.
pub enum ActionAnswer {
    /// An action was chosen.
    Selected(Answer<Selected>),
    /// The decision of the score is the strictest, and the request asks for no action then.
    Declined,
    /// Neither the model nor a fallback could choose an action. The score is valid and recorded.
    Failed(Rejection),
}

/// The reasons of an answer, and the columns that they refer to. Cached answers keep them, so they contain no forest.
#[derive(Clone, Default)]
pub struct GivenReasons(Option<(Arc<Shape>, Arc<[Contribution]>)>);

/// What the rules of a bundle did, and the description of the rules. Cached answers keep it, so it contains no bundle.
#[derive(Clone, Default)]
pub struct GivenRules(Option<(Arc<Shape>, Ruled)>);

/// The scores of a batch.
pub struct ScoredBatch {
    /// The lane and bundle that answered.
    pub source: Arc<Source>,
    /// The rows, in the order of the request.
    pub rows: Vec<BatchRow>,
    /// The labels of the bundle's bands, ascending, followed by those of static answers in this batch.
    pub labels: Vec<Arc<str>>,
    /// Times of the stages.
    pub timings: Timings,
    /// The most severe reason why computed features of a row have their defaults; `None` if none has.
    pub defaulted: Option<Defaulted>,
    /// The functions of the bundle that had no result in at least one row.
    pub faulted: FaultedFunctions,
    /// Number of rows that are not recorded with the checkpoint's durability.
    pub unlogged: u32,
    /// What the bundle's rules did to each row; empty if the bundle has no rules.
    pub ruled: Vec<Ruled>,
    /// The description of the rules.
    pub shape: Arc<Shape>,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow {
    /// The score, from 0 to 1.
    pub score: f64,
    /// The bundle's margin, such as log-odds.
    pub margin: f64,
    /// Index of its label in [`ScoredBatch::labels`].
    pub label: usize,
    /// The reason if the drawn lane's model did not answer.
    pub fallback: Option<Reason>,
    /// The functions of the bundle that had no result.
    pub faulted: FunctionSet,
}

/// The source of a score's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// The bundle's band at this position.
    Of(usize),
    /// The checkpoint's fallback.
    Fallback,
    /// The checkpoint's answer beyond the exposure caps.
    BeyondCaps,
}

/// One row's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The bundle's margin, such as log-odds; 0 for a static answer.
    pub margin: f64,
    /// The score, from 0 to 1.
    pub score: f64,
    /// The source of its label.
    pub band: Band,
    /// The functions of the bundle that had no result in a transform; none for a static answer.
    pub faulted: FunctionSet,
}

impl std::fmt::Debug for GivenReasons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(column, amount)| (&column.feature, amount))).finish()
    }
}

impl GivenReasons {
    /// Takes the first `count` of the reasons.
    pub(crate) fn of(loaded: &Loaded, reasons: Option<Arc<[Contribution]>>, count: u32) -> GivenReasons {
        let reasons = match reasons {
            Some(reasons) if reasons.len() > count as usize => reasons.get(..count as usize).map(Arc::from),
            other => other,
        };
        let reasons = reasons.filter(|reasons| !reasons.is_empty());
        GivenReasons(reasons.map(|reasons| (Arc::clone(&loaded.shape), reasons)))
    }

    /// The reasons: column and contribution, the largest first.
    pub fn iter(&self) -> impl Iterator<Item = (&ReasonColumn, f64)> {
        let all =
            self.0.iter().flat_map(|(shape, reasons)| reasons.iter().map(move |reason| (shape, reason)));
        all.filter_map(|(shape, reason)| Some((shape.reasons.get(reason.feature as usize)?, reason.amount)))
    }

    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |(_, reasons)| size_of_val(&**reasons))
    }
}

impl std::fmt::Debug for GivenRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.fired().map(|rule| &rule.id)).finish()
    }
}

impl GivenRules {
    pub(crate) fn of(loaded: &Loaded, ruled: Option<Ruled>) -> GivenRules {
        GivenRules(ruled.map(|ruled| (Arc::clone(&loaded.shape), ruled)))
    }

    /// The result of the rules; `None` if the bundle has no rules.
    #[must_use]
    pub fn ruled(&self) -> Option<&Ruled> {
        self.0.as_ref().map(|(_, ruled)| ruled)
    }

    /// The rules that had an effect, in the order of the rule set.
    pub fn fired(&self) -> impl Iterator<Item = &FiredRule> {
        self.0.iter().flat_map(|(shape, ruled)| ruled.fired(shape))
    }

    /// The review queue that the rules selected; empty if none.
    #[must_use]
    pub fn queue(&self) -> &str {
        self.0.as_ref().map_or("", |(shape, ruled)| ruled.queue(shape))
    }

    fn bytes(&self) -> usize {
        self.ruled().map_or(0, Ruled::heap_bytes)
    }
}

impl Remembered for Scored {
    fn extra_bytes(&self) -> usize {
        self.reasons.bytes() + self.rules.bytes()
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
        self.pmf.as_deref().map_or(0, size_of_val) + self.reasons.bytes() + self.rules.bytes()
    }

    fn recorded_at_us(&self) -> Option<i64> {
        self.logged.then_some(self.timings.decided_at_us)
    }

    fn is_fallback(&self) -> bool {
        self.fallback.is_some()
    }
}
