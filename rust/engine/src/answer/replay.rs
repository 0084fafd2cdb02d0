//! Stage `replay`: answers a retry from the idempotency cache.

use std::sync::atomic::Ordering::Relaxed;

use super::RequestContext;
use super::sequence::{self, Decision, Routed};
use crate::idempotency::{Claimed, ContentDiffers, Peeked};
use crate::query::Features;
use crate::rejection::Rejection;

/// Returns the answer for an id, and whether it comes from the cache.
pub(super) async fn once<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    routed: Option<Routed>,
) -> Result<(D::Answer, bool), <D::Features as Features>::Error> {
    let RequestContext { engine, checkpoint, .. } = context;
    let (key, content) = key_and_content(context, decision);
    let differs = |ContentDiffers| Rejection::ContentDiffers { checkpoint: checkpoint.name.clone() };
    match D::cache(engine).claim(key, content).await.map_err(differs)? {
        Claimed::Mine(claim) => {
            let answer = sequence::decide(context, decision, routed).await?;
            claim.finish(&answer);
            Ok((answer, false))
        }
        Claimed::Answered(answer) => {
            engine.counters.replays.fetch_add(1, Relaxed);
            Ok((answer, true))
        }
    }
}

/// Returns whether the cache knows the decision's id.
///
/// # Errors
/// The id was used with other content.
pub(super) fn knows<D: Decision>(context: RequestContext<'_>, decision: &D) -> Result<bool, Rejection> {
    let (key, content) = key_and_content(context, decision);
    match D::cache(context.engine).peek(key, content) {
        Peeked::New => Ok(false),
        Peeked::Same => Ok(true),
        Peeked::ContentDiffers => {
            Err(Rejection::ContentDiffers { checkpoint: context.checkpoint.name.clone() })
        }
    }
}

fn key_and_content<D: Decision>(context: RequestContext<'_>, decision: &D) -> (u128, u128) {
    let RequestContext { engine, arrival, checkpoint, id, entity, .. } = context;
    let cache = D::cache(engine);
    let mut content = cache.hasher();
    content.bytes(entity.as_bytes());
    decision.query().features.hash(&mut content);
    decision.hash(&mut content);
    (cache.key(arrival.principal, checkpoint.index, id), content.finish())
}
