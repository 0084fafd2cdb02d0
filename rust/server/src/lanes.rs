//! Lanes: which bundle answers which share of a checkpoint's traffic.
//!
//! The table is immutable and replaced as a whole. A request loads it once and takes everything from it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use scorer_core::bundle::Digest;
use scorer_core::policy::unit;
use serde::{Deserialize, Serialize};

use crate::bundles::{Loaded, Store};
use crate::config::{CapsConfig, CheckpointConfig, FallbackConfig, Role, ServerConfig};
use crate::error::SwapError;
use crate::observe::{self, ObserveLane, Watched};

/// How far the shares may be from 1 in sum.
const TOLERANCE: f64 = 1e-6;
/// Longest lane name, bytes; it stands in every decision.
const MAX_NAME: usize = 64;
/// The lane that answers from the previous bundle.
const PREVIOUS: &str = "previous";
/// The key of the lane draw: fixed, so that replicas and restarts send one shopper down one lane, and
/// another than any policy's salt, so that lane and action are drawn independently.
const KEY: &[u8; 16] = b"scorer/lane-draw";

/// A lane table as the control plane gives it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LaneTable {
    /// Higher than that of every table before.
    pub version: u64,
    /// Every configured checkpoint with its lanes; empty or null where it has no bundle yet.
    pub checkpoints: BTreeMap<String, Option<Vec<Lane>>>,
    /// The bundle that answered each checkpoint before, kept loaded: what to fall back to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub previous: BTreeMap<String, String>,
    /// Who observes what is answered at each checkpoint. Apart from the answer lanes in everything but their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observe: BTreeMap<String, Vec<ObserveLane>>,
}

/// One lane.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Unique at its checkpoint.
    pub name: String,
    /// `sha256:<hex>` of a loaded bundle.
    pub bundle: String,
    /// Share of traffic, 0 to 1.
    pub share: f64,
}

/// A checked table with its bundles: what requests read.
pub(crate) struct LanesInForce {
    pub(crate) version: u64,
    /// By the checkpoint's index.
    checkpoints: Box<[Box<[LaneInForce]>]>,
    /// By the checkpoint's index.
    previous: Box<[Option<LaneInForce>]>,
    observe: observe::Compiled,
}

/// One lane with its bundle.
#[derive(Clone)]
pub(crate) struct LaneInForce {
    pub(crate) loaded: Arc<Loaded>,
    /// What every reply from here has in common.
    pub(crate) source: Arc<Source>,
    pub(crate) share: f64,
    /// Who observes what it answers.
    pub(crate) watched: Option<Arc<Watched>>,
    /// Shares up to and with this lane.
    up_to: f64,
}

/// Where an answer came from; kept with remembered answers, so it holds no forest.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) bundle: Arc<str>,
    pub(crate) lane: String,
    pub(crate) lane_table: u64,
    pub(crate) actions: Arc<[crate::bundles::ActionInfo]>,
}

// === impl LaneTable ===

impl LaneTable {
    /// Reads a table.
    ///
    /// # Errors
    /// [`SwapError::Table`] says what is not as documented.
    pub fn from_json(json: &str) -> Result<LaneTable, SwapError> {
        serde_json::from_str(json).map_err(|error| SwapError::Table(error.to_string()))
    }
}

// === impl LanesInForce ===

impl LanesInForce {
    /// Before the first table.
    pub(crate) fn none(checkpoints: usize) -> LanesInForce {
        LanesInForce {
            version: 0,
            checkpoints: (0..checkpoints).map(|_| Box::default()).collect(),
            previous: (0..checkpoints).map(|_| None).collect(),
            observe: (0..checkpoints).map(|_| Box::default()).collect(),
        }
    }

