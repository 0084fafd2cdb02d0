//! The versions of external lists that recorded decisions read.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use prost::Message;
use scorer_core::bundle::Rules;
use scorer_proto::v1::{DecisionRecord, ListRead};
use scorer_rules::Lists;

use crate::error::Failure;
use crate::hex::hex;

/// Number of combinations of versions in memory. A list can have hundreds of megabytes. Around the change of a version,
/// decisions with the old and the new one alternate.
const LOADED: usize = 2;

/// Name, version and digest of a list that a decision read. Version 0: none was loaded.
pub(super) type Version = (String, u64, Vec<u8>);

/// The decisions that read a version: their number, and the times of the first and the last one in microseconds.
type Use = (u64, i64, i64);

/// The versions that decisions read, and those that can be loaded.
#[derive(Debug, Default)]
pub(super) struct RecordedLists {
    /// The versions of the decisions of the first pass.
    pub(super) needed: HashSet<Version>,
    /// Directories of versions by digest, as hexadecimal digits. `None`: decisions are evaluated with the lists of the rule set.
    pub(super) stored: Option<HashMap<String, PathBuf>>,
    /// The combinations that were used last.
    loaded: VecDeque<(Vec<ListRead>, Lists)>,
    uses: BTreeMap<Version, Use>,
}

/// `LogRecord` with only the fields that the first pass needs, so that features are not decoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Peek {
    #[prost(message, optional, tag = "1")]
    decision: Option<PeekDecision>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PeekDecision {
    #[prost(int64, tag = "6")]
    decided_at_us: i64,
    #[prost(fixed64, tag = "9")]
    schema_fingerprint: u64,
    #[prost(message, optional, tag = "60")]
    rules: Option<PeekRules>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PeekRules {
    #[prost(message, repeated, tag = "7")]
    lists: Vec<ListRead>,
}

/// Returns the versions that an encoded decision read, if it is of this schema and time.
pub(super) fn versions_in(payload: &[u8], fingerprint: u64, (since, until): (i64, i64)) -> Vec<Version> {
    let Ok(Peek { decision: Some(decision) }) = Peek::decode(payload) else { return Vec::new() };
    let is_wanted =
        decision.schema_fingerprint == fingerprint && (since..until).contains(&decision.decided_at_us);
    decision.rules.filter(|_| is_wanted).map_or_else(Vec::new, |rules| {
        rules.lists.into_iter().map(|one| (one.name, one.version, one.digest)).collect()
    })
}

/// Whether two decisions read the same versions.
pub(super) fn read_alike(one: &DecisionRecord, other: &DecisionRecord) -> bool {
    read_by(one) == read_by(other)
}

fn read_by(decision: &DecisionRecord) -> &[ListRead] {
    decision.rules.as_ref().map_or(&[], |rules| rules.lists.as_slice())
}

// === impl RecordedLists ===

impl RecordedLists {
    /// Counts decisions that read the same versions.
    pub(super) fn count<'a>(&mut self, alike: impl Iterator<Item = &'a DecisionRecord>) {
        let mut alike = alike.peekable();
        let Some(read) = alike.peek().map(|&first| read_by(first)).filter(|read| !read.is_empty()) else {
            return;
        };
        let (count, first, last) = alike.fold((0, i64::MAX, i64::MIN), |(count, first, last), decision| {
            (count + 1, first.min(decision.decided_at_us), last.max(decision.decided_at_us))
        });
        for one in read {
            let version = (one.name.clone(), one.version, one.digest.clone());
            let known = self.uses.entry(version).or_insert((0, i64::MAX, i64::MIN));
            *known = (known.0 + count, known.1.min(first), known.2.max(last));
        }
    }

    /// Returns the versions that decisions read, with their decisions.
    pub(super) fn uses(&self) -> impl Iterator<Item = (&Version, &Use)> {
        self.uses.iter()
    }

    /// Returns the contents of the external lists of rules as a decision read them; `None` if decisions are evaluated
    /// with the lists of the rule set, or the rules have no external lists.
    ///
    /// # Errors
    /// The decision does not record a list of the rules, or its version is not stored or does not load.
    pub(super) fn of(&mut self, rules: &Rules, decision: &DecisionRecord) -> Result<Option<&Lists>, Failure> {
        let Some(stored) = &self.stored else { return Ok(None) };
        if rules.external().is_empty() {
            return Ok(None);
        }
        let mut read = Vec::with_capacity(rules.external().len());
        for list in rules.external() {
            let recorded = read_by(decision).iter().find(|one| one.name == list.name);
            read.push(recorded.cloned().ok_or_else(|| unrecorded(&list.name, &decision.decision_id))?);
        }
        if let Some(at) = self.loaded.iter().position(|(known, _)| *known == read) {
            return Ok(self.loaded.get(at).map(|(_, lists)| lists));
        }
        let mut versions = BTreeMap::new();
        for one in read.iter().filter(|one| one.version > 0) {
            let directory =
                stored.get(&hex(&one.digest)).ok_or_else(|| absent(one, &decision.decision_id))?;
            versions.insert(one.name.clone(), directory.clone());
        }
        if self.loaded.len() >= LOADED {
            // Before the next one is loaded, so that no more are in memory.
            self.loaded.pop_front();
        }
        let lists = scorer_server::with_versions(rules, &versions)?;
        self.loaded.push_back((read, lists));
        Ok(self.loaded.back().map(|(_, lists)| lists))
    }
}

fn unrecorded(list: &str, decision: &str) -> Failure {
    Failure::replay(format!(
        "decision {decision:?} does not record a version of list {list:?}, because the rules of its bundle did not \
         declare it; give the list as a file, or begin the period after that"
    ))
}

fn absent(list: &ListRead, decision: &str) -> Failure {
    Failure::replay(format!(
        "decision {decision:?} was made with version {} of list {:?}, which the registry does not have; begin the \
         period after that version, or evaluate with another one",
        list.version, list.name
    ))
}
