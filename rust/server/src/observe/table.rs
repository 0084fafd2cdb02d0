//! The observe lanes of a lane table: checked completely, and kept where they are what they were.

use std::collections::HashSet;
use std::sync::Arc;

use scorer_core::bundle::Digest;
use scorer_core::schema::MAX_FEATURES;
use serde::{Deserialize, Serialize};

use super::filter::{self, Condition};
use super::lane::Lane;
use super::mapping::Shape;
use super::watch::Watched;
use crate::bundles::{Loaded, Store};
use crate::config::{CheckpointConfig, Role, ServerConfig};
use crate::error::SwapError;
use crate::lanes::{LaneTable, check_name};

/// One observe lane as the control plane gives it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ObserveLane {
    /// Unique at its checkpoint, answer lanes included.
    pub name: String,
    /// `sha256:<hex>` of a bundle: loaded, unless it is in the pool.
    pub bundle: String,
    /// Share of the checkpoint's requests that it observes, above 0, to 1.
    pub sample: f64,
    /// Which of them; all conditions must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Condition>,
    /// It is evaluated by the shadow pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// For a lane of the pool, whose bundle is not here: the features that it reads. Requests may name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<String>,
}

/// The observe lanes by checkpoint.
pub(crate) type Compiled = Box<[Box<[Arc<Lane>]>]>;

/// Checks the observe lanes of a table. Those that the table in force has as well are taken over as they are.
///
/// `answering` gives the bundles that answer at a checkpoint by the new table. A filter has to mean something to one
/// of them, unless the lane is taken over or nothing was in force: what answers may be replaced, and a server
/// started again, whoever observes.
pub(crate) fn compile<'a>(
    table: &LaneTable,
    config: &ServerConfig,
    store: &Store,
    before: (u64, &Compiled),
    answering: impl Fn(usize) -> Vec<&'a Arc<Loaded>>,
) -> Result<Compiled, SwapError> {
    if let Some(checkpoint) = table.observe.keys().find(|&name| !config.checkpoints.contains_key(name)) {
        return Err(SwapError::unknown_checkpoint(checkpoint, config));
    }
    let (version, lanes) = before;
    let checkpoints = config.checkpoints.iter().enumerate();
    checkpoints
        .map(|(at, (name, checkpoint))| {
            let observe = table.observe.get(name).map_or(&[][..], Vec::as_slice);
            let answer = table.checkpoints.get(name).and_then(Option::as_deref).unwrap_or_default();
            let mut names: HashSet<&str> = answer.iter().map(|lane| lane.name.as_str()).collect();
            let mut compiled = Vec::with_capacity(observe.len());
            for lane in observe {
                let refuse = |reason: String| SwapError::Lane {
                    checkpoint: name.clone(),
                    lane: lane.name.clone(),
                    reason,
                };
                if !names.insert(&lane.name) {
                    let answers = answer.iter().any(|it| it.name == lane.name);
                    let by = if answers { "an answer lane has this name" } else { "the name occurs twice" };
                    return Err(refuse(format!("{by}; rename the observe lane")));
                }
                let known = lanes.get(at).and_then(|lanes| lanes.iter().find(|it| it.is(name, lane)));
                if let Some(known) = known {
                    compiled.push(Arc::clone(known));
                    continue;
                }
                let answering = if version == 0 { Vec::new() } else { answering(at) };
                let made = check(lane, config, checkpoint, store, &answering)
                    .map(|found| match found {
                        Found::Here(loaded) => Lane::here(name, lane, loaded, config.observe_queue),
                        Found::Pool(digest) => Lane::in_pool(name, lane, digest),
                    })
                    .map_err(refuse)?;
                compiled.push(Arc::new(made));
            }
            Ok(compiled.into())
        })
        .collect()
}

enum Found {
    Here(Arc<Loaded>),
    Pool(Digest),
}

fn check(
    lane: &ObserveLane,
    config: &ServerConfig,
    checkpoint: &CheckpointConfig,
    store: &Store,
    answering: &[&Arc<Loaded>],
) -> Result<Found, String> {
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
        let mut verdicts = answering.iter().map(|it| condition.check_against(it.bundle.schema()));
        if let Some(first) = verdicts.next()
            && first.is_err()
            && !verdicts.any(|verdict| verdict.is_ok())
        {
            first?;
        }
    }
    let digest: Digest = lane.bundle.parse().map_err(|error| format!("bundle {error}"))?;
    // In the pool itself "in the pool" is here.
    if lane.pool && config.role == Role::Live {
        return match &config.shadow_pool {
            Some(_) => Ok(Found::Pool(digest)),
            None => Err("it is in the shadow pool, and this server has none; set shadow_pool".to_owned()),
        };
    }
    let loaded = store.get(&digest).ok_or_else(|| format!("bundle {digest} is not loaded; load it first"))?;
    if loaded.kind != checkpoint.kind {
        return Err(format!(
            "bundle {digest} is of kind {}, the checkpoint of kind {}; observe with a bundle of the checkpoint's kind",
            loaded.kind.as_str(),
            checkpoint.kind.as_str()
        ));
    }
    Ok(Found::Here(loaded))
}

/// Who observes what `loaded` answers; `None` without anybody.
pub(crate) fn watch(lanes: &[Arc<Lane>], loaded: &Loaded) -> Option<Arc<Watched>> {
    if lanes.is_empty() {
        return None;
    }
    let shape = Arc::clone(loaded.shape.get_or_init(|| Arc::new(Shape::of(loaded))));
    Some(Arc::new(Watched::compile(lanes, shape, loaded.bundle.schema())))
}
