//! `_scorer.RuleReplay`: decides the decisions of logs again with other rules, and counts what would change.
//!
//! Decoding and evaluating are divided among the processors. Results do not depend on their number, because records are
//! taken in chunks of a fixed size whose counts are added in the order of the log.

mod lists;
mod outcomes;
mod tally;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use scorer_core::bundle::{Bundle, Kind, Rules};
use scorer_proto::v1::log_record::Record;
use scorer_proto::v1::{DecisionRecord, LogRecord};
use scorer_rules::{Decision, Lists, Request};
use sha2::{Digest, Sha256};

use self::lists::{RecordedLists, Version, hex, read_alike, versions_in};
use self::outcomes::{Key, Keys, Outcomes};
use self::tally::Tally;
use super::columns::Foreign;
use super::{Batch, LogReader};
use crate::bundle::RuleSet;
use crate::enter::enter;
use crate::error::Failure;

/// Records that are read at a time.
const RECORDS: usize = 1 << 16;
/// Bytes of payload at which such a batch ends.
const BYTES: usize = 64 << 20;
/// Decisions that are evaluated and counted together.
const CHUNK: usize = 4096;
/// Sources whose answers are decided again: the bundle's, that of the previous bundle, that without rules, and the best
/// action while exploration is stopped.
const ANSWERED: [&str; 4] = ["", "previous", "model", "greedy"];

/// First byte of a `LogRecord` that holds a decision: field 1, length-delimited.
const DECISION: u8 = 0x0a;

/// A record, if it was decoded and is of a kind that this version knows.
type Decoded = Option<Result<Record, Foreign>>;

#[derive(Default)]
struct State {
    outcomes: Outcomes,
    /// Sequences of withdrawn records of each log.
    withdrawn: Vec<HashSet<u64>>,
    /// Number of logs whose outcomes were read to the end.
    read_to_end: usize,
    seen: HashSet<Key>,
    tally: Tally,
    lists: RecordedLists,
}

/// What is compared, and how.
struct Plan {
    amount: Option<usize>,
    /// Upper limits of the amount bands, ascending and excluded.
    limits: Vec<f64>,
    examples: usize,
    /// Decisions from the first time on and before the second one, in microseconds.
    window: (i64, i64),
    /// Whether the versions of external lists that decisions read are collected with the outcomes.
    recorded: bool,
}

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct RuleReplay {
    rules: Py<RuleSet>,
    plan: Plan,
    keys: Keys,
    state: Mutex<State>,
}

#[pymethods]
impl RuleReplay {
    #[new]
    #[pyo3(signature = (rules, amount, limits, examples, since_us, until_us, recorded = false))]
    fn new(
        rules: Py<RuleSet>,
        amount: Option<usize>,
        limits: Vec<f64>,
        examples: usize,
        since_us: Option<i64>,
        until_us: Option<i64>,
        recorded: bool,
    ) -> PyResult<RuleReplay> {
        let hits = vec![0; rules.get().rules()?.rules().len()];
        rules.get().bundle()?;
        let window = (since_us.unwrap_or(i64::MIN), until_us.unwrap_or(i64::MAX));
        let plan = Plan { amount, limits, examples, window, recorded };
        let state = State { tally: Tally { hits, ..Tally::default() }, ..State::default() };
        Ok(RuleReplay { rules, plan, keys: Keys::default(), state: Mutex::new(state) })
    }

    /// Collects the outcomes and withdrawals of the next records of a log. Returns false at its end; the next call then
    /// begins another log. All logs are read in this way before decisions are.
    fn outcomes(&self, py: Python<'_>, reader: &LogReader) -> PyResult<bool> {
        enter(py, || self.read_outcomes(reader))
    }

    /// Returns name, version and digest of the external lists that decisions read, which were collected with the
    /// outcomes.
    fn needed(&self) -> Vec<(String, u64, String)> {
        let mut needed: Vec<Version> = self.lock().lists.needed.iter().cloned().collect();
        needed.sort_unstable();
        needed.into_iter().map(|(name, version, digest)| (name, version, hex(&digest))).collect()
    }

    /// Evaluates each decision with the versions of external lists that it read, from these directories by digest.
    fn use_recorded(&self, directories: HashMap<String, PathBuf>) {
        self.lock().lists.stored = Some(directories);
    }

