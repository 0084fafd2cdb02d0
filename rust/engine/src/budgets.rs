//! The daily budgets of rules: how much of them this process has used.
//!
//! A budget belongs to a checkpoint and the id of a rule, so that it goes on when another bundle with a rule of this id
//! is installed, and two lanes share it. Requests take no lock and allocate nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use scorer_core::bundle::Rules;
use scorer_rules::{Budget, Decision, Exhausted, PER_UNIT, RuleSet, day_of};

use crate::sync::AtomicU64;

/// The low bits of a count. The others have the day since 1970, until the year 2149.
const COUNT: u32 = 48;

/// The budgets of a checkpoint, by the id of the rule. None is ever removed.
#[derive(Debug, Default)]
pub struct Budgets(ArcSwap<HashMap<String, Arc<Spent>>>);

/// What has been used of one limit of a rule's budget today.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetUse<'a> {
    /// Id of the rule.
    pub rule: &'a str,
    /// What the limit is about: `decisions` or `amount`.
    pub of: &'static str,
    /// The part that is used.
    pub used: f64,
    /// The limit.
    pub most: f64,
}

/// What has been used of one budget.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    decisions: OfDay,
    /// In thousandths.
    amount: OfDay,
}

/// A count that begins at 0 on each UTC day.
#[derive(Debug, Default)]
struct OfDay(AtomicU64);

// === impl Budgets ===

impl Budgets {
    /// Begins to count for the rules with a budget that are not known yet.
    pub fn open(&self, rules: &Rules) {
        let rules = || rules.rules().iter().filter(|rule| rule.budget.is_some());
        if rules().all(|rule| self.0.load().contains_key(&rule.id)) {
            return;
        }
        self.0.rcu(|known| {
            let mut known = HashMap::clone(known);
            for rule in rules() {
                known.entry(rule.id.clone()).or_default();
            }
            known
        });
    }

    /// The budgets of a rule set that are used up at a time in seconds since 1970.
    #[must_use]
    pub fn exhausted(&self, set: &RuleSet, seconds: i64) -> Exhausted {
        let mut exhausted = Exhausted::NONE;
        let (known, day) = (self.0.load(), day_of(seconds));
        for (place, (id, budget)) in budgets(set).enumerate() {
            if known.get(id).is_none_or(|spent| spent.is_used_up(day, budget)) {
                exhausted.insert(place);
            }
        }
        exhausted
    }

    /// Takes one request from the budgets of all rules that wrote the decision of an evaluation.
    ///
    /// # Errors
    /// Nothing is taken, and the budgets that do not hold the request are returned, with at least one of them.
    pub fn take(&self, set: &RuleSet, decision: &Decision, seconds: i64) -> Result<(), Exhausted> {
        let (known, day) = (self.0.load(), day_of(seconds));
        let charges = || {
            budgets(set).enumerate().filter_map(|(place, (id, budget))| {
                Some((place, known.get(id), budget, set.charge(place, decision)?))
            })
        };
        let held = |(_, spent, budget, amount): &(usize, Option<&Arc<Spent>>, &Budget, u64)| {
            spent.is_some_and(|spent| spent.take(day, budget, *amount))
        };
        let Some((full, ..)) = charges().find(|charge| !held(charge)) else { return Ok(()) };
        for (_, spent, budget, amount) in charges().take_while(|(place, ..)| *place < full) {
            if let Some(spent) = spent {
                spent.give_back(day, budget, amount);
            }
        }
        let mut exhausted = Exhausted::NONE;
        exhausted.insert(full);
        Err(exhausted)
    }

    /// What has been used of the budgets of a rule set on the day of a time in seconds since 1970.
    pub(crate) fn uses<'a>(&self, set: &'a RuleSet, seconds: i64) -> Vec<BudgetUse<'a>> {
        let (known, day) = (self.0.load(), day_of(seconds));
        let mut uses = Vec::new();
        for (rule, budget) in budgets(set) {
            let spent = known.get(rule);
            let used = |of: fn(&Spent) -> &OfDay| spent.map_or(0, |spent| of(spent).on(day)) as f64;
            if let Some(most) = budget.decisions {
                let used = used(|spent| &spent.decisions);
                uses.push(BudgetUse { rule, of: "decisions", used, most: most as f64 });
            }
            if let Some(limit) = &budget.amount {
                let used = used(|spent| &spent.amount) / PER_UNIT;
                uses.push(BudgetUse { rule, of: "amount", used, most: limit.most });
            }
        }
        uses
    }
}

/// The ids and budgets of the rules with a budget, in their order.
fn budgets(set: &RuleSet) -> impl Iterator<Item = (&str, &Budget)> {
    set.budgets().filter_map(|rule| {
        let rule = set.rules().get(usize::from(rule))?;
        Some((rule.id.as_str(), rule.budget.as_ref()?))
    })
}

// === impl Spent ===

impl Spent {
    /// The requests and the thousandths that are used on a day.
    #[cfg(all(test, feature = "loom"))]
    pub(crate) fn used(&self, day: u64) -> (u64, u64) {
        (self.decisions.on(day), self.amount.on(day))
    }

    fn is_used_up(&self, day: u64, budget: &Budget) -> bool {
        budget.decisions.is_some_and(|most| self.decisions.on(day) >= most)
            || budget.amount.as_ref().is_some_and(|limit| self.amount.on(day) >= limit.thousandths())
    }

