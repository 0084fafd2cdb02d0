//! Applies the bundle's rules: to the decision of a score, and to the eligible actions before a selection.
//!
//! A panic or a defect in an evaluation of rules is caught, reported as an event and counted. None of the rules has an
//! effect then, and the answer is the safest that is known without them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use scorer_admission::Evaluation;
use scorer_core::bundle::{EvalError, EvalScratch, RuledScore};
use scorer_core::policy::Mask;
use scorer_rules::{Exhausted, Request};

use super::evaluate::{self, BundleMemory, Failed};
use super::{RequestContext, decide};
use crate::answers::{Band, Score};
use crate::bundles::{BoundLists, Loaded, Ruled};
use crate::engine::Engine;
use crate::reason::Reason;

/// What the rules are evaluated on.
pub(crate) struct Ruling<'a> {
    /// The decision's id.
    pub(crate) id: &'a str,
    pub(crate) row: &'a [f32],
    pub(crate) eval: &'a mut EvalScratch,
}

/// Applies the rules to a score that the model or a fallback gave, and changes its band. They do not change the score.
/// Returns their result, `None` without rules, and the reason if their evaluation failed and the model had answered.
///
/// The rules do not see the score of a fallback, and can only make its decision stricter: with a fallback of unknown
/// strictness, whose decision is not the label of a band, they change nothing. `lists` are the bundle's external lists,
/// taken once for the request.
pub(crate) fn of_score(
    context: RequestContext<'_>,
    loaded: &Loaded,
    lists: Option<&BoundLists>,
    Ruling { id, row, eval }: Ruling<'_>,
    score: &mut Score,
) -> (Option<Ruled>, Option<Reason>) {
    let Some(rules) = loaded.bundle.rules() else { return (None, None) };
    let of_model = match score.band {
        Band::Of(_) => Some(score.score),
        Band::Fallback | Band::BeyondCaps => None,
    };
    let given = score.score;
    let band_before = score.band;
    // The place of a fallback's decision among the labels; `None` if it is not one of them.
    let fallback = match band_before {
        Band::Of(_) => None,
        Band::Fallback | Band::BeyondCaps => {
            let label = decide::label(context.checkpoint, loaded, band_before);
            loaded.labels.iter().position(|known| *known == label)
        }
    };
    // Whether the decision of the rules is that of the answer.
    let decides = |ruled: RuledScore, eval: &EvalScratch| match band_before {
        Band::Of(_) => true,
        Band::Fallback | Band::BeyondCaps => {
            changes(loaded, ruled.score, given, eval) && fallback.is_some_and(|place| ruled.band > place)
        }
    };
    let mut request = request(context.engine, id);
    let (set, budgets) = (rules.set(), &context.checkpoint.budgets);
    let has_budgets = set.budgets().len() > 0;
    if has_budgets {
        request.exhausted = budgets.exhausted(set, request.seconds);
    }
    let ruled = guarded(context.engine, loaded, id, eval, |eval| {
        loop {
            loaded.bundle.apply_rules_with(lists.map(|bound| &bound.lists), row, of_model, request, eval)?;
            let ruled = loaded.bundle.ruled_score(given, eval).ok_or(EvalError::Scratch)?;
            let decides = decides(ruled, eval);
            if !has_budgets || !decides {
                return Ok((ruled, decides, request.exhausted));
            }
            // A budget that does not hold the request makes its rule inactive, so this ends.
            match budgets.take(set, eval.ruling().ok_or(EvalError::Scratch)?, request.seconds) {
                Ok(()) => return Ok((ruled, decides, request.exhausted)),
                Err(full) => request.exhausted.add(full),
            }
        }
    });
    let (RuledScore { score: within, band }, decides, exhausted) = match ruled {
        Ok(ruled) => ruled,
        Err(failed) => {
            let result = Ruled::failed(rules.rules().len(), given);
            return (Some(result), without_rules(context, loaded, row, failed, score));
        }
    };
    if decides {
        score.band = Band::Of(band);
    }
    (counted(loaded, lists, eval, within, exhausted), None)
}

