//! Finds rules that can have no effect, contradict each other or leave no action.

use crate::check::Typed;
use crate::fault::Fault;
use crate::implied::Conjunction;
use crate::ruleset::{Group, Rule};
use crate::source::HitPolicy;

/// A rule with its checked conditions, and the actions that each removes.
pub(crate) struct Checked {
    pub(crate) id: String,
    pub(crate) at: (u32, u32),
    pub(crate) conditions: Vec<(Typed, Vec<u64>)>,
    /// Whether it is enabled for all requests at all times.
    pub(crate) always: bool,
    /// Whether its condition is written as `true`.
    pub(crate) literally_true: bool,
    pub(crate) rule: Rule,
}

impl Checked {
    fn fault(&self, problem: String) -> Fault {
        Fault { rule: self.id.clone(), line: self.at.0, column: self.at.1, problem }
    }
}

/// All faults of a rule set whose rules are valid one by one.
pub(crate) fn conflicts(rules: &[Checked], groups: &[Group], actions: &[u64]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = rules.iter().filter_map(constant).collect();
    if !faults.is_empty() {
        return faults;
    }
    let read: Vec<Option<Conjunction<'_>>> = rules
        .iter()
        .map(|rule| match &rule.conditions[..] {
            [(condition, _)] => Some(Conjunction::of(condition)),
            // The condition differs between actions.
            _ => None,
        })
        .collect();
    for group in groups {
        for later in group.first..group.end {
            let found = (group.first..later).find_map(|earlier| {
                pair(group.hit, &rules[earlier], &rules[later], &read[earlier], &read[later])
            });
            faults.extend(found);
        }
    }
    faults.extend(eligibility(rules, groups, actions));
    faults
}

/// A condition that does not depend on the request.
fn constant(rule: &Checked) -> Option<Fault> {
    for (condition, _) in &rule.conditions {
        if let Some(error) = condition.any_error() {
            return Some(rule.fault(format!("the condition always fails: {}; correct it", error.describe())));
        }
    }
    let [(condition, _)] = &rule.conditions[..] else { return None };
    let problem = match condition {
        Typed::Bool(false) => "the condition is always false; correct or remove the rule",
        Typed::Bool(true) if !rule.literally_true => {
            "the condition is always true; correct it, or write true"
        }
        _ if Conjunction::of(condition).is_impossible() => {
            "the condition is never true, because it contradicts itself; correct it"
        }
        _ => return None,
    };
    Some(rule.fault(problem.to_owned()))
}

/// What is wrong with two rules of a group.
fn pair(
    hit: HitPolicy,
    earlier: &Checked,
    later: &Checked,
    first: &Option<Conjunction<'_>>,
    second: &Option<Conjunction<'_>>,
) -> Option<Fault> {
    let (first, second) = (first.as_ref()?, second.as_ref()?);
    let both = earlier.always && later.always;
    let (shadowing, shadowed) = match hit {
        HitPolicy::Priority if later.rule.priority > earlier.rule.priority => (later, earlier),
        _ => (earlier, later),
    };
    let implied = |from: &Conjunction<'_>, to: &Conjunction<'_>| from.implies(to);
    match hit {
        HitPolicy::First | HitPolicy::Priority => {
            let (wide, narrow) = if shadowing.id == earlier.id { (first, second) } else { (second, first) };
            (shadowing.always && implied(narrow, wide)).then(|| {
                shadowed.fault(format!(
                    "the rule never has an effect, because rule {:?} comes before it and is true whenever it is; reorder or remove one",
                    shadowing.id
                ))
            })
        }
        HitPolicy::Collect => {
            let same = implied(first, second) && implied(second, first);
            if same
                && both
                && effect(&earlier.rule) == effect(&later.rule)
                && removes(earlier) == removes(later)
            {
                return Some(later.fault(format!("the rule repeats rule {:?}; remove one", earlier.id)));
            }
            if !(both && (implied(first, second) || implied(second, first))) {
                return None;
            }
            match (&earlier.rule.queue, &later.rule.queue) {
                (Some(one), Some(other)) if one != other => {
                    return Some(later.fault(format!(
                        "a write conflict: rule {:?} writes queue {one:?} and is true together with this one; make their conditions exclusive",
                        earlier.id
                    )));
                }
                _ => {}
            }
            let above = |floor: Option<f64>, cap: Option<f64>| matches!((floor, cap), (Some(floor), Some(cap)) if floor > cap);
            (above(earlier.rule.floor, later.rule.cap) || above(later.rule.floor, earlier.rule.cap)).then(|| {
                later.fault(format!(
                    "a write conflict: a floor is above a cap, and rule {:?} is true together with this one; correct one of them",
                    earlier.id
                ))
            })
        }
        HitPolicy::Any | HitPolicy::Unique => {
            let together =
                both && (first.overlaps(second) || implied(first, second) || implied(second, first));
            let differ = hit == HitPolicy::Unique
                || effect(&earlier.rule) != effect(&later.rule)
                || removes(earlier) != removes(later);
            (together && differ).then(|| {
                let rule = if hit == HitPolicy::Unique { "unique allows one rule" } else { "any needs equal effects" };
                later.fault(format!(
                    "a write conflict: rule {:?} can be true together with this one, and {rule}; make their conditions exclusive",
                    earlier.id
                ))
            })
        }
    }
}

pub(crate) type Effect<'a> =
    (&'a Option<String>, &'a Option<String>, Option<f64>, Option<f64>, &'a Option<String>);

/// What a rule writes, except eligibility.
pub(crate) fn effect(rule: &Rule) -> Effect<'_> {
    (&rule.decision, &rule.reason, rule.cap, rule.floor, &rule.queue)
}

fn removes(rule: &Checked) -> Vec<&[u64]> {
    rule.conditions.iter().map(|(_, removed)| removed.as_slice()).collect()
}

/// Rules that together remove every action whenever one of them is true.
fn eligibility(rules: &[Checked], groups: &[Group], actions: &[u64]) -> Vec<Fault> {
    let mut faults = Vec::new();
    if actions.iter().all(|word| *word == 0) {
        return faults;
    }
    // Rules of other groups than `collect` have no effect if another rule is true.
    let restricting: Vec<(&Checked, Conjunction<'_>, &[u64])> = groups
        .iter()
        .filter(|group| group.hit == HitPolicy::Collect)
        .flat_map(|group| &rules[group.first..group.end])
        .filter(|rule| rule.always && rule.rule.restricts)
        .flat_map(|rule| {
            rule.conditions
                .iter()
                .map(move |(condition, removed)| (rule, Conjunction::of(condition), removed.as_slice()))
        })
        .collect();
    for (rule, condition, _) in &restricting {
        let mut left = actions.to_vec();
        let mut names: Vec<&str> = Vec::new();
        for (other, implied, removed) in &restricting {
            if condition.implies(implied) {
                left.iter_mut().zip(*removed).for_each(|(word, removed)| *word &= !removed);
                if !names.contains(&other.id.as_str()) {
                    names.push(&other.id);
                }
            }
        }
        let known = faults.iter().any(|fault: &Fault| fault.rule == rule.id);
        if left.iter().all(|word| *word == 0) && !known {
            faults.push(rule.fault(format!(
                "no action is left when the rule is true ({} remove all); leave at least one",
                names.join(", ")
            )));
        }
    }
    faults
}
