//! The engine's interface to the decision log.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use prost::Message as _;
use scorer_log::{
    Durability, Env, Log, LogConfig, LogError, Outcome, OutcomeIndex, OutcomeKey, Receipt, Recovery,
    ReportRate, Retention, Slot, Upkeep,
};
use scorer_proto::v1::{
    DecisionRecord, DeliveryRecord, LaneTableRecord, LogRecord, OutcomeProof, OutcomeRecord, log_record,
};
use serde_json::json;

use crate::config::{DurabilityClass, LogSettings};
use crate::events::{Events, Level};
use crate::pool::{Expire, Watchdog};
use crate::reason::Reason;

/// Field number of `LogRecord.decision`.
const DECISION: u32 = 1;

/// The longest wait for the record of a lane table.
const FOR_TABLE_RECORD: Duration = Duration::from_secs(1);

/// Result of appending a record to the log.
pub(crate) enum Appended {
    /// The record is in the log.
    Recorded,
    /// The record is not in the log and will not be.
    Refused,
    /// The result is not known yet.
    Pending(Commit),
}

/// A record that is being written. Dropping the value withdraws the record.
pub(crate) struct Commit(Receipt);

/// The log with its index of outcomes.
pub struct DecisionLog {
    log: Log,
    index: OutcomeIndex,
    dir: PathBuf,
    /// Time in seconds. A disk that is expected to be full earlier is reported.
    warn_full: f64,
    reported: Mutex<Reported>,
    /// The latest round of upkeep that was checked for reports.
    reported_round: AtomicU64,
}

/// The state of the log's disk in the latest reports.
#[derive(Default)]
struct Reported {
    removed_segments: u64,
    filling: bool,
    blocked: bool,
    failed: bool,
}

// === impl DecisionLog ===

impl DecisionLog {
    pub(crate) fn open(settings: &LogSettings, env: Env, events: &Events) -> Result<DecisionLog, LogError> {
        let mut config = LogConfig::new(&settings.dir);
        config.segment_bytes = settings.segment_bytes;
        config.sync_ms = settings.sync_ms;
        config.queue_records = settings.queue;
        config.max_unsynced_bytes = settings.unsynced_bytes;
        config.retention = Retention {
            max_age: settings.retain_seconds.map(Duration::from_secs),
            max_bytes: settings.retain_bytes,
            unshipped: settings.prune_unshipped,
        };
        config.on_writer_start = scorer_os::sched::set_short_slice;
        let (log, recovery) = Log::open(env, config)?;
        report(&recovery, events);
        Ok(DecisionLog {
            log,
            index: recovery.outcomes,
            dir: settings.dir.clone(),
            warn_full: settings.warn_full_seconds as f64,
            reported: Mutex::default(),
            reported_round: AtomicU64::new(0),
        })
    }

    /// Returns whether the log can record a propensity now.
    #[must_use]
    pub fn available(&self) -> bool {
        self.log.available()
    }

    /// Passes a decision to the log. `payload` is working memory. While the log is unavailable, records that must be
    /// written are refused at once.
    pub(crate) fn append(
        &self,
        decision: &DecisionRecord,
        payload: &mut Vec<u8>,
        durability: DurabilityClass,
    ) -> Appended {
        if durability != DurabilityClass::Async && !self.available() {
            return Appended::Refused;
        }
        payload.clear();
        // This encodes the same bytes as `LogRecord { decision }` without a copy of the decision. `encoding` is not a
        // documented API of prost; a test below compares its result with that of the documented API.
        prost::encoding::message::encode(DECISION, decision, payload);
        let durability = match durability {
            DurabilityClass::Async => Durability::Async,
            DurabilityClass::Written => Durability::Written,
            DurabilityClass::Sync => Durability::Sync,
        };
        match self.log.submit(payload, durability) {
            Ok(None) => {
                self.note(&decision.checkpoint, &decision.decision_id);
                Appended::Recorded
            }
            Ok(Some(receipt)) => Appended::Pending(Commit(receipt)),
            Err(_) => Appended::Refused,
        }
    }

    /// Adds a recorded decision to the index, so that reports of its outcome count as known.
    pub(crate) fn note(&self, checkpoint: &str, decision_id: &str) {
        self.index.note_decision(checkpoint, decision_id);
    }

    /// Appends an encoded observation, unless that could take space that decisions need.
    ///
    /// # Errors
    /// Fails if the record is not in the log.
    pub fn append_best_effort(&self, payload: &[u8]) -> Result<(), LogError> {
        self.log.append_spare(payload)
    }

    /// Whether the log's index holds a decision.
    pub(crate) fn decision_known(&self, checkpoint: &str, decision_id: &str) -> bool {
        self.index.decision_known(checkpoint, decision_id)
    }

    /// Records whether a decision's reply was delivered. It never waits; if the queue is full, the record is dropped
    /// and counted.
    pub(crate) fn note_delivery(&self, delivery: DeliveryRecord) {
        let record = LogRecord { record: Some(log_record::Record::Delivery(delivery)) };
        let _ = self.log.submit(&record.encode_to_vec(), Durability::Async);
    }

