//! The outcomes of decisions.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use scorer_proto::v1::{OutcomeProof, OutcomeRecord};

/// A withdrawal follows its record within this number of records.
const REACH: u64 = 8192;

/// Checkpoint and id of a decision, hashed.
pub(super) type Key = (u64, u64);

/// Two keyed hashes, so that callers who choose ids cannot cause collisions.
#[derive(Default)]
pub(super) struct Keys(RandomState, RandomState);

impl Keys {
    pub(super) fn of(&self, checkpoint: &str, id: &str) -> Key {
        (self.0.hash_one((checkpoint, id)), self.1.hash_one((checkpoint, id)))
    }
}

/// The outcomes that count: of the proven reports of a decision and kind, the first of the highest revision.
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) kinds: Vec<String>,
    pub(super) values: HashMap<(Key, u16), (u32, f64)>,
    /// Reports that a withdrawal may still follow.
    pub(super) waiting: VecDeque<(u64, OutcomeRecord)>,
}

impl Outcomes {
    /// Takes the reports whose withdrawal would have been read before a sequence.
    pub(super) fn settle(&mut self, before: u64, keys: &Keys) {
        while let Some((sequence, report)) = self.waiting.pop_front() {
            if sequence.saturating_add(REACH) >= before {
                self.waiting.push_front((sequence, report));
                return;
            }
            if report.proof == i32::from(OutcomeProof::Unproven) {
                continue;
            }
            let kind = self.kinds.iter().position(|kind| *kind == report.kind).unwrap_or_else(|| {
                self.kinds.push(report.kind.clone());
                self.kinds.len() - 1
            });
            let key = (keys.of(&report.checkpoint, &report.decision_id), kind as u16);
            let known = self.values.entry(key).or_insert((report.revision, report.value));
            if report.revision > known.0 {
                *known = (report.revision, report.value);
            }
        }
    }
}
