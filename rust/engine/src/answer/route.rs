//! Stage `route`: draws the lane that answers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use scorer_admission::BreakerState;
use scorer_core::policy::unit;

use super::RequestContext;
use crate::lanes::{ActiveLane, ActiveLanes};
use crate::reason::Reason;
use crate::rejection::Rejection;

/// The key of the lane draw. It is fixed, so that all replicas assign an entity to the same lane also after a restart,
/// and it differs from every policy's salt, so that lane and action are drawn independently.
const KEY: &[u8; 16] = b"scorer/lane-draw";

/// Returns the subject of a decision: the entity, or the decision id without one.
pub(crate) fn about<'a>(entity: &'a str, decision_id: &'a str) -> &'a str {
    if entity.is_empty() { decision_id } else { entity }
}

/// Draws the lane by the subject of the decision, so that an entity stays in one lane.
///
/// # Errors
/// The checkpoint has no lanes.
pub(crate) fn lane<'t>(
    context: RequestContext<'_>,
    table: &'t ActiveLanes,
) -> Result<&'t ActiveLane, Rejection> {
    let RequestContext { checkpoint, id, entity, .. } = context;
    draw(table.of(checkpoint.index), &checkpoint.name, about(entity, id))
        .ok_or_else(|| Rejection::NoBundle { name: checkpoint.name.clone() })
}

/// Returns the lane, or its replacement while the breaker of its bundle is open: the previous bundle if it reads the
/// same features ([`Reason::Previous`]), else none ([`Reason::Breaker`]).
pub(crate) fn in_service<'t>(
    context: RequestContext<'_>,
    table: &'t ActiveLanes,
    lane: &'t ActiveLane,
    now: Instant,
) -> (&'t ActiveLane, Option<Reason>) {
    if lane.loaded.breaker.state() == BreakerState::Closed {
        return (lane, None);
    }
    let RequestContext { engine, checkpoint, id, .. } = context;
    let mut draw = DefaultHasher::new();
    id.hash(&mut draw);
    let (now, draw) = (engine.admission.nanos(now), draw.finish());
    if lane.loaded.breaker.allows(now, draw) {
        return (lane, None);
    }
    let fingerprint = |lane: &ActiveLane| lane.loaded.bundle.schema().fingerprint();
    table
        .previous(checkpoint.index)
        .filter(|before| {
            before.loaded.serial != lane.loaded.serial && fingerprint(before) == fingerprint(lane)
        })
        .filter(|before| before.loaded.breaker.allows(now, draw))
        .map_or((lane, Some(Reason::Breaker)), |previous| (previous, Some(Reason::Previous)))
}

fn draw<'t>(lanes: &'t [ActiveLane], checkpoint: &str, by: &str) -> Option<&'t ActiveLane> {
    if let [only] = lanes {
        return Some(only);
    }
    let point = unit(KEY, &[b"lane", checkpoint.as_bytes(), by.as_bytes()]);
    let with_share = || lanes.iter().filter(|lane| lane.share > 0.0);
    // The sum may be below 1 because of rounding. The last lane takes the rest.
    with_share().find(|lane| point < lane.up_to).or_else(|| with_share().next_back())
}