    /// Checks a table against the configuration and the loaded bundles. Observe lanes that the `current` table has as
    /// well are taken over; others come without a thread yet.
    pub(crate) fn compile(
        table: &LaneTable,
        config: &ServerConfig,
        store: &Store,
        current: &LanesInForce,
    ) -> Result<LanesInForce, SwapError> {
        if let Some(checkpoint) =
            table.checkpoints.keys().find(|&name| !config.checkpoints.contains_key(name))
        {
            return Err(SwapError::unknown_checkpoint(checkpoint, config));
        }
        if config.role == Role::Shadow {
            answer_nobody(table)?;
        }
        let mut checkpoints: Box<[Box<[LaneInForce]>]> = config
            .checkpoints
            .iter()
            .map(|(name, checkpoint)| {
                let lanes = table
                    .checkpoints
                    .get(name)
                    .ok_or_else(|| SwapError::LeftOut { checkpoint: name.clone() })?;
                compile(table.version, name, checkpoint, lanes.as_deref().unwrap_or_default(), store)
            })
            .collect::<Result<_, _>>()?;
        let previous =
            config.checkpoints.iter().map(|(name, checkpoint)| previous(table, name, checkpoint, store));
        let mut previous: Box<[Option<LaneInForce>]> = previous.collect();
        let answering = |at: usize| checkpoints[at].iter().map(|lane| &lane.loaded).collect();
        let before = (current.version, &current.observe);
        let observe = observe::compile(table, config, store, before, answering)?;
        for (at, observers) in observe.iter().enumerate() {
            for lane in checkpoints[at].iter_mut().chain(&mut previous[at]) {
                lane.watched = observe::watch(observers, &lane.loaded);
            }
        }
        Ok(LanesInForce { version: table.version, checkpoints, previous, observe })
    }

    /// The bundle before the live one, as a lane without a share: what answers while the live one must not.
    pub(crate) fn previous(&self, checkpoint: usize) -> Option<&LaneInForce> {
        self.previous[checkpoint].as_ref()
    }

    /// The same table with only those previous bundles that `keep` says.
    pub(crate) fn keeping_previous(&self, keep: impl Fn(&Digest) -> bool) -> LanesInForce {
        let kept = |lane: &Option<LaneInForce>| lane.clone().filter(|lane| keep(&lane.loaded.digest));
        LanesInForce {
            version: self.version,
            checkpoints: self.checkpoints.clone(),
            previous: self.previous.iter().map(kept).collect(),
            observe: self.observe.clone(),
        }
    }

    /// A checkpoint's observe lanes.
    pub(crate) fn observers_of(&self, checkpoint: usize) -> &[Arc<observe::Lane>] {
        &self.observe[checkpoint]
    }

    /// Every observe lane.
    pub(crate) fn observers(&self) -> impl Iterator<Item = &Arc<observe::Lane>> {
        self.observe.iter().flatten()
    }

    /// The bundle that answers most of a checkpoint's traffic.
    pub(crate) fn main(&self, checkpoint: usize) -> Option<&Arc<Loaded>> {
        let lanes = self.of(checkpoint).iter();
        lanes.max_by(|one, other| one.share.total_cmp(&other.share)).map(|lane| &lane.loaded)
    }

    /// Whether a bundle answers at a checkpoint.
    pub(crate) fn has(&self, checkpoint: usize, digest: &Digest) -> bool {
        self.of(checkpoint).iter().any(|lane| lane.loaded.digest == *digest)
    }

    /// A checkpoint's lanes; empty if it has no bundle yet.
    pub(crate) fn of(&self, checkpoint: usize) -> &[LaneInForce] {
        &self.checkpoints[checkpoint]
    }

    /// Whether both send the same traffic to the same bundles, whatever their versions.
    pub(crate) fn same_as(&self, other: &LanesInForce) -> bool {
        let lanes = |table: &LanesInForce| -> Vec<_> {
            let lane =
                |(at, it): (usize, &LaneInForce)| (at, it.source.lane.clone(), it.loaded.digest, it.share);
            table.all().map(lane).collect()
        };
        // Observe lanes that stay as they are stay the same in memory.
        let observe = self.observers().map(Arc::as_ptr).eq(other.observers().map(Arc::as_ptr));
        lanes(self) == lanes(other) && observe
    }

