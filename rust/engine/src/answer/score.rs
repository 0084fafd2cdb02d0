//! `Score`: one row, one probability.
//!
//! A score is a pure function of bundle and row. A retry with a request id of the caller is nevertheless answered from
//! the idempotency cache, so that it adds no second record to the log.

use std::sync::Arc;

use scorer_core::bundle::{EvalError, FunctionSet, ScoreOut};
use scorer_core::explain::Contribution;

use super::evaluate::{BundleMemory, Failed, Workspace};
use super::sequence::{self, Decision, Names, with_rules};
use super::{RequestContext, decide, explain, rules};
use crate::answered::Outcome;
use crate::answers::{Answer, GivenReasons, GivenRules, Score, Scored};
use crate::arrival::Arrival;
use crate::bundles::{FaultedFunctions, Loaded, Ruled};
use crate::config::Kind;
use crate::content::Content;
use crate::deadline::Deadline;
use crate::defaulted::Defaulted;
use crate::engine::Engine;
use crate::idempotency::IdempotencyCache;
use crate::lanes::ActiveLane;
use crate::query::{Features, Query};
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::timings::Timings;

// === impl Engine ===

impl Engine {
    /// Scores one row.
    ///
    /// # Errors
    /// The request is not valid, or neither the model nor a fallback can answer.
    pub async fn score<F: Features>(
        self: &Arc<Engine>,
        arrival: &Arrival,
        mut query: Query<'_, F>,
    ) -> Result<Answer<Scored>, F::Error> {
        let id = std::mem::take(&mut query.request_id);
        sequence::run(self, arrival, &Scoring(query), id).await
    }
}

/// A score to be decided.
pub(super) struct Scoring<'a, F>(pub(super) Query<'a, F>);

pub(super) struct Choice {
    score: Score,
    label: Arc<str>,
    fallback: Option<Reason>,
    reasons: Option<Arc<[Contribution]>>,
    ruled: Option<Ruled>,
}

/// The result of the model, with its reasons if they are wanted.
pub(super) struct Explained {
    out: ScoreOut,
    reasons: Option<Arc<[Contribution]>>,
}

impl<F: Features> Decision for Scoring<'_, F> {
    const KIND: Kind = Kind::Score;
    type Features = F;
    type Inputs = ();
    /// Number of reasons to compute.
    type Setup = usize;
    type Evaluated = Explained;
    type Choice = Choice;
    type Answer = Scored;

    fn query(&self) -> &Query<'_, F> {
        &self.0
    }

    fn cache(engine: &Engine) -> &IdempotencyCache<Scored> {
        &engine.remembered.scores
    }

    fn hash(&self, content: &mut Content) {
        if self.0.reasons > 0 {
            content.number(u64::from(self.0.reasons));
        }
    }

    fn setup(&self, context: RequestContext<'_>, loaded: &Loaded) -> usize {
        explain::wanted(context, loaded, self.0.reasons)
    }

    fn read_inputs(&self, _: &Loaded, _: &mut BundleMemory) -> Result<(), Rejection> {
        Ok(())
    }

    fn inputs(_: &BundleMemory) {}

    fn install((): &(), _: &mut BundleMemory) {}

    fn evaluate(
        reasons: usize,
        loaded: &Loaded,
        _: Names<'_>,
        row: &[f32],
        memory: &mut BundleMemory,
        deadline: &Deadline<'_>,
    ) -> Result<Explained, EvalError> {
        if reasons == 0 {
            let out = loaded.bundle.score(row, deadline, &mut memory.eval)?;
            return Ok(Explained { out, reasons: None });
        }
        let out = loaded.bundle.score_explained(row, deadline, &mut memory.eval)?;
        Ok(Explained { out, reasons: Some(memory.eval.reasons(reasons).as_slice().into()) })
    }

    fn detach(_: &mut Explained, _: &BundleMemory) {}

    fn decide(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        _: usize,
        evaluated: Result<Explained, Failed>,
        instead: Option<Reason>,
    ) -> Result<Choice, Rejection> {
        let (evaluated, reasons) = match evaluated {
            Ok(Explained { out, reasons }) => (Ok(out), reasons),
            Err(failed) => (Err(failed), None),
        };
        let (mut score, fallback) = decide::or_static(context, loaded, &workspace.row, evaluated)?;
        let (row, memory, _) = workspace.parts(loaded);
        let lists = context.engine.lists.of(loaded);
        let ruling = rules::Ruling { id: context.id, row, eval: &mut memory.eval };
        let (ruled, failed) = rules::of_score(context, loaded, lists.as_deref(), ruling, &mut score);
        // The reasons are those of the model's score, which a static answer does not have.
        let reasons = reasons.filter(|_| failed.is_none_or(|failed| failed == Reason::WithoutRules));
        let label = decide::label(context.checkpoint, loaded, score.band);
        Ok(Choice { score, label, fallback: fallback.or(failed).or(instead), reasons, ruled })
    }

    fn fallback(choice: &Choice) -> Option<Reason> {
        choice.fallback
    }

    fn outcome<'a>(choice: &'a Choice, _: &'a Loaded, _: &'a BundleMemory, _: bool) -> Outcome<'a> {
        let Score { margin, score, .. } = choice.score;
        Outcome::Score { margin, score, label: &choice.label }
    }

    fn reasons(choice: &Choice) -> &[Contribution] {
        choice.reasons.as_deref().unwrap_or_default()
    }

    fn ruled<'a>(choice: &'a Choice, _: &'a BundleMemory) -> Option<&'a Ruled> {
        choice.ruled.as_ref()
    }

    fn faulted(choice: &Choice) -> FunctionSet {
        choice.score.faulted
    }

    fn answer(
        &self,
        choice: Choice,
        _: &BundleMemory,
        lane: &ActiveLane,
        timings: Timings,
        defaulted: Option<Defaulted>,
        logged: bool,
    ) -> Scored {
        let faulted = with_rules(choice.score.faulted, choice.ruled.as_ref());
        let faulted = FaultedFunctions::of(&lane.loaded.shape, faulted);
        let Choice { score: Score { margin, score, .. }, label, fallback, reasons, ruled } = choice;
        let reasons = GivenReasons::of(&lane.loaded, reasons, self.0.reasons);
        let rules = GivenRules::of(&lane.loaded, ruled);
        let source = Arc::clone(&lane.source);
        let strictest = lane.loaded.labels.len() > 1 && lane.loaded.labels.last() == Some(&label);
        Scored {
            source,
            score,
            margin,
            label,
            strictest,
            logged,
            fallback,
            timings,
            defaulted,
            faulted,
            reasons,
            rules,
        }
    }
}
