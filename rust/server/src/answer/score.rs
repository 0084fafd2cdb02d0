//! `Score`: one row, one probability.
//!
//! A score is a pure function of bundle and row, yet a request id given by the caller is kept to as for
//! actions: a retry is answered from memory and leaves no second row in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_admission::Place;
use scorer_core::bundle::ScoreOut;
use scorer_proto::v1::score_request::Features as Given;
use scorer_proto::v1::{ScoreRequest, ScoreResponse};

use super::admit::{self, Ticket};
use super::arrive::Arrival;
use super::evaluate::{self, Failed, Workspace, with_workspace};
use super::exposure::{self, Exposure};
use super::features::{self, Features};
use super::log::{self, Said};
use super::{Decision, Times, Turn, decide, decode, micros, reply, route};
use crate::bundles::Loaded;
use crate::config::{FallbackConfig, Kind};
use crate::lanes::{LaneInForce, Source};
use crate::metrics::Reason;
use crate::observe;
use crate::refusal::Refusal;
use crate::replay::{Claimed, Content, Remembered};
use crate::state::{Checkpoint, Shared};

/// A score as it is remembered.
#[derive(Clone)]
pub(crate) struct Scored {
    pub(crate) source: Arc<Source>,
    pub(crate) score: f64,
    pub(crate) margin: f64,
    pub(crate) label: Arc<str>,
    pub(crate) fallback: Option<Reason>,
    pub(crate) times: Times,
}

impl Remembered for Scored {
    fn extra_bytes(&self) -> usize {
        0
    }
}

/// Answers one request.
pub(crate) async fn answer(
    shared: &Shared,
    arrival: &Arrival,
    mut request: ScoreRequest,
) -> Result<ScoreResponse, Refusal> {
    let checkpoint = decode::checkpoint(shared, arrival, &request.checkpoint, Kind::Score)?;
    arrival.check_deadline()?;
    decode::entity(&request.entity)?;
    let id = decode::request_id(std::mem::take(&mut request.request_id))?;
    let named = features::named(given(&request));
    let turn = Turn { shared, arrival, checkpoint, id: &id.text, entity: &request.entity, named };
    let scored = if id.given { once(turn, &request).await? } else { decision(turn, &request).await? };
    if scored.fallback.is_some() {
        arrival.fell_back();
    }
    Ok(reply::score(id.text, &scored))
}

/// The answer of this id, decided now or before.
async fn once(turn: Turn<'_>, request: &ScoreRequest) -> Result<Scored, Refusal> {
    let Turn { shared, checkpoint, id, .. } = turn;
    let content = content(shared.scores.hasher(), request);
    match shared.scores.claim(shared.scores.key(checkpoint.index, id), content, checkpoint).await? {
        Claimed::Mine(claim) => {
            let scored = decision(turn, request).await?;
            claim.finish(&scored);
            Ok(scored)
        }
        Claimed::Answered(scored) => {
            shared.metrics.replays.fetch_add(1, Relaxed);
            Ok(scored)
        }
    }
}

/// Where the evaluation runs, as admission has it.
enum Step {
    Inline(Scored),
    Pool(Pooled),
}

/// What the task keeps while the pool evaluates.
struct Pooled {
    lane: LaneInForce,
    instead: Option<Reason>,
    ticket: Ticket,
    row: Vec<f32>,
    data_load_us: u32,
}

async fn decision(turn: Turn<'_>, request: &ScoreRequest) -> Result<Scored, Refusal> {
    match with_workspace(|workspace| begin(turn, request, workspace))? {
        Step::Inline(scored) => Ok(scored),
        Step::Pool(pooled) => on_pool(turn, pooled).await,
    }
}

fn begin(turn: Turn<'_>, request: &ScoreRequest, workspace: &mut Workspace) -> Result<Step, Refusal> {
    let Turn { shared, arrival, checkpoint, id, entity, .. } = turn;
    let table = shared.lanes.load();
    let began = Instant::now();
    let features = shared.features.fetch(entity, given(request))?;
    let lane = route::lane(&table, checkpoint, entity, id)?;
    let (lane, instead) = route::in_service(shared, &table, checkpoint, lane, id, began);
    let loaded = &*lane.loaded;
    features::encode(&features, lane, &mut workspace.row)?;
    let fetched = Instant::now();
    let data_load_us = micros(fetched - began);

    let evaluated = match admit::one(turn, loaded, instead, fetched) {
        Err(failed) => Err(failed),
        Ok(ticket) if ticket.ticket().is_some_and(|it| it.place() == Place::Pool) => {
            let row = workspace.row.clone();
            return Ok(Step::Pool(Pooled { lane: lane.clone(), instead, ticket, row, data_load_us }));
        }
        Ok(ticket) => evaluate::inline(shared, checkpoint, ticket, fetched, |until| {
            evaluate::evaluate(shared, loaded, workspace, id, until, fetched, |row, memory| {
                loaded.bundle.score(row, until, &mut memory.eval)
            })
        }),
    };
    let ready = Instant::now();
    arrival.ready(ready);
    let times = Times { data_load_us, exec_us: micros(ready - fetched) };
    conclude(turn, workspace, lane, evaluated, instead, times).map(Step::Inline)
}

