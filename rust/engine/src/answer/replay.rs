//! Stage `replay`: answers a retry from the idempotency cache.

use std::sync::atomic::Ordering::Relaxed;

use super::RequestContext;
use super::sequence::{self, Decision};
use crate::idempotency::{Claimed, ContentDiffers};
use crate::query::Features;
use crate::rejection::Rejection;

/// Returns the answer for an id, and whether it comes from the cache.
pub(super) async fn once<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
) -> Result<(D::Answer, bool), <D::Features as Features>::Error> {
    let RequestContext { engine, arrival, checkpoint, id, entity, .. } = context;
    let cache = D::cache(engine);
    let mut content = cache.hasher();
    content.bytes(entity.as_bytes());
    decision.query().features.hash(&mut content);
    decision.hash(&mut content);
    let key = cache.key(arrival.principal, checkpoint.index, id);
    let differs = |ContentDiffers| Rejection::ContentDiffers { checkpoint: checkpoint.name.clone() };
    match cache.claim(key, content.finish()).await.map_err(differs)? {
        Claimed::Mine(claim) => {
            let answer = sequence::decide(context, decision).await?;
            claim.finish(&answer);
            Ok((answer, false))
        }
        Claimed::Answered(answer) => {
            engine.counters.replays.fetch_add(1, Relaxed);
            Ok((answer, true))
        }
    }
}
