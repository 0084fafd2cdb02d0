//! One answered request on its way to an observe lane.

use std::sync::Arc;
use std::time::Instant;

use scorer_core::policy::Mask;
use scorer_proto::v1::Feature;

use super::mapping::Shape;
use crate::answer::Times;

/// An answered request as those see it who may observe it. Whoever takes it copies what it needs: nothing of it
/// outlives the call.
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    pub(crate) checkpoint: &'a str,
    pub(crate) id: &'a str,
    pub(crate) entity: &'a str,
    /// As the answering bundle decoded it.
    pub(crate) row: &'a [f32],
    /// What the row and the mask mean.
    pub(crate) shape: &'a Arc<Shape>,
    /// `None` for scores.
    pub(crate) eligible: Option<&'a Mask>,
    /// What the request named; most of it is in the row already.
    pub(crate) named: &'a [Feature],
    pub(crate) answer: Answer<'a>,
    /// When it was answered, by both clocks.
    pub(crate) answered_at_us: i64,
    pub(crate) at: Instant,
}

/// What was answered.
#[derive(Clone, Copy)]
pub(crate) struct Answer<'a> {
    pub(crate) lane: &'a str,
    pub(crate) lane_table: u64,
    /// Raw SHA-256.
    pub(crate) bundle: &'a [u8; 32],
    pub(crate) margin: f64,
    pub(crate) score: f64,
    /// Label of the score.
    pub(crate) decision: &'a str,
    pub(crate) action: &'a str,
    pub(crate) expected_reward: f64,
    pub(crate) propensity: f64,
    pub(crate) fallback_reason: &'a str,
    pub(crate) times: Times,
}

/// The same in a lane's queue, in buffers that are used again.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) entity: String,
    pub(crate) row: Vec<f32>,
    pub(crate) shape: Option<Arc<Shape>>,
    /// A bit for each action, if not all of them are eligible.
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
    pub(crate) times: Times,
    pub(crate) answered_at_us: i64,
    pub(crate) at: Option<Instant>,
}

// === impl Job ===

impl Job {
    /// Writes every field. `reads` tells which of the features that the request names are worth keeping.
    pub(crate) fn fill(&mut self, from: &Observed<'_>, reads: impl Fn(&str) -> bool) {
        let Observed { id, entity, row, shape, eligible, named, answer, answered_at_us, at, .. } = *from;
        let set = |to: &mut String, text: &str| {
            to.clear();
            to.push_str(text);
        };
        set(&mut self.id, id);
        set(&mut self.entity, entity);
        self.row.clear();
        self.row.extend_from_slice(row);
        self.shape = Some(Arc::clone(shape));
        self.eligible.clear();
        self.restricted = eligible.is_some_and(|mask| !mask.is_full());
        if let Some(mask) = eligible
            && self.restricted
        {
            self.eligible.extend_from_slice(mask.words());
        }
        self.others.clear();
        self.others.extend(named.iter().filter(|feature| reads(&feature.name)).cloned());
        set(&mut self.lane, answer.lane);
        self.lane_table = answer.lane_table;
        self.bundle = *answer.bundle;
        (self.margin, self.score) = (answer.margin, answer.score);
        set(&mut self.decision, answer.decision);
        set(&mut self.action, answer.action);
        (self.expected_reward, self.propensity) = (answer.expected_reward, answer.propensity);
        set(&mut self.fallback_reason, answer.fallback_reason);
        self.times = answer.times;
        self.answered_at_us = answered_at_us;
        self.at = Some(at);
    }
}
