//! The active lanes: a validated lane table with its bundles. It is immutable and replaced as a whole. A request loads
//! it once and uses it until its end.

use std::collections::HashSet;
use std::sync::Arc;

use scorer_core::bundle::{Digest, FunctionSet};

use super::table::{Lane, LaneTable, check_name};
use crate::answered::{Answered, Outcome};
use crate::bundles::{ActionInfo, Loaded, Store};
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::computed::Origins;
use crate::config::{CapsConfig, CheckpointConfig, FallbackConfig};
use crate::error::SwapError;
use crate::reason::Reason;
use crate::timings::Timings;

/// Tolerance of the sum of the shares, which must be 1.
const TOLERANCE: f64 = 1e-6;
/// The lane that answers from the previous bundle.
const PREVIOUS: &str = "previous";

/// The lanes that answer, and the previous bundles that may take over.
pub struct ActiveLanes {
    /// The table's revision.
    pub version: u64,
    /// The lanes of each checkpoint, by its index.
    checkpoints: Box<[Box<[ActiveLane]>]>,
    /// The previous bundle of each checkpoint, by its index.
    previous: Box<[Option<ActiveLane>]>,
}

/// One lane with its bundle.
#[derive(Clone)]
pub struct ActiveLane {
    /// The bundle.
    pub loaded: Arc<Loaded>,
    /// The part that all replies of the lane have in common.
    pub source: Arc<Source>,
    /// Share of the traffic, from 0 to 1.
    pub share: f64,
    /// Receives the lane's answers.
    pub(crate) sink: Option<Arc<dyn AnswerSink>>,
    /// Sum of the shares up to and including this lane's.
    pub(crate) up_to: f64,
}

/// The source of an answer. Cached answers keep it, so it contains no forest.
#[derive(Debug)]
pub struct Source {
    /// The bundle's digest, `sha256:<hex>`.
    pub bundle: Arc<str>,
    /// The first 8 bytes of the bundle's digest, as in decision tokens.
    pub bundle_prefix: [u8; 8],
    /// Name of the lane.
    pub lane: String,
    /// Revision of the lane table.
    pub lane_table: u64,
    /// The bundle's actions, in the order of the catalogue.
    pub actions: Arc<[ActionInfo]>,
}

/// Receives every answer of a lane on the thread that answers. An implementation must not block, and must not allocate
/// for requests that it does not keep.
pub trait AnswerSink: Send + Sync {
    /// Whether the receiver reads a feature that the answering bundle does not read. A request may then name it.
    fn reads(&self, _feature: &str) -> bool {
        false
    }

    /// Called after each answered request.
    fn answered(&self, answered: &Answered<'_>);
}

// === impl ActiveLanes ===

impl ActiveLanes {
    /// The state before the first table: no lanes.
    pub(crate) fn none(checkpoints: usize) -> ActiveLanes {
        ActiveLanes {
            version: 0,
            checkpoints: (0..checkpoints).map(|_| Box::default()).collect(),
            previous: (0..checkpoints).map(|_| None).collect(),
        }
    }

    /// Checks a table against the checkpoints and the loaded bundles.
    pub(crate) fn compile(
        table: &LaneTable,
        checkpoints: &Checkpoints,
        store: &Store,
    ) -> Result<ActiveLanes, SwapError> {
        if let Some(unknown) = table.checkpoints.keys().find(|name| checkpoints.find(name).is_none()) {
            let known = checkpoints.iter().map(|checkpoint| checkpoint.name.as_str());
            return Err(SwapError::unknown_checkpoint(unknown, known));
        }
        let lanes = checkpoints.iter().map(|checkpoint| {
            let name = &checkpoint.name;
            let lanes =
                table.checkpoints.get(name).ok_or_else(|| SwapError::LeftOut { checkpoint: name.clone() })?;
            compile(table.version, checkpoint, lanes.as_deref().unwrap_or_default(), store)
        });
        let previous = checkpoints.iter().map(|checkpoint| previous(table, checkpoint, store));
        Ok(ActiveLanes {
            version: table.version,
            checkpoints: lanes.collect::<Result<_, _>>()?,
            previous: previous.collect(),
        })
    }

