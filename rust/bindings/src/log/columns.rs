//! Decisions and outcomes of one checkpoint as columns, for offline scoring without a Python object per record.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use scorer_proto::v1::log_record::Record;
use scorer_proto::v1::{DecisionRecord, LogRecord, OutcomeRecord};

/// The keyed hash by which outcomes are joined to decisions. The key is random in each process, so that callers who
/// choose ids cannot cause collisions. Hashes cannot be compared between processes.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The payload of a record is intact but is not a `LogRecord`.
#[derive(Debug, thiserror::Error)]
#[error(
    "record {sequence} is intact but no scorer.v1.LogRecord: another program wrote it; give the directory of a scorer \
     server"
)]
pub(crate) struct Foreign {
    pub(super) sequence: u64,
}

/// Little-endian values, one after the other.
#[derive(Default)]
struct Column(Vec<u8>);

impl Column {
    fn push<const N: usize>(&mut self, value: [u8; N]) {
        self.0.extend_from_slice(&value);
    }

    /// Appends a number of elements as a `u32`.
    fn push_count(&mut self, count: usize) {
        self.push(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Distinct values in the order of their first occurrence. The code of a value is its index.
#[derive(Default)]
struct Words<T>(Vec<T>);

impl<T: PartialEq + Clone> Words<T> {
    /// Returns the code of a value. There are few distinct values (bundles, labels, kinds), so searching a list is
    /// faster than hashing.
    fn code(&mut self, word: &T) -> [u8; 4] {
        let place = self.0.iter().position(|known| known == word).unwrap_or_else(|| {
            self.0.push(word.clone());
            self.0.len() - 1
        });
        u32::try_from(place).unwrap_or(u32::MAX).to_le_bytes()
    }
}

/// The columns of a batch of records.
#[derive(Default)]
pub(crate) struct Columns {
    read: usize,
    bytes: usize,
    sequence: Column,
    key: Column,
    at: Column,
    bundle: Column,
    fingerprint: Column,
    label: Column,
    fallback: Column,
    action: Column,
    propensity: Column,
    features: Column,
    feature_counts: Column,
    pmf: Column,
    pmf_counts: Column,
    eligible: Column,
    eligible_counts: Column,
    requested: Column,
    requested_counts: Column,
    id: Column,
    id_counts: Column,
    entity: Column,
    entity_counts: Column,
    outcome_sequence: Column,
    outcome_key: Column,
    outcome_kind: Column,
    outcome_value: Column,
    outcome_revision: Column,
    outcome_proof: Column,
    withdrawn: Column,
    bundles: Words<Vec<u8>>,
    labels: Words<String>,
    kinds: Words<String>,
}

impl Columns {
    /// Returns whether the batch has reached one of the limits.
    pub(crate) fn is_full(&self, max_records: usize, max_bytes: usize) -> bool {
        self.read >= max_records.max(1) || self.bytes >= max_bytes.max(1)
    }

    /// Returns whether no record was read because the log has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.read == 0
    }

    /// Adds the next record. Of records of other kinds and checkpoints only the size is counted; withdrawals are kept
    /// for every checkpoint.
    pub(crate) fn add(&mut self, checkpoint: &str, sequence: u64, payload: &[u8]) -> Result<(), Foreign> {
        self.read += 1;
        self.bytes += payload.len();
        let record = LogRecord::decode(payload).map_err(|_| Foreign { sequence })?;
        match record.record {
            Some(Record::Decision(decision)) if decision.checkpoint == checkpoint => {
                self.decision(sequence, &decision);
            }
            Some(Record::Outcome(outcome)) if outcome.checkpoint == checkpoint => {
                self.outcome(sequence, &outcome);
            }
            Some(Record::Withdrawn(withdrawn)) => self.withdrawn.push(withdrawn.sequence.to_le_bytes()),
            _ => {}
        }
        Ok(())
    }

    fn decision(&mut self, sequence: u64, record: &DecisionRecord) {
        self.sequence.push(sequence.to_le_bytes());
        self.key.push(KEYS.hash_one(&record.decision_id).to_le_bytes());
        self.at.push(record.decided_at_us.to_le_bytes());
        let bundle = self.bundles.code(&record.bundle);
        self.bundle.push(bundle);
        self.fingerprint.push(record.schema_fingerprint.to_le_bytes());
        let is_action = !record.pmf.is_empty() || !record.action.is_empty();
        let label = self.labels.code(if is_action { &record.action } else { &record.decision });
        self.label.push(label);
        self.fallback.push([u8::from(!record.fallback_source.is_empty())]);
        self.action.push(record.action_index.to_le_bytes());
        self.propensity.push(record.propensity.to_le_bytes());
        record.features.iter().for_each(|value| self.features.push(value.to_le_bytes()));
        self.feature_counts.push_count(record.features.len());
        record.pmf.iter().for_each(|value| self.pmf.push(value.to_le_bytes()));
        self.pmf_counts.push_count(record.pmf.len());
        self.eligible.0.extend_from_slice(&record.eligible_mask);
        self.eligible_counts.push_count(record.eligible_mask.len());
        // Without rules, the request's eligible set is the only one.
        let requested = if record.rules.is_some() { &record.requested_mask } else { &record.eligible_mask };
        self.requested.0.extend_from_slice(requested);
        self.requested_counts.push_count(requested.len());
        self.id.0.extend_from_slice(record.decision_id.as_bytes());
        self.id_counts.push_count(record.decision_id.len());
        self.entity.0.extend_from_slice(record.entity.as_bytes());
        self.entity_counts.push_count(record.entity.len());
    }

    fn outcome(&mut self, sequence: u64, record: &OutcomeRecord) {
        self.outcome_sequence.push(sequence.to_le_bytes());
        self.outcome_key.push(KEYS.hash_one(&record.decision_id).to_le_bytes());
        let kind = self.kinds.code(&record.kind);
        self.outcome_kind.push(kind);
        self.outcome_value.push(record.value.to_le_bytes());
        self.outcome_revision.push(record.revision.to_le_bytes());
        self.outcome_proof.push(record.proof.to_le_bytes());
    }

    /// Returns the columns by name: bytes of little-endian values, and the lists of values that the codes index.
    pub(crate) fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let out = PyDict::new(py);
        for (name, column) in [
            ("sequence", self.sequence),
            ("key", self.key),
            ("at", self.at),
            ("bundle", self.bundle),
            ("fingerprint", self.fingerprint),
            ("label", self.label),
            ("fallback", self.fallback),
            ("action", self.action),
            ("propensity", self.propensity),
            ("features", self.features),
            ("feature_counts", self.feature_counts),
            ("pmf", self.pmf),
            ("pmf_counts", self.pmf_counts),
            ("eligible", self.eligible),
            ("eligible_counts", self.eligible_counts),
            ("requested", self.requested),
            ("requested_counts", self.requested_counts),
            ("id", self.id),
            ("id_counts", self.id_counts),
            ("entity", self.entity),
            ("entity_counts", self.entity_counts),
            ("outcome_sequence", self.outcome_sequence),
            ("outcome_key", self.outcome_key),
            ("outcome_kind", self.outcome_kind),
            ("outcome_value", self.outcome_value),
            ("outcome_revision", self.outcome_revision),
            ("outcome_proof", self.outcome_proof),
            ("withdrawn", self.withdrawn),
        ] {
            out.set_item(name, PyBytes::new(py, &column.0))?;
        }
        let bundles: Vec<_> = self.bundles.0.iter().map(|digest| PyBytes::new(py, digest)).collect();
        out.set_item("bundles", bundles)?;
        out.set_item("labels", self.labels.0)?;
        out.set_item("kinds", self.kinds.0)?;
        Ok(out)
    }
}
