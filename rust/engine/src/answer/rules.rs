//! Applies the bundle's rules: to the decision of a score, and to the eligible actions before a selection.

use scorer_core::bundle::{EvalScratch, RuledScore};
use scorer_core::policy::Mask;
use scorer_rules::Request;

use super::RequestContext;
use super::evaluate::{BundleMemory, Failed};
use crate::answers::{Band, Score};
use crate::bundles::{Loaded, Ruled};
use crate::engine::Engine;
use crate::rejection::Rejection;

/// Applies the rules to a score that the model or a fallback gave, and changes its band. They do not change the score.
///
/// The rules do not see the score of a fallback, and can only make its decision stricter: with a fallback of unknown
/// strictness, whose decision is not the label of a band, they change nothing.
///
/// # Errors
/// Fails if the memory belongs to another bundle, which is a defect of the server.
pub(crate) fn of_score(
    context: RequestContext<'_>,
    loaded: &Loaded,
    id: &str,
    row: &[f32],
    eval: &mut EvalScratch,
    score: &mut Score,
) -> Result<Option<Ruled>, Rejection> {
    if loaded.bundle.rules().is_none() {
        return Ok(None);
    }
    let of_model = match score.band {
        Band::Of(_) => Some(score.score),
        Band::Fallback | Band::BeyondCaps => None,
    };
    apply(context.engine, loaded, id, row, of_model, eval)?;
    let Some(RuledScore { score: within, band }) = loaded.bundle.ruled_score(score.score, eval) else {
        return Ok(None);
    };
    match score.band {
        Band::Of(_) => score.band = Band::Of(band),
        Band::Fallback | Band::BeyondCaps => {
            let label = super::decide::label(context.checkpoint, loaded, score.band);
            let given = loaded.labels.iter().position(|known| *known == label);
            let changed = changes(loaded, within, score.score, eval);
            if changed && given.is_some_and(|given| band > given) {
                score.band = Band::Of(band);
            }
        }
    }
    Ok(counted(loaded, eval, within))
}

/// Whether rules wrote a decision or moved the score of a fallback.
fn changes(loaded: &Loaded, within: f64, score: f64, eval: &EvalScratch) -> bool {
    let written = |ruling| loaded.bundle.rules().and_then(|rules| rules.band(ruling)).is_some();
    within != score || eval.ruling().is_some_and(written)
}

/// Removes the actions that the rules do not allow from the eligible set of the request.
///
/// # Errors
/// Fails if no action would be left. The eligible set is then that of the request, for the fallback.
pub(crate) fn of_actions(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    memory: &mut BundleMemory,
) -> Result<(), Failed> {
    let BundleMemory { eval, eligible, requested, ruled, .. } = memory;
    *ruled = None;
    if loaded.bundle.rules().is_none() {
        return Ok(());
    }
    requested.clone_from(eligible);
    apply(context.engine, loaded, context.id, row, None, eval).map_err(Failed::defect)?;
    let some_left = loaded.bundle.restrict(eligible, eval);
    *ruled = counted(loaded, eval, 0.0);
    if some_left { Ok(()) } else { Err(Failed::nothing_allowed(loaded)) }
}

fn apply(
    engine: &Engine,
    loaded: &Loaded,
    id: &str,
    row: &[f32],
    score: Option<f64>,
    eval: &mut EvalScratch,
) -> Result<(), Rejection> {
    let request = Request { seconds: engine.clock.unix_us().div_euclid(1_000_000), id: id.as_bytes() };
    match loaded.bundle.apply_rules(row, score, request, eval) {
        Ok(_) => Ok(()),
        // The row was encoded for this bundle, and the memory is its own.
        Err(error) => Err(engine.defect("rules", &format!("bundle {}: {error}", loaded.digest_text))),
    }
}

fn counted(loaded: &Loaded, eval: &EvalScratch, score: f64) -> Option<Ruled> {
    let ruled = Ruled::of(eval.ruling()?, score);
    loaded.rules.count(&ruled);
    Some(ruled)
}

/// The eligible set of a request and the result of the rules, copied out of a thread's memory.
#[derive(Clone)]
pub(crate) struct Restricted {
    eligible: Mask,
    rules: Option<(Mask, Ruled)>,
}

impl Restricted {
    pub(crate) fn of(memory: &BundleMemory) -> Restricted {
        let rules = memory.ruled.as_ref().map(|ruled| (memory.requested.clone(), ruled.clone()));
        Restricted { eligible: memory.eligible.clone(), rules }
    }

    /// Copies the values into this thread's memory.
    pub(crate) fn install(&self, memory: &mut BundleMemory) {
        memory.eligible.clone_from(&self.eligible);
        memory.ruled = None;
        if let Some((requested, ruled)) = &self.rules {
            memory.requested.clone_from(requested);
            memory.ruled = Some(ruled.clone());
        }
    }
}
