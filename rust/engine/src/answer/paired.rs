//! `Decide`: a score and then an action for one payment, by one lane table, one admission and one deadline.
//!
//! Everything that can be wrong with either part of the request is checked before the score is decided, so that a
//! rejected request has no effect. After that, the reply has the score, whatever happens to the action.

use std::sync::Arc;
use std::time::Instant;

use scorer_core::schema::{FeatureSpec, FeatureType, Value};

use super::evaluate::with_workspace;
use super::load::{Preloaded, read_all};
use super::score::Scoring;
use super::select::Selection;
use super::sequence::{self, Decision, Routed};
use super::{RequestContext, admit, explain, identify, replay, route};
use crate::answered::NamedValues;
use crate::answers::{ActionAnswer, Answer, Decided};
use crate::arrival::Arrival;
use crate::computed::EntityKeys;
use crate::config::Kind;
use crate::content::Content;
use crate::engine::Engine;
use crate::lanes::{ActiveLane, ActiveLanes};
use crate::query::{DecideQuery, Eligible, Features, PassedOn, Query, SelectQuery};
use crate::rejection::Rejection;
use crate::stages::Stage;
use scorer_core::quotable;

/// Distinguishes the content of the action of a `Decide` from that of a `SelectAction` with the same values.
const CONTENT: u64 = 0x6465_6369_6465;
/// Names of the steps in errors.
const SCORE: &str = "score";
const ACTION: &str = "action";

/// The selection of a request, before its score is known.
struct Selecting<'a, G> {
    query: Query<'a, G>,
    entity: &'a str,
    eligible: Option<Eligible<'a>>,
    include_pmf: bool,
    passed: PassedOn<'a>,
    /// Checkpoint of the score.
    scored_at: &'a str,
}

/// The features of an action, and the result of the score that its bundle receives.
struct WithScore<'a, G> {
    features: &'a G,
    /// Checkpoint of the score.
    checkpoint: &'a str,
    passed: PassedOn<'a>,
    score: f64,
    decision: &'a str,
}

// === impl Engine ===

impl Engine {
    /// Scores a payment, and selects an action for it unless the decision of the score is the strictest of its bundle.
    ///
    /// # Errors
    /// The request is not valid, or neither the model nor a fallback can score. Nothing is then recorded. An error of
    /// the action after the score is part of the answer.
    pub async fn decide<F, G>(
        self: &Arc<Engine>,
        arrival: &Arrival,
        query: DecideQuery<'_, F, G>,
    ) -> Result<Decided, Rejection>
    where
        F: Features<Error = Rejection>,
        G: Features<Error = Rejection>,
    {
        let DecideQuery { mut score, action, passed, action_if_declined } = query;
        let SelectQuery { query: of_action, eligible, include_pmf } = action;
        let at_score = |rejection: Rejection| rejection.at_step(SCORE);
        let at_action = |rejection: Rejection| rejection.at_step(ACTION);
        let first = identify::checkpoint(self, arrival, score.checkpoint, Kind::Score).map_err(at_score)?;
        let second = identify::second_checkpoint(self, arrival, of_action.checkpoint, Kind::Action)
            .map_err(at_action)?;
        arrival.check_deadline()?;
        identify::check_entity(score.entity)?;
        explain::check(score.reasons).map_err(at_score)?;
        explain::check(of_action.reasons).map_err(at_action)?;
        check_names(passed)?;
        let entity = score.entity;
        let recorded_entity = &*self.privacy.entity(entity)?;
        let id = identify::request_id(&self.privacy, std::mem::take(&mut score.request_id))?;
        let context = RequestContext {
            engine: self,
            arrival,
            checkpoint: first,
            id: &id.text,
            entity,
            recorded_entity,
            linked: Some(second),
        };
        let then = RequestContext { checkpoint: second, linked: Some(first), ..context };

        let scoring = Scoring(score);
        let selecting =
            Selecting { query: of_action, entity, eligible, include_pmf, passed, scored_at: &first.name };
        let known = if id.given {
            let scored = replay::knows(context, &scoring).map_err(at_score)?;
            (scored, replay::knows(then, &selecting.with(0.0, "")).map_err(at_action)?)
        } else {
            (false, false)
        };
        let (routed, routed_then) = if known == (true, true) {
            (None, None)
        } else {
            let (lane, lane_then) = self.both_lanes(context, then)?;
            // The first attempt of a retry was checked. Its bundles may have been replaced since.
            if !known.0 {
                scoring.query().features.check_read(&lane.0, &lane_then.0)?;
                check_action(&lane_then.0, &selecting).map_err(at_action)?;
            }
            let (score, action) = admit::both(
                (context, &lane.0.loaded, lane.1),
                (then, &lane_then.0.loaded, lane_then.1),
                Instant::now(),
            );
            let computed = |lane: &Lane| lane.0.loaded.shape.computed.is_some();
            let (preloaded, preloaded_then) = if computed(&lane) || computed(&lane_then) {
                let [of_score, of_action] = read_both(context, then, (&lane.0, &lane_then.0), &scoring).await;
                (of_score, of_action)
            } else {
                (None, None)
            };
            let routed =
                |(lane, instead), admitted, preloaded| Some(Routed { lane, instead, admitted, preloaded });
            (routed(lane, score, preloaded), routed(lane_then, action, preloaded_then))
        };

        let (scored, replayed) =
            sequence::answer(context, &scoring, id.given, routed).await.map_err(at_score)?;
        let action = if scored.strictest && !action_if_declined {
            ActionAnswer::Declined
        } else {
            arrival.next_step();
            let selection = selecting.with(scored.score, &scored.label);
            match sequence::answer(then, &selection, id.given, routed_then).await {
                Ok((value, replayed)) => {
                    ActionAnswer::Selected(Answer { id: id.text.clone(), value, replayed })
                }
                Err(rejection) => ActionAnswer::Failed(rejection),
            }
        };
        Ok(Decided { score: Answer { id: id.text, value: scored, replayed }, action })
    }

