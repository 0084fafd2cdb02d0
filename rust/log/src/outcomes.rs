//! What became known about which decision: first writer wins, the highest revision counts.

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

/// What an outcome is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutcomeKey<'a> {
    /// The decision's checkpoint.
    pub checkpoint: &'a str,
    /// The decision.
    pub decision_id: &'a str,
    /// What became known ("fraud", "authorised", ...).
    pub kind: &'a str,
    /// The report is proven. Proven and unproven reports are apart: an unproven one is never in the way of a proven one.
    pub proven: bool,
}

/// How often one outcome may be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportRate {
    /// The minute of the report, counted from any fixed moment.
    pub minute: u32,
    /// Reports of one outcome that are recorded within a minute.
    pub most: u32,
}

/// How a reported outcome relates to what was known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Recorded; it is the one that counts.
    New,
    /// The same was recorded before; nothing was written.
    Duplicate,
    /// A higher revision is known; this one was recorded beside it.
    Superseded,
    /// The same revision is known with another value; nothing was written.
    Conflict {
        /// The value on record.
        recorded: f64,
    },
    /// The outcome was recorded as often as is allowed within a minute; nothing was written.
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

/// Remembers the newest outcomes and decisions, by a 128-bit keyed hash. Bounded: the oldest key is forgotten
/// first (per shard of 64, so a little before `capacity` keys are held); an outcome reported again after that is
/// recorded again, and the join on the log sorts it out by the same rule.
pub struct OutcomeIndex {
    shards: Vec<Mutex<Shard>>,
    per_shard: usize,
    key: (u64, u64),
}

impl OutcomeIndex {
    /// An empty index for about `capacity` outcomes and as many decisions.
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

    /// Checks a report against what is known and, where it has to be kept, calls `append` and remembers it.
    ///
    /// While `append` is under way the key is reserved: another report of the same key waits for its result, and reports
    /// of other keys do not. Two reports that conflict cannot both win. A report that `append` could not record, or
    /// whose future was dropped, is as if it had never come.
    ///
    /// # Errors
    /// Whatever `append` returns.
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

    /// Remembers that a decision is in the log.
    pub fn note_decision(&self, checkpoint: &str, decision_id: &str) {
        let hash = self.hash(&[checkpoint, decision_id]);
        self.shard(hash).remember_decision(hash, self.per_shard);
    }

    /// Whether the decision is remembered. False means "not here, or long ago".
    #[must_use]
    pub fn decision_known(&self, checkpoint: &str, decision_id: &str) -> bool {
        let hash = self.hash(&[checkpoint, decision_id]);
        self.shard(hash).decisions.contains(&hash)
    }

    /// Outcomes remembered.
    #[must_use]
    pub fn outcomes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).outcomes.len()).sum()
    }

    /// Decisions remembered.
    #[must_use]
    pub fn decisions(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).decisions.len()).sum()
    }

    /// Takes in a record of the log, in log order. Records of other kinds than decisions, outcomes and withdrawals are
    /// ignored.
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
        // The low bits choose the shard; `hash % SHARDS` is always in range.
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
    /// Reports recorded within a minute.
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

/// Equal values have equal bits: -0 is 0.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

fn lock(shard: &Mutex<Shard>) -> std::sync::MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `LogRecord`, with only what the index needs of a decision: the features stay unread.
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
