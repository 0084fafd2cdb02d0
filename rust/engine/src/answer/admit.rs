//! Stage `admit`: admission of an evaluation, whose checkpoint, bundle and rows are known.

use std::time::Instant;

use scorer_admission::Shed;

use super::RequestContext;
use super::evaluate::Failed;
use super::route::about;
use crate::bundles::Loaded;
use crate::gate::AdmissionPermit;
use crate::reason::Reason;
use crate::stages::Stage;

/// Requests admission for the evaluation of `rows` rows with this bundle, and counts requests that are or would be
/// shed.
pub(crate) fn rows(
    context: RequestContext<'_>,
    loaded: &Loaded,
    rows: u32,
    now: Instant,
) -> Result<AdmissionPermit, Shed> {
    let RequestContext { engine, arrival, checkpoint, id, entity, .. } = context;
    let _timed = arrival.measure(Stage::Admit);
    let counters = engine.counters.checkpoint(checkpoint.index);
    let asked = engine.admission.ask(now, arrival, checkpoint.index, about(entity, id), loaded, rows);
    match &asked {
        Ok(permit) => {
            if let Some(reason) = permit.would_shed() {
                counters.would_shed(reason);
            }
        }
        Err(shed) => counters.shed(shed.reason),
    }
    asked
}

/// Returns the permit to evaluate one row, or the reason why the model does not answer. `instead` is the result of
/// routing.
pub(crate) fn single(
    context: RequestContext<'_>,
    loaded: &Loaded,
    instead: Option<Reason>,
    now: Instant,
) -> Result<AdmissionPermit, Failed> {
    if instead == Some(Reason::Breaker) {
        return Err(Failed::out_of_service(loaded));
    }
    rows(context, loaded, 1, now).map_err(|shed| Failed::shed(&shed))
}
