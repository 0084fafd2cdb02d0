//! The rules of a loaded bundle: their descriptions, counters, and the result of an evaluation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::{Bundle, FunctionSet};
use scorer_rules::{Decision, Exhausted};

use super::Shape;
use super::bound::{BoundLists, ListRead};

/// A rule, as described in replies and records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiredRule {
    /// The rule's id.
    pub id: String,
    /// The reason code that it writes; may be empty.
    pub reason: String,
    /// The regulation or agreement that it follows; may be empty.
    pub source: String,
    /// The review queue that it selects; may be empty.
    pub queue: String,
    /// Whether the rule has a daily budget.
    pub has_budget: bool,
}

/// Describes the rules of a bundle in the order of their numbers.
pub(super) fn describe(bundle: &Bundle) -> Vec<FiredRule> {
    let rules = bundle.rules().map_or(&[][..], |rules| rules.rules());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let rule = |rule: &scorer_rules::Rule| FiredRule {
        id: rule.id.clone(),
        reason: text(&rule.reason),
        source: text(&rule.source),
        queue: text(&rule.queue),
        has_budget: rule.budget.is_some(),
    };
    rules.iter().map(rule).collect()
}

/// The result of the rules on one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ruled {
    /// Numbers of the rules that had an effect, ascending.
    applied: Option<Arc<[u16]>>,
    /// The score within the caps and floors of the rules; 0 for an action.
    pub score: f64,
    /// Number of rules that did not fire because a value is missing.
    pub unknown: u32,
    /// Number of rules that did not fire because their condition has no value.
    pub errors: u32,
    /// Number of groups whose rules contradicted each other and had no effect.
    pub conflicts: u32,
    /// The functions of the bundle that had no result in a condition.
    pub faulted: FunctionSet,
    /// The daily budgets that were used up.
    pub exhausted: Exhausted,
    /// The external lists that the bundle declares, as they were; absent if it declares none.
    lists: Option<Arc<[ListRead]>>,
}

impl Ruled {
    /// Takes the result of an evaluation. It allocates memory only if a rule had an effect.
    #[must_use]
    pub fn of(decision: &Decision, score: f64, lists: Option<&BoundLists>, exhausted: Exhausted) -> Ruled {
        Ruled {
            applied: Some(decision.applied()).filter(|applied| !applied.is_empty()).map(Arc::from),
            score,
            unknown: decision.unknown(),
            errors: decision.errors(),
            conflicts: decision.conflicts(),
            faulted: FunctionSet::of_bits(decision.failed_functions()),
            exhausted,
            lists: lists.map(|bound| Arc::clone(&bound.read)),
        }
    }

    /// The external lists that the bundle declares, with the versions that the evaluation read.
    #[must_use]
    pub fn lists(&self) -> &[ListRead] {
        self.lists.as_deref().unwrap_or_default()
    }

    /// The result if the evaluation failed: none of the rules had an effect, because none has a value.
    pub(crate) fn failed(rules: usize, score: f64) -> Ruled {
        let errors = u32::try_from(rules).unwrap_or(u32::MAX);
        let (faulted, exhausted) = (FunctionSet::default(), Exhausted::NONE);
        Ruled { applied: None, score, unknown: 0, errors, conflicts: 0, faulted, exhausted, lists: None }
    }

    /// Numbers of the rules that had an effect, ascending.
    #[must_use]
    pub fn applied(&self) -> &[u16] {
        self.applied.as_deref().unwrap_or_default()
    }

    /// The rules that had an effect.
    pub fn fired<'a>(&'a self, shape: &'a Shape) -> impl Iterator<Item = &'a FiredRule> {
        self.applied().iter().filter_map(|number| shape.rules.get(usize::from(*number)))
    }

    /// The rules whose daily budgets were used up.
    pub fn exhausted<'a>(&self, shape: &'a Shape) -> impl Iterator<Item = &'a FiredRule> {
        let exhausted = self.exhausted;
        let with_budget = shape.rules.iter().filter(|rule| rule.has_budget);
        with_budget.enumerate().filter(move |(place, _)| exhausted.contains(*place)).map(|(_, rule)| rule)
    }

    /// The review queue that the rules selected; empty if none.
    #[must_use]
    pub fn queue<'a>(&'a self, shape: &'a Shape) -> &'a str {
        self.fired(shape).map(|rule| rule.queue.as_str()).find(|queue| !queue.is_empty()).unwrap_or_default()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(self.applied())
    }
}

/// Counters of the rules of a bundle. A bundle has at most 2,000 rules.
#[derive(Debug, Default)]
pub struct RuleCounters {
    hits: Box<[AtomicU64]>,
    without_value: [AtomicU64; WITHOUT_VALUE.len()],
}

/// Why rules did not have an effect, in the order of their counters.
const WITHOUT_VALUE: [&str; 4] = ["missing", "error", "conflict", "fault"];

impl RuleCounters {
    pub(super) fn new(rules: usize) -> RuleCounters {
        RuleCounters { hits: (0..rules).map(|_| AtomicU64::new(0)).collect(), ..RuleCounters::default() }
    }

    /// Counts the result of an evaluation.
    pub(crate) fn count(&self, ruled: &Ruled) {
        for number in ruled.applied() {
            if let Some(hits) = self.hits.get(usize::from(*number)) {
                hits.fetch_add(1, Relaxed);
            }
        }
        for (counter, count) in self.without_value.iter().zip([ruled.unknown, ruled.errors, ruled.conflicts])
        {
            if count > 0 {
                counter.fetch_add(count.into(), Relaxed);
            }
        }
    }

    /// Counts an evaluation that failed.
    pub(crate) fn failed(&self) {
        let [.., faults] = &self.without_value;
        faults.fetch_add(1, Relaxed);
    }

    /// Number of decisions on which each rule had an effect, in the order of the rules.
    pub fn hits(&self) -> impl Iterator<Item = u64> {
        self.hits.iter().map(|hits| hits.load(Relaxed))
    }

    /// Numbers of rules without effect, by cause, and of evaluations that failed (`fault`).
    pub fn without_value(&self) -> impl Iterator<Item = (&'static str, u64)> {
        WITHOUT_VALUE.into_iter().zip(self.without_value.iter().map(|count| count.load(Relaxed)))
    }
}
