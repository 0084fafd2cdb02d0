//! `SelectAction`: one context, one action, its propensity in the log before the reply leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_admission::Place;
use scorer_core::bundle::SelectOut;
use scorer_core::policy::Mask;
use scorer_proto::v1::select_action_request::Features as Given;
use scorer_proto::v1::{SelectActionRequest, SelectActionResponse};

use super::admit::{self, Ticket};
use super::arrive::Arrival;
use super::budget::Until;
use super::evaluate::{self, Failed, Workspace, with_workspace};
use super::features::{self, Features};
use super::log::{self, Pmf, Said};
use super::{Decision, Times, Turn, decide, decode, exposure, micros, reply, route};
use crate::bundles::Loaded;
use crate::config::{FallbackConfig, Kind};
use crate::decisions::{Decisions, unavailable};
use crate::lanes::{LaneInForce, Source};
use crate::metrics::Reason;
use crate::observe;
use crate::refusal::Refusal;
use crate::replay::{Claimed, Content, Remembered};
use crate::state::Shared;

/// A selection as it is remembered.
#[derive(Clone)]
pub(crate) struct Selected {
    pub(crate) source: Arc<Source>,
    pub(crate) index: u32,
    pub(crate) propensity: f64,
    pub(crate) expected_reward: f64,
    /// Only if it was asked for.
    pub(crate) pmf: Option<Arc<[f32]>>,
    pub(crate) logged: bool,
    pub(crate) fallback: Option<Reason>,
    pub(crate) times: Times,
}

impl Remembered for Selected {
    fn extra_bytes(&self) -> usize {
        self.pmf.as_deref().map_or(0, size_of_val)
    }
}

/// Answers one request.
pub(crate) async fn answer(
    shared: &Shared,
    arrival: &Arrival,
    mut request: SelectActionRequest,
) -> Result<SelectActionResponse, Refusal> {
    let checkpoint = decode::checkpoint(shared, arrival, &request.checkpoint, Kind::Action)?;
    arrival.check_deadline()?;
    decode::entity(&request.entity)?;
    let id = decode::request_id(std::mem::take(&mut request.request_id))?.text;
    let key = shared.selections.key(checkpoint.index, &id);
    let content = content(shared.selections.hasher(), &request);
    let (selected, replayed) = match shared.selections.claim(key, content, checkpoint).await? {
        Claimed::Mine(claim) => {
            let named = features::named(given(&request));
            let turn = Turn { shared, arrival, checkpoint, id: &id, entity: &request.entity, named };
            let selected = decision(turn, &request).await?;
            claim.finish(&selected);
            (selected, false)
        }
        Claimed::Answered(selected) => {
            shared.metrics.replays.fetch_add(1, Relaxed);
            (selected, true)
        }
    };
    if selected.fallback.is_some() {
        arrival.fell_back();
    }
    Ok(reply::selection(id, &selected, replayed))
}

/// Where the evaluation runs, as admission has it.
enum Step {
    Inline(Selected),
    Pool(Pooled),
}

/// What the task keeps while the pool evaluates.
struct Pooled {
    lane: LaneInForce,
    instead: Option<Reason>,
    ticket: Ticket,
    row: Vec<f32>,
    eligible: Mask,
    explores: bool,
    data_load_us: u32,
}

/// What the model chose.
struct Drawn {
    out: SelectOut,
    /// The policy's probabilities, if it drew on another thread; else they are in the workspace.
    pmf: Option<Vec<f64>>,
}

/// What is answered, and how it came about.
#[derive(Clone, Copy)]
struct Choice {
    out: SelectOut,
    fallback: Option<Reason>,
    /// The policy drew it, and its probabilities are at hand.
    explored: bool,
}

async fn decision(turn: Turn<'_>, request: &SelectActionRequest) -> Result<Selected, Refusal> {
    match with_workspace(|workspace| begin(turn, request, workspace))? {
        Step::Inline(selected) => Ok(selected),
        Step::Pool(pooled) => on_pool(turn, pooled, request.include_pmf).await,
    }
}