/// Replaces the model's score by the checkpoint's static answer, if its decision is stricter or cannot be compared.
/// Without such an answer the model's decision stays. Returns the reason; `None` if a fallback answers already.
fn without_rules(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    failed: Failed,
    score: &mut Score,
) -> Option<Reason> {
    let Band::Of(band) = score.band else { return None };
    let stricter = |decision: &str| {
        let place = loaded.labels.iter().position(|label| **label == *decision);
        place.is_none_or(|place| place > band)
    };
    match decide::static_score(context, loaded, row, failed, stricter) {
        Ok((answer, reason)) => {
            *score = answer;
            Some(reason)
        }
        Err(_) => Some(Reason::WithoutRules),
    }
}

/// Whether rules wrote a decision or moved the score of a fallback.
fn changes(loaded: &Loaded, within: f64, score: f64, eval: &EvalScratch) -> bool {
    let written = |ruling| loaded.bundle.rules().and_then(|rules| rules.band(ruling)).is_some();
    within != score || eval.ruling().is_some_and(written)
}

/// Removes the actions that the rules do not allow from the eligible set of the request.
///
/// # Errors
/// Fails if no action would be left, or if the evaluation failed: which actions the rules allow is then not known. The
/// eligible set is that of the request, for the fallback.
pub(crate) fn of_actions(
    context: RequestContext<'_>,
    loaded: &Loaded,
    row: &[f32],
    memory: &mut BundleMemory,
) -> Result<(), Failed> {
    let BundleMemory { eval, eligible, requested, ruled, .. } = memory;
    *ruled = None;
    let Some(rules) = loaded.bundle.rules() else { return Ok(()) };
    requested.clone_from(eligible);
    let request = request(context.engine, context.id);
    let lists = context.engine.lists.of(loaded);
    let lists = lists.as_deref();
    let restricted = guarded(context.engine, loaded, context.id, eval, |eval| {
        loaded.bundle.apply_rules_with(lists.map(|bound| &bound.lists), row, None, request, eval)?;
        Ok(loaded.bundle.restrict(eligible, eval))
    });
    match restricted {
        Ok(some_left) => {
            *ruled = counted(loaded, lists, eval, 0.0, request.exhausted);
            if some_left { Ok(()) } else { Err(Failed::nothing_allowed(loaded)) }
        }
        Err(failed) => {
            eligible.clone_from(requested);
            *ruled = Some(Ruled::failed(rules.rules().len(), 0.0));
            Err(failed)
        }
    }
}

fn request<'a>(engine: &Engine, id: &'a str) -> Request<'a> {
    Request {
        seconds: engine.clock.unix_us().div_euclid(1_000_000),
        id: id.as_bytes(),
        exhausted: Exhausted::NONE,
    }
}

/// Runs `work`, which evaluates the rules. A panic counts in the bundle's breaker. The working memory is usable after a
/// failure.
fn guarded<T>(
    engine: &Engine,
    loaded: &Loaded,
    id: &str,
    eval: &mut EvalScratch,
    work: impl FnOnce(&mut EvalScratch) -> Result<T, EvalError>,
) -> Result<T, Failed> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "fault-injection")]
        engine.faults.strike_rules(id);
        let _ = id;
        work(eval)
    }));
    let defect = match result {
        Ok(Ok(out)) => {
            loaded.functions.take(eval);
            return Ok(out);
        }
        // The row was encoded for this bundle, and the memory is its own.
        Ok(Err(error)) => engine.defect("rules", &format!("bundle {}: {error}", loaded.digest_text)),
        Err(panic) => {
            // Partly written working memory is discarded.
            *eval = EvalScratch::new(&loaded.bundle);
            evaluate::count(engine, loaded, Instant::now(), Evaluation::Panic);
            engine.panicked("rules", panic.as_ref())
        }
    };
    loaded.rules.failed();
    Err(Failed::of_rules(defect))
}

fn counted(
    loaded: &Loaded,
    lists: Option<&BoundLists>,
    eval: &EvalScratch,
    score: f64,
    exhausted: Exhausted,
) -> Option<Ruled> {
    let ruled = Ruled::of(eval.ruling()?, score, lists, exhausted);
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
