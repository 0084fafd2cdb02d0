//! The index of reported outcomes: the first report of a revision counts, and the highest revision counts.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use scorer_proto::v1::{OutcomeProof, OutcomeRecord, WithdrawnRecord};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::LogError;

const SHARDS: usize = 64;

/// The key of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutcomeKey<'a> {
    /// The decision's checkpoint.
    pub checkpoint: &'a str,
    /// The decision's id.
    pub decision_id: &'a str,
    /// The kind of the outcome ("fraud", "authorised", ...).
    pub kind: &'a str,
    /// Whether the report is proven. Proven and unproven reports are separate, so an unproven report never blocks a
    /// proven one.
    pub proven: bool,
}

/// The limit on the rate of reports of one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportRate {
    /// The minute of the report, counted from any fixed moment.
    pub minute: u32,
    /// Greatest number of reports of one outcome that are recorded within a minute.
    pub most: u32,
}

/// The result of a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// The outcome was recorded and is the one that counts.
    New,
    /// The same outcome was recorded before; nothing was written.
    Duplicate,
    /// A higher revision is known; this one was recorded in addition.
    Superseded,
    /// The same revision is known with another value; nothing was written.
    Conflict {
        /// The recorded value.
        recorded: f64,
    },
    /// The outcome has reached its limit of reports within a minute; nothing was written.
    TooMany,
}

#[derive(Clone, Copy)]
struct Known {
    revision: u32,
    value: u64,
    /// The minute of the newest report, and the reports recorded within it.
    minute: u32,
    reports: u32,
}

/// The right to decide about a key, until dropped.
struct Reservation<'a> {
    index: &'a OutcomeIndex,
    hash: u128,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let waiting = self.index.shard(self.hash).reserved.remove(&self.hash);
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }
}

#[derive(Default)]
struct Shard {
    /// Keys whose reports are being recorded, with the tasks that wait for them. Bounded by the requests in flight.
    reserved: HashMap<u128, Vec<Waker>>,
    outcomes: HashMap<u128, Known>,
    outcome_order: VecDeque<u128>,
    decisions: HashSet<u128>,
    decision_order: VecDeque<u128>,
}

/// An index of the newest outcomes and decisions, by a 128-bit keyed hash. It is bounded: the oldest key is removed
/// first (in each of 64 shards, so slightly before `capacity` keys are stored). An outcome that is reported again after
/// that is recorded again, and the join on the log resolves it by the same rule.
pub struct OutcomeIndex {
    shards: Vec<Mutex<Shard>>,
    per_shard: usize,
    key: (u64, u64),
}

