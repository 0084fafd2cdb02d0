//! The observe lanes of a lane table. They are checked completely; lanes that did not change are kept.

use std::collections::HashSet;
use std::sync::Arc;

use scorer_core::bundle::Digest;
use scorer_core::schema::MAX_FEATURES;
use scorer_engine::{
    ActiveLanes, CheckpointConfig, Checkpoints, LaneTable, Loaded, ObserveLane, Store, SwapError, check_name,
};

use crate::filter::{self, Rules as _};
use crate::lane::Lane;

/// Where the lanes of a table are evaluated.
pub(crate) struct Place<'a> {
    pub(crate) checkpoints: &'a Checkpoints,
    pub(crate) store: &'a Store,
    /// Number of requests that may wait for one lane.
    pub(crate) queue: usize,
    /// Whether this server sends to a shadow pool.
    pub(crate) has_pool: bool,
    /// Whether this server is a shadow pool, so that lanes of the pool are evaluated here.
    pub(crate) is_pool: bool,
}

/// The observe lanes of a table, by the checkpoint's index.
pub struct ObserveLanes {
    version: u64,
    by_checkpoint: Box<[Box<[Arc<Lane>]>]>,
}

// === impl ObserveLanes ===

impl ObserveLanes {
    /// The state before the first table: no lanes.
    pub(crate) fn none(checkpoints: usize) -> ObserveLanes {
        ObserveLanes { version: 0, by_checkpoint: (0..checkpoints).map(|_| Box::default()).collect() }
    }

    /// A checkpoint's lanes; none if it was added after the table was made.
    #[must_use]
    pub fn of(&self, checkpoint: usize) -> &[Arc<Lane>] {
        self.by_checkpoint.get(checkpoint).map_or(&[], |lanes| lanes)
    }

    /// Every lane.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.by_checkpoint.iter().flatten()
    }

    /// Whether both have the same lanes. They are compared by address, because unchanged lanes are kept.
    #[must_use]
    pub fn same_as(&self, other: &ObserveLanes) -> bool {
        self.all().map(Arc::as_ptr).eq(other.all().map(Arc::as_ptr))
    }

    /// Checks and compiles the observe lanes of a table. Active lanes that did not change are kept; new lanes have no
    /// thread yet.
    ///
    /// `answering` are the answer lanes of the new table. At least one of their bundles must have the features and
    /// values of each filter, unless the lane is kept or no table was active, because answering bundles may be
    /// replaced, and a server restarted, while a lane observes.
    pub(crate) fn compile(
        table: &LaneTable,
        place: &Place<'_>,
        before: &ObserveLanes,
        answering: &ActiveLanes,
    ) -> Result<ObserveLanes, SwapError> {
        let Place { checkpoints, queue, .. } = *place;
        if let Some(unknown) = table.observe.keys().find(|name| checkpoints.find(name).is_none()) {
            let known = checkpoints.iter().map(|checkpoint| checkpoint.name.as_str());
            return Err(SwapError::unknown_checkpoint(unknown, known));
        }
        let compile = |checkpoint: &scorer_engine::Checkpoint| {
            let name = &checkpoint.name;
            let observe = table.observe.get(name).map_or(&[][..], Vec::as_slice);
            let answer = table.checkpoints.get(name).and_then(Option::as_deref).unwrap_or_default();
            let mut names: HashSet<&str> = answer.iter().map(|lane| lane.name.as_str()).collect();
            let mut compiled = Vec::with_capacity(observe.len());
            for lane in observe {
                let reject = |reason: String| SwapError::Lane {
                    checkpoint: name.clone(),
                    lane: lane.name.clone(),
                    reason,
                };
                if !names.insert(&lane.name) {
                    let answers = answer.iter().any(|other| other.name == lane.name);
                    let by = if answers { "an answer lane has this name" } else { "the name occurs twice" };
                    return Err(reject(format!("{by}; rename the observe lane")));
                }
                if let Some(known) = before.of(checkpoint.index).iter().find(|known| known.is(name, lane)) {
                    compiled.push(Arc::clone(known));
                    continue;
                }
                let lanes = if before.version == 0 { &[] } else { answering.of(checkpoint.index) };
                let bundles: Vec<_> = lanes.iter().map(|lane| &*lane.loaded).collect();
                let made = check(lane, place, &checkpoint.config, &bundles)
                    .map(|evaluated| match evaluated {
                        Evaluated::Here(loaded) => Lane::here(name, lane, loaded, queue),
                        Evaluated::InPool(digest) => Lane::in_pool(name, lane, digest),
                    })
                    .map_err(reject)?;
                compiled.push(Arc::new(made));
            }
            Ok(compiled.into())
        };
        Ok(ObserveLanes {
            version: table.version,
            by_checkpoint: checkpoints.iter().map(compile).collect::<Result<_, _>>()?,
        })
    }
}

/// Where a lane is evaluated.
enum Evaluated {
    Here(Arc<Loaded>),
    InPool(Digest),
}

fn check(
    lane: &ObserveLane,
    place: &Place<'_>,
    checkpoint: &CheckpointConfig,
    answering: &[&Loaded],
) -> Result<Evaluated, String> {
    check_name(&lane.name)?;
    if !(lane.sample > 0.0 && lane.sample <= 1.0) {
        return Err(format!(
            "sample {} is not above 0 and at most 1; give the share to observe",
            lane.sample
        ));
    }
    filter::check(&lane.filter)?;
    if lane.reads.len() > MAX_FEATURES {
        return Err(format!("it reads {} features, at most {MAX_FEATURES} are allowed", lane.reads.len()));
    }
    for condition in &lane.filter {
        let mut verdicts = answering.iter().map(|loaded| condition.check_against(loaded.bundle.schema()));
        if let Some(first) = verdicts.next()
            && first.is_err()
            && !verdicts.any(|verdict| verdict.is_ok())
        {
            first?;
        }
    }
    let digest: Digest = lane.bundle.parse().map_err(|error| format!("bundle {error}"))?;
    if lane.pool && !place.is_pool {
        if !place.has_pool {
            return Err("it is in the shadow pool, and this server has none; set shadow_pool".to_owned());
        }
        return Ok(Evaluated::InPool(digest));
    }
    let loaded =
        place.store.get(&digest).ok_or_else(|| format!("bundle {digest} is not loaded; load it first"))?;
    if loaded.kind != checkpoint.kind {
        return Err(format!(
            "bundle {digest} is of kind {}, the checkpoint of kind {}; observe with a bundle of the checkpoint's kind",
            loaded.kind.as_str(),
            checkpoint.kind.as_str()
        ));
    }
    Ok(Evaluated::Here(loaded))
}
