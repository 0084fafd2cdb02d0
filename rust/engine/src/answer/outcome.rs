//! Reports of outcomes, which become known after a decision was answered.

use scorer_log::{Outcome, ReportRate};
use scorer_proto::v1::{OutcomeProof, OutcomeRecord, OutcomeSource, OutcomeSourceKind, TokenClaims};
use scorer_token::{Kind, Token};

use super::identify::{check_decision_id, check_outcome_kind, check_source_id};
use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::config::{ProofRule, Unproven};
use crate::counters::Refusal;
use crate::engine::Engine;
use crate::rejection::Rejection;
use crate::stages::Stage;
use crate::tokens;

/// Latest accepted time, in milliseconds: the year 2096. Card numbers of 13 digits are above it.
const LATEST_MS: i64 = 4_000_000_000_000;

/// One reported outcome.
pub struct OutcomeReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Id of the decision.
    pub decision_id: String,
    /// Kind of the outcome, such as "authorised".
    pub kind: String,
    /// Value of the outcome, usually 0 or 1.
    pub value: f64,
    /// Revision of the report. Higher revisions replace lower ones.
    pub revision: u32,
    /// Time of the outcome, in milliseconds since the Unix epoch.
    pub occurred_at_ms: i64,
    /// Token of the decision; may be empty.
    pub token: Vec<u8>,
    /// Who or what reports it; `None` if it is not stated.
    pub source: Option<OutcomeSource>,
}

/// Result of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Whether the same outcome was recorded before. Nothing was recorded then.
    pub duplicate: bool,
    /// Whether the log's index contains the decision.
    pub decision_known: bool,
    /// Whether a higher revision was recorded before. Nothing was recorded then.
    pub superseded: bool,
    /// Whether the outcome is proven.
    pub proven: bool,
}

// === impl Engine ===

impl Engine {
    /// Records one outcome. Repeating a report has no effect; another value for the same revision is rejected.
    ///
    /// # Errors
    /// A field is not valid, the token is not valid, a limit is reached, or the log does not accept the record.
    pub async fn report_outcome(
        &self,
        arrival: &Arrival,
        report: OutcomeReport,
    ) -> Result<Reported, Rejection> {
        let result = self.report(arrival, report).await;
        if let Err(rejection) = &result
            && let Some(refusal) = refusal(rejection)
        {
            self.counters.outcomes.refused(refusal);
        }
        result
    }

    async fn report(&self, arrival: &Arrival, mut report: OutcomeReport) -> Result<Reported, Rejection> {
        let checkpoint = self.checkpoint_of(arrival, &report.checkpoint)?;
        arrival.check_deadline()?;
        self.check_report(checkpoint, arrival, &report)?;
        let durability = checkpoint.durability;
        let log = self.log.as_ref().ok_or(Rejection::NoLog)?;
        // The log and the token contain the id in the form that the privacy settings allow.
        report.decision_id = self.privacy.id("decision_id", report.decision_id)?;
        let known = log.decision_known(&report.checkpoint, &report.decision_id);
        let (proof, token) = self.prove(checkpoint, arrival, &report, known)?;
        let OutcomeReport { checkpoint, decision_id, kind, value, revision, occurred_at_ms, source, .. } =
            report;
        let source = source.filter(|stated| *stated != OutcomeSource::default());
        let source_kind = source.as_ref().map_or(OutcomeSourceKind::Unspecified, OutcomeSource::kind);
        let record = OutcomeRecord {
            checkpoint,
            decision_id,
            kind: kind.clone(),
            value,
            revision,
            occurred_at_ms,
            received_at_us: self.clock.unix_us(),
            proof: proof.into(),
            token,
            source,
        };
        let most = self.reports.settings.per_decision_minute;
        let _timed = arrival.measure(Stage::Log);
        let outcome = log
            .report(record, durability, ReportRate { minute: self.minute(), most })
            .await
            .map_err(|error| Rejection::Log(error.to_string()))?;
        let proven = proof != OutcomeProof::Unproven;
        let reported = Reported { duplicate: false, decision_known: known, superseded: false, proven };
        if matches!(outcome, Outcome::New | Outcome::Superseded) {
            self.counters.outcomes.recorded(proof, source_kind);
        }
        match outcome {
            Outcome::Conflict { .. } => Err(Rejection::OutcomeConflict { kind, revision }),
            Outcome::TooMany => Err(Rejection::OutcomeRate { kind, most }),
            Outcome::New => Ok(reported),
            Outcome::Duplicate => Ok(Reported { duplicate: true, ..reported }),
            Outcome::Superseded => Ok(Reported { superseded: true, ..reported }),
        }
    }