impl OutcomeIndex {
    /// Creates an empty index for about `capacity` outcomes and as many decisions.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let state = RandomState::new();
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            per_shard: capacity.div_ceil(SHARDS).max(1),
            key: (state.hash_one(0_u8), state.hash_one(1_u8)),
        }
    }

    /// Compares a report with the index and, if it must be recorded, calls `append` and adds it to the index.
    ///
    /// The key is reserved while `append` runs: another report of the same key waits for its result, reports of other
    /// keys do not. Of two conflicting reports, only one can be recorded. A report that `append` could not record, or
    /// whose future was dropped, has no effect.
    ///
    /// # Errors
    /// Returns the error of `append`.
    pub async fn record<A>(
        &self,
        key: OutcomeKey<'_>,
        revision: u32,
        value: f64,
        rate: ReportRate,
        append: impl FnOnce() -> A,
    ) -> Result<Outcome, LogError>
    where
        A: Future<Output = Result<u64, LogError>>,
    {
        let hash = self.outcome_hash(key);
        let value = bits(value);
        let _reservation = poll_fn(|context| self.reserve(hash, context)).await;
        let known = self.shard(hash).outcomes.get(&hash).copied();
        match known {
            Some(known) if revision == known.revision && value == known.value => Ok(Outcome::Duplicate),
            Some(known) if revision == known.revision => {
                Ok(Outcome::Conflict { recorded: f64::from_bits(known.value) })
            }
            Some(known) if known.within(rate.minute) >= rate.most => Ok(Outcome::TooMany),
            known => {
                append().await?;
                let reports = known.map_or(0, |known| known.within(rate.minute)) + 1;
                let minute = rate.minute;
                let (now, outcome) = match known {
                    Some(known) if revision < known.revision => {
                        (Known { minute, reports, ..known }, Outcome::Superseded)
                    }
                    _ => (Known { revision, value, minute, reports }, Outcome::New),
                };
                self.shard(hash).remember_outcome(hash, now, self.per_shard);
                Ok(outcome)
            }
        }
    }

    fn outcome_hash(&self, key: OutcomeKey<'_>) -> u128 {
        let OutcomeKey { checkpoint, decision_id, kind, proven } = key;
        if proven {
            self.hash(&[checkpoint, decision_id, kind])
        } else {
            self.hash(&[checkpoint, decision_id, kind, "unproven"])
        }
    }

    /// Reserves a key, or registers the task to be woken when the key is free.
    fn reserve(&self, hash: u128, context: &Context<'_>) -> Poll<Reservation<'_>> {
        match self.shard(hash).reserved.entry(hash) {
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Poll::Ready(Reservation { index: self, hash })
            }
            Entry::Occupied(mut taken) => {
                taken.get_mut().push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Adds a decision that is in the log to the index.
    pub fn note_decision(&self, checkpoint: &str, decision_id: &str) {
        let hash = self.hash(&[checkpoint, decision_id]);
        self.shard(hash).remember_decision(hash, self.per_shard);
    }

    /// Whether the index contains the decision. It does not contain decisions of other servers and old decisions.
    #[must_use]
    pub fn decision_known(&self, checkpoint: &str, decision_id: &str) -> bool {
        let hash = self.hash(&[checkpoint, decision_id]);
        self.shard(hash).decisions.contains(&hash)
    }

    /// Number of outcomes in the index.
    #[must_use]
    pub fn outcomes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).outcomes.len()).sum()
    }

    /// Number of decisions in the index.
    #[must_use]
    pub fn decisions(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).decisions.len()).sum()
    }

    /// Adds a record of the log to the index. Call it in log order. Records other than decisions, outcomes and
    /// withdrawals are ignored.
    pub fn replay(&self, payload: &[u8]) {
        let Ok(peek) = <Peek as prost::Message>::decode(payload) else { return };
        if let Some(decision) = peek.decision {
            self.note_decision(&decision.checkpoint, &decision.decision_id);
        }
        if let Some(outcome) = peek.outcome {
            let hash = self.outcome_hash(OutcomeKey {
                checkpoint: &outcome.checkpoint,
                decision_id: &outcome.decision_id,
                kind: &outcome.kind,
                proven: outcome.proof() != OutcomeProof::Unproven,
            });
            let mut shard = self.shard(hash);
            let newer = shard.outcomes.get(&hash).is_none_or(|known| outcome.revision > known.revision);
            if newer {
                let (revision, value) = (outcome.revision, bits(outcome.value));
                let known = Known { revision, value, minute: 0, reports: 0 };
                shard.remember_outcome(hash, known, self.per_shard);
            }
        }
        if let Some(withdrawn) = peek.withdrawn {
            self.withdraw(&withdrawn);
        }
    }

    fn withdraw(&self, record: &WithdrawnRecord) {
        let WithdrawnRecord { checkpoint, decision_id, kind, unproven, .. } = record;
        if kind.is_empty() {
            let hash = self.hash(&[checkpoint, decision_id]);
            self.shard(hash).decisions.remove(&hash);
        } else {
            let hash = self.outcome_hash(OutcomeKey { checkpoint, decision_id, kind, proven: !unproven });
            self.shard(hash).outcomes.remove(&hash);
        }
    }

    fn shard(&self, hash: u128) -> std::sync::MutexGuard<'_, Shard> {
        // The low bits select the shard, and `hash % SHARDS` is always in range.
        lock(&self.shards[(hash % SHARDS as u128) as usize])
    }

    fn hash(&self, parts: &[&str]) -> u128 {
        use std::hash::Hasher;
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part.as_bytes());
        }
        hasher.finish128().as_u128()
    }
}

impl Known {
    /// Returns the number of reports recorded within this minute.
    fn within(self, minute: u32) -> u32 {
        if self.minute == minute { self.reports } else { 0 }
    }
}

impl Shard {
    fn remember_outcome(&mut self, hash: u128, known: Known, most: usize) {
        if self.outcomes.insert(hash, known).is_none() {
            self.outcome_order.push_back(hash);
            if self.outcome_order.len() > most
                && let Some(oldest) = self.outcome_order.pop_front()
            {
                self.outcomes.remove(&oldest);
            }
        }
    }

    fn remember_decision(&mut self, hash: u128, most: usize) {
        if self.decisions.insert(hash) {
            self.decision_order.push_back(hash);
            if self.decision_order.len() > most
                && let Some(oldest) = self.decision_order.pop_front()
            {
                self.decisions.remove(&oldest);
            }
        }
    }
}

impl std::fmt::Debug for OutcomeIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutcomeIndex")
            .field("outcomes", &self.outcomes())
            .field("decisions", &self.decisions())
            .finish_non_exhaustive()
    }
}

/// Returns bits that are equal for equal values: -0 is treated as 0.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

fn lock(shard: &Mutex<Shard>) -> std::sync::MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `LogRecord` with only the fields that the index needs, so that features are not decoded.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Peek {
    #[prost(message, optional, tag = "1")]
    pub(crate) decision: Option<PeekDecision>,
    #[prost(message, optional, tag = "2")]
    pub(crate) outcome: Option<OutcomeRecord>,
    #[prost(message, optional, tag = "6")]
    pub(crate) withdrawn: Option<WithdrawnRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PeekDecision {
    #[prost(string, tag = "1")]
    pub(crate) decision_id: String,
    #[prost(string, tag = "2")]
    pub(crate) checkpoint: String,
}