    /// Decides the decisions among the next records of a log again. Returns false at its end.
    ///
    /// `log` is the number of the log in the order in which the outcomes were read. Decisions of entities whose hash with
    /// `salt` is in `erased` are left out.
    fn decisions(
        &self,
        py: Python<'_>,
        log: usize,
        reader: &LogReader,
        salt: &str,
        erased: HashSet<String>,
    ) -> PyResult<bool> {
        enter(py, || self.read_decisions(log, reader, salt, &erased))
    }

    /// Decides decisions again that the caller has read: encoded `LogRecord`s without withdrawn and erased ones.
    fn add(&self, py: Python<'_>, records: Vec<Bound<'_, PyBytes>>) -> PyResult<()> {
        let mut batch = Batch::default();
        records.iter().for_each(|record| batch.push(0, record.as_bytes()));
        enter(py, || self.replay(decode(&batch, |_| true), "", &HashSet::new()))
    }

    /// Returns what was counted.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.lock();
        let (tally, kinds) = (&state.tally, &state.outcomes.kinds);
        let out = PyDict::new(py);
        for (name, count) in [
            ("decisions", tally.decisions),
            ("unknown", tally.unknown),
            ("errors", tally.errors),
            ("conflicts", tally.conflicts),
            ("withheld", tally.withheld),
            ("fallbacks", tally.fallbacks),
            ("others", tally.others),
        ] {
            out.set_item(name, count)?;
        }
        out.set_item("hits", &tally.hits)?;
        out.set_item("hits_before", &tally.hits_before)?;
        out.set_item("changed_by", &tally.changed_by)?;
        let changes: Vec<_> = tally
            .changes
            .iter()
            .map(|((before, after), change)| {
                // Kinds of later outcomes are not in the counts of this change.
                let counts = || kinds.iter().zip(&change.outcomes).filter(|(_, (known, _))| *known > 0);
                let known: HashMap<_, _> = counts().map(|(kind, (known, _))| (kind, *known)).collect();
                let positive: HashMap<_, _> =
                    counts().map(|(kind, (_, positive))| (kind, *positive)).collect();
                (
                    *before,
                    *after,
                    change.count,
                    change.amount,
                    &change.bands,
                    known,
                    positive,
                    &change.examples,
                )
            })
            .collect();
        out.set_item("changes", changes)?;
        let uses = state.lists.uses();
        let lists: Vec<_> = uses
            .map(|((name, version, digest), (count, first, last))| {
                (name, *version, hex(digest), *count, *first, *last)
            })
            .collect();
        out.set_item("lists", lists)?;
        Ok(out)
    }
}

impl RuleReplay {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_outcomes(&self, reader: &LogReader) -> Result<bool, Failure> {
        let batch = reader.read(RECORDS, BYTES)?;
        let mut state = self.lock();
        let State { outcomes, withdrawn, read_to_end, lists, .. } = &mut *state;
        if withdrawn.len() == *read_to_end {
            withdrawn.push(HashSet::new());
        }
        if batch.sequences.is_empty() {
            outcomes.settle(u64::MAX, &self.keys);
            *read_to_end += 1;
            return Ok(false);
        }
        if let (true, Ok(bundle)) = (self.plan.recorded, self.rules.get().bundle()) {
            let (fingerprint, window) = (bundle.schema().fingerprint(), self.plan.window);
            let decisions: Vec<&[u8]> =
                batch.payloads().filter(|payload| payload.first() == Some(&DECISION)).collect();
            let chunks: Vec<_> = decisions.chunks(CHUNK).collect();
            let versions = parallel(&chunks, |chunk| {
                let all = chunk.iter().flat_map(|payload| versions_in(payload, fingerprint, window));
                all.collect::<HashSet<Version>>()
            });
            lists.needed.extend(versions.into_iter().flatten());
        }
        let decoded = decode(&batch, |payload| payload.first() != Some(&DECISION));
        for (&sequence, record) in batch.sequences.iter().zip(decoded) {
            match record.transpose()? {
                Some(Record::Outcome(report)) => {
                    outcomes.settle(sequence, &self.keys);
                    outcomes.waiting.push_back((sequence, report));
                }
                Some(Record::Withdrawn(one)) => {
                    outcomes.waiting.retain(|(waiting, _)| *waiting != one.sequence);
                    if let Some(of_log) = withdrawn.last_mut() {
                        of_log.insert(one.sequence);
                    }
                }
                _ => {}
            }
        }
        Ok(true)
    }

