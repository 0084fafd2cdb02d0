//! What a replay counts.

use std::collections::HashMap;

/// Decisions with the same change.
#[derive(Debug, Clone, Default)]
pub(super) struct Change {
    pub(super) count: u64,
    pub(super) amount: f64,
    /// Decisions by amount band; the last one is that of missing amounts.
    pub(super) bands: Vec<u64>,
    /// Known and positive outcomes by kind.
    pub(super) outcomes: Vec<(u64, u64)>,
    pub(super) examples: Vec<String>,
}

/// What was counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) decisions: u64,
    pub(super) unknown: u64,
    pub(super) errors: u64,
    pub(super) conflicts: u64,
    pub(super) withheld: u64,
    pub(super) fallbacks: u64,
    pub(super) others: u64,
    /// Decisions on which each rule has an effect.
    pub(super) hits: Vec<u64>,
    pub(super) hits_before: HashMap<String, u64>,
    pub(super) changed_by: HashMap<String, u64>,
    /// Changes by what the decision was and would be, in the order of the log.
    pub(super) changes: Vec<((u16, u16), Change)>,
}

impl Tally {
    pub(super) fn change(&mut self, key: (u16, u16), bands: usize, kinds: usize) -> &mut Change {
        let at = self.changes.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            let change = Change { bands: vec![0; bands], outcomes: vec![(0, 0); kinds], ..Change::default() };
            self.changes.push((key, change));
            self.changes.len() - 1
        });
        &mut self.changes[at].1
    }

    /// Adds the counts of later decisions.
    pub(super) fn add(&mut self, later: Tally, examples: usize) {
        self.decisions += later.decisions;
        self.unknown += later.unknown;
        self.errors += later.errors;
        self.conflicts += later.conflicts;
        self.withheld += later.withheld;
        self.hits.iter_mut().zip(&later.hits).for_each(|(sum, count)| *sum += count);
        for (sums, counts) in
            [(&mut self.hits_before, later.hits_before), (&mut self.changed_by, later.changed_by)]
        {
            counts.into_iter().for_each(|(rule, count)| *sums.entry(rule).or_default() += count);
        }
        for (key, change) in later.changes {
            let known = self.change(key, change.bands.len(), change.outcomes.len());
            known.count += change.count;
            known.amount += change.amount;
            known.bands.iter_mut().zip(&change.bands).for_each(|(sum, count)| *sum += count);
            known.outcomes.iter_mut().zip(&change.outcomes).for_each(|(sum, (known, positive))| {
                sum.0 += known;
                sum.1 += positive;
            });
            let room = examples.saturating_sub(known.examples.len());
            known.examples.extend(change.examples.into_iter().take(room));
        }
    }
}
