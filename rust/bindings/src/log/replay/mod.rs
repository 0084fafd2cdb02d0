//! `_scorer.RuleReplay`: decides the decisions of logs again with other rules, and counts what would change.
//!
//! Decoding and evaluating are divided among the processors. Results do not depend on their number, because records are
//! taken in chunks of a fixed size whose counts are added in the order of the log.

mod chunk;
mod lists;
mod outcomes;
mod tally;
mod threads;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use scorer_core::bundle::{Bundle, Kind, Rules};
use scorer_proto::v1::log_record::Record;
use scorer_proto::v1::{DecisionRecord, LogRecord};
use scorer_rules::{Decision, Exhausted, Lists, Request};
use scorer_server::Budgets;

use self::chunk::{Answer, Chosen, Chunk, Entry, Filter, Piece};
use self::lists::{RecordedLists, Version, read_alike, versions_in};
use self::outcomes::{Key, Keys, Outcomes};
use self::tally::Tally;
use self::threads::parallel;
use super::columns::Foreign;
use super::{Batch, LogReader};
use crate::bundle::RuleSet;
use crate::enter::enter;
use crate::error::Failure;
use crate::hex::hex;

/// Records that are read at a time.
const RECORDS: usize = 1 << 14;
/// Bytes of payload at which such a batch ends.
const BYTES: usize = 64 << 20;
/// Records that a thread takes at a time.
const CHUNK: usize = 1024;

#[derive(Default)]
struct State {
    outcomes: Outcomes,
    /// Sequences of withdrawn records of each log.
    withdrawn: Vec<HashSet<u64>>,
    /// Number of logs whose outcomes were read to the end.
    read_to_end: usize,
    seen: HashSet<Key>,
    tally: Tally,
    /// Chunks whose memory is used for the next batch.
    spare: Vec<Chunk>,
    lists: RecordedLists,
    /// The log that decisions are read from, and what they have used of the daily budgets of the rules.
    budgets: (Option<usize>, Budgets),
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
        let tally = Tally::new(rules.get().rules()?.rules().len());
        rules.get().bundle()?;
        let window = (since_us.unwrap_or(i64::MIN), until_us.unwrap_or(i64::MAX));
        let plan = Plan { amount, limits, examples, window, recorded };
        let state = State { tally, ..State::default() };
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

