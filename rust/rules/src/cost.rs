//! Measures the time that the single rules of a set need. The clock is the caller's.

use std::hint::black_box;

use crate::decide::{Decision, Request, RuleState};
use crate::lists::Lists;
use crate::program::Scratch;
use crate::ruleset::{RuleSet, Step};

/// Requests that a batch evaluates one after the other. Their values fit in the first-level cache, as those of a request
/// that was just decoded do.
const ROWS: usize = 32;
/// Greatest number of times that a batch evaluates its requests.
const MOST_REPETITIONS: u64 = 1 << 16;

/// How costs are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostSettings {
    /// Number of batches of each rule.
    pub batches: usize,
    /// Nanoseconds that a batch takes at least. It repeats its requests until it does.
    pub batch_nanos: u64,
    /// Nanoseconds after which no further batches begin. There is at least one of each rule.
    pub limit_nanos: u64,
}

/// Nanoseconds of one evaluation over batches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    /// The median of the batches.
    pub median: f64,
    /// The 99th percentile of the batches, by the nearest rank.
    pub p99: f64,
}

/// What costs time: a value of the set, or a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costly {
    /// A value, which is computed once for all rules that read it.
    Value,
    /// A rule: whether it is active, its condition, and its effects where it has some.
    Rule,
}

/// The cost of one value or rule.
#[derive(Debug, Clone, PartialEq)]
pub struct PartCost {
    /// What it is.
    pub kind: Costly,
    /// Name of the value, or id of the rule.
    pub name: String,
    /// The greatest number of instructions that evaluating it can take.
    pub instructions: usize,
    /// Nanoseconds of an evaluation without the loop around it.
    pub time: Spread,
    /// The share of its median in the sum of all medians.
    pub share: f64,
    /// Number of evaluations of a batch.
    pub evaluations: u64,
}

/// The costs of a set.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The values and rules in the order in which they are evaluated.
    pub parts: Vec<PartCost>,
    /// Nanoseconds of an evaluation of the whole set, which also resets the result and applies hit policies.
    pub whole: Spread,
    /// Nanoseconds of the loop around an evaluation, which were subtracted.
    pub empty: Spread,
    /// Number of measured batches of each part.
    pub batches: usize,
    /// Number of requests, which take turns.
    pub requests: usize,
}

/// A request whose rules have been evaluated, so that any of them can be evaluated again.
struct Prepared<'a> {
    decision: Decision,
    request: Request<'a>,
}

/// What is repeated in a batch.
#[derive(Clone, Copy)]
enum Work {
    Empty,
    /// One value or rule. The bits of `fires` are the requests on which the rule has an effect.
    Part {
        step: Step,
        fires: u64,
    },
    Whole,
}

/// A kind of work with the times of its batches.
struct Measured {
    work: Work,
    repetitions: u64,
    /// Nanoseconds of one evaluation, batch after batch.
    times: Vec<f64>,
}

