//! One answered request for an observe lane.

use std::sync::Arc;
use std::time::Instant;

use scorer_engine::{Answered, Outcome, Shape, Timings};
use scorer_proto::v1::Feature;

use crate::computed;
use crate::named::feature;

/// An answered request and the time of its answer by two clocks.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The request and its answer.
    pub answered: &'a Answered<'a>,
    /// Time of the answer in microseconds since the Unix epoch.
    pub answered_at_us: i64,
    /// Time of the answer by the monotonic clock of this process.
    pub at: Instant,
}

/// A copy of an answered request in a lane's queue, in buffers that are used again.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) entity: String,
    pub(crate) row: Vec<f32>,
    pub(crate) shape: Option<Arc<Shape>>,
    /// One bit per action, if not all actions are eligible.
    pub(crate) eligible: Vec<u64>,
    pub(crate) restricted: bool,
    pub(crate) others: Vec<Feature>,
    pub(crate) lane: String,
    pub(crate) lane_table: u64,
    pub(crate) bundle: [u8; 32],
    pub(crate) margin: f64,
    pub(crate) score: f64,
    pub(crate) decision: String,
    pub(crate) action: String,
    pub(crate) expected_reward: f64,
    pub(crate) propensity: f64,
    pub(crate) fallback_reason: String,
    pub(crate) timings: Timings,
    pub(crate) answered_at_us: i64,
    pub(crate) at: Option<Instant>,
    /// The computed features of the lane's bundle.
    pub(crate) computed: computed::Observed,
}

// === impl Job ===

impl Job {
    /// Writes every field. `reads` returns whether a named feature of the request is copied.
    pub(crate) fn fill(&mut self, observed: &Observed<'_>, reads: impl Fn(&str) -> bool) {
        let &Observed { answered, answered_at_us, at } = observed;
        let set = |to: &mut String, text: &str| {
            to.clear();
            to.push_str(text);
        };
        set(&mut self.id, answered.id);
        set(&mut self.entity, answered.entity);
        self.row.clear();
        self.row.extend_from_slice(answered.row);
        self.shape = Some(Arc::clone(answered.shape));
        self.others.clear();
        answered.named.visit(&mut |name, value| {
            if reads(name) {
                self.others.push(feature(name, value));
            }
        });
        set(&mut self.lane, answered.lane);
        self.lane_table = answered.lane_table;
        self.bundle = *answered.bundle;
        self.eligible.clear();
        self.restricted = false;
        (self.margin, self.score) = (0.0, 0.0);
        self.decision.clear();
        self.action.clear();
        (self.expected_reward, self.propensity) = (0.0, 0.0);
        match answered.outcome {
            Outcome::Score { margin, score, label } => {
                (self.margin, self.score) = (margin, score);
                self.decision.push_str(label);
            }
            Outcome::Action { eligible, action, propensity, expected_reward, .. } => {
                if let Some(mask) = eligible {
                    self.restricted = true;
                    self.eligible.extend_from_slice(mask.words());
                }
                self.action.push_str(action);
                (self.expected_reward, self.propensity) = (expected_reward, propensity);
            }
        }
        set(&mut self.fallback_reason, answered.fallback_reason);
        self.timings = answered.timings;
        self.answered_at_us = answered_at_us;
        self.at = Some(at);
    }
}
