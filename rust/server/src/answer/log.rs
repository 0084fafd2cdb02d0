//! Stage 9: the decision's record.

use std::sync::atomic::Ordering::Relaxed;

use scorer_log::LogError;
use scorer_proto::v1::DecisionRecord;

use super::Decision;
use super::evaluate::Record;
use crate::config::DurabilityClass;
use crate::decisions::Decisions;
use crate::metrics::Reason;
use crate::state::Shared;

/// What a record says beyond what every decision has; the rest of the record is reset.
pub(crate) enum Said<'a> {
    /// Kind `score`.
    Score { margin: f64, score: f64, label: &'a str },
    /// Kind `action`.
    Action {
        /// Empty if every action was eligible.
        eligible: &'a [u8],
        pmf: Pmf<'a>,
        index: usize,
        id: &'a str,
        propensity: f64,
        expected_reward: f64,
    },
}

/// The probabilities over the catalogue.
#[derive(Clone, Copy)]
pub(crate) enum Pmf<'a> {
    /// As the policy gave them.
    Policy(&'a [f64]),
    /// All on one of `actions`.
    Only { index: usize, actions: usize },
}

/// Fills the record and appends it.
pub(crate) fn append(
    shared: &Shared,
    log: &Decisions,
    decision: Decision<'_>,
    row: &[f32],
    said: Said<'_>,
    durability: DurabilityClass,
    record: &mut Record,
) -> Result<(), LogError> {
    let Record { decision: to, payload } = record;
    fill(to, shared.clock.unix_us(), decision, row, said);
    log.append(to, payload, durability).inspect_err(|_| unlogged(shared))
}

/// Counts a decision that is answered and not recorded.
pub(crate) fn unlogged(shared: &Shared) {
    shared.metrics.unlogged.fetch_add(1, Relaxed);
}

/// Writes every field: the record still holds the last decision, whose buffers are used again.
fn fill(to: &mut DecisionRecord, now_us: i64, decision: Decision<'_>, row: &[f32], said: Said<'_>) {
    let Decision { checkpoint, lane, id, entity, fallback, times } = decision;
    set(&mut to.decision_id, id);
    set(&mut to.checkpoint, &checkpoint.name);
    set(&mut to.lane, &lane.source.lane);
    to.lane_table = lane.source.lane_table;
    to.bundle.clear();
    to.bundle.extend_from_slice(&lane.loaded.digest.0);
    to.decided_at_us = now_us;
    set(&mut to.entity, entity);
    to.features.clear();
    to.features.extend_from_slice(row);
    to.schema_fingerprint = lane.loaded.bundle.schema().fingerprint();
    set(&mut to.fallback_source, fallback.map_or("", Reason::source));
    set(&mut to.fallback_reason, fallback.map_or("", Reason::as_str));
    to.reasons.clear();
    to.data_load_us = times.data_load_us;
    to.exec_us = times.exec_us;
    to.eligible_mask.clear();
    to.pmf.clear();
    match said {
        Said::Score { margin, score, label } => {
            (to.margin, to.score) = (margin, score);
            set(&mut to.decision, label);
            (to.action_index, to.propensity, to.expected_reward) = (0, 0.0, 0.0);
            to.action.clear();
        }
        Said::Action { eligible, pmf, index, id, propensity, expected_reward } => {
            (to.margin, to.score) = (0.0, 0.0);
            to.decision.clear();
            to.eligible_mask.extend_from_slice(eligible);
            pmf.extend(&mut to.pmf, |p| p);
            to.action_index = index as u32;
            set(&mut to.action, id);
            (to.propensity, to.expected_reward) = (propensity, expected_reward);
        }
    }
}

fn set(field: &mut String, value: &str) {
    field.clear();
    field.push_str(value);
}

// === impl Pmf ===

impl Pmf<'_> {
    /// Adds every action's probability to an empty vector: records keep float64, replies carry float32.
    pub(crate) fn extend<T: Clone>(self, to: &mut Vec<T>, convert: impl Fn(f64) -> T) {
        match self {
            Pmf::Policy(pmf) => to.extend(pmf.iter().map(|&p| convert(p))),
            Pmf::Only { index, actions } => {
                to.resize(actions, convert(0.0));
                if let Some(only) = to.get_mut(index) {
                    *only = convert(1.0);
                }
            }
        }
    }
}