    /// Decides decisions of a log again that the caller has read: encoded `LogRecord`s without withdrawn and erased ones.
    fn add(&self, py: Python<'_>, log: usize, records: Vec<Bound<'_, PyBytes>>) -> PyResult<()> {
        let mut batch = Batch::default();
        records.iter().for_each(|record| batch.push(0, record.as_bytes()));
        enter(py, || {
            self.use_budgets_of(log);
            self.replay(None, &batch, "", &HashSet::new())
        })
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
        let rules = self.rules.get().rules()?.rules();
        let ids = rules.iter().map(|rule| rule.id.as_str());
        let counted = ids.zip(&tally.rules).chain(tally.removed.iter().map(|(id, hits)| (id.as_str(), hits)));
        let (hits, hits_before, changed_by) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
        let exhausted = PyDict::new(py);
        for (rule, counts) in counted {
            for (by_rule, count) in [
                (&hits, counts.now),
                (&hits_before, counts.before),
                (&changed_by, counts.changed),
                (&exhausted, counts.exhausted),
            ] {
                if count > 0 {
                    by_rule.set_item(rule, count)?;
                }
            }
        }
        out.set_item("hits", hits)?;
        out.set_item("hits_before", hits_before)?;
        out.set_item("changed_by", changed_by)?;
        out.set_item("exhausted", exhausted)?;
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

    /// Begins the daily budgets of rules again for each log, which is that of one server.
    fn use_budgets_of(&self, log: usize) {
        let mut state = self.lock();
        if state.budgets.0 != Some(log) {
            state.budgets = (Some(log), Budgets::default());
        }
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
                batch.payloads().filter(|payload| chunk::is_decision(payload)).collect();
            let versions = parallel(decisions.chunks(CHUNK).collect(), |chunk: &[&[u8]]| {
                let all = chunk.iter().flat_map(|payload| versions_in(payload, fingerprint, window));
                all.collect::<HashSet<Version>>()
            });
            lists.needed.extend(versions.into_iter().flatten());
        }
        let others: Vec<_> = numbered(&batch).filter(|(_, payload)| !chunk::is_decision(payload)).collect();
        let decoded = parallel(others.chunks(CHUNK).collect(), |chunk: &[(u64, &[u8])]| {
            chunk
                .iter()
                .map(|(sequence, payload)| (*sequence, LogRecord::decode(*payload)))
                .collect::<Vec<_>>()
        });
        for (sequence, record) in decoded.into_iter().flatten() {
            match record.map_err(|_| Foreign { sequence })?.record {
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
        self.use_budgets_of(log);
        self.replay(Some(log), &batch, salt, erased)?;
        Ok(true)
    }

    /// Decides the decisions of a batch again, which is one of a log whose outcomes were read, or of decisions only.
    fn replay(
        &self,
        log: Option<usize>,
        batch: &Batch,
        salt: &str,
        erased: &HashSet<String>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        let State { outcomes, withdrawn, seen, tally, spare, lists: recorded, budgets, .. } = &mut *state;
        let set = self.rules.get();
        let (Ok(rules), Ok(bundle)) = (set.rules(), set.bundle()) else { return Ok(()) };
        let lists = set.lists(rules);
        let budgets = &budgets.1;
        budgets.open(rules);
        let filter = Filter { bundle, keys: &self.keys, window: self.plan.window, salt, erased };
        let all: Vec<_> = numbered(batch).collect();
        let work = all.chunks(CHUNK).map(|encoded| (spare.pop().unwrap_or_default(), encoded)).collect();
        let mut chunks = parallel(work, |(mut chunk, encoded): (Chunk, &[(u64, &[u8])])| {
            chunk.fill(encoded, &filter);
            chunk
        });

        // Withdrawals after the first pass are only in this one.
        let later: HashSet<u64> = chunks.iter().flat_map(Chunk::withdrawn).collect();
        let before = log.and_then(|log| withdrawn.get(log));
        let gone =
            |sequence| later.contains(&sequence) || before.is_some_and(|of_log| of_log.contains(&sequence));
        for Chunk { entries, chosen, .. } in &mut chunks {
            for (sequence, entry) in entries.iter().filter(|(sequence, _)| !gone(*sequence)) {
                match *entry {
                    Entry::Foreign => return Err(Foreign { sequence: *sequence }.into()),
                    Entry::Decision(key, answer) if seen.insert(key) => match answer {
                        Answer::Bundle(place, before) => chosen.push((key, before, place)),
                        Answer::Fallback => tally.fallbacks += 1,
                        Answer::Other => tally.others += 1,
                    },
                    _ => {}
                }
            }
        }

        // The decisions of a piece read the same versions of lists.
        let mut pieces = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let alike = |one: &Chosen, other: &Chosen| read_alike(chunk.record(one.2), chunk.record(other.2));
            pieces.extend(chunk.chosen.chunk_by(alike).map(|chosen| Piece { chunk, chosen }));
        }
        let places = rules.rules().iter().map(|rule| rule.id.as_str()).zip(0..).collect();
        // Without recorded versions, all are evaluated together.
        for run in pieces.chunk_by(|one, other| !self.plan.recorded || one.reads_as(other)) {
            run.iter().for_each(|piece| recorded.count(piece.records()));
            let lists = match run.first().and_then(Piece::first) {
                Some(first) => recorded.of(rules, first)?.unwrap_or(lists),
                None => lists,
            };
            let counted =
                |piece| count(&self.plan, (rules, lists, &places), bundle, budgets, outcomes, piece);
            let found: Vec<Tally> = if rules.set().budgets().len() > 0 {
                // What is left of a budget depends on the decisions before.
                run.iter().map(counted).collect()
            } else {
                parallel(run.iter().collect(), counted)
            };
            found.into_iter().for_each(|later| tally.add(later, self.plan.examples));
        }
        drop(pieces);
        spare.extend(chunks);
        Ok(())
    }
}

/// Sequences and payloads of a batch.
fn numbered(batch: &Batch) -> impl Iterator<Item = (u64, &[u8])> {
    batch.sequences.iter().copied().zip(batch.payloads())
}

/// Decides a piece again. `places` has the place of each rule by its id.
fn count(
    plan: &Plan,
    (rules, lists, places): (&Rules, &Lists, &HashMap<&str, usize>),
    bundle: &Bundle,
    budgets: &Budgets,
    outcomes: &Outcomes,
    piece: &Piece<'_>,
) -> Tally {
    let all = piece.records().map(|decision| {
        let score = (bundle.kind() == Kind::Score).then_some(decision.score);
        let seconds = decision.decided_at_us.div_euclid(1_000_000);
        (
            decision.features.as_slice(),
            score,
            Request { seconds, id: decision.decision_id.as_bytes(), exhausted: Exhausted::NONE },
        )
    });
    let mut tally = Tally::new(rules.rules().len());
    let mut each = |at: usize, ruling: &Decision, exhausted: Exhausted| {
        let Some((key, before, place)) = piece.chosen.get(at) else { return };
        let decision = piece.chunk.record(*place);
        tally.decisions += 1;
        tally.withheld += u64::from(!decision.withheld.is_empty());
        tally.unknown += u64::from(ruling.unknown());
        tally.errors += u64::from(ruling.errors());
        tally.conflicts += u64::from(ruling.conflicts());
        for budget in exhausted.iter() {
            if let Some(rule) = rules.set().budgets().nth(budget) {
                tally.rules[usize::from(rule)].exhausted += 1;
            }
        }
        let after = if bundle.kind() == Kind::Action {
            change_of_actions(bundle.catalogue().len(), decision, ruling)
        } else {
            let band = rules.band(ruling).or_else(|| bundle.band_of(ruling.score(decision.score)));
            band.and_then(|band| u16::try_from(band).ok()).unwrap_or_default()
        };
        let changed = u64::from(after != *before);
        for rule in ruling.applied() {
            let hits = &mut tally.rules[usize::from(*rule)];
            hits.now += 1;
            hits.changed += changed;
        }
        for rule in decision.rules.iter().flat_map(|rules| &rules.fired) {
            let place = places.get(rule.id.as_str()).copied();
            let applied =
                place.is_some_and(|place| ruling.applied().iter().any(|now| usize::from(*now) == place));
            let hits = tally.recorded(place, &rule.id);
            hits.before += 1;
            hits.changed += if applied { 0 } else { changed };
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
    };
    if rules.set().budgets().len() == 0 {
        rules.evaluate_all(lists, all, |at, ruling| each(at, ruling, Exhausted::NONE));
        return tally;
    }
    let mut ruling = rules.start();
    for (at, (row, score, mut request)) in all.enumerate() {
        request.exhausted = budgets.exhausted(rules.set(), request.seconds);
        loop {
            rules.evaluate_with(lists, row, score, request, &mut ruling);
            match budgets.take(rules.set(), &ruling, request.seconds) {
                Ok(()) => break,
                Err(full) => request.exhausted.add(full),
            }
        }
        each(at, &ruling, request.exhausted);
    }
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