    /// Whether both offer the same bundles from before.
    pub(crate) fn same_previous(&self, other: &LanesInForce) -> bool {
        let digest = |lane: &Option<LaneInForce>| lane.as_ref().map(|lane| lane.loaded.digest);
        self.previous.iter().map(digest).eq(other.previous.iter().map(digest))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &LaneInForce)> {
        self.checkpoints.iter().enumerate().flat_map(|(at, lanes)| lanes.iter().map(move |lane| (at, lane)))
    }
}

/// A shadow pool has no lanes that answer.
fn answer_nobody(table: &LaneTable) -> Result<(), SwapError> {
    let mut all =
        table.checkpoints.iter().flat_map(|(name, lanes)| lanes.iter().flatten().map(move |it| (name, it)));
    match all.next() {
        None => Ok(()),
        Some((checkpoint, lane)) => Err(SwapError::Lane {
            checkpoint: checkpoint.clone(),
            lane: lane.name.clone(),
            reason: "the server is a shadow pool and answers nobody; give lanes that answer to a live server"
                .to_owned(),
        }),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!("a name is 1 to {MAX_NAME} printable characters; rename it"));
    }
    Ok(())
}

fn compile(
    version: u64,
    checkpoint: &str,
    config: &CheckpointConfig,
    lanes: &[Lane],
    store: &Store,
) -> Result<Box<[LaneInForce]>, SwapError> {
    let mut names = HashSet::new();
    let mut up_to = 0.0;
    let mut compiled = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let refuse = |reason: String| SwapError::Lane {
            checkpoint: checkpoint.to_owned(),
            lane: lane.name.clone(),
            reason,
        };
        check_name(&lane.name).map_err(refuse)?;
        if !names.insert(&lane.name) {
            return Err(refuse("the name occurs twice; rename one".to_owned()));
        }
        if !(0.0..=1.0).contains(&lane.share) {
            return Err(refuse(format!("share {} is not between 0 and 1", lane.share)));
        }
        let digest: Digest = lane.bundle.parse().map_err(|error| refuse(format!("bundle {error}")))?;
        let loaded = store
            .get(&digest)
            .ok_or_else(|| refuse(format!("bundle {digest} is not loaded; load it first")))?;
        check_fit(config, &loaded).map_err(refuse)?;
        up_to += lane.share;
        let source = Arc::new(Source {
            bundle: Arc::clone(&loaded.digest_text),
            lane: lane.name.clone(),
            lane_table: version,
            actions: Arc::clone(&loaded.actions),
        });
        compiled.push(LaneInForce { loaded, source, share: lane.share, watched: None, up_to });
    }
    if !lanes.is_empty() && (up_to - 1.0).abs() > TOLERANCE {
        return Err(SwapError::Shares { checkpoint: checkpoint.to_owned(), sum: up_to });
    }
    Ok(compiled.into())
}

/// The previous bundle, if it is in memory and still fits: it is an offer, not a promise.
fn previous(
    table: &LaneTable,
    checkpoint: &str,
    config: &CheckpointConfig,
    store: &Store,
) -> Option<LaneInForce> {
    let loaded = store.get(&table.previous.get(checkpoint)?.parse().ok()?)?;
    check_fit(config, &loaded).ok()?;
    let source = Arc::new(Source {
        bundle: Arc::clone(&loaded.digest_text),
        lane: PREVIOUS.to_owned(),
        lane_table: table.version,
        actions: Arc::clone(&loaded.actions),
    });
    Some(LaneInForce { loaded, source, share: 0.0, watched: None, up_to: 0.0 })
}

/// Whether a bundle can answer at a checkpoint, its fallback included.
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

/// Stage 5 draws the lane: `by` is the entity, or the decision's id without one.
pub(crate) fn draw<'a>(lanes: &'a [LaneInForce], checkpoint: &str, by: &str) -> Option<&'a LaneInForce> {
    if let [only] = lanes {
        return Some(only);
    }
    let point = unit(KEY, &[b"lane", checkpoint.as_bytes(), by.as_bytes()]);
    let with_share = || lanes.iter().filter(|lane| lane.share > 0.0);
    // The sum may fall short of 1 by a rounding error: the last lane takes what is left.
    with_share().find(|lane| point < lane.up_to).or_else(|| with_share().next_back())
}
