//! Stage 5: the lane that answers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use scorer_admission::BreakerState;

use crate::lanes::{self, LaneInForce, LanesInForce};
use crate::metrics::Reason;
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// Whom a decision is about: the entity, or the decision itself without one.
pub(crate) fn about<'a>(entity: &'a str, decision_id: &'a str) -> &'a str {
    if entity.is_empty() { decision_id } else { entity }
}

/// Draws the lane by whom the decision is about: a shopper stays in one lane.
pub(crate) fn lane<'a>(
    table: &'a LanesInForce,
    checkpoint: &Checkpoint,
    entity: &str,
    decision_id: &str,
) -> Result<&'a LaneInForce, Refusal> {
    lanes::draw(table.of(checkpoint.index), &checkpoint.name, about(entity, decision_id))
        .ok_or_else(|| Refusal::NoBundle { name: checkpoint.name.clone() })
}

/// The lane itself, or what answers while its bundle's breaker is open: the bundle before it if that reads the
/// same features ([`Reason::Previous`]), else nothing ([`Reason::Breaker`]).
pub(crate) fn in_service<'a>(
    shared: &Shared,
    table: &'a LanesInForce,
    checkpoint: &Checkpoint,
    lane: &'a LaneInForce,
    id: &str,
    now: Instant,
) -> (&'a LaneInForce, Option<Reason>) {
    if lane.loaded.breaker.state() == BreakerState::Closed {
        return (lane, None);
    }
    let mut draw = DefaultHasher::new();
    id.hash(&mut draw);
    let (now, draw) = (shared.admission.nanos(now), draw.finish());
    if lane.loaded.breaker.allows(now, draw) {
        return (lane, None);
    }
    let fingerprint = |lane: &LaneInForce| lane.loaded.bundle.schema().fingerprint();
    table
        .previous(checkpoint.index)
        .filter(|it| it.loaded.serial != lane.loaded.serial && fingerprint(it) == fingerprint(lane))
        .filter(|it| it.loaded.breaker.allows(now, draw))
        .map_or((lane, Some(Reason::Breaker)), |previous| (previous, Some(Reason::Previous)))
}
