//! The decision log as the answer path sees it.

use std::path::PathBuf;

use prost::Message as _;
use scorer_log::{Durability, Env, Log, LogConfig, LogError, Outcome, OutcomeIndex, OutcomeKey, Recovery};
use scorer_proto::v1::{DecisionRecord, LaneTableRecord, LogRecord, OutcomeRecord, log_record};
use serde_json::json;

use crate::config::{DurabilityClass, LogSettings};
use crate::events::{Events, Level};
use crate::metrics::Reason;

/// Field number of `LogRecord.decision`.
const DECISION: u32 = 1;

/// The log with what is remembered of it.
pub(crate) struct Decisions {
    log: Log,
    index: OutcomeIndex,
    pub(crate) dir: PathBuf,
}

// === impl Decisions ===

impl Decisions {
    pub(crate) fn open(settings: &LogSettings, env: Env, events: &Events) -> Result<Decisions, LogError> {
        let mut config = LogConfig::new(&settings.dir);
        config.segment_bytes = settings.segment_bytes;
        config.sync_ms = settings.sync_ms;
        config.queue_records = settings.queue;
        config.on_writer_start = scorer_os::sched::set_short_slice;
        let (log, recovery) = Log::open(env, config)?;
        report(&recovery, events);
        Ok(Decisions { log, index: recovery.outcomes, dir: settings.dir.clone() })
    }

    /// Whether a propensity could be kept now.
    pub(crate) fn available(&self) -> bool {
        self.log.available()
    }

    /// Appends a decision; `payload` is scratch.
    pub(crate) fn append(
        &self,
        decision: &DecisionRecord,
        payload: &mut Vec<u8>,
        durability: DurabilityClass,
    ) -> Result<(), LogError> {
        payload.clear();
        // As `LogRecord { decision }` would, without building one.
        prost::encoding::message::encode(DECISION, decision, payload);
        match self.write(payload, durability) {
            // The record is there and agrees with the answer; that it might not survive a loss of power
            // shows in the log's status and counters, and stops exploration from the next request on.
            Ok(()) | Err(LogError::NotDurable { .. }) => {
                self.index.note_decision(&decision.checkpoint, &decision.decision_id);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Appends an encoded observation, if no decision could miss its place for it.
    pub(crate) fn append_spare(&self, payload: &[u8]) -> Result<(), LogError> {
        self.log.append_spare(payload)
    }

    /// Records an outcome unless it is known. What is recorded survives a kill of the process.
    pub(crate) fn report(&self, outcome: OutcomeRecord) -> Result<(Outcome, bool), LogError> {
        let known = self.index.decision_known(&outcome.checkpoint, &outcome.decision_id);
        let record = LogRecord { record: Some(log_record::Record::Outcome(outcome)) };
        let payload = record.encode_to_vec();
        let Some(log_record::Record::Outcome(outcome)) = &record.record else { return Err(LogError::Closed) };
        let key = OutcomeKey {
            checkpoint: &outcome.checkpoint,
            decision_id: &outcome.decision_id,
            kind: &outcome.kind,
        };
        let append = || async {
            match self.log.submit(&payload, Durability::Written)? {
                Some(receipt) => receipt.await,
                None => Err(LogError::Closed),
            }
        };
        let recorded = self.index.record(key, outcome.revision, outcome.value, append);
        let found = scorer_log::sim::block_on(recorded)?;
        Ok((found, known))
    }

    /// Notes the lane table in force from here on.
    pub(crate) fn note_table(&self, version: u64, since_us: i64, table: String) -> Result<(), LogError> {
        let record = log_record::Record::LaneTable(LaneTableRecord { version, since_us, table });
        let payload = LogRecord { record: Some(record) }.encode_to_vec();
        self.log.append(&payload, Durability::Written).map(|_| ())
    }

    pub(crate) fn status(&self) -> scorer_log::LogStatus {
        self.log.status()
    }

    /// Writes what waits, brings all of it to the device, and closes the log.
    pub(crate) fn seal(&self) -> Result<(), LogError> {
        self.log.seal()
    }

    fn write(&self, payload: &[u8], durability: DurabilityClass) -> Result<(), LogError> {
        match durability {
            DurabilityClass::Async => self.log.append(payload, Durability::Async),
            DurabilityClass::Written => self.log.append(payload, Durability::Written),
            // Waits for the device: the thread's other requests move to another one meanwhile.
            DurabilityClass::Sync => {
                tokio::task::block_in_place(|| self.log.append(payload, Durability::Sync))
            }
        }
        .map(|_| ())
    }
}

/// Why nothing can be recorded, as a reason in replies.
pub(crate) fn unavailable(log: Option<&Decisions>) -> Reason {
    if log.is_some() { Reason::Log } else { Reason::LogOff }
}

fn report(recovery: &Recovery, events: &Events) {
    let level = if recovery.findings.is_empty() { Level::Info } else { Level::Warning };
    events.push(level, "log_opened", json!({"recovery": recovery}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_encoded_as_the_record_it_is() {
        let decision = DecisionRecord {
            decision_id: "d".to_owned(),
            pmf: vec![0.25, 0.75],
            features: vec![1.0, f32::NAN],
            ..DecisionRecord::default()
        };
        let mut payload = Vec::new();
        prost::encoding::message::encode(DECISION, &decision, &mut payload);
        let whole = LogRecord { record: Some(log_record::Record::Decision(decision)) };
        assert_eq!(payload, whole.encode_to_vec());
    }
}
