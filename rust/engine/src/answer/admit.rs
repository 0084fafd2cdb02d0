//! Stage `admit`: admission of an evaluation, whose checkpoint, bundle and rows are known.

use std::time::Instant;

use scorer_admission::Shed;

use super::RequestContext;
use super::evaluate::Failed;
use super::route::about;
use crate::bundles::Loaded;
use crate::counters::CheckpointCounters;
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
    let about = about(entity, id);
    let asked = engine.admission.ask(now, arrival, checkpoint.index, about, loaded, rows, None);
    count(counters, &asked);
    asked
}

fn count(counters: &CheckpointCounters, asked: &Result<AdmissionPermit, Shed>) {
    match asked {
        Ok(permit) => {
            if let Some(reason) = permit.would_shed() {
                counters.would_shed(reason);
            }
        }
        Err(shed) => counters.shed(shed.reason),
    }
}

/// The right to evaluate one row, or the reason why the model does not answer.
pub(crate) type Admitted = Result<AdmissionPermit, Failed>;

/// Requests one admission for both evaluations of a request, and returns the right to each. A bundle that is out of
/// service is not evaluated, and the other one is then admitted alone.
pub(crate) fn both(
    first: (RequestContext<'_>, &Loaded, Option<Reason>),
    second: (RequestContext<'_>, &Loaded, Option<Reason>),
    now: Instant,
) -> (Admitted, Admitted) {
    let out_of_service = |instead| instead == Some(Reason::Breaker);
    if out_of_service(first.2) || out_of_service(second.2) {
        return (single(first.0, first.1, first.2, now), single(second.0, second.1, second.2, now));
    }
    let RequestContext { engine, arrival, checkpoint, id, entity, .. } = first.0;
    let _timed = arrival.measure(Stage::Admit);
    let then = Some((second.0.checkpoint.index, second.1));
    let asked = engine.admission.ask(now, arrival, checkpoint.index, about(entity, id), first.1, 1, then);
    for context in [first.0, second.0] {
        count(engine.counters.checkpoint(context.checkpoint.index), &asked);
    }
    match asked {
        Err(shed) => (Err(Failed::shed(&shed)), Err(Failed::shed(&shed))),
        Ok(mut permit) => {
            let second = permit.split().ok_or_else(Failed::late);
            (Ok(permit), second)
        }
    }
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
