//! Decoding of the decisions of a batch, in chunks whose memory is used again.

use std::collections::HashSet;

use prost::Message;
use scorer_core::bundle::{Bundle, Kind};
use scorer_proto::v1::log_record::Record;
use scorer_proto::v1::{DecisionRecord, LogRecord};
use sha2::{Digest, Sha256};

use super::lists::read_alike;
use super::outcomes::{Key, Keys};
use crate::hex::hex;

/// First bytes of a `LogRecord` with a decision and of one with a withdrawal: fields 1 and 6, length-delimited.
const DECISION: u8 = 0x0a;
const WITHDRAWN: u8 = 0x32;
/// The memory of a larger record is not kept, which bounds that of a chunk.
const KEPT: usize = 8 << 10;
/// Sources whose answers are decided again: the bundle's, that of the previous bundle, that without rules, and the best
/// action while exploration is stopped.
const ANSWERED: [&str; 4] = ["", "previous", "model", "greedy"];

/// Which decisions are taken.
pub(super) struct Filter<'a> {
    pub(super) bundle: &'a Bundle,
    pub(super) keys: &'a Keys,
    /// Decisions from the first time on and before the second one, in microseconds.
    pub(super) window: (i64, i64),
    pub(super) salt: &'a str,
    /// Decisions of entities whose hash with the salt is in this set are left out.
    pub(super) erased: &'a HashSet<String>,
}

/// What a record is to a replay.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    /// No decision, or one that the filter leaves out.
    Skipped,
    /// A withdrawal of the record with this sequence.
    Withdrawn(u64),
    /// It cannot be decoded.
    Foreign,
    Decision(Key, Answer),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// The record's place in the chunk, and the band or, for a selection, 0.
    Bundle(usize, u16),
    Fallback,
    /// Of a bundle with another schema, other decisions or actions.
    Other,
}

/// A record of the log is a decision, by its first byte.
pub(super) fn is_decision(payload: &[u8]) -> bool {
    payload.first() == Some(&DECISION)
}

/// A decision that is decided again: key, band, and place of the record.
pub(super) type Chosen = (Key, u16, usize);

/// Decisions of a chunk that are evaluated with the same lists.
pub(super) struct Piece<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) chosen: &'a [Chosen],
}

impl Piece<'_> {
    pub(super) fn records(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.chosen.iter().map(|(_, _, place)| self.chunk.record(*place))
    }

    pub(super) fn first(&self) -> Option<&DecisionRecord> {
        self.records().next()
    }

    pub(super) fn reads_as(&self, other: &Piece<'_>) -> bool {
        match (self.first(), other.first()) {
            (Some(one), Some(other)) => read_alike(one, other),
            _ => true,
        }
    }
}

/// Records that one thread decodes, and later decides again.
#[derive(Default)]
pub(super) struct Chunk {
    /// Sequences and entries, in the order of the log.
    pub(super) entries: Vec<(u64, Entry)>,
    pub(super) chosen: Vec<Chosen>,
    records: Vec<DecisionRecord>,
    /// Places of records whose memory is not kept.
    large: Vec<usize>,
}

impl Chunk {
    /// Replaces the content by records of a log with their sequences.
    pub(super) fn fill(&mut self, encoded: &[(u64, &[u8])], filter: &Filter<'_>) {
        self.entries.clear();
        self.chosen.clear();
        for place in self.large.drain(..) {
            self.records[place] = DecisionRecord::default();
        }
        let mut used = 0;
        for &(sequence, payload) in encoded {
            let entry = self.read(used, payload, filter);
            used += usize::from(matches!(entry, Entry::Decision(_, Answer::Bundle(..))));
            self.entries.push((sequence, entry));
        }
    }

    /// The sequences of records that records of this chunk withdraw.
    pub(super) fn withdrawn(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::Withdrawn(sequence) => Some(*sequence),
            _ => None,
        })
    }

    pub(super) fn record(&self, place: usize) -> &DecisionRecord {
        &self.records[place]
    }

    /// Decodes a record. A decision is written to a place.
    fn read(&mut self, place: usize, payload: &[u8], filter: &Filter<'_>) -> Entry {
        match payload.first() {
            Some(&DECISION) => {}
            Some(&WITHDRAWN) => {
                return match LogRecord::decode(payload).map(|record| record.record) {
                    Ok(Some(Record::Withdrawn(one))) => Entry::Withdrawn(one.sequence),
                    _ => Entry::Foreign,
                };
            }
            _ => return Entry::Skipped,
        }
        if self.records.len() == place {
            self.records.push(DecisionRecord::default());
        }
        if payload.len() > KEPT {
            self.large.push(place);
        }
        let record = &mut self.records[place];
        if let Some(message) = only_decision(payload) {
            record.clear();
            if record.merge(message).is_err() {
                return Entry::Foreign;
            }
        } else {
            // Another encoding of the same message, such as one with two fields of which the last one counts.
            match LogRecord::decode(payload).map(|record| record.record) {
                Ok(Some(Record::Decision(decision))) => *record = decision,
                Ok(_) => return Entry::Skipped,
                Err(_) => return Entry::Foreign,
            }
        }
        filter.entry(place, record)
    }
}

impl Filter<'_> {
    fn entry(&self, place: usize, decision: &DecisionRecord) -> Entry {
        let (since, until) = self.window;
        if decision.decided_at_us < since || decision.decided_at_us >= until {
            return Entry::Skipped;
        }
        if !self.erased.is_empty() && self.erased.contains(&fingerprint(self.salt, &decision.entity)) {
            return Entry::Skipped;
        }
        let answer = match before(self.bundle, decision) {
            None => Answer::Other,
            Some(_) if !ANSWERED.contains(&decision.fallback_source.as_str()) => Answer::Fallback,
            Some(before) => Answer::Bundle(place, before),
        };
        Entry::Decision(self.keys.of(&decision.checkpoint, &decision.decision_id), answer)
    }
}

/// The encoded decision of a `LogRecord` that has no other field.
fn only_decision(payload: &[u8]) -> Option<&[u8]> {
    let mut rest = payload.strip_prefix(&[DECISION])?;
    let length = prost::decode_length_delimiter(&mut rest).ok()?;
    (rest.len() == length).then_some(rest)
}

/// The band or, for a selection, 0. `None` if the decision is not one of this bundle's kind.
fn before(bundle: &Bundle, decision: &DecisionRecord) -> Option<u16> {
    let selects = !decision.pmf.is_empty() || !decision.action.is_empty();
    if decision.schema_fingerprint != bundle.schema().fingerprint()
        || selects != (bundle.kind() == Kind::Action)
    {
        return None;
    }
    if selects {
        let known = bundle.catalogue().get(decision.action_index as usize)?;
        let same = decision.pmf.len() == bundle.catalogue().len() && known.id == decision.action;
        return same.then_some(0);
    }
    let band = bundle.labels().iter().position(|label| *label == decision.decision)?;
    u16::try_from(band).ok()
}

/// The hash of an entity in the log's file of erasures.
fn fingerprint(salt: &str, entity: &str) -> String {
    hex(&Sha256::new().chain_update(salt).chain_update([0]).chain_update(entity).finalize())
}
