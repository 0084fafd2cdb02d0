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

/// Decisions on which a rule has an effect.
#[derive(Debug, Clone, Default)]
pub(super) struct Hits {
    pub(super) now: u64,
    /// Decisions on which it had an effect when they were made.
    pub(super) before: u64,
    /// Decisions with an effect now or then that would be other ones.
    pub(super) changed: u64,
    /// Decisions on which it was inactive because its daily budget was used up.
    pub(super) exhausted: u64,
}

impl Hits {
    fn add(&mut self, later: &Hits) {
        self.now += later.now;
        self.before += later.before;
        self.changed += later.changed;
        self.exhausted += later.exhausted;
    }
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
    /// Hits of each rule, in the order of the set.
    pub(super) rules: Vec<Hits>,
    /// Hits of recorded rules that are not in the set, by id.
    pub(super) removed: HashMap<String, Hits>,
    /// Changes by what the decision was and would be, in the order of the log.
    pub(super) changes: Vec<((u16, u16), Change)>,
}

impl Tally {
    pub(super) fn new(rules: usize) -> Tally {
        Tally { rules: vec![Hits::default(); rules], ..Tally::default() }
    }

    /// The hits of a recorded rule, which has a place if it is in the set.
    pub(super) fn recorded(&mut self, place: Option<usize>, id: &str) -> &mut Hits {
        match place.and_then(|place| self.rules.get_mut(place)) {
            Some(hits) => hits,
            None => self.removed.entry(id.to_owned()).or_default(),
        }
    }

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
        self.rules.iter_mut().zip(&later.rules).for_each(|(sum, hits)| sum.add(hits));
        later.removed.iter().for_each(|(id, hits)| self.recorded(None, id).add(hits));
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