fn begin(turn: Turn<'_>, request: &SelectActionRequest, workspace: &mut Workspace) -> Result<Step, Refusal> {
    let Turn { shared, arrival, checkpoint, id, entity, .. } = turn;
    let table = shared.lanes.load();
    let began = Instant::now();
    let features = shared.features.fetch(entity, given(request))?;
    let lane = route::lane(&table, checkpoint, entity, id)?;
    let (lane, instead) = route::in_service(shared, &table, checkpoint, lane, id, began);
    let loaded = &*lane.loaded;
    features::encode(&features, lane, &mut workspace.row)?;
    let (_, memory, _) = workspace.parts(loaded);
    decide::eligible(request.eligible.as_ref(), loaded, &mut memory.eligible)?;
    let fetched = Instant::now();
    let data_load_us = micros(fetched - began);

    // A draw that is on no record could never be accounted for.
    let explores = shared.available_log().is_some();
    let drawn = match admit::one(turn, loaded, instead, fetched) {
        Err(failed) => Err(failed),
        Ok(ticket) if ticket.ticket().is_some_and(|it| it.place() == Place::Pool) => {
            let (row, memory, _) = workspace.parts(loaded);
            let (row, eligible) = (row.clone(), memory.eligible.clone());
            let lane = lane.clone();
            return Ok(Step::Pool(Pooled { lane, instead, ticket, row, eligible, explores, data_load_us }));
        }
        Ok(ticket) => evaluate::inline(shared, checkpoint, ticket, fetched, |until| {
            let out = draw(shared, loaded, workspace, &checkpoint.name, id, explores, until, fetched)?;
            Ok(Drawn { out, pmf: None })
        }),
    };
    let ready = Instant::now();
    arrival.ready(ready);
    let times = Times { data_load_us, exec_us: micros(ready - fetched) };
    conclude(turn, workspace, lane, drawn, explores, instead, times, request.include_pmf).map(Step::Inline)
}

async fn on_pool(turn: Turn<'_>, pooled: Pooled, include_pmf: bool) -> Result<Selected, Refusal> {
    let Turn { checkpoint, id, .. } = turn;
    let Pooled { lane, instead, ticket, row, eligible, explores, data_load_us } = pooled;
    let evaluation = {
        let (loaded, id, name) = (Arc::clone(&lane.loaded), id.to_owned(), checkpoint.name.clone());
        let (row, eligible) = (row.clone(), eligible.clone());
        move |shared: &Shared, until: &Until<'_>, began| {
            with_workspace(|workspace| {
                install(workspace, &loaded, &row, &eligible);
                let out = draw(shared, &loaded, workspace, &name, &id, explores, until, began)?;
                let (_, memory, _) = workspace.parts(&loaded);
                Ok(Drawn { out, pmf: explores.then(|| memory.eval.pmf().to_vec()) })
            })
        }
    };
    let (drawn, exec_us) = evaluate::on_pool(turn, ticket, evaluation).await?;
    with_workspace(|workspace| {
        install(workspace, &lane.loaded, &row, &eligible);
        let times = Times { data_load_us, exec_us };
        conclude(turn, workspace, &lane, drawn, explores, instead, times, include_pmf)
    })
}

/// From the draw, or what went wrong with it, to the answer and its record.
#[expect(clippy::too_many_arguments, reason = "each is something else that the answer says")]
fn conclude(
    turn: Turn<'_>,
    workspace: &mut Workspace,
    lane: &LaneInForce,
    drawn: Result<Drawn, Failed>,
    explores: bool,
    instead: Option<Reason>,
    times: Times,
    include_pmf: bool,
) -> Result<Selected, Refusal> {
    let Turn { shared, checkpoint, id, entity, named, .. } = turn;
    let loaded = &*lane.loaded;
    let (mut choice, pmf) = match drawn {
        Ok(Drawn { out, pmf }) if explores => (Choice { out, fallback: instead, explored: true }, pmf),
        Ok(Drawn { out, .. }) => {
            let fallback = Some(unavailable(shared.log.as_ref()));
            (Choice { out, fallback, explored: false }, None)
        }
        Err(failed) => (fixed(turn, workspace, loaded, failed)?, None),
    };
    let counters = shared.metrics.checkpoint(checkpoint.index);
    counters.exec.record(Duration::from_micros(times.exec_us.into()));
    counters.rows.fetch_add(1, Relaxed);
    loaded.answered(1);

    let logged = match shared.available_log() {
        Some(log) => match record(turn, log, lane, workspace, choice, pmf.as_deref(), times) {
            Ok(()) => true,
            Err(_) if choice.explored => {
                choice = exploit(turn, workspace, loaded, Reason::Log)?;
                false
            }
            Err(_) => false,
        },
        None => {
            if shared.log.is_some() {
                log::unlogged(shared);
            }
            if choice.explored {
                // The log went while the policy drew.
                choice = exploit(turn, workspace, loaded, unavailable(shared.log.as_ref()))?;
            }
            false
        }
    };
    if let Some(reason) = choice.fallback {
        counters.fell_back(reason, 1);
    }
    let pmf = include_pmf.then(|| {
        let mut to: Vec<f32> = Vec::with_capacity(loaded.actions.len());
        let (_, memory, _) = workspace.parts(loaded);
        choice.pmf(pmf.as_deref().unwrap_or(memory.eval.pmf())).extend(&mut to, |p| p as f32);
        to.into()
    });
    let SelectOut { index, propensity, expected_reward } = choice.out;
    let decision = Decision { checkpoint, lane, id, entity, fallback: choice.fallback, times };
    let (row, memory, _) = workspace.parts(loaded);
    let action = loaded.actions.get(index).map_or("", |action| &action.id);
    let said = observe::Said::Action { eligible: &memory.eligible, action, propensity, expected_reward };
    observe::offer(shared, decision, row, said, named);
    Ok(Selected {
        source: Arc::clone(&lane.source),
        index: index as u32,
        propensity,
        expected_reward,
        pmf,
        logged,
        fallback: choice.fallback,
        times,
    })
}