impl RuleSet {
    /// Measures each value, each rule and the whole set on requests. Batches of all of them take turns, so that a slow
    /// phase of the machine affects all of them alike.
    ///
    /// `fill` sets the values of the request with a number below `requests` and returns its time and id. `clock` returns
    /// nanoseconds since any time. Without requests, there are no batches and all times are 0.
    pub fn cost<'a>(
        &self,
        lists: &Lists,
        requests: usize,
        mut fill: impl FnMut(usize, &mut Scratch) -> Request<'a>,
        settings: CostSettings,
        mut clock: impl FnMut() -> u64,
    ) -> Costs {
        let works = [Work::Empty]
            .into_iter()
            .chain(self.steps.iter().map(|step| Work::Part { step: *step, fires: 0 }))
            .chain([Work::Whole]);
        let mut measured: Vec<Measured> =
            works.map(|work| Measured { work, repetitions: 0, times: Vec::new() }).collect();
        let mut prepared: Vec<Prepared<'a>> = Vec::with_capacity(ROWS);
        let began = clock();
        let mut batches = 0;
        while requests > 0 && batches < settings.batches.max(1) {
            self.prepare(&mut prepared, batches, requests, &mut fill, lists);
            for one in &mut measured {
                if let Work::Part { step: Step::Rule(rule), fires } = &mut one.work {
                    *fires = firing(&prepared, *rule);
                }
            }
            for one in &mut measured {
                if one.repetitions == 0 {
                    one.repetitions = self.calibrate(one.work, &mut prepared, lists, settings, &mut clock);
                }
                let nanos = self.batch(one.work, one.repetitions, &mut prepared, lists, &mut clock);
                one.times.push(nanos as f64 / (one.repetitions * prepared.len() as u64) as f64);
            }
            batches += 1;
            if clock().saturating_sub(began) >= settings.limit_nanos {
                break;
            }
        }
        let size = requests.min(ROWS) as u64;
        self.costs(measured, batches, requests, size)
    }

    /// Evaluates the next requests. Afterwards, evaluating a part again writes the values that are there already.
    fn prepare<'a>(
        &self,
        prepared: &mut Vec<Prepared<'a>>,
        round: usize,
        requests: usize,
        fill: &mut impl FnMut(usize, &mut Scratch) -> Request<'a>,
        lists: &Lists,
    ) {
        let size = requests.min(ROWS);
        for at in 0..size {
            let number = round.wrapping_mul(size).wrapping_add(at) % requests;
            match prepared.get_mut(at) {
                Some(one) => one.request = fill(number, one.decision.values()),
                None => {
                    let mut decision = self.start();
                    let request = fill(number, decision.values());
                    prepared.push(Prepared { decision, request });
                }
            }
        }
        for Prepared { decision, request } in prepared {
            self.evaluate(decision, lists, *request);
        }
    }

    /// Returns how often a batch has to repeat its requests to take long enough.
    fn calibrate(
        &self,
        work: Work,
        prepared: &mut [Prepared<'_>],
        lists: &Lists,
        settings: CostSettings,
        clock: &mut impl FnMut() -> u64,
    ) -> u64 {
        let mut repetitions = 1;
        while self.batch(work, repetitions, prepared, lists, clock) < settings.batch_nanos
            && repetitions < MOST_REPETITIONS
        {
            repetitions *= 2;
        }
        repetitions
    }

    /// Returns the nanoseconds of a batch.
    fn batch(
        &self,
        work: Work,
        repetitions: u64,
        prepared: &mut [Prepared<'_>],
        lists: &Lists,
        clock: &mut impl FnMut() -> u64,
    ) -> u64 {
        let since = clock();
        match work {
            Work::Empty => repeat(repetitions, prepared, |_, _| {}),
            Work::Part { step, fires } => {
                let checked = self.program.checked(lists);
                repeat(repetitions, prepared, |at, Prepared { decision, request }| match step {
                    Step::Value { .. } => self.step(step, decision, checked, *request),
                    Step::Rule(rule) => {
                        self.step(step, decision, checked, *request);
                        if fires >> at & 1 == 1 {
                            decision.applied.clear();
                            self.apply(rule, decision);
                        }
                    }
                });
            }
            Work::Whole => repeat(repetitions, prepared, |_, Prepared { decision, request }| {
                self.evaluate(decision, lists, *request);
            }),
        }
        clock().saturating_sub(since)
    }

    fn costs(&self, measured: Vec<Measured>, batches: usize, requests: usize, size: u64) -> Costs {
        let mut costs = Costs {
            parts: Vec::with_capacity(self.steps.len()),
            whole: Spread::default(),
            empty: Spread::default(),
            batches,
            requests,
        };
        let mut loops = Vec::new();
        for Measured { work, repetitions, mut times } in measured {
            // The loop was measured in the same round.
            times.iter_mut().zip(&loops).for_each(|(time, empty)| *time = f64::max(*time - empty, 0.0));
            let time = Spread::of(&times);
            match work {
                Work::Empty => {
                    costs.empty = time;
                    loops = times;
                }
                Work::Part { step, .. } => {
                    let (kind, name, instructions) = self.described(step);
                    let evaluations = repetitions * size;
                    costs.parts.push(PartCost { kind, name, instructions, time, share: 0.0, evaluations });
                }
                Work::Whole => costs.whole = time,
            }
        }
        let sum: f64 = costs.parts.iter().map(|part| part.time.median).sum();
        if sum > 0.0 {
            costs.parts.iter_mut().for_each(|part| part.share = part.time.median / sum);
        }
        costs
    }

    fn described(&self, step: Step) -> (Costly, String, usize) {
        match step {
            Step::Value { expression, slot } => {
                let mut names = self.program.environment().names();
                let name = names.nth(usize::from(slot.0)).map_or("", |(name, _)| name);
                (Costly::Value, name.to_owned(), self.program.steps(expression))
            }
            Step::Rule(rule) => {
                let variants = self.parts[rule].variants.iter();
                let instructions = variants.map(|variant| self.program.steps(variant.expression)).sum();
                (Costly::Rule, self.rules[rule].id.clone(), instructions)
            }
        }
    }
}

/// The requests on which a rule has an effect, one bit each.
fn firing(prepared: &[Prepared<'_>], rule: usize) -> u64 {
    prepared
        .iter()
        .enumerate()
        .filter(|(_, one)| {
            one.decision.states.get(rule) == Some(&RuleState::Fired)
                && one.decision.applied.iter().any(|applied| usize::from(*applied) == rule)
        })
        .fold(0, |bits, (at, _)| bits | 1 << at)
}

#[inline]
fn repeat<'a>(
    repetitions: u64,
    prepared: &mut [Prepared<'a>],
    mut work: impl FnMut(usize, &mut Prepared<'a>),
) {
    for _ in 0..repetitions {
        for (at, one) in prepared.iter_mut().enumerate() {
            work(at, black_box(one));
        }
    }
}

impl Spread {
    fn of(times: &[f64]) -> Spread {
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| {
            let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
            sorted.get(at).copied().unwrap_or_default()
        };
        Spread { median: rank(50), p99: rank(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Actions, Environment, ListKey, Type};

    const RULES: &str = r#"
        name = "checkout"
        decisions = ["decline", "approve"]
        [[values]]
        name = "double"
        is = "amount * 2.0"
        [[rules]]
        id = "large"
        when = "double > 100.0"
        decision = "decline"
        [[rules]]
        id = "small"
        when = "amount <= 50.0 && !rules.large"
        cap = 0.5
    "#;

    #[test]
    fn a_batch_of_a_rule_evaluates_it_and_applies_its_effects() {
        let mut environment = Environment::new();
        let amount = environment.declare("amount", Type::Double).unwrap();
        let actions = Actions::new(0, Vec::new()).unwrap();
        let set = RuleSet::compile(RULES, &environment, &actions, ListKey::new([1; 16])).unwrap();
        let lists = Lists::new(ListKey::new([1; 16]), &environment);
        let request = Request { seconds: 0, id: b"", exhausted: crate::Exhausted::NONE };
        let mut prepared = Vec::new();
        let mut fill = |at: usize, values: &mut Scratch| {
            values.set_double(amount, [10.0, 90.0, f64::NAN][at]);
            request
        };
        set.prepare(&mut prepared, 0, 3, &mut fill, &lists);
        let states = |prepared: &[Prepared<'_>]| -> Vec<Vec<RuleState>> {
            prepared.iter().map(|one| one.decision.states.clone()).collect()
        };
        let applied = |prepared: &[Prepared<'_>]| -> Vec<Vec<u16>> {
            prepared.iter().map(|one| one.decision.applied.clone()).collect()
        };
        let whole = states(&prepared);
        assert_eq!((firing(&prepared, 0), firing(&prepared, 1)), (0b010, 0b001));
        for one in &mut prepared {
            one.decision.states.fill(RuleState::Inactive);
            one.decision.applied.clear();
        }
        let mut clock = || 0;
        for (rule, fires) in [(0, 0b010), (1, 0b001)] {
            let work = Work::Part { step: Step::Rule(rule), fires };
            assert_eq!(set.batch(work, 3, &mut prepared, &lists, &mut clock), 0);
        }
        assert_eq!(states(&prepared), whole);
        // Each request has the effect of the last rule that fired on it, once.
        assert_eq!(applied(&prepared), [vec![1], vec![0], vec![]]);
        assert_eq!(prepared[1].decision.decision, Some(0));
        assert_eq!(prepared[0].decision.cap, Some(0.5));
    }
}
