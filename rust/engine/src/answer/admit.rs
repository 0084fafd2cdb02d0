//! Admits an evaluation, now that checkpoint, bundle and rows are known.

use std::time::Instant;

use scorer_admission::Shed;

use super::RequestContext;
use super::evaluate::Failed;
use super::route::about;
use crate::bundles::Loaded;
use crate::gate::AdmissionPermit;
use crate::reason::Reason;

/// Asks for the evaluation of `rows` rows with this bundle; what is shed, or would be, is counted.
pub(crate) fn rows(
    context: RequestContext<'_>,
    loaded: &Loaded,
    rows: u32,
    now: Instant,
) -> Result<AdmissionPermit, Shed> {
    let RequestContext { engine, arrival, checkpoint, id, entity, .. } = context;
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

/// The right to evaluate one row, or why the model does not answer it. `instead` is what routing found.
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
