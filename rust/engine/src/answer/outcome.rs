//! Outcomes: what became known about a decision after it was answered.

use scorer_log::Outcome;
use scorer_proto::v1::OutcomeRecord;

use super::identify::{check_decision_id, check_outcome_kind};
use crate::arrival::Arrival;
use crate::engine::Engine;
use crate::rejection::Rejection;

/// Later times are refused: they are beyond 2096, and card numbers of 13 digits begin there.
const LATEST_MS: i64 = 4_000_000_000_000;

/// One reported outcome.
pub struct OutcomeReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// The decision's id.
    pub decision_id: String,
    /// What happened, such as "authorised".
    pub kind: String,
    /// How much of it, usually 0 or 1.
    pub value: f64,
    /// Higher revisions replace lower ones.
    pub revision: u32,
    /// When it happened, milliseconds since the Unix epoch.
    pub occurred_at_ms: i64,
}

/// What the report changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The same outcome was known; nothing was recorded.
    pub duplicate: bool,
    /// The log's index knows the decision.
    pub decision_known: bool,
    /// A higher revision is on record; nothing was recorded.
    pub superseded: bool,
}

// === impl Engine ===

impl Engine {
    /// Records one outcome; the same again changes nothing, another value for the same revision is rejected.
    ///
    /// # Errors
    /// A field breaks its rule, or the log does not take the record.
    pub async fn report_outcome(
        &self,
        arrival: &Arrival,
        report: OutcomeReport,
    ) -> Result<Reported, Rejection> {
        let durability = self.checkpoint_of(arrival, &report.checkpoint)?.durability;
        arrival.check_deadline()?;
        check_decision_id(&report.decision_id)?;
        check_outcome_kind(&report.kind)?;
        if !report.value.is_finite() {
            return Err(Rejection::OutcomeValue);
        }
        if !(0..LATEST_MS).contains(&report.occurred_at_ms) {
            return Err(Rejection::OccurredAt);
        }
        self.privacy.plain("kind", &report.kind)?;
        self.privacy.number("value", report.value)?;
        let log = self.log.as_ref().ok_or(Rejection::NoLog)?;
        let OutcomeReport { checkpoint, decision_id, kind, value, revision, occurred_at_ms } = report;
        let decision_id = self.privacy.id("decision_id", decision_id)?;
        let outcome = OutcomeRecord {
            checkpoint,
            decision_id,
            kind: kind.clone(),
            value,
            revision,
            occurred_at_ms,
            received_at_us: self.clock.unix_us(),
        };
        let (outcome, decision_known) =
            log.report(outcome, durability).await.map_err(|error| Rejection::Log(error.to_string()))?;
        let reported = Reported { duplicate: false, decision_known, superseded: false };
        match outcome {
            Outcome::Conflict { .. } => Err(Rejection::OutcomeConflict { kind, revision }),
            Outcome::New => Ok(reported),
            Outcome::Duplicate => Ok(Reported { duplicate: true, ..reported }),
            Outcome::Superseded => Ok(Reported { superseded: true, ..reported }),
        }
    }
}
