//! Stage `decide`: derives the answer from the evaluation or its failure.

use std::sync::Arc;

use scorer_core::bundle::{FunctionSet, ScoreOut, SelectOut};
use scorer_core::policy::Mask;

use super::RequestContext;
use super::evaluate::Failed;
use super::exposure;
use crate::answers::{Band, Score};
use crate::bundles::Loaded;
use crate::checkpoint::Checkpoint;
use crate::config::FallbackConfig;
use crate::exposure::Exposure;
use crate::query::Eligible;
use crate::reason::Reason;
use crate::rejection::Rejection;
use scorer_core::quotable;

/// Returns the model's score, or the checkpoint's static score with the reason.
pub(crate) fn or_static(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    evaluated: Result<ScoreOut, Failed>,
) -> Result<(Score, Option<Reason>), Rejection> {
    match evaluated {
        Ok(ScoreOut { margin, score, band, faulted }) => {
            Ok((Score { margin, score, band: Band::Of(band), faulted }, None))
        }
        Err(failed) => {
            let (score, reason) = static_score(context, loaded, row, failed, |_| true)?;
            Ok((score, Some(reason)))
        }
    }
}

/// Returns the checkpoint's static score with the reason. `allowed` tests the decision of an answer.
pub(crate) fn static_score(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    failed: Failed,
    allowed: impl Fn(&str) -> bool,
) -> Result<(Score, Reason), Rejection> {
    let allowed = |answer: &FallbackConfig| match answer {
        FallbackConfig::Score { decision, .. } => allowed(decision),
        // A fallback of the other kind is not an answer at this checkpoint.
        FallbackConfig::Action { .. } => false,
    };
    let (answer, reason) = exposure::reserve(context, loaded, row, failed, allowed)?;
    let band = if reason == Reason::Cap { Band::BeyondCaps } else { Band::Fallback };
    match *answer {
        FallbackConfig::Score { score, .. } => {
            Ok((Score { margin: 0.0, score, band, faulted: FunctionSet::default() }, reason))
        }
        FallbackConfig::Action { .. } => Err(Rejection::Capped),
    }
}

/// Returns the label of a score.
pub(crate) fn label(checkpoint: &Checkpoint, loaded: &Loaded, band: Band) -> Arc<str> {
    let answer = match band {
        Band::Of(at) => return loaded.labels.get(at).map_or_else(|| "".into(), Arc::clone),
        Band::Fallback => checkpoint.fallback.as_ref(),
        Band::BeyondCaps => checkpoint.exposure.as_ref().and_then(Exposure::beyond),
    };
    match answer {
        Some(FallbackConfig::Score { decision, .. }) => decision.as_str().into(),
        Some(FallbackConfig::Action { .. }) | None => "".into(),
    }
}

/// Returns the configured action if the model cannot answer and the request allows the action. Its expected reward is
/// 0, because no model has estimated it.
pub(crate) fn static_action(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    eligible: &Mask,
    failed: Failed,
) -> Result<(SelectOut, Reason), Rejection> {
    let action = |answer: &FallbackConfig| match answer {
        FallbackConfig::Action { action } => {
            loaded.bundle.catalogue().index_of(action).filter(|&index| eligible.contains(index))
        }
        FallbackConfig::Score { .. } => None,
    };
    let allowed = |answer: &FallbackConfig| action(answer).is_some();
    let (answer, reason) = exposure::reserve(context, loaded, row, failed, allowed)?;
    // The request allows only eligible actions.
    let index = action(answer).ok_or(Rejection::Capped)?;
    let faulted = FunctionSet::default();
    Ok((SelectOut { index, propensity: 1.0, expected_reward: 0.0, faulted }, reason))
}

/// Reads the eligible set into `mask`, which covers the bundle's catalogue.
pub(crate) fn eligible(
    given: Option<Eligible<'_>>,
    loaded: &Loaded,
    mask: &mut Mask,
) -> Result<(), Rejection> {
    let Some(Eligible { ids, mask: bits }) = given else {
        mask.fill();
        return Ok(());
    };
    match (ids.is_empty(), bits.is_empty()) {
        (true, true) => Err(Rejection::NothingEligible),
        (false, false) => Err(Rejection::BothForms),
        (true, false) => {
            mask.read(bits)?;
            if mask.is_empty() { Err(Rejection::EmptyMask) } else { Ok(()) }
        }
        (false, true) => by_id(ids, loaded, mask),
    }
}

fn by_id(ids: &[String], loaded: &Loaded, mask: &mut Mask) -> Result<(), Rejection> {
    let catalogue = loaded.bundle.catalogue();
    if ids.len() > catalogue.len() {
        return Err(Rejection::TooManyActions {
            got: ids.len(),
            actions: catalogue.len(),
            bundle: loaded.digest_text.to_string(),
        });
    }
    mask.clear();
    for id in ids {
        let Some(index) = catalogue.index_of(id) else {
            return Err(Rejection::UnknownAction {
                id: quotable(id),
                bundle: loaded.digest_text.to_string(),
                actions: catalogue.len(),
            });
        };
        if !mask.insert(index) {
            return Err(Rejection::RepeatedAction { id: quotable(id) });
        }
    }
    Ok(())
}
