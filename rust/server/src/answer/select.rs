//! `SelectAction`: one context, one action, its propensity in the log before the reply leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_core::budget::Unlimited;
use scorer_core::bundle::SelectOut;
use scorer_proto::v1::select_action_request::Features as Given;
use scorer_proto::v1::{SelectActionRequest, SelectActionResponse};

use super::arrive::Arrival;
use super::evaluate::{self, Failed, Workspace, with_workspace};
use super::features::{self, Features};
use super::log::{self, Pmf, Said};
use super::{Decision, Times, decide, decode, micros, reply, route};
use crate::config::Kind;
use crate::decisions::{Decisions, unavailable};
use crate::lanes::{LaneInForce, Source};
use crate::metrics::Reason;
use crate::refusal::Refusal;
use crate::replay::{Content, Remembered};
use crate::state::{Checkpoint, Shared};

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
    let decide = || decide(shared, checkpoint, &id, &request);
    let (selected, replayed) = shared.selections.once(key, content, checkpoint, decide).await?;
    if replayed {
        shared.metrics.replays.fetch_add(1, Relaxed);
    }
    if selected.fallback.is_some() {
        arrival.fell_back();
    }
    Ok(reply::selection(id, &selected, replayed))
}

fn decide(
    shared: &Shared,
    checkpoint: &Checkpoint,
    id: &str,
    request: &SelectActionRequest,
) -> Result<Selected, Refusal> {
    let entity = request.entity.as_str();
    with_workspace(|workspace| {
        let table = shared.lanes.load();
        let began = Instant::now();
        let features = shared.features.fetch(entity, given(request))?;
        let lane = route::lane(&table, checkpoint, entity, id)?;
        let loaded = &*lane.loaded;
        features::encode(&features, loaded, &mut workspace.row)?;
        let (_, memory, _) = workspace.parts(loaded);
        decide::eligible(request.eligible.as_ref(), loaded, &mut memory.eligible)?;
        let fetched = Instant::now();

        let turn = Turn { shared, checkpoint, lane, id };
        let log = shared.available_log();
        let mut choice = match log {
            Some(_) => turn.explore(workspace)?,
            None => turn.exploit(workspace, unavailable(shared.log.as_ref()))?,
        };
        let exec = fetched.elapsed();
        let times = Times { data_load_us: micros(fetched - began), exec_us: micros(exec) };
        let counters = shared.metrics.checkpoint(checkpoint.index);
        counters.exec.record(exec);
        counters.rows.fetch_add(1, Relaxed);
        loaded.answered(1);

        let logged = match log {
            None => {
                if shared.log.is_some() {
                    log::unlogged(shared);
                }
                false
            }
            Some(log) => match turn.record(log, workspace, entity, choice, times) {
                Ok(()) => true,
                Err(_) if choice.explored => {
                    // Nobody could ever account for a draw that is on no record: the best action instead.
                    choice = turn.exploit(workspace, Reason::Log)?;
                    false
                }
                Err(_) => false,
            },
        };
        if let Some(reason) = choice.fallback {
            counters.fell_back(reason, 1);
        }
        let pmf = request.include_pmf.then(|| {
            let mut pmf: Vec<f32> = Vec::with_capacity(loaded.actions.len());
            let (_, memory, _) = workspace.parts(loaded);
            choice.pmf(memory.eval.pmf()).extend(&mut pmf, |p| p as f32);
            pmf.into()
        });
        let SelectOut { index, propensity, expected_reward } = choice.out;
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
    })
}

/// One selection under way.
#[derive(Clone, Copy)]
struct Turn<'a> {
    shared: &'a Shared,
    checkpoint: &'a Checkpoint,
    lane: &'a LaneInForce,
    id: &'a str,
}

/// What was chosen, and how.
#[derive(Clone, Copy)]
struct Choice {
    out: SelectOut,
    fallback: Option<Reason>,
    /// The policy drew it, and the workspace holds the policy's probabilities.
    explored: bool,
}

// === impl Turn ===

impl Turn<'_> {
    /// The policy draws.
    fn explore(self, workspace: &mut Workspace) -> Result<Choice, Refusal> {
        let bundle = &self.lane.loaded.bundle;
        let drawn = evaluate::evaluate(self.shared, &self.lane.loaded, workspace, self.id, |row, memory| {
            bundle.select(row, &memory.eligible, &self.checkpoint.name, self.id, &Unlimited, &mut memory.eval)
        });
        match drawn {
            Ok(out) => Ok(Choice { out, fallback: None, explored: true }),
            Err(failed) => self.fixed(workspace, failed),
        }
    }

    /// Exploration is stopped for `reason`: the best action, for certain.
    fn exploit(self, workspace: &mut Workspace, reason: Reason) -> Result<Choice, Refusal> {
        let bundle = &self.lane.loaded.bundle;
        let best = evaluate::evaluate(self.shared, &self.lane.loaded, workspace, self.id, |row, memory| {
            bundle.select_greedy(row, &memory.eligible, &Unlimited, &mut memory.eval)
        });
        match best {
            Ok(out) => Ok(Choice { out, fallback: Some(reason), explored: false }),
            Err(failed) => self.fixed(workspace, failed),
        }
    }

    /// The model cannot answer: the configured action, if this request allows it.
    fn fixed(self, workspace: &mut Workspace, failed: Failed) -> Result<Choice, Refusal> {
        let (_, memory, _) = workspace.parts(&self.lane.loaded);
        let reason = failed.reason;
        decide::static_action(self.checkpoint, &self.lane.loaded, &memory.eligible)
            .map(|out| Choice { out, fallback: Some(reason), explored: false })
            .ok_or_else(|| failed.refusal(self.shared, self.checkpoint))
    }

    fn record(
        self,
        log: &Decisions,
        workspace: &mut Workspace,
        entity: &str,
        choice: Choice,
        times: Times,
    ) -> Result<(), scorer_log::LogError> {
        let Turn { shared, checkpoint, lane, id } = self;
        let (row, memory, record) = workspace.parts(&lane.loaded);
        let SelectOut { index, propensity, expected_reward } = choice.out;
        let eligible = if memory.eligible.is_full() { Vec::new() } else { memory.eligible.to_bytes() };
        let said = Said::Action {
            eligible: &eligible,
            pmf: choice.pmf(memory.eval.pmf()),
            index,
            id: lane.loaded.actions.get(index).map_or("", |action| &action.id),
            propensity,
            expected_reward,
        };
        let decision = Decision { checkpoint, lane, id, entity, fallback: choice.fallback, times };
        log::append(shared, log, decision, row, said, checkpoint.durability, record)
    }
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
