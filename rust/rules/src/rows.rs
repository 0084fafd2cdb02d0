//! Evaluates a rule set on many requests, for backtests and batches. The results are those of [`RuleSet::evaluate`].

use crate::block::{Block, ROWS, Truths, first, rows as each_row};
use crate::code::Cell;
use crate::decide::{Decision, Request, RuleState};
use crate::environment::Slot;
use crate::lists::Lists;
use crate::program::Scratch;
use crate::ruleset::{RuleSet, Step};

/// The memory of evaluations of up to [`Rows::CAPACITY`] requests at a time. It is made once and used for many of them.
///
/// Set the values of a request with [`Rows::values`], then add it with [`Rows::push`].
#[derive(Debug, Clone)]
pub struct Rows {
    block: Block,
    count: usize,
    /// The states of a row's rules, row after row.
    states: Vec<RuleState>,
    /// The actions that each rule of a row removes, row after row.
    removed: Vec<u64>,
    /// The values of the row that is added next, and the result of the row that is reported.
    decision: Decision,
}

impl Rows {
    /// The greatest number of requests.
    pub const CAPACITY: usize = ROWS;

    /// The values of the next request. They stay as they are from one request to the next until they are set again.
    pub fn values(&mut self) -> &mut Scratch {
        &mut self.decision.values
    }

    /// Adds a request with the present values. Returns false if there are [`Rows::CAPACITY`] of them.
    pub fn push(&mut self) -> bool {
        if self.count == ROWS {
            return false;
        }
        for (slot, cell) in (0..).zip(self.decision.values.names()) {
            self.block.set(Slot(slot), self.count, *cell);
        }
        self.count += 1;
        true
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is no place for another request.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == ROWS
    }
}

impl RuleSet {
    /// Makes the memory for evaluations of several requests at a time.
    #[must_use]
    pub fn start_rows(&self) -> Rows {
        let rules = self.rules.len();
        Rows {
            block: self.program.block(),
            count: 0,
            states: vec![RuleState::Inactive; rules * ROWS],
            removed: vec![0; rules * self.actions.len() * ROWS],
            decision: self.start(),
        }
    }

    /// Evaluates all rules on the requests of `rows`, which must be of this set, and calls `each` with the number and
    /// the result of each of them. Afterwards `rows` has no requests. It allocates nothing.
    ///
    /// `requests` has the time and the id of each request; requests without them are ignored.
    pub fn evaluate_rows(
        &self,
        rows: &mut Rows,
        lists: &Lists,
        requests: &[Request<'_>],
        mut each: impl FnMut(usize, &Decision),
    ) {
        let count = std::mem::take(&mut rows.count).min(requests.len());
        let (rules, words) = (self.rules.len(), self.actions.len());
        if rows.states.len() != rules * ROWS || rows.removed.len() != rules * words * ROWS {
            return;
        }
        let lists = self.program.checked(lists);
        rows.block.activate(first(count));
        rows.states.fill(RuleState::False);
        for step in &self.steps {
            match *step {
                Step::Value { expression, slot } => {
                    let results = self.program.run_block(expression, &mut rows.block, lists);
                    rows.block.set_column(slot, results);
                }
                Step::Rule(rule) => self.rule_of_rows(rule, rows, lists, &requests[..count]),
            }
        }
        for row in 0..count {
            let decision = &mut rows.decision;
            decision.reset(&self.actions);
            decision.states.copy_from_slice(&rows.states[row * rules..(row + 1) * rules]);
            decision.removed.copy_from_slice(&rows.removed[row * rules * words..(row + 1) * rules * words]);
            decision.failed = rows.block.calls.take_failed(row);
            self.apply_groups(decision);
            each(row, decision);
        }
    }

    fn rule_of_rows(&self, number: usize, rows: &mut Rows, lists: Option<&Lists>, requests: &[Request<'_>]) {
        let part = &self.parts[number];
        let (rules, words) = (self.rules.len(), self.actions.len());
        let all = first(requests.len());
        let mut inactive = 0;
        if !part.is_always_active() {
            for (row, request) in requests.iter().enumerate() {
                inactive |= u64::from(!part.is_active(*request)) << row;
            }
        }
        let restricts = self.rules[number].restricts;
        let removed_at = |row: usize| (row * rules + number) * words;
        if restricts {
            for row in each_row(all) {
                rows.removed[removed_at(row)..removed_at(row) + words].fill(0);
            }
        }
        let mut truths = Truths::FALSE;
        // An inactive rule calls no functions.
        rows.block.activate(all & !inactive);
        for variant in part.variants.iter().filter(|_| all != inactive) {
            let register = self.program.run_block(variant.expression, &mut rows.block, lists);
            let mut found = rows.block.truths(register);
            found.clear(inactive | !all);
            if restricts {
                for row in each_row(found.truth) {
                    let removed = &mut rows.removed[removed_at(row)..removed_at(row) + words];
                    removed.iter_mut().zip(&variant.removed).for_each(|(word, new)| *word |= new);
                }
            }
            truths.or(&found);
        }
        rows.block.activate(all);
        for row in each_row(inactive) {
            rows.states[row * rules + number] = RuleState::Inactive;
        }
        for row in each_row(truths.truth) {
            rows.states[row * rules + number] = RuleState::Fired;
        }
        for row in each_row(truths.lacking) {
            let cell = Cell { bits: 0, state: truths.states[row] };
            rows.states[row * rules + number] = RuleState::of(cell);
        }
        rows.block.set_truths(part.slot, &truths);
    }
}