    /// Sets the sink of every lane, by the checkpoint's index and the bundle that answers.
    pub fn set_sinks(&mut self, sink: impl Fn(usize, &Loaded) -> Option<Arc<dyn AnswerSink>>) {
        for (at, (lanes, previous)) in self.checkpoints.iter_mut().zip(&mut self.previous).enumerate() {
            for lane in lanes.iter_mut().chain(previous) {
                lane.sink = sink(at, &lane.loaded);
            }
        }
    }

    /// The previous bundle, as a lane without a share. It answers while the live bundle is out of service.
    #[must_use]
    pub fn previous(&self, checkpoint: usize) -> Option<&ActiveLane> {
        self.previous.get(checkpoint)?.as_ref()
    }

    /// Returns the same lanes with only those previous bundles for which `keep` returns true.
    #[must_use]
    pub fn keeping_previous(&self, keep: impl Fn(&Digest) -> bool) -> ActiveLanes {
        let kept = |lane: &Option<ActiveLane>| lane.clone().filter(|lane| keep(&lane.loaded.digest));
        ActiveLanes {
            version: self.version,
            checkpoints: self.checkpoints.clone(),
            previous: self.previous.iter().map(kept).collect(),
        }
    }

    /// The bundle that answers most of a checkpoint's traffic.
    #[must_use]
    pub fn main(&self, checkpoint: usize) -> Option<&Arc<Loaded>> {
        let lanes = self.of(checkpoint).iter();
        lanes.max_by(|one, other| one.share.total_cmp(&other.share)).map(|lane| &lane.loaded)
    }

    /// Whether a bundle answers at a checkpoint.
    #[must_use]
    pub fn has(&self, checkpoint: usize, digest: &Digest) -> bool {
        self.of(checkpoint).iter().any(|lane| lane.loaded.digest == *digest)
    }

    /// A checkpoint's lanes; empty if it has no bundle yet, or was added after the table was made.
    #[must_use]
    pub fn of(&self, checkpoint: usize) -> &[ActiveLane] {
        self.checkpoints.get(checkpoint).map_or(&[], |lanes| lanes)
    }

    /// Every lane with its checkpoint's index.
    pub fn all(&self) -> impl Iterator<Item = (usize, &ActiveLane)> {
        self.checkpoints.iter().enumerate().flat_map(|(at, lanes)| lanes.iter().map(move |lane| (at, lane)))
    }

    /// Whether both tables send the same traffic to the same bundles. Their versions are ignored.
    #[must_use]
    pub fn same_as(&self, other: &ActiveLanes) -> bool {
        let lanes = |lanes: &ActiveLanes| -> Vec<_> {
            let facts = |(at, lane): (usize, &ActiveLane)| {
                (at, lane.source.lane.clone(), lane.loaded.digest, lane.share)
            };
            lanes.all().map(facts).collect()
        };
        lanes(self) == lanes(other)
    }

    /// Whether both have the same previous bundles.
    #[must_use]
    pub fn same_previous(&self, other: &ActiveLanes) -> bool {
        let digest = |lane: &Option<ActiveLane>| lane.as_ref().map(|lane| lane.loaded.digest);
        self.previous.iter().map(digest).eq(other.previous.iter().map(digest))
    }
}

// === impl ActiveLane ===

impl ActiveLane {
    fn new(loaded: Arc<Loaded>, lane: &str, version: u64, share: f64, up_to: f64) -> ActiveLane {
        let [a, b, c, d, e, f, g, h, ..] = loaded.digest.0;
        let source = Arc::new(Source {
            bundle: Arc::clone(&loaded.digest_text),
            bundle_prefix: [a, b, c, d, e, f, g, h],
            lane: lane.to_owned(),
            lane_table: version,
            actions: Arc::clone(&loaded.actions),
        });
        ActiveLane { loaded, source, share, sink: None, up_to }
    }

    /// Creates a lane that no request is routed to. Requests may name the features that `reads` accepts.
    pub(crate) fn beside(loaded: Arc<Loaded>, version: u64, reads: Arc<dyn AnswerSink>) -> ActiveLane {
        ActiveLane { sink: Some(reads), ..ActiveLane::new(loaded, "", version, 0.0, 0.0) }
    }