/// Nobody could account for a draw that is on no record: the best action, for certain.
fn exploit(
    turn: Turn<'_>,
    workspace: &mut Workspace,
    loaded: &Loaded,
    reason: Reason,
) -> Result<Choice, Refusal> {
    let Turn { shared, checkpoint, id, .. } = turn;
    let until = Until::new(None, None);
    match draw(shared, loaded, workspace, &checkpoint.name, id, false, &until, Instant::now()) {
        Ok(out) => Ok(Choice { out, fallback: Some(reason), explored: false }),
        Err(failed) => fixed(turn, workspace, loaded, failed),
    }
}

/// The model cannot answer: the configured action, if this request allows it.
fn fixed(
    turn: Turn<'_>,
    workspace: &mut Workspace,
    loaded: &Loaded,
    failed: Failed,
) -> Result<Choice, Refusal> {
    let Turn { shared, arrival, checkpoint, .. } = turn;
    let (row, memory, _) = workspace.parts(loaded);
    let action = |answer: &FallbackConfig| decide::static_action(answer, loaded, &memory.eligible);
    let allowed = |answer: &FallbackConfig| action(answer).is_some();
    let (answer, reason) = exposure::take(shared, checkpoint, loaded, row, arrival.caller, failed, allowed)?;
    // Only what is eligible is allowed.
    let out = action(answer).ok_or(Refusal::Capped)?;
    Ok(Choice { out, fallback: Some(reason), explored: false })
}

fn record(
    turn: Turn<'_>,
    log: &Decisions,
    lane: &LaneInForce,
    workspace: &mut Workspace,
    choice: Choice,
    pmf: Option<&[f64]>,
    times: Times,
) -> Result<(), scorer_log::LogError> {
    let Turn { shared, checkpoint, id, entity, .. } = turn;
    let (row, memory, record) = workspace.parts(&lane.loaded);
    let SelectOut { index, propensity, expected_reward } = choice.out;
    let eligible = if memory.eligible.is_full() { Vec::new() } else { memory.eligible.to_bytes() };
    let said = Said::Action {
        eligible: &eligible,
        pmf: choice.pmf(pmf.unwrap_or(memory.eval.pmf())),
        index,
        id: lane.loaded.actions.get(index).map_or("", |action| &action.id),
        propensity,
        expected_reward,
    };
    let decision = Decision { checkpoint, lane, id, entity, fallback: choice.fallback, times };
    log::append(shared, log, decision, row, said, checkpoint.durability, record)
}

/// The policy draws, or plays its best action where it must not explore.
#[expect(clippy::too_many_arguments, reason = "what a selection depends on, on whichever thread it runs")]
fn draw(
    shared: &Shared,
    loaded: &Loaded,
    workspace: &mut Workspace,
    checkpoint: &str,
    id: &str,
    explores: bool,
    until: &Until<'_>,
    now: Instant,
) -> Result<SelectOut, Failed> {
    evaluate::evaluate(shared, loaded, workspace, id, until, now, |row, memory| {
        if explores {
            loaded.bundle.select(row, &memory.eligible, checkpoint, id, until, &mut memory.eval)
        } else {
            loaded.bundle.select_greedy(row, &memory.eligible, until, &mut memory.eval)
        }
    })
}

/// Puts a request that began on another thread into this one's memory.
fn install(workspace: &mut Workspace, loaded: &Loaded, row: &[f32], eligible: &Mask) {
    let (to, memory, _) = workspace.parts(loaded);
    to.clear();
    to.extend_from_slice(row);
    memory.eligible.clone_from(eligible);
}

// === impl Choice ===

impl Choice {
    /// `policy` holds the policy's probabilities if it drew.
    fn pmf(self, policy: &[f64]) -> Pmf<'_> {
        if self.explored {
            Pmf::Policy(policy)
        } else {
            Pmf::Only { index: self.out.index, actions: policy.len() }
        }
    }
}

fn given(request: &SelectActionRequest) -> Option<Features<'_>> {
    request.features.as_ref().map(|given| match given {
        Given::Named(named) => Features::Named(named),
        Given::Dense(dense) => Features::Dense(dense),
    })
}

/// Everything that makes it this request; the order of names and of ids does not.
fn content(mut hasher: Content, request: &SelectActionRequest) -> u128 {
    hasher.bytes(request.entity.as_bytes());
    hasher.number(u64::from(request.include_pmf));
    features::content(&mut hasher, given(request).as_ref());
    match &request.eligible {
        None => hasher.number(0),
        Some(eligible) => {
            hasher.number(1);
            hasher.bytes(&eligible.mask);
            hasher.set(eligible.ids.iter(), |hasher, id| hasher.bytes(id.as_bytes()));
        }
    }
    hasher.finish()
}
