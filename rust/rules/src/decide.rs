//! Evaluates a rule set on one request.

use std::hash::Hasher as _;

use crate::budget::Exhausted;
use crate::code::{Cell, UNKNOWN};
use crate::conflicts::effect;
use crate::lists::Lists;
use crate::program::Scratch;
use crate::ruleset::{Group, Part, RuleSet, Step};
use crate::source::HitPolicy;
use crate::value::ErrorKind;

/// What does not come from names: the time, the request's id and the budgets that are used up.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Seconds since 1970, for the dates of rules.
    pub seconds: i64,
    /// The id, for roll-outs: the same id is always in or out.
    pub id: &'a [u8],
    /// The daily budgets that are used up. Their rules are inactive.
    pub exhausted: Exhausted,
}

/// What became of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleState {
    /// The rule is not enabled, not in its time, its daily budget is used up, or the request is not in its
    /// roll-out.
    Inactive,
    /// The condition is false.
    False,
    /// The condition is true. Whether the rule has an effect depends on the hit policy.
    Fired,
    /// A value that the condition needs is missing. The rule does not fire.
    Unknown,
    /// The condition has no value. The rule does not fire.
    Error(ErrorKind),
}

impl RuleState {
    /// The state of an active rule whose condition has this value.
    pub(crate) fn of(cell: Cell) -> RuleState {
        match cell.state {
            0 if cell.bits == 1 => RuleState::Fired,
            0 => RuleState::False,
            UNKNOWN => RuleState::Unknown,
            error => RuleState::Error(ErrorKind::from_state(error)),
        }
    }
}

/// The memory of evaluations and the result of the last one. It is made once and used for many requests.
#[derive(Debug, Clone)]
pub struct Decision {
    pub(crate) values: Scratch,
    pub(crate) states: Vec<RuleState>,
    pub(crate) applied: Vec<u16>,
    pub(crate) decision: Option<u16>,
    pub(crate) cap: Option<f64>,
    floor: Option<f64>,
    queue: Option<u16>,
    allowed: Vec<u64>,
    /// Actions that the variants of each rule which are true remove.
    pub(crate) removed: Vec<u64>,
    unknown: u32,
    errors: u32,
    conflicts: u32,
    pub(crate) failed: u64,
}

impl RuleSet {
    /// Makes the memory for evaluations.
    #[must_use]
    pub fn start(&self) -> Decision {
        Decision {
            values: self.program.scratch(),
            states: vec![RuleState::Inactive; self.rules.len()],
            applied: Vec::with_capacity(self.rules.len()),
            decision: None,
            cap: None,
            floor: None,
            queue: None,
            allowed: self.actions.clone(),
            removed: vec![0; self.rules.len() * self.actions.len()],
            unknown: 0,
            errors: 0,
            conflicts: 0,
            failed: 0,
        }
    }

    /// Evaluates all rules on the values of `decision`, which must be of this set. It allocates nothing.
    pub fn evaluate(&self, decision: &mut Decision, lists: &Lists, request: Request<'_>) {
        decision.reset(&self.actions);
        if !self.fits(decision) {
            return;
        }
        let lists = self.program.checked(lists);
        for step in &self.steps {
            self.step(*step, decision, lists, request);
        }
        decision.failed = decision.values.calls.take_failed(0);
        self.apply_groups(decision);
    }

    /// Computes one value, or the state of one rule.
    #[inline]
    pub(crate) fn step(
        &self,
        step: Step,
        decision: &mut Decision,
        lists: Option<&Lists>,
        request: Request<'_>,
    ) {
        match step {
            Step::Value { expression, slot } => {
                let cell = self.program.run(expression, &mut decision.values, lists);
                decision.values.set(slot, cell);
            }
            Step::Rule(rule) => self.rule(rule, decision, lists, request),
        }
    }

    /// Counts the states of the rules and applies those that fired.
    pub(crate) fn apply_groups(&self, decision: &mut Decision) {
        for state in &decision.states {
            decision.unknown += u32::from(*state == RuleState::Unknown);
            decision.errors += u32::from(matches!(state, RuleState::Error(_)));
        }
        for group in &self.groups {
            self.apply_group(*group, decision);
        }
    }

