//! The bundle and the actions that an explanation is about.

use std::sync::Arc;

use scorer_core::bundle::Digest;
use scorer_core::quotable;

use crate::answered::Answered;
use crate::bundles::Loaded;
use crate::checkpoint::Checkpoint;
use crate::config::Kind;
use crate::lanes::{ActiveLane, ActiveLanes, AnswerSink};
use crate::rejection::Rejection;

/// The bundles of a checkpoint, whose features a request may name whichever of them is explained.
struct Readers {
    bundles: Vec<Arc<Loaded>>,
    lanes: Vec<ActiveLane>,
}

impl AnswerSink for Readers {
    fn reads(&self, feature: &str) -> bool {
        self.bundles.iter().any(|loaded| loaded.bundle.schema().index_of(feature).is_some())
            || self.lanes.iter().any(|lane| lane.observers_read(feature))
    }

    fn answered(&self, _: &Answered<'_>) {}
}

/// Finds the bundle of this digest among those that answer at the checkpoint, answered before or observe there. Without
/// a digest, it is the one that answers most of the traffic.
///
/// The result is a lane that no request is routed to. It ignores features that only other bundles of the checkpoint
/// read, so that one request can be explained by each of them.
pub(super) fn lane(
    table: &ActiveLanes,
    checkpoint: &Checkpoint,
    wanted: &str,
    observing: &[Arc<Loaded>],
) -> Result<ActiveLane, Rejection> {
    let active = table.of(checkpoint.index);
    let lanes: Vec<ActiveLane> = active.iter().chain(table.previous(checkpoint.index)).cloned().collect();
    let held = || lanes.iter().map(|lane| &lane.loaded).chain(observing);
    let found = if wanted.is_empty() {
        // The same bundle that `Describe` describes: of lanes with equal shares, the first.
        let largest = active.iter().reduce(|best, lane| if lane.share > best.share { lane } else { best });
        let missing = || Rejection::NoBundle { name: checkpoint.name.clone() };
        &largest.ok_or_else(missing)?.loaded
    } else {
        let digest: Digest = wanted.parse().map_err(|_| Rejection::BundleDigest)?;
        let mut fitting = held().filter(|loaded| loaded.kind == checkpoint.kind);
        fitting.find(|loaded| loaded.digest == digest).ok_or_else(|| Rejection::BundleNotHeld {
            bundle: digest.to_string(),
            checkpoint: checkpoint.name.clone(),
        })?
    };
    let found = Arc::clone(found);
    let bundles = held().filter(|other| other.serial != found.serial).cloned().collect();
    Ok(ActiveLane::beside(found, table.version, Arc::new(Readers { bundles, lanes })))
}

/// The actions of an explanation, by their positions in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Actions {
    pub(super) explained: usize,
    pub(super) against: Option<usize>,
}

/// Finds the explained action and the one to compare with; `None` at a checkpoint of kind `score`.
pub(super) fn actions(
    checkpoint: &Checkpoint,
    loaded: &Loaded,
    action: &str,
    against: &str,
) -> Result<Option<Actions>, Rejection> {
    let wrong = |field, rule: String| Rejection::ExplainedAction { field, rule };
    let name = &checkpoint.name;
    if checkpoint.kind == Kind::Score {
        return match [("action", action), ("against", against)].into_iter().find(|(_, id)| !id.is_empty()) {
            None => Ok(None),
            Some((field, _)) => {
                Err(wrong(field, format!("checkpoint {name:?} is of kind score; leave the field out")))
            }
        };
    }
    if action.is_empty() {
        return Err(wrong(
            "action",
            format!("checkpoint {name:?} is of kind action; name an action to explain"),
        ));
    }
    if against == action {
        return Err(wrong("against", "it is the explained action; name another one or none".to_owned()));
    }
    let unknown = |field, id: &str| {
        let (id, bundle, actions) = (quotable(id), &loaded.digest_text, loaded.actions.len());
        let rule = format!(
            "{id:?} is not in the catalogue of bundle {bundle}; call Describe for its {actions} actions"
        );
        wrong(field, rule)
    };
    let index = |field, id: &str| loaded.bundle.catalogue().index_of(id).ok_or_else(|| unknown(field, id));
    let explained = index("action", action)?;
    let against = (!against.is_empty()).then(|| index("against", against)).transpose()?;
    Ok(Some(Actions { explained, against }))
}