    /// Returns a description with the fields that all answers of the lane have in common; the others are empty.
    pub(crate) fn answered(&self, fallback: Option<Reason>) -> Answered<'_> {
        Answered {
            checkpoint: "",
            linked: "",
            lane: &self.source.lane,
            lane_table: self.source.lane_table,
            bundle: &self.loaded.digest.0,
            shape: &self.loaded.shape,
            id: "",
            entity: "",
            row: &[],
            named: &(),
            keys: &(),
            origins: Origins::default(),
            fallback_source: fallback.map_or("", Reason::source),
            fallback_reason: fallback.map_or("", Reason::as_str),
            timings: Timings::default(),
            reasons: &[],
            ruled: None,
            faulted: FunctionSet::default(),
            outcome: Outcome::Score { margin: 0.0, score: 0.0, label: "" },
        }
    }

    /// Whether an observer of the lane reads a feature that the lane's bundle does not read.
    #[must_use]
    pub fn observers_read(&self, feature: &str) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.reads(feature))
    }
}

fn compile(
    version: u64,
    checkpoint: &Checkpoint,
    lanes: &[Lane],
    store: &Store,
) -> Result<Box<[ActiveLane]>, SwapError> {
    let mut names = HashSet::new();
    let mut up_to = 0.0;
    let mut compiled = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let reject = |reason: String| SwapError::Lane {
            checkpoint: checkpoint.name.clone(),
            lane: lane.name.clone(),
            reason,
        };
        check_name(&lane.name).map_err(reject)?;
        if !names.insert(&lane.name) {
            return Err(reject("the name occurs twice; rename one".to_owned()));
        }
        if !(0.0..=1.0).contains(&lane.share) {
            return Err(reject(format!("share {} is not between 0 and 1", lane.share)));
        }
        let digest: Digest = lane.bundle.parse().map_err(|error| reject(format!("bundle {error}")))?;
        let loaded = store
            .get(&digest)
            .ok_or_else(|| reject(format!("bundle {digest} is not loaded; load it first")))?;
        check_fit(&checkpoint.config, &loaded).map_err(reject)?;
        open_budgets(checkpoint, &loaded);
        up_to += lane.share;
        compiled.push(ActiveLane::new(loaded, &lane.name, version, lane.share, up_to));
    }
    if !lanes.is_empty() && (up_to - 1.0).abs() > TOLERANCE {
        return Err(SwapError::Shares { checkpoint: checkpoint.name.clone(), sum: up_to });
    }
    Ok(compiled.into())
}

/// Returns the previous bundle, if it is in memory and can answer at the checkpoint. A table is valid without it.
fn previous(table: &LaneTable, checkpoint: &Checkpoint, store: &Store) -> Option<ActiveLane> {
    let loaded = store.get(&table.previous.get(&checkpoint.name)?.parse().ok()?)?;
    check_fit(&checkpoint.config, &loaded).ok()?;
    open_budgets(checkpoint, &loaded);
    Some(ActiveLane::new(loaded, PREVIOUS, table.version, 0.0, 0.0))
}

/// Begins to count the daily budgets of the bundle's rules before it answers.
fn open_budgets(checkpoint: &Checkpoint, loaded: &Loaded) {
    if let Some(rules) = loaded.bundle.rules() {
        checkpoint.budgets.open(rules);
    }
}

/// Checks that a bundle can answer at a checkpoint, including its static answers and caps.
fn check_fit(config: &CheckpointConfig, loaded: &Loaded) -> Result<(), String> {
    if loaded.kind != config.kind {
        return Err(format!(
            "bundle {} is of kind {}, the checkpoint of kind {}; use a bundle of the checkpoint's kind",
            loaded.digest_text,
            loaded.kind.as_str(),
            config.kind.as_str()
        ));
    }
    let caps = config.caps.as_ref();
    let answers = [("fallback", config.fallback.as_ref()), ("on_cap", caps.and_then(CapsConfig::answer))];
    for (what, answer) in answers {
        if let Some(FallbackConfig::Action { action }) = answer
            && loaded.bundle.catalogue().index_of(action).is_none()
        {
            return Err(format!(
                "the checkpoint's {what} action {action:?} is not in the catalogue of bundle {}; correct it",
                loaded.digest_text
            ));
        }
    }
    match caps.and_then(|caps| caps.amount_feature.as_deref()) {
        Some(amount) if loaded.bundle.schema().index_of(amount).is_none() => Err(format!(
            "the checkpoint's caps: amount_feature {amount:?} is not a feature of bundle {}; correct it",
            loaded.digest_text
        )),
        Some(_) | None => Ok(()),
    }
}