    /// Draws both lanes from one lane table.
    fn both_lanes(
        &self,
        context: RequestContext<'_>,
        then: RequestContext<'_>,
    ) -> Result<(Lane, Lane), Rejection> {
        let table = self.lanes();
        let now = Instant::now();
        let lane = |context: RequestContext<'_>, table: &ActiveLanes| {
            let lane = route::lane(context, table)?;
            let (lane, instead) = route::in_service(context, table, lane, now);
            Ok((lane.clone(), instead))
        };
        let first = lane(context, &table).map_err(|rejection: Rejection| rejection.at_step(SCORE))?;
        let second = lane(then, &table).map_err(|rejection: Rejection| rejection.at_step(ACTION))?;
        Ok((first, second))
    }
}

/// A lane, and the reason if it is not the drawn one.
type Lane = (ActiveLane, Option<crate::reason::Reason>);

/// Reads the computed features of both bundles as of one time, so that both parts have the same values.
async fn read_both<F: Features>(
    context: RequestContext<'_>,
    then: RequestContext<'_>,
    (lane, lane_then): (&ActiveLane, &ActiveLane),
    scoring: &Scoring<'_, F>,
) -> [Option<Preloaded>; 2] {
    let timed = context.arrival.measure(Stage::Features);
    let computed =
        |lane: &ActiveLane| Some(Arc::clone(&lane.loaded.shape)).filter(|it| it.computed.is_some());
    let shapes = [computed(lane), computed(lane_then)];
    let checkpoints = [context.checkpoint, then.checkpoint];
    let wanted = [0, 1].map(|part| {
        let computed = shapes.get(part)?.as_ref()?.computed.as_ref()?;
        Some((computed, *checkpoints.get(part)?))
    });
    let keys = scoring.query().features.keys();
    let read = read_all(context.engine, context.arrival, wanted, keys).await;
    drop(timed);
    read
}

fn check_names(passed: PassedOn<'_>) -> Result<(), Rejection> {
    if !passed.score.is_empty() && passed.score == passed.decision {
        return Err(Rejection::PassedTwice { feature: quotable(passed.score) });
    }
    Ok(())
}

