//! Reserves the exposure of a static answer before it is given.

use std::time::Instant;

use super::RequestContext;
use super::evaluate::Failed;
use crate::bundles::Loaded;
use crate::config::FallbackConfig;
use crate::reason::Reason;
use crate::rejection::Rejection;

/// Returns the static answer and its reason: the fallback or, beyond its exposure caps, the stricter answer. `allowed`
/// states whether the request allows an answer.
///
/// # Errors
/// Fails if no static answer is configured or allowed.
pub(crate) fn reserve<'a>(
    context: RequestContext<'a>,
    loaded: &Loaded,
    row: &[f32],
    failed: Failed,
    allowed: impl Fn(&FallbackConfig) -> bool,
) -> Result<(&'a FallbackConfig, Reason), Rejection> {
    let RequestContext { engine, checkpoint, .. } = context;
    let Some(fallback) = checkpoint.fallback.as_ref().filter(|answer| allowed(answer)) else {
        return Err(failed.rejection(engine, checkpoint));
    };
    let Some(exposure) = &checkpoint.exposure else { return Ok((fallback, failed.reason)) };
    let now = engine.admission.nanos(Instant::now());
    match exposure.caps.reserve(now, exposure.amount_of(loaded, row)) {
        Ok(()) => Ok((fallback, failed.reason)),
        Err(cap) => {
            engine.counters.checkpoint(checkpoint.index).capped(cap);
            let beyond = exposure.beyond().filter(|answer| allowed(answer));
            beyond.map(|answer| (answer, Reason::Cap)).ok_or(Rejection::Capped)
        }
    }
}