async fn on_pool(turn: Turn<'_>, pooled: Pooled) -> Result<Scored, Refusal> {
    let Turn { id, .. } = turn;
    let Pooled { lane, instead, ticket, row, data_load_us } = pooled;
    let (loaded, id, mut values) = (Arc::clone(&lane.loaded), id.to_owned(), row.clone());
    let (evaluated, exec_us) = evaluate::on_pool(turn, ticket, move |shared, until, began| {
        with_workspace(|workspace| {
            std::mem::swap(&mut workspace.row, &mut values);
            evaluate::evaluate(shared, &loaded, workspace, &id, until, began, |row, memory| {
                loaded.bundle.score(row, until, &mut memory.eval)
            })
        })
    })
    .await?;
    with_workspace(|workspace| {
        workspace.row.clear();
        workspace.row.extend_from_slice(&row);
        conclude(turn, workspace, &lane, evaluated, instead, Times { data_load_us, exec_us })
    })
}

/// From the evaluation, or what went wrong with it, to the answer and its record.
fn conclude(
    turn: Turn<'_>,
    workspace: &mut Workspace,
    lane: &LaneInForce,
    evaluated: Result<ScoreOut, Failed>,
    instead: Option<Reason>,
    times: Times,
) -> Result<Scored, Refusal> {
    let Turn { shared, arrival, checkpoint, id, entity, named } = turn;
    let loaded = &*lane.loaded;
    let (out, fallback) = or_static(shared, arrival, checkpoint, loaded, &workspace.row, evaluated)?;
    let fallback = fallback.or(instead);
    let counters = shared.metrics.checkpoint(checkpoint.index);
    if let Some(reason) = fallback {
        counters.fell_back(reason, 1);
    }
    counters.exec.record(Duration::from_micros(times.exec_us.into()));
    counters.rows.fetch_add(1, Relaxed);
    loaded.answered(1);

    let label = label(checkpoint, loaded, &out);
    let decision = Decision { checkpoint, lane, id, entity, fallback, times };
    if let Some(log) = &shared.log {
        let (row, _, record) = workspace.parts(loaded);
        let said = Said::Score { margin: out.margin, score: out.score, label: &label };
        // A score that is not recorded is still worth giving; the log counts it.
        let _ = log::append(shared, log, decision, row, said, checkpoint.durability, record);
    }
    let said = observe::Said::Score { margin: out.margin, score: out.score, label: &label };
    observe::offer(shared, decision, &workspace.row, said, named);
    let source = Arc::clone(&lane.source);
    Ok(Scored { source, score: out.score, margin: out.margin, label, fallback, times })
}

/// The model's score, or the checkpoint's static one with the reason.
pub(crate) fn or_static(
    shared: &Shared,
    arrival: &Arrival,
    checkpoint: &Checkpoint,
    loaded: &Loaded,
    row: &[f32],
    evaluated: Result<ScoreOut, Failed>,
) -> Result<(ScoreOut, Option<Reason>), Refusal> {
    let failed = match evaluated {
        Ok(out) => return Ok((out, None)),
        Err(failed) => failed,
    };
    let allowed = |answer: &FallbackConfig| matches!(answer, FallbackConfig::Score { .. });
    let (answer, reason) = exposure::take(shared, checkpoint, loaded, row, arrival.caller, failed, allowed)?;
    // Only answers of this kind are allowed.
    let out = decide::static_score(answer, reason).ok_or(Refusal::Capped)?;
    Ok((out, Some(reason)))
}

/// The band's label, or the static answer's.
pub(crate) fn label(checkpoint: &Checkpoint, loaded: &Loaded, out: &ScoreOut) -> Arc<str> {
    let answer = match out.band {
        decide::BEYOND => checkpoint.exposure.as_ref().and_then(Exposure::beyond),
        _ => checkpoint.fallback.as_ref(),
    };
    match (loaded.labels.get(out.band), answer) {
        (Some(label), _) => Arc::clone(label),
        (None, Some(FallbackConfig::Score { decision, .. })) => decision.as_str().into(),
        (None, Some(FallbackConfig::Action { .. }) | None) => "".into(),
    }
}

fn given(request: &ScoreRequest) -> Option<Features<'_>> {
    request.features.as_ref().map(|given| match given {
        Given::Named(named) => Features::Named(named),
        Given::Dense(dense) => Features::Dense(dense),
    })
}

fn content(mut hasher: Content, request: &ScoreRequest) -> u128 {
    hasher.bytes(request.entity.as_bytes());
    features::content(&mut hasher, given(request).as_ref());
    hasher.finish()
}
