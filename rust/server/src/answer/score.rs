//! `Score`: one row, one probability.
//!
//! A score is a pure function of bundle and row, yet a request id given by the caller is kept to as for
//! actions: a retry is answered from memory and leaves no second row in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_core::budget::Unlimited;
use scorer_core::bundle::ScoreOut;
use scorer_proto::v1::score_request::Features as Given;
use scorer_proto::v1::{ScoreRequest, ScoreResponse};

use super::arrive::Arrival;
use super::evaluate::{self, Failed, with_workspace};
use super::features::{self, Features};
use super::log::{self, Said};
use super::{Decision, Times, decide, decode, micros, reply, route};
use crate::bundles::Loaded;
use crate::config::{FallbackConfig, Kind};
use crate::lanes::Source;
use crate::metrics::Reason;
use crate::refusal::Refusal;
use crate::replay::{Content, Remembered};
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
    if !id.given {
        let scored = decide(shared, checkpoint, &id.text, &request)?;
        if scored.fallback.is_some() {
            arrival.fell_back();
        }
        return Ok(reply::score(id.text, &scored));
    }
    let key = shared.scores.key(checkpoint.index, &id.text);
    let content = content(shared.scores.hasher(), &request);
    let decide = || decide(shared, checkpoint, &id.text, &request);
    let (scored, replayed) = shared.scores.once(key, content, checkpoint, decide).await?;
    if replayed {
        shared.metrics.replays.fetch_add(1, Relaxed);
    }
    if scored.fallback.is_some() {
        arrival.fell_back();
    }
    Ok(reply::score(id.text, &scored))
}

fn decide(
    shared: &Shared,
    checkpoint: &Checkpoint,
    id: &str,
    request: &ScoreRequest,
) -> Result<Scored, Refusal> {
    let entity = request.entity.as_str();
    with_workspace(|workspace| {
        let table = shared.lanes.load();
        let began = Instant::now();
        let features = shared.features.fetch(entity, given(request))?;
        let lane = route::lane(&table, checkpoint, entity, id)?;
        let loaded = &*lane.loaded;
        features::encode(&features, loaded, &mut workspace.row)?;
        let fetched = Instant::now();

        let evaluated = evaluate::evaluate(shared, loaded, workspace, id, |row, memory| {
            loaded.bundle.score(row, &Unlimited, &mut memory.eval)
        });
        let (out, fallback) = or_static(shared, checkpoint, evaluated)?;
        let exec = fetched.elapsed();
        let times = Times { data_load_us: micros(fetched - began), exec_us: micros(exec) };
        let counters = shared.metrics.checkpoint(checkpoint.index);
        counters.exec.record(exec);
        counters.rows.fetch_add(1, Relaxed);
        loaded.answered(1);

        let label = label(checkpoint, loaded, &out);
        if let Some(log) = &shared.log {
            let decision = Decision { checkpoint, lane, id, entity, fallback, times };
            let (row, _, record) = workspace.parts(loaded);
            let said = Said::Score { margin: out.margin, score: out.score, label: &label };
            // A score that is not recorded is still worth giving; the log counts it.
            let _ = log::append(shared, log, decision, row, said, checkpoint.durability, record);
        }
        let source = Arc::clone(&lane.source);
        Ok(Scored { source, score: out.score, margin: out.margin, label, fallback, times })
    })
}

/// The model's score, or the checkpoint's static one with the reason.
pub(crate) fn or_static(
    shared: &Shared,
    checkpoint: &Checkpoint,
    evaluated: Result<ScoreOut, Failed>,
) -> Result<(ScoreOut, Option<Reason>), Refusal> {
    let failed = match evaluated {
        Ok(out) => return Ok((out, None)),
        Err(failed) => failed,
    };
    let reason = failed.reason;
    let out = decide::static_score(checkpoint).ok_or_else(|| failed.refusal(shared, checkpoint))?;
    shared.metrics.checkpoint(checkpoint.index).fell_back(reason, 1);
    Ok((out, Some(reason)))
}

/// The band's label, or the static answer's.
pub(crate) fn label(checkpoint: &Checkpoint, loaded: &Loaded, out: &ScoreOut) -> Arc<str> {
    match (loaded.labels.get(out.band), &checkpoint.fallback) {
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
