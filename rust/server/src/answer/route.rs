//! Stage 5: the lane that answers.

use crate::lanes::{self, LaneInForce, LanesInForce};
use crate::refusal::Refusal;
use crate::state::Checkpoint;

/// Draws the lane by entity, or by the decision's id without one: a shopper stays in one lane.
pub(crate) fn lane<'a>(
    table: &'a LanesInForce,
    checkpoint: &Checkpoint,
    entity: &str,
    decision_id: &str,
) -> Result<&'a LaneInForce, Refusal> {
    let by = if entity.is_empty() { decision_id } else { entity };
    lanes::draw(table.of(checkpoint.index), &checkpoint.name, by)
        .ok_or_else(|| Refusal::NoBundle { name: checkpoint.name.clone() })
}
