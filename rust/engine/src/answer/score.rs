//! `Score`: one row, one probability.
//!
//! A score is a pure function of bundle and row. A retry with a request id of the caller is nevertheless answered from
//! the idempotency cache, so that it adds no second record to the log.

use std::sync::Arc;

use scorer_core::bundle::{EvalError, ScoreOut};

use super::evaluate::{BundleMemory, Failed, Workspace};
use super::sequence::{self, Decision, Names};
use super::{RequestContext, decide};
use crate::answered::Outcome;
use crate::answers::{Answer, Score, Scored};
use crate::arrival::Arrival;
use crate::bundles::Loaded;
use crate::config::Kind;
use crate::content::Content;
use crate::deadline::Deadline;
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

struct Scoring<'a, F>(Query<'a, F>);

struct Choice {
    score: Score,
    label: Arc<str>,
    fallback: Option<Reason>,
}

impl<F: Features> Decision for Scoring<'_, F> {
    const KIND: Kind = Kind::Score;
    type Features = F;
    type Inputs = ();
    type Setup = ();
    type Evaluated = ScoreOut;
    type Choice = Choice;
    type Answer = Scored;

    fn query(&self) -> &Query<'_, F> {
        &self.0
    }

    fn cache(engine: &Engine) -> &IdempotencyCache<Scored> {
        &engine.remembered.scores
    }

    fn hash(&self, _: &mut Content) {}

    fn setup(_: &Engine) {}

    fn read_inputs(&self, _: &Loaded, _: &mut BundleMemory) -> Result<(), Rejection> {
        Ok(())
    }

    fn inputs(_: &BundleMemory) {}

    fn install((): &(), _: &mut BundleMemory) {}

    fn evaluate(
        (): (),
        loaded: &Loaded,
        _: Names<'_>,
        row: &[f32],
        memory: &mut BundleMemory,
        deadline: &Deadline<'_>,
    ) -> Result<ScoreOut, EvalError> {
        loaded.bundle.score(row, deadline, &mut memory.eval)
    }

    fn detach(_: &mut ScoreOut, _: &BundleMemory) {}

    fn decide(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        (): (),
        evaluated: Result<ScoreOut, Failed>,
        instead: Option<Reason>,
    ) -> Result<Choice, Rejection> {
        let (score, fallback) = decide::or_static(context, loaded, &workspace.row, evaluated)?;
        let label = decide::label(context.checkpoint, loaded, score.band);
        Ok(Choice { score, label, fallback: fallback.or(instead) })
    }

    fn fallback(choice: &Choice) -> Option<Reason> {
        choice.fallback
    }

    fn outcome<'a>(choice: &'a Choice, _: &'a Loaded, _: &'a BundleMemory, _: bool) -> Outcome<'a> {
        let Score { margin, score, .. } = choice.score;
        Outcome::Score { margin, score, label: &choice.label }
    }

    fn answer(choice: Choice, lane: &ActiveLane, timings: Timings, logged: bool) -> Scored {
        let Choice { score: Score { margin, score, .. }, label, fallback } = choice;
        Scored { source: Arc::clone(&lane.source), score, margin, label, logged, fallback, timings }
    }
}
