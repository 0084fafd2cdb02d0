//! Stage 7: which actions may be chosen, and what is answered when the model cannot.

use scorer_core::bundle::{ScoreOut, SelectOut};
use scorer_core::policy::Mask;
use scorer_proto::v1::EligibleActions;

use crate::bundles::Loaded;
use crate::config::FallbackConfig;
use crate::metrics::Reason;
use crate::refusal::{Refusal, shortened};

/// In place of a band: the fallback.
pub(crate) const STATIC: usize = usize::MAX;
/// In place of a band: the answer beyond the exposure caps.
pub(crate) const BEYOND: usize = usize::MAX - 1;

/// Reads the eligible set into `mask`, which covers the bundle's catalogue.
pub(crate) fn eligible(
    given: Option<&EligibleActions>,
    loaded: &Loaded,
    mask: &mut Mask,
) -> Result<(), Refusal> {
    let Some(EligibleActions { ids, mask: bits }) = given else {
        mask.fill();
        return Ok(());
    };
    match (ids.is_empty(), bits.is_empty()) {
        (true, true) => Err(Refusal::NothingEligible),
        (false, false) => Err(Refusal::BothForms),
        (true, false) => {
            mask.read(bits)?;
            if mask.is_empty() { Err(Refusal::EmptyMask) } else { Ok(()) }
        }
        (false, true) => by_id(ids, loaded, mask),
    }
}

fn by_id(ids: &[String], loaded: &Loaded, mask: &mut Mask) -> Result<(), Refusal> {
    let catalogue = loaded.bundle.catalogue();
    if ids.len() > catalogue.len() {
        return Err(Refusal::TooManyActions {
            got: ids.len(),
            actions: catalogue.len(),
            bundle: loaded.digest_text.to_string(),
        });
    }
    mask.clear();
    for id in ids {
        let Some(index) = catalogue.index_of(id) else {
            return Err(Refusal::UnknownAction {
                id: shortened(id),
                bundle: loaded.digest_text.to_string(),
                actions: catalogue.len(),
            });
        };
        if !mask.insert(index) {
            return Err(Refusal::RepeatedAction { id: shortened(id) });
        }
    }
    Ok(())
}

/// A static score. Its margin is 0: there is none. Its band tells which static answer it is.
pub(crate) fn static_score(answer: &FallbackConfig, reason: Reason) -> Option<ScoreOut> {
    let band = if reason == Reason::Cap { BEYOND } else { STATIC };
    match *answer {
        FallbackConfig::Score { score, .. } => Some(ScoreOut { margin: 0.0, score, band }),
        FallbackConfig::Action { .. } => None,
    }
}

/// A static action, if this request allows it. Nothing is expected of it.
pub(crate) fn static_action(answer: &FallbackConfig, loaded: &Loaded, eligible: &Mask) -> Option<SelectOut> {
    match answer {
        FallbackConfig::Action { action } => loaded
            .bundle
            .catalogue()
            .index_of(action)
            .filter(|&index| eligible.contains(index))
            .map(|index| SelectOut { index, propensity: 1.0, expected_reward: 0.0 }),
        FallbackConfig::Score { .. } => None,
    }
}
