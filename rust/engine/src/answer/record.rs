//! Stage `record`: creates the decision's record from the answer.

use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::FunctionSet;
use scorer_proto::v1::{AppliedRules, DecisionRecord, FiredRule, ListRead, Reason, ReasonDirection};

use crate::answered::{Answered, Outcome};
use crate::bundles::{Ruled, Shape};
use crate::computed::{Computed, Origins};
use crate::config::DurabilityClass;
use crate::decision_log::{Appended, DecisionLog};
use crate::engine::Engine;

/// Buffers for a record and its encoded form, which are reused.
#[derive(Default)]
pub(crate) struct RecordBuffer {
    decision: DecisionRecord,
    payload: Vec<u8>,
}

/// Fills the record and appends it to the log.
pub(crate) fn append(
    engine: &Engine,
    log: &DecisionLog,
    answered: &Answered<'_>,
    durability: DurabilityClass,
    buffer: &mut RecordBuffer,
) -> Appended {
    let RecordBuffer { decision, payload } = buffer;
    fill(decision, answered.timings.decided_at_us, answered);
    engine.privacy.withhold(&answered.shape.sensitive, decision, payload);
    let appended = log.append(decision, payload, durability);
    if matches!(appended, Appended::Refused) {
        unlogged(engine);
    }
    appended
}

/// Handles the result of a pending record.
pub(crate) fn committed(engine: &Engine, checkpoint: &str, id: &str, recorded: bool) {
    match &engine.log {
        Some(log) if recorded => log.note(checkpoint, id),
        Some(_) | None => unlogged(engine),
    }
}

/// Counts a decision that was answered and not recorded.
fn unlogged(engine: &Engine) {
    engine.counters.unlogged.fetch_add(1, Relaxed);
}

/// Writes every field of a record, including sensitive features, which `Privacy::withhold` removes afterwards. `to`
/// may contain another decision, whose buffers are reused.
pub fn fill(to: &mut DecisionRecord, now_us: i64, answered: &Answered<'_>) {
    set(&mut to.decision_id, answered.id);
    set(&mut to.checkpoint, answered.checkpoint);
    set(&mut to.linked_checkpoint, answered.linked);
    set(&mut to.lane, answered.lane);
    to.lane_table = answered.lane_table;
    to.bundle.clear();
    to.bundle.extend_from_slice(answered.bundle);
    to.decided_at_us = now_us;
    set(&mut to.entity, answered.entity);
    to.features.clear();
    to.features.extend_from_slice(answered.row);
    to.schema_fingerprint = answered.shape.fingerprint;
    set(&mut to.fallback_source, answered.fallback_source);
    set(&mut to.fallback_reason, answered.fallback_reason);
    to.reasons.clear();
    set_reasons(&mut to.feature_reasons, answered);
    to.rules = answered.ruled.map(|ruled| rules(ruled, answered.shape));
    to.requested_mask.clear();
    fill_origins(to, answered.shape.computed.as_ref(), &answered.origins);
    fill_faulted(to, answered.shape, answered.faulted);
    to.data_load_us = answered.timings.data_load_us;
    to.exec_us = answered.timings.exec_us;
    to.eligible_mask.clear();
    to.pmf.clear();
    match answered.outcome {
        Outcome::Score { margin, score, label } => {
            (to.margin, to.score) = (margin, score);
            set(&mut to.decision, label);
            (to.action_index, to.propensity, to.expected_reward) = (0, 0.0, 0.0);
            to.action.clear();
        }
        Outcome::Action { eligible, requested, pmf, index, action, propensity, expected_reward } => {
            (to.margin, to.score) = (0.0, 0.0);
            to.decision.clear();
            if let Some(mask) = eligible {
                to.eligible_mask = mask.to_bytes();
            }
            if let Some(mask) = requested {
                to.requested_mask = mask.to_bytes();
            }
            pmf.extend(&mut to.pmf, |p| p);
            to.action_index = index as u32;
            set(&mut to.action, action);
            (to.propensity, to.expected_reward) = (propensity, expected_reward);
        }
    }
}

/// Writes where the values of computed features came from.
pub fn fill_origins(to: &mut DecisionRecord, computed: Option<&Computed>, origins: &Origins) {
    set(&mut to.features_defaulted, origins.reason());
    to.features_at_us = origins.at_us;
    to.stated_features.clear();
    if let Some(computed) = computed {
        let stated = computed.positions().enumerate().filter(|(number, _)| origins.is_stated(*number));
        to.stated_features.extend(stated.map(|(_, at)| at as u32));
    }
}

/// Writes the functions of the bundle that had no result.
pub fn fill_faulted(to: &mut DecisionRecord, shape: &Shape, faulted: FunctionSet) {
    to.faulted_functions.clear();
    to.faulted_functions.extend(shape.faulted(faulted).map(str::to_owned));
}

/// Writes the reasons. The contribution of a sensitive feature, or of a column that is computed from one, could reveal its
/// value, so it is 0; the direction remains.
fn set_reasons(to: &mut Vec<Reason>, answered: &Answered<'_>) {
    to.clear();
    for reason in answered.reasons {
        let Some(column) = answered.shape.reasons.get(reason.feature as usize) else { continue };
        let withheld = column.origins.iter().any(|&at| answered.shape.sensitive.is_sensitive(at));
        to.push(Reason {
            code: column.code.clone(),
            feature: column.feature.clone(),
            contribution: if withheld { 0.0 } else { reason.amount },
            direction: direction(reason.amount).into(),
        });
    }
}

/// Describes the result of the rules for a record. The source of each rule is in the bundle.
#[must_use]
pub fn rules(ruled: &Ruled, shape: &Shape) -> AppliedRules {
    let fired = |rule: &crate::bundles::FiredRule| FiredRule {
        id: rule.id.clone(),
        reason: rule.reason.clone(),
        source: String::new(),
    };
    AppliedRules {
        fired: ruled.fired(shape).map(fired).collect(),
        score: ruled.score,
        queue: ruled.queue(shape).to_owned(),
        unknown: ruled.unknown,
        errors: ruled.errors,
        conflicts: ruled.conflicts,
        lists: ruled.lists().iter().map(list_read).collect(),
        exhausted: ruled.exhausted(shape).map(|rule| rule.id.clone()).collect(),
    }
}

fn list_read(list: &crate::bundles::ListRead) -> ListRead {
    ListRead {
        name: list.name.clone(),
        version: list.version,
        digest: list.digest.map(|digest| digest.0.to_vec()).unwrap_or_default(),
    }
}

/// Returns the direction in which a contribution moves a score.
#[must_use]
pub fn direction(contribution: f64) -> ReasonDirection {
    if contribution > 0.0 { ReasonDirection::Raises } else { ReasonDirection::Lowers }
}

fn set(field: &mut String, value: &str) {
    field.clear();
    field.push_str(value);
}