    /// Whether the memory was made by a set of this shape.
    fn fits(&self, decision: &Decision) -> bool {
        decision.states.len() == self.rules.len()
            && decision.allowed.len() == self.actions.len()
            && decision.removed.len() == self.rules.len() * self.actions.len()
            && self.program.fits(&decision.values)
    }

    fn rule(&self, number: usize, decision: &mut Decision, lists: Option<&Lists>, request: Request<'_>) {
        let part = &self.parts[number];
        let words = self.actions.len();
        let mut cell = Cell::bool(false);
        let mut state = RuleState::Inactive;
        let removed = number * words..(number + 1) * words;
        if self.rules[number].restricts {
            decision.removed[removed.clone()].fill(0);
        }
        if part.is_active(request) {
            for variant in &part.variants {
                let result = self.program.run(variant.expression, &mut decision.values, lists);
                if result.is_true() {
                    let words = decision.removed[removed.clone()].iter_mut();
                    words.zip(&variant.removed).for_each(|(word, removed)| *word |= removed);
                }
                cell = either(cell, result);
            }
            state = RuleState::of(cell);
        }
        decision.states[number] = state;
        decision.values.set(part.slot, cell);
    }

    fn apply_group(&self, group: Group, decision: &mut Decision) {
        let rules = group.first..group.end;
        let mut chosen = None;
        match group.hit {
            HitPolicy::Collect => {
                for rule in rules {
                    if decision.states[rule] == RuleState::Fired {
                        self.apply(rule, decision);
                    }
                }
                return;
            }
            HitPolicy::First => {
                chosen = rules.clone().find(|rule| decision.states[*rule] == RuleState::Fired);
            }
            HitPolicy::Priority => {
                for rule in rules {
                    let higher = chosen
                        .is_none_or(|chosen: usize| self.rules[rule].priority > self.rules[chosen].priority);
                    if decision.states[rule] == RuleState::Fired && higher {
                        chosen = Some(rule);
                    }
                }
            }
            HitPolicy::Any | HitPolicy::Unique => {
                let words = self.actions.len();
                for rule in rules {
                    if decision.states[rule] != RuleState::Fired {
                        continue;
                    }
                    let agrees = match chosen {
                        None => true,
                        Some(_) if group.hit == HitPolicy::Unique => false,
                        Some(chosen) => {
                            let removed = |rule: usize| &decision.removed[rule * words..(rule + 1) * words];
                            effect(&self.rules[chosen]) == effect(&self.rules[rule])
                                && removed(chosen) == removed(rule)
                        }
                    };
                    if !agrees {
                        decision.conflicts += 1;
                        return;
                    }
                    if chosen.is_none() {
                        chosen = Some(rule);
                    }
                }
            }
        }
        if let Some(rule) = chosen {
            self.apply(rule, decision);
        }
    }

    pub(crate) fn apply(&self, number: usize, decision: &mut Decision) {
        let (rule, part) = (&self.rules[number], &self.parts[number]);
        // There are fewer rules than a u16 has values.
        decision.applied.push(number as u16);
        decision.decision = match (decision.decision, part.decision) {
            // The strictest is the first.
            (Some(known), Some(new)) => Some(known.min(new)),
            (known, new) => known.or(new),
        };
        decision.cap = match (decision.cap, rule.cap) {
            (Some(known), Some(new)) => Some(known.min(new)),
            (known, new) => known.or(new),
        };
        decision.floor = match (decision.floor, rule.floor) {
            (Some(known), Some(new)) => Some(known.max(new)),
            (known, new) => known.or(new),
        };
        decision.queue = decision.queue.or(part.queue);
        let words = self.actions.len();
        let removed = &decision.removed[number * words..(number + 1) * words];
        decision.allowed.iter_mut().zip(removed).for_each(|(word, removed)| *word &= !removed);
    }

