//! The daily budgets of rules. A rule with a budget decides at most so many requests of a UTC day. The counts are kept
//! by the caller, who tells an evaluation which budgets are used up; a rule without budget left is inactive.

use crate::decide::Decision;
use crate::environment::{Slot, Type};
use crate::ruleset::RuleSet;

/// Amounts are counted in thousandths, the smallest unit of any currency.
pub const PER_UNIT: f64 = 1000.0;
/// Seconds of a day.
const DAY: i64 = 86_400;

/// What a rule may decide on one UTC day. At least one of the two limits is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// The most requests.
    pub decisions: Option<u64>,
    /// The most of the sum of a number.
    pub amount: Option<AmountLimit>,
}

/// A limit on the sum of a number over the requests that a rule decides.
#[derive(Debug, Clone, PartialEq)]
pub struct AmountLimit {
    /// Name of the number.
    pub of: String,
    /// The greatest sum.
    pub most: f64,
}

impl AmountLimit {
    /// The greatest sum in thousandths.
    #[must_use]
    pub fn thousandths(&self) -> u64 {
        (self.most * PER_UNIT).round() as u64
    }
}

/// The budgets of a rule set, by their places in [`RuleSet::budgets`], that are used up for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exhausted(u64);

impl Exhausted {
    /// No budget is used up, or budgets do not apply.
    pub const NONE: Exhausted = Exhausted(0);

    /// Adds a budget.
    pub fn insert(&mut self, budget: usize) {
        self.0 |= 1_u64.checked_shl(u32::try_from(budget).unwrap_or(u32::MAX)).unwrap_or(0);
    }

    /// Adds all budgets of another set.
    pub fn add(&mut self, other: Exhausted) {
        self.0 |= other.0;
    }

    /// Whether a budget is used up.
    #[must_use]
    pub fn contains(self, budget: usize) -> bool {
        let mut one = Exhausted::NONE;
        one.insert(budget);
        self.0 & one.0 != 0
    }

    /// The places of the budgets, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..crate::limits::MAX_BUDGETS).filter(move |budget| self.contains(*budget))
    }
}

/// A rule with a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budgeted {
    pub(crate) rule: u16,
    /// The number that is added up.
    pub(crate) of: Option<(Slot, Type)>,
}

impl RuleSet {
    /// The numbers of the rules with a budget, in the order of the rules.
    pub fn budgets(&self) -> impl ExactSizeIterator<Item = u16> {
        self.budgets.iter().map(|budgeted| budgeted.rule)
    }

    /// The budgets of these rules, by their ids. Other ids are ignored.
    pub fn exhausted<'a>(&self, rules: impl IntoIterator<Item = &'a str>) -> Exhausted {
        let mut exhausted = Exhausted::NONE;
        for id in rules {
            let of_rule = |number: u16| self.rules.get(usize::from(number)).is_some_and(|rule| rule.id == id);
            if let Some(budget) = self.budgets().position(of_rule) {
                exhausted.insert(budget);
            }
        }
        exhausted
    }

    /// Whether the rule of a budget wrote the decision of the request that was evaluated last; if so, what it adds to
    /// the sum, in thousandths and rounded up, or 0 if the budget has no limit on a sum. The result of
    /// [`RuleSet::evaluate_rows`] does not have the amounts.
    #[must_use]
    pub fn charge(&self, budget: usize, decision: &Decision) -> Option<u64> {
        let Budgeted { rule, of } = self.budgets.get(budget)?;
        let written = self.parts.get(usize::from(*rule))?.decision;
        if written != decision.decision || !decision.applied.contains(rule) {
            return None;
        }
        let Some((slot, kind)) = of else { return Some(0) };
        let cell = decision.values.names().get(usize::from(slot.0))?;
        let amount = if *kind == Type::Int { cell.bits as i64 as f64 } else { f64::from_bits(cell.bits) };
        // The tolerance keeps a decimal number that has no binary form from being rounded to the next thousandth. An
        // amount that is not finite becomes the greatest one, which no budget holds.
        let thousandths = (amount * PER_UNIT - 1e-6).ceil();
        Some(if cell.state == 0 && thousandths.is_finite() { thousandths as u64 } else { u64::MAX })
    }
}

/// The UTC day of a time in seconds since 1970.
#[must_use]
pub fn day_of(seconds: i64) -> u64 {
    u64::try_from(seconds.div_euclid(DAY)).unwrap_or(0)
}