    fn read_decisions(
        &self,
        log: usize,
        reader: &LogReader,
        salt: &str,
        erased: &HashSet<String>,
    ) -> Result<bool, Failure> {
        let batch = reader.read(RECORDS, BYTES)?;
        if batch.sequences.is_empty() {
            return Ok(false);
        }
        let mut decoded = decode(&batch, |_| true);
        let mut gone = HashSet::new();
        for record in decoded.iter().flatten().flatten() {
            if let Record::Withdrawn(one) = record {
                gone.insert(one.sequence);
            }
        }
        {
            let state = self.lock();
            let before = state.withdrawn.get(log);
            for (sequence, record) in batch.sequences.iter().zip(&mut decoded) {
                if gone.contains(sequence) || before.is_some_and(|before| before.contains(sequence)) {
                    *record = None;
                }
            }
        }
        self.replay(decoded, salt, erased)?;
        Ok(true)
    }

    /// Decides the decisions among records again.
    fn replay(&self, decoded: Vec<Decoded>, salt: &str, erased: &HashSet<String>) -> Result<(), Failure> {
        let mut state = self.lock();
        let State { outcomes, seen, tally, lists: recorded, .. } = &mut *state;
        let set = self.rules.get();
        let (Ok(rules), Ok(bundle)) = (set.rules(), set.bundle()) else { return Ok(()) };
        let lists = set.lists(rules);
        let mut decisions = Vec::with_capacity(decoded.len());
        for record in decoded {
            let Some(Record::Decision(decision)) = record.transpose()? else { continue };
            let (since, until) = self.plan.window;
            if decision.decided_at_us < since || decision.decided_at_us >= until {
                continue;
            }
            if !erased.is_empty() && erased.contains(&fingerprint(salt, &decision.entity)) {
                continue;
            }
            let key = self.keys.of(&decision.checkpoint, &decision.decision_id);
            if !seen.insert(key) {
                continue;
            }
            match before(bundle, &decision) {
                None => tally.others += 1,
                Some(_) if !ANSWERED.contains(&decision.fallback_source.as_str()) => tally.fallbacks += 1,
                Some(before) => decisions.push((key, before, decision)),
            }
        }
        for alike in decisions.chunk_by(|(_, _, one), (_, _, other)| read_alike(one, other)) {
            recorded.count(alike.iter().map(|(_, _, decision)| decision));
        }
        // Decisions in a row that read the same versions are evaluated together; without recorded versions, all are.
        let together =
            |one: &DecisionRecord, other: &DecisionRecord| !self.plan.recorded || read_alike(one, other);
        for run in decisions.chunk_by(|(_, _, one), (_, _, other)| together(one, other)) {
            let Some((_, _, first)) = run.first() else { continue };
            let lists = recorded.of(rules, first)?.unwrap_or(lists);
            let chunks: Vec<_> = run.chunks(CHUNK).collect();
            let found = parallel(&chunks, |chunk| count(&self.plan, (rules, lists), bundle, outcomes, chunk));
            found.into_iter().for_each(|later| tally.add(later, self.plan.examples));
        }
        Ok(())
    }
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

/// Decides a chunk again.
fn count(
    plan: &Plan,
    (rules, lists): (&Rules, &Lists),
    bundle: &Bundle,
    outcomes: &Outcomes,
    chunk: &[(Key, u16, DecisionRecord)],
) -> Tally {
    let all = chunk.iter().map(|(_, _, decision)| {
        let score = (bundle.kind() == Kind::Score).then_some(decision.score);
        let seconds = decision.decided_at_us.div_euclid(1_000_000);
        (decision.features.as_slice(), score, Request { seconds, id: decision.decision_id.as_bytes() })
    });
    let mut tally = Tally { hits: vec![0; rules.rules().len()], ..Tally::default() };
    rules.evaluate_all(lists, all, |at, ruling| {
        let Some((key, before, decision)) = chunk.get(at) else { return };
        tally.decisions += 1;
        tally.withheld += u64::from(!decision.withheld.is_empty());
        tally.unknown += u64::from(ruling.unknown());
        tally.errors += u64::from(ruling.errors());
        tally.conflicts += u64::from(ruling.conflicts());
        ruling.applied().iter().for_each(|rule| tally.hits[usize::from(*rule)] += 1);
        let recorded = || decision.rules.iter().flat_map(|rules| &rules.fired).map(|rule| &rule.id);
        recorded().for_each(|rule| *tally.hits_before.entry(rule.clone()).or_default() += 1);
        let after = if bundle.kind() == Kind::Action {
            change_of_actions(bundle.catalogue().len(), decision, ruling)
        } else {
            let band = rules.band(ruling).or_else(|| bundle.band_of(ruling.score(decision.score)));
            band.and_then(|band| u16::try_from(band).ok()).unwrap_or_default()
        };
        if after != *before {
            let now = ruling.applied().iter().filter_map(|rule| rules.rules().get(usize::from(*rule)));
            let mut names: Vec<&String> = now.map(|rule| &rule.id).chain(recorded()).collect();
            names.sort_unstable();
            names.dedup();
            names.into_iter().for_each(|rule| *tally.changed_by.entry(rule.clone()).or_default() += 1);
        }
        let change = tally.change((*before, after), plan.limits.len() + 2, outcomes.kinds.len());
        change.count += 1;
        if let Some(amount) = plan.amount {
            let value = decision.features.get(amount).map_or(f64::NAN, |value| f64::from(*value));
            let missing = plan.limits.len() + 1;
            let band =
                if value.is_nan() { missing } else { plan.limits.partition_point(|limit| *limit <= value) };
            change.bands[band] += 1;
            change.amount += if value.is_nan() { 0.0 } else { value };
        }
        for (kind, (known, positive)) in (0..).zip(&mut change.outcomes) {
            if let Some((_, value)) = outcomes.values.get(&(*key, kind)) {
                *known += 1;
                *positive += u64::from(*value > 0.0);
            }
        }
        if change.examples.len() < plan.examples {
            change.examples.push(decision.decision_id.clone());
        }
    });
    tally
}

/// What rules make of a selection: 0 the same choices, 1 fewer ones, 2 other ones, 3 not the selected action, 4 none.
fn change_of_actions(actions: usize, decision: &DecisionRecord, ruling: &Decision) -> u16 {
    let before = words(actions, &decision.eligible_mask);
    let requested = if decision.rules.is_some() { &decision.requested_mask } else { &decision.eligible_mask };
    let mut after = words(actions, requested);
    after.iter_mut().zip(ruling.allowed()).for_each(|(word, allowed)| *word &= allowed);
    let selected = decision.action_index as usize;
    if after.iter().all(|word| *word == 0) {
        4
    } else if after.get(selected / 64).is_none_or(|word| word >> (selected % 64) & 1 == 0) {
        3
    } else if after == before {
        0
    } else if after.iter().zip(&before).all(|(after, before)| after & !before == 0) {
        1
    } else {
        2
    }
}

/// The actions of a record's mask. An empty one means all actions, and actions beyond a short one are not in it.
fn words(actions: usize, mask: &[u8]) -> Vec<u64> {
    let byte = |at: usize| if mask.is_empty() { u8::MAX } else { mask.get(at).copied().unwrap_or_default() };
    let used = |word: usize| if actions >= 64 * (word + 1) { u64::MAX } else { (1 << (actions % 64)) - 1 };
    (0..actions.div_ceil(64))
        .map(|word| u64::from_le_bytes(std::array::from_fn(|at| byte(8 * word + at))) & used(word))
        .collect()
}

/// The hash of an entity in the log's file of erasures.
fn fingerprint(salt: &str, entity: &str) -> String {
    let hash = Sha256::new().chain_update(salt).chain_update([0]).chain_update(entity).finalize();
    hex(&hash)
}

/// Decodes the records that are wanted.
fn decode(batch: &Batch, wanted: impl Fn(&[u8]) -> bool + Sync) -> Vec<Decoded> {
    let all: Vec<(u64, &[u8])> = batch.sequences.iter().copied().zip(batch.payloads()).collect();
    let chunks: Vec<_> = all.chunks(CHUNK).collect();
    let decoded = parallel(&chunks, |chunk| {
        let one = |(sequence, payload): &(u64, &[u8])| {
            if !wanted(payload) {
                return None;
            }
            match LogRecord::decode(*payload) {
                Ok(record) => record.record.map(Ok),
                Err(_) => Some(Err(Foreign { sequence: *sequence })),
            }
        };
        chunk.iter().map(one).collect::<Vec<Decoded>>()
    });
    decoded.into_iter().flatten().collect()
}

/// Calls `work` on every item, on as many threads as there are processors, and returns the results in order.
fn parallel<T: Copy + Sync, R: Send>(items: &[T], work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    if threads <= 1 {
        return items.iter().map(|item| work(*item)).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut found = Vec::new();
        while let Some((at, item)) = take(&next, items) {
            found.push((at, work(item)));
        }
        found
    };
    let mut found: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(joined).collect()
    });
    found.sort_unstable_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}

fn take<T: Copy>(next: &AtomicUsize, items: &[T]) -> Option<(usize, T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    items.get(at).map(|item| (at, *item))
}