    /// The decision that the rules wrote, the strictest of several.
    #[must_use]
    pub fn decision(&self, decision: &Decision) -> Option<&str> {
        decision.decision.and_then(|at| self.decisions.get(usize::from(at))).map(String::as_str)
    }

    /// The review queue that the rules wrote.
    #[must_use]
    pub fn queue(&self, decision: &Decision) -> Option<&str> {
        decision.queue.and_then(|at| self.queues.get(usize::from(at))).map(String::as_str)
    }
}

impl Part {
    /// Whether the rule is active whatever the request is.
    pub(crate) fn is_always_active(&self) -> bool {
        self.rollout.is_none()
            && self.budget.is_none()
            && (self.window.from, self.window.until) == (i64::MIN, i64::MAX)
    }

    pub(crate) fn is_active(&self, request: Request<'_>) -> bool {
        if request.seconds < self.window.from
            || request.seconds >= self.window.until
            || self.budget.is_some_and(|budget| request.exhausted.contains(budget))
        {
            return false;
        }
        self.rollout.is_none_or(|limit| {
            let mut hasher = self.hasher;
            hasher.write(request.id);
            hasher.finish() < limit
        })
    }
}

/// `left || right`.
fn either(left: Cell, right: Cell) -> Cell {
    if left.is_true() || right.is_true() {
        Cell::bool(true)
    } else {
        Cell { bits: 0, state: left.state.max(right.state) }
    }
}

impl Decision {
    pub(crate) fn reset(&mut self, actions: &[u64]) {
        self.states.fill(RuleState::Inactive);
        self.applied.clear();
        (self.decision, self.cap, self.floor, self.queue) = (None, None, None, None);
        self.allowed.iter_mut().zip(actions).for_each(|(word, all)| *word = *all);
        (self.unknown, self.errors, self.conflicts, self.failed) = (0, 0, 0, 0);
    }

    /// The values of names, to be set before an evaluation.
    pub fn values(&mut self) -> &mut Scratch {
        &mut self.values
    }

    /// What became of each rule, in the order of [`RuleSet::rules`].
    #[must_use]
    pub fn states(&self) -> &[RuleState] {
        &self.states
    }

    /// The rules that had an effect, in the order of [`RuleSet::rules`].
    #[must_use]
    pub fn applied(&self) -> &[u16] {
        &self.applied
    }

    /// The actions that a rule of [`Decision::applied`] removed, a bit for each; no bit for a rule that removes none.
    #[must_use]
    pub fn removed(&self, rule: u16) -> &[u64] {
        let words = self.allowed.len();
        let first = usize::from(rule) * words;
        self.removed.get(first..first + words).unwrap_or_default()
    }

    /// The score within the floor and the cap of the rules. A cap below a floor wins.
    #[must_use]
    pub fn score(&self, score: f64) -> f64 {
        let raised = self.floor.map_or(score, |floor| score.max(floor));
        self.cap.map_or(raised, |cap| raised.min(cap))
    }

    /// The greatest score that the rules allow.
    #[must_use]
    pub fn cap(&self) -> Option<f64> {
        self.cap
    }

    /// The smallest score that the rules allow.
    #[must_use]
    pub fn floor(&self) -> Option<f64> {
        self.floor
    }

    /// The actions that the rules leave eligible, a bit for each.
    #[must_use]
    pub fn allowed(&self) -> &[u64] {
        &self.allowed
    }

    /// Whether there are actions and the rules leave none of them. The caller answers with its fallback.
    #[must_use]
    pub fn leaves_nothing(&self) -> bool {
        !self.allowed.is_empty() && self.allowed.iter().all(|word| *word == 0)
    }

    /// Number of rules that did not fire because a value is missing.
    #[must_use]
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// Number of rules that did not fire because their condition has no value.
    #[must_use]
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// Number of groups with hit policy `any` or `unique` whose rules contradicted each other and had no effect.
    #[must_use]
    pub fn conflicts(&self) -> u32 {
        self.conflicts
    }

    /// The declared functions whose calls failed in a condition or value, a bit for each by its position.
    #[must_use]
    pub fn failed_functions(&self) -> u64 {
        self.failed
    }
}