    /// Takes one request with an amount. Returns false, and takes nothing, if the budget does not hold it.
    pub(crate) fn take(&self, day: u64, budget: &Budget, amount: u64) -> bool {
        if budget.decisions.is_some_and(|most| !self.decisions.add(day, 1, most)) {
            return false;
        }
        let fits =
            budget.amount.as_ref().is_none_or(|limit| self.amount.add(day, amount, limit.thousandths()));
        if !fits && budget.decisions.is_some() {
            self.decisions.subtract(day, 1);
        }
        fits
    }

    pub(crate) fn give_back(&self, day: u64, budget: &Budget, amount: u64) {
        if budget.decisions.is_some() {
            self.decisions.subtract(day, 1);
        }
        if budget.amount.is_some() {
            self.amount.subtract(day, amount);
        }
    }
}

// === impl OfDay ===

impl OfDay {
    /// The count of a day. If the clock was set back, the count of the later day goes on.
    fn on(&self, day: u64) -> u64 {
        OfDay::read(self.0.load(Relaxed), day).1
    }

    /// Adds to the count of a day if the sum is at most `most`. Returns whether it was added.
    fn add(&self, day: u64, amount: u64, most: u64) -> bool {
        let added = self.0.fetch_update(Relaxed, Relaxed, |state| {
            let (day, used) = OfDay::read(state, day);
            let sum = used.checked_add(amount).filter(|sum| *sum <= most)?;
            (sum >> COUNT == 0).then_some(day << COUNT | sum)
        });
        added.is_ok()
    }

    /// Subtracts what was added on a day. After the count of another day has begun, it changes nothing: less may then
    /// be used than the budget allows, and never more.
    fn subtract(&self, day: u64, amount: u64) {
        // A count that is not of this day is left as it is.
        let _ = self.0.fetch_update(Relaxed, Relaxed, |state| {
            let (known, used) = (state >> COUNT, state & ((1 << COUNT) - 1));
            (known == day).then(|| known << COUNT | used.saturating_sub(amount))
        });
    }

    /// The day that a request of `day` counts on, and the count of this day.
    fn read(state: u64, day: u64) -> (u64, u64) {
        let (known, used) = (state >> COUNT, state & ((1 << COUNT) - 1));
        let day = day & (u64::MAX >> COUNT);
        if day > known { (day, 0) } else { (known, used) }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        decisions: Some(100),
        amount: Some(scorer_rules::AmountLimit { of: String::new(), most: 9.0 }),
    };

    #[test]
    fn a_budget_begins_again_on_the_next_day_and_not_on_the_one_before() {
        let spent = Spent::default();
        assert!(spent.take(20_000, &BUDGET, 9000) && spent.is_used_up(20_000, &BUDGET));
        assert!(!spent.take(20_000, &BUDGET, 1), "the sum is used up");
        assert_eq!((spent.decisions.on(20_000), spent.amount.on(20_000)), (1, 9000), "nothing was taken");
        assert!(spent.is_used_up(19_999, &BUDGET), "a clock that was set back begins no day again");
        assert!(!spent.is_used_up(20_001, &BUDGET) && spent.take(20_001, &BUDGET, 1));
        spent.give_back(20_000, &BUDGET, 1);
        assert_eq!((spent.decisions.on(20_001), spent.amount.on(20_001)), (1, 1), "another day");
        spent.give_back(20_001, &BUDGET, 1);
        assert_eq!((spent.decisions.on(20_001), spent.amount.on(20_001)), (0, 0));
        // Too large for every budget.
        assert!(!spent.take(20_002, &BUDGET, u64::MAX) && spent.decisions.on(20_002) == 0);
        assert!(!OfDay::default().add(1, u64::MAX >> 8, u64::MAX), "the day's bits are not touched");
    }

    /// Threads take amounts until nothing fits any more, some of them give back what they took, and a day passes
    /// between.
    #[test]
    fn concurrent_requests_never_exceed_a_budget() {
        for seed in 1..=40_u64 {
            let (spent, start) = (Spent::default(), std::sync::Barrier::new(4));
            let taken = |thread: u64| {
                let (mut state, mut taken) = (seed * 7919 + thread, [(0, 0); 2]);
                start.wait();
                for at in 0..400 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (day, amount) = (at / 200, (state >> 33) % 300);
                    if !spent.take(20_000 + day, &BUDGET, amount) {
                        continue;
                    }
                    let (count, sum) = &mut taken[day as usize];
                    if state >> 62 == 0 {
                        spent.give_back(20_000 + day, &BUDGET, amount);
                    } else {
                        (*count, *sum) = (*count + 1, *sum + amount);
                    }
                }
                taken
            };
            let all: Vec<[(u64, u64); 2]> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || taken(thread))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            // A request of the first day counts on the second one if another thread has begun it, so the second day
            // has the rest of the first one as well.
            let sum = |day: usize| {
                all.iter().fold((0, 0), |sum, taken| (sum.0 + taken[day].0, sum.1 + taken[day].1))
            };
            let (first, second) = (sum(0), sum(1));
            assert!(second.0 <= 100 && second.1 <= 9000, "seed {seed}: {second:?}");
            assert!(first.0 + second.0 <= 200 && first.1 + second.1 <= 18_000, "seed {seed}: {first:?}");
            assert!(spent.amount.on(20_001) <= 9000 && second.1 <= spent.amount.on(20_001), "seed {seed}");
        }
    }
}