    /// Records an outcome unless it is recorded already. The record survives a kill of the process and, with `Sync`, a
    /// loss of power.
    pub(crate) async fn report(
        &self,
        outcome: OutcomeRecord,
        durability: DurabilityClass,
        rate: ReportRate,
    ) -> Result<Outcome, LogError> {
        let durability = match durability {
            DurabilityClass::Async | DurabilityClass::Written => Durability::Written,
            DurabilityClass::Sync => Durability::Sync,
        };
        let record = LogRecord { record: Some(log_record::Record::Outcome(outcome)) };
        let payload = record.encode_to_vec();
        let Some(log_record::Record::Outcome(outcome)) = &record.record else { return Err(LogError::Closed) };
        let key = OutcomeKey {
            checkpoint: &outcome.checkpoint,
            decision_id: &outcome.decision_id,
            kind: &outcome.kind,
            proven: outcome.proof() != OutcomeProof::Unproven,
        };
        let append = || async {
            match self.log.submit(&payload, durability)? {
                Some(receipt) => receipt.await,
                None => Err(LogError::Closed),
            }
        };
        self.index.record(key, outcome.revision, outcome.value, rate, append).await
    }

    /// Records that a lane table is active from now on. It blocks for at most one second, because a stalled disk must
    /// not delay a change of lanes, and in particular not a rollback.
    ///
    /// # Errors
    /// Fails if the record is not in the log.
    pub fn note_table(&self, version: u64, since_us: i64, table: String) -> Result<(), LogError> {
        let record = log_record::Record::LaneTable(LaneTableRecord { version, since_us, table });
        let payload = LogRecord { record: Some(record) }.encode_to_vec();
        match self.log.submit(&payload, Durability::Written)? {
            Some(receipt) => receipt.wait_for(FOR_TABLE_RECORD).map(|_| ()),
            None => Err(LogError::Closed),
        }
    }

    /// Returns the status of the log.
    #[must_use]
    pub fn status(&self) -> scorer_log::LogStatus {
        self.log.status()
    }

    /// Returns the state of the log's disk.
    #[must_use]
    pub fn upkeep(&self) -> Upkeep {
        self.log.upkeep()
    }

    /// Reports removed segments as events. It also reports, once each, that retention fails or is blocked and that the
    /// disk is expected to be full.
    pub fn report_upkeep(&self, events: &Events) {
        let round = self.log.upkeep_rounds();
        if self.reported_round.swap(round, Relaxed) == round {
            return;
        }
        let upkeep = self.log.upkeep();
        let mut last = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let filling = upkeep.full_in_seconds.is_some_and(|seconds| seconds < self.warn_full);
        let now = Reported {
            removed_segments: upkeep.removed_segments,
            filling,
            blocked: upkeep.retention.blocked.is_some(),
            failed: upkeep.error.is_some(),
        };
        if now.removed_segments > last.removed_segments {
            events.push(Level::Info, "log_pruned", json!({"retention": upkeep.retention}));
        }
        if now.blocked && !last.blocked {
            let remedy = "mark what is shipped (scorer log shipped), set prune_unshipped, or end the reader";
            events.push(
                Level::Warning,
                "log_retention_blocked",
                json!({"retention": upkeep.retention, "remedy": remedy}),
            );
        }
        if now.failed && !last.failed {
            events.push(Level::Error, "log_retention_failed", json!({"error": upkeep.error}));
        }
        if now.filling && !last.filling {
            let hours = upkeep.full_in_seconds.unwrap_or_default() / 3600.0;
            let what = json!({
                "dir": self.dir,
                "hours_until_full": hours,
                "free_bytes": upkeep.free_bytes,
                "bytes_per_second": upkeep.growth_bytes_per_second,
                "remedy": "free space, ship and prune the log, or set retain_mb",
            });
            events.push(Level::Warning, "log_disk_filling", what);
        }
        *last = now;
    }

    /// Directory of the log.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes waiting records, syncs all records to stable storage, and closes the log.
    ///
    /// # Errors
    /// Fails if some records may be lost.
    pub fn seal(&self) -> Result<(), LogError> {
        self.log.seal()
    }
}

// === impl Commit ===

impl Commit {
    /// Waits for the record until `at` at the latest. Returns whether it is in the log with the requested durability.
    pub(crate) async fn within(self, watchdog: &Watchdog, at: Instant) -> bool {
        let Commit(receipt) = self;
        let slot: Weak<dyn Expire> = receipt.slot();
        watchdog.watch(at, slot);
        receipt.await.is_ok()
    }
}

impl Expire for Slot {
    fn expire(&self) {
        self.withdraw();
    }
}

/// Returns the reason why nothing can be recorded, for replies.
pub(crate) fn unavailable(log: Option<&DecisionLog>) -> Reason {
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