/// Checks the features and the eligible actions of the action, before there is a score.
fn check_action<G: Features<Error = Rejection>>(
    lane: &ActiveLane,
    selecting: &Selecting<'_, G>,
) -> Result<(), Rejection> {
    let passed = selecting.passed;
    let schema = lane.loaded.bundle.schema();
    let feature = |field: &'static str, name: &str, expected: FeatureType| {
        let Some(spec) = schema.index_of(name).and_then(|at| schema.features().get(at)) else {
            return Ok(None);
        };
        if spec.kind == expected {
            return Ok(Some(spec));
        }
        let bundle = lane.loaded.digest_text.to_string();
        Err(Rejection::PassedType { field, feature: spec.name.clone(), bundle, expected: expected.name() })
    };
    let number = feature("score_feature", passed.score, FeatureType::Number)?;
    let category = feature("decision_feature", passed.decision, FeatureType::Category)?;
    // Values that the schema accepts stand for those of the score, which are checked when they are known.
    let within = |spec: &FeatureSpec| {
        let above = spec.minimum.map_or(0.0, |minimum| minimum.max(0.0));
        spec.maximum.map_or(above, |maximum| maximum.min(above))
    };
    let label = category.and_then(|spec| spec.categories.first()).map_or("", String::as_str);
    let selection = selecting.with(number.map_or(0.0, within), label);
    with_workspace(|workspace| {
        let features = &selection.query().features;
        features.accept(lane)?;
        features.encode(lane, &mut workspace.row)?;
        selection.read_inputs(&lane.loaded, workspace.parts(&lane.loaded).1)
    })
}

// === impl Selecting ===

impl<G: Features<Error = Rejection>> Selecting<'_, G> {
    /// The selection with the result of the score.
    fn with<'a>(&'a self, score: f64, decision: &'a str) -> Selection<'a, WithScore<'a, G>> {
        let Query { checkpoint, features, reasons, .. } = &self.query;
        let features =
            WithScore { features, checkpoint: self.scored_at, passed: self.passed, score, decision };
        Selection {
            query: Query {
                checkpoint,
                request_id: String::new(),
                entity: self.entity,
                features,
                reasons: *reasons,
            },
            eligible: self.eligible,
            include_pmf: self.include_pmf,
            passed: self.passed,
        }
    }
}

// === impl WithScore ===

impl<G: Features<Error = Rejection>> WithScore<'_, G> {
    /// The values that a bundle with these features receives.
    fn values(&self) -> [(&str, Value<'_>); 2] {
        [
            (self.passed.score, Value::Number(self.score)),
            (self.passed.decision, Value::Category(self.decision)),
        ]
    }
}

impl<G: Features<Error = Rejection>> Features for WithScore<'_, G> {
    type Error = Rejection;

    fn accept(&self, lane: &ActiveLane) -> Result<(), Rejection> {
        self.features.accept(lane)
    }

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Rejection> {
        self.encode_with(lane, row, &[])
    }

    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        _: &[(&str, Value<'_>)],
    ) -> Result<(), Rejection> {
        let schema = lane.loaded.bundle.schema();
        let mut given = self.values();
        given.sort_by_key(|(name, _)| schema.index_of(name).is_none());
        let count = given.iter().filter(|(name, _)| schema.index_of(name).is_some()).count();
        match given.get(..count).filter(|given| !given.is_empty()) {
            None => self.features.encode(lane, row),
            Some(given) => self.features.encode_with(lane, row, given),
        }
    }

    /// The score is not part of the content, because it follows from the rest of the request.
    fn hash(&self, content: &mut Content) {
        self.features.hash(content);
        content.number(CONTENT);
        for name in [self.checkpoint, self.passed.score, self.passed.decision] {
            content.bytes(name.as_bytes());
        }
    }

    fn named(&self) -> &dyn NamedValues {
        self
    }

    fn keys(&self) -> &dyn EntityKeys {
        self.features.keys()
    }
}

impl<G: Features<Error = Rejection>> NamedValues for WithScore<'_, G> {
    fn visit(&self, visit: &mut dyn FnMut(&str, Value<'_>)) {
        self.features.named().visit(visit);
        for (name, value) in self.values() {
            if !name.is_empty() {
                visit(name, value);
            }
        }
    }
}