    /// Checks the rules that require neither the log nor a key.
    fn check_report(
        &self,
        checkpoint: &Checkpoint,
        arrival: &Arrival,
        report: &OutcomeReport,
    ) -> Result<(), Rejection> {
        self.reports.admit(arrival.caller, arrival.at).map_err(|after| Rejection::CallerRate {
            most: self.reports.settings.per_caller_second,
            retry_after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX).saturating_add(1),
        })?;
        check_decision_id(&report.decision_id)?;
        check_outcome_kind(&report.kind)?;
        let value = report.value;
        if !value.is_finite() {
            return Err(Rejection::OutcomeValue);
        }
        if !(0..LATEST_MS).contains(&report.occurred_at_ms) {
            return Err(Rejection::OccurredAt);
        }
        self.privacy.plain("kind", &report.kind)?;
        if let Some(source) = &report.source {
            if OutcomeSourceKind::try_from(source.kind).is_err() {
                return Err(Rejection::OutcomeSourceKind { got: source.kind });
            }
            check_source_id(&source.id)?;
            self.privacy.plain("source.id", &source.id)?;
        }
        self.privacy.number("value", value)?;
        if let Some(&range) = checkpoint.config.outcomes.get(&report.kind)
            && !range.contains(value)
        {
            let (min, max, kind) = (range.min, range.max, report.kind.clone());
            return Err(Rejection::OutcomeRange { kind, min, max });
        }
        let max = self.reports.settings.max_revision;
        if report.revision > max {
            return Err(Rejection::OutcomeRevision { revision: report.revision, max });
        }
        Ok(())
    }

    /// Determines the proof of an outcome.
    fn prove(
        &self,
        checkpoint: &Checkpoint,
        arrival: &Arrival,
        report: &OutcomeReport,
        known: bool,
    ) -> Result<(OutcomeProof, Option<TokenClaims>), Rejection> {
        let settings = &self.reports.settings;
        if !report.token.is_empty() {
            let scope = tokens::scope(checkpoint, arrival);
            if let Some(verified) = self.tokens.verify(&report.token, &scope, &report.decision_id) {
                return Ok((OutcomeProof::Token, Some(claims(&verified?))));
            }
        }
        if known && settings.proof() == ProofRule::Known {
            return Ok((OutcomeProof::Known, None));
        }
        match settings.unproven {
            Unproven::Keep => Ok((OutcomeProof::Unproven, None)),
            Unproven::Refuse => Err(Rejection::Unproven),
        }
    }

    /// Returns the low 32 bits of the minutes since the Unix epoch.
    fn minute(&self) -> u32 {
        (self.clock.unix_us() / 60_000_000) as u32
    }
}

/// Returns the claims of a verified token, as the log stores them.
fn claims(token: &Token<'_>) -> TokenClaims {
    TokenClaims {
        decided_at_ms: i64::try_from(token.claims.decided_at_ms).unwrap_or(i64::MAX),
        bundle: token.claims.bundle.to_vec(),
        action: token.claims.kind == Kind::Action,
        index: token.claims.index,
        propensity: token.claims.propensity,
        fallback: token.claims.fallback,
        key_id: token.key_id,
        tenant: token.tenant.to_vec(),
    }
}

/// Returns the counter of a rejected report. Other rejections are counted only by their code.
fn refusal(rejection: &Rejection) -> Option<Refusal> {
    Some(match rejection {
        Rejection::Token(_) => Refusal::Token,
        Rejection::Unproven => Refusal::Unproven,
        Rejection::OutcomeRange { .. } => Refusal::Range,
        Rejection::OutcomeRevision { .. } => Refusal::Revision,
        Rejection::OutcomeRate { .. } => Refusal::DecisionRate,
        Rejection::CallerRate { .. } => Refusal::CallerRate,
        _ => return None,
    })
}
