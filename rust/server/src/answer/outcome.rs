//! `ReportOutcome`: what became known about a decision.

use scorer_log::Outcome;
use scorer_proto::v1::{OutcomeRecord, ReportOutcomeRequest, ReportOutcomeResponse};

use super::arrive::Arrival;
use super::decode;
use crate::refusal::Refusal;
use crate::state::Shared;

/// Records one outcome; the same again changes nothing, another value for the same revision is refused.
pub(crate) fn answer(
    shared: &Shared,
    arrival: &Arrival,
    request: ReportOutcomeRequest,
) -> Result<ReportOutcomeResponse, Refusal> {
    decode::any_checkpoint(shared, arrival, &request.checkpoint)?;
    arrival.check_deadline()?;
    decode::decision_id(&request.decision_id)?;
    decode::outcome_kind(&request.kind)?;
    if !request.value.is_finite() {
        return Err(Refusal::OutcomeValue { value: request.value });
    }
    let log = shared.log.as_ref().ok_or(Refusal::NoLog)?;
    let ReportOutcomeRequest { checkpoint, decision_id, kind, value, revision, occurred_at_ms } = request;
    let outcome = OutcomeRecord {
        checkpoint,
        decision_id,
        kind: kind.clone(),
        value,
        revision,
        occurred_at_ms,
        received_at_us: shared.clock.unix_us(),
    };
    let (outcome, decision_known) = log.report(outcome).map_err(|error| Refusal::Log(error.to_string()))?;
    match outcome {
        Outcome::Conflict { recorded } => {
            Err(Refusal::OutcomeConflict { kind, revision, recorded, reported: value })
        }
        Outcome::New => Ok(ReportOutcomeResponse { duplicate: false, decision_known, superseded: false }),
        Outcome::Duplicate => {
            Ok(ReportOutcomeResponse { duplicate: true, decision_known, superseded: false })
        }
        Outcome::Superseded => {
            Ok(ReportOutcomeResponse { duplicate: false, decision_known, superseded: true })
        }
    }
}
