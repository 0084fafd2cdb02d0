//! The sequence of stages, shared by all kinds of decisions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_admission::Place;
use scorer_core::bundle::{EvalError, FunctionSet};
use scorer_core::explain::Contribution;

use super::admit::Admitted;
use super::evaluate::{self, BundleMemory, Failed, Workspace, with_workspace};
use super::load::{Filled, Preloaded, Waiting};
use super::{RequestContext, admit, explain, features, identify, record, replay, route};
use crate::answered::{Answered, Outcome};
use crate::answers::Answer;
use crate::arrival::Arrival;
use crate::bundles::{Loaded, Ruled};
use crate::computed::Origins;
use crate::config::Kind;
use crate::content::Content;
use crate::deadline::Deadline;
use crate::decision_log::{Appended, Commit};
use crate::defaulted::Defaulted;
use crate::engine::Engine;
use crate::gate::AdmissionPermit;
use crate::idempotency::{IdempotencyCache, Remembered};
use crate::lanes::ActiveLane;
use crate::query::{Features, Query};
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::stages::{Stage, Timed};
use crate::timings::{Timings, micros};

/// Part of a request's time within which the record of a draw must be in the log.
const FOR_RECORD: f64 = 0.75;
/// Time limit for the record of a fallback that is given at the deadline, but at most a quarter of the SLA.
const FOR_LATE_RECORD: Duration = Duration::from_millis(5);

/// The parts of the sequence that differ between kinds of decisions.
pub(crate) trait Decision: Sync {
    /// Kind of checkpoint.
    const KIND: Kind;
    type Features: Features;
    /// Inputs of the evaluation other than the row, copied if it runs on another thread.
    type Inputs: Clone + Send + 'static;
    /// Settings that are determined before the evaluation.
    type Setup: Copy + Send + 'static;
    /// Result of the evaluation.
    type Evaluated: Send + 'static;
    /// The decision.
    type Choice: Send;
    /// The answer, which the idempotency cache stores.
    type Answer: Remembered + Send;

    fn query(&self) -> &Query<'_, Self::Features>;

    /// Returns the idempotency cache of this kind.
    fn cache(engine: &Engine) -> &IdempotencyCache<Self::Answer>;

    /// Adds the content of the request that is not in the query to its hash.
    fn hash(&self, content: &mut Content);

    fn setup(&self, context: RequestContext<'_>, loaded: &Loaded) -> Self::Setup;

    /// Reads the inputs of the request into this thread's memory.
    fn read_inputs(&self, loaded: &Loaded, memory: &mut BundleMemory) -> Result<(), Rejection>;

    /// Applies the rules that are evaluated before the bundle's program. A failure becomes the reason of a fallback.
    fn restrict(_: RequestContext<'_>, _: &Loaded, _row: &[f32], _: &mut BundleMemory) -> Result<(), Failed> {
        Ok(())
    }

    /// Copies the inputs out of this thread's memory.
    fn inputs(memory: &BundleMemory) -> Self::Inputs;

    /// Copies the inputs into this thread's memory.
    fn install(inputs: &Self::Inputs, memory: &mut BundleMemory);

    /// Evaluates the bundle on this thread.
    fn evaluate(
        setup: Self::Setup,
        loaded: &Loaded,
        names: Names<'_>,
        row: &[f32],
        memory: &mut BundleMemory,
        deadline: &Deadline<'_>,
    ) -> Result<Self::Evaluated, EvalError>;

    /// Copies results from the thread's memory, before another thread continues.
    fn detach(evaluated: &mut Self::Evaluated, memory: &BundleMemory);

    /// Determines the answer. `instead` is the reason if another source answers in place of the drawn lane.
    fn decide(
        &self,
        context: RequestContext<'_>,
        loaded: &Loaded,
        workspace: &mut Workspace,
        setup: Self::Setup,
        evaluated: Result<Self::Evaluated, Failed>,
        instead: Option<Reason>,
    ) -> Result<Self::Choice, Rejection>;

    /// Returns whether the choice may be returned only if it is recorded.
    fn needs_record(_: &Self::Choice) -> bool {
        false
    }

    /// Decides again if the record that a choice requires is missing.
    fn unrecorded(
        &self,
        _: RequestContext<'_>,
        _: &Loaded,
        _: &mut Workspace,
        choice: Self::Choice,
    ) -> Result<Self::Choice, Rejection> {
        Ok(choice)
    }

    fn fallback(choice: &Self::Choice) -> Option<Reason>;

    /// Returns the outcome. With `recorded`, it contains the values that only the record stores.
    fn outcome<'a>(
        choice: &'a Self::Choice,
        loaded: &'a Loaded,
        memory: &'a BundleMemory,
        recorded: bool,
    ) -> Outcome<'a>;

    /// Returns the reasons that were computed.
    fn reasons(choice: &Self::Choice) -> &[Contribution];

    /// Returns the result of the rules; `None` without rules.
    fn ruled<'a>(choice: &'a Self::Choice, memory: &'a BundleMemory) -> Option<&'a Ruled>;

    /// Returns the functions of the bundle that had no result in a transform.
    fn faulted(choice: &Self::Choice) -> FunctionSet;

    fn answer(
        &self,
        choice: Self::Choice,
        memory: &BundleMemory,
        lane: &ActiveLane,
        timings: Timings,
        defaulted: Option<Defaulted>,
        logged: bool,
    ) -> Self::Answer;
}

/// The lane that answers a request, and whether it may evaluate.
pub(super) struct Routed {
    pub(super) lane: ActiveLane,
    /// The reason if it is not the drawn lane's model that answers.
    pub(super) instead: Option<Reason>,
    pub(super) admitted: Admitted,
    /// The computed features of the lane's bundle, if they were read.
    pub(super) preloaded: Option<Preloaded>,
}

/// Inputs of an action's draw other than the context.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) checkpoint: &'a str,
    pub(crate) id: &'a str,
}

/// Result of the stages that run without waiting.
enum Step<D: Decision> {
    Answered(D::Answer),
    /// The computed features must arrive.
    Load(Loading),
    /// The evaluation must run on the pool.
    Pool(Pooled<D>),
    /// The reply waits for the record.
    Commit(Pending<D>),
}

/// The state of a request while it waits and no thread works on it.
struct Held<D: Decision> {
    lane: ActiveLane,
    row: Vec<f32>,
    inputs: D::Inputs,
}

/// A request whose computed features have not arrived.
struct Loading {
    lane: ActiveLane,
    row: Vec<f32>,
    instead: Option<Reason>,
    admitted: Option<Admitted>,
    began: Instant,
    waiting: Waiting,
}

/// What is known about the row and the stages.
#[derive(Clone, Copy)]
struct Measured {
    timings: Timings,
    origins: Origins,
}

struct Pooled<D: Decision> {
    held: Held<D>,
    instead: Option<Reason>,
    permit: AdmissionPermit,
    setup: D::Setup,
    measured: Measured,
    /// Whether the nodes are timed.
    timed: bool,
}

struct Pending<D: Decision> {
    held: Held<D>,
    choice: D::Choice,
    measured: Measured,
    commit: Commit,
}

/// Answers one query: runs the stages `identify` and `replay`, and the others if the answer is new.
pub(crate) async fn run<D: Decision>(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    decision: &D,
    request_id: String,
) -> Result<Answer<D::Answer>, <D::Features as Features>::Error> {
    let query = decision.query();
    let checkpoint = identify::checkpoint(engine, arrival, query.checkpoint, D::KIND)?;
    arrival.check_deadline()?;
    identify::check_entity(query.entity)?;
    explain::check(query.reasons)?;
    let recorded_entity = &*engine.privacy.entity(query.entity)?;
    let id = identify::request_id(&engine.privacy, request_id)?;
    let entity = query.entity;
    let context =
        RequestContext { engine, arrival, checkpoint, id: &id.text, entity, recorded_entity, linked: None };
    let (value, replayed) = answer(context, decision, id.given, None).await?;
    Ok(Answer { id: id.text, value, replayed })
}

/// Runs the stages from `replay` to the end. `given` states whether the caller chose the id; `routed` are the results
/// of the stages `route` and `admit`, if they are known. Returns the answer, and whether it comes from the cache.
pub(super) async fn answer<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    given: bool,
    routed: Option<Routed>,
) -> Result<(D::Answer, bool), <D::Features as Features>::Error> {
    // A generated id is never sent again, so storing it would only evict other entries.
    let (value, replayed) = if given {
        replay::once(context, decision, routed).await?
    } else {
        (decide(context, decision, routed).await?, false)
    };
    if value.is_fallback() {
        context.arrival.fell_back();
    }
    if let Some(decided_at_us) = value.recorded_at_us() {
        context.arrival.decided(context.id, decided_at_us, replayed);
    }
    Ok((value, replayed))
}

/// Runs the stages from `route` to the end.
pub(super) async fn decide<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    routed: Option<Routed>,
) -> Result<D::Answer, <D::Features as Features>::Error> {
    let mut step = with_workspace(|workspace| begin(context, decision, workspace, routed))?;
    if let Step::Load(loading) = step {
        step = on_source(context, decision, loading).await?;
    }
    if let Step::Pool(pooled) = step {
        step = on_pool(context, decision, pooled).await?;
    }
    match step {
        Step::Answered(answer) => Ok(answer),
        Step::Commit(pending) => Ok(committed(context, decision, pending).await?),
        Step::Load(_) | Step::Pool(_) => {
            Err(context.engine.defect("sequence", "a stage was repeated").into())
        }
    }
}

fn begin<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    workspace: &mut Workspace,
    routed: Option<Routed>,
) -> Result<Step<D>, <D::Features as Features>::Error> {
    let began = Instant::now();
    let timed = context.arrival.measure(Stage::Features);
    if let Some(Routed { lane, instead, admitted, preloaded }) = routed {
        let earlier = Some((admitted, preloaded));
        return begin_in(context, decision, workspace, (&lane, instead), earlier, began, timed);
    }
    let table = context.engine.lanes();
    let lane = route::lane(context, &table)?;
    let in_service = route::in_service(context, &table, lane, began);
    begin_in(context, decision, workspace, in_service, None, began, timed)
}

/// Runs the stages from `features`, with the lane that answers and the reason if it is not the drawn one.
fn begin_in<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    workspace: &mut Workspace,
    (lane, instead): (&ActiveLane, Option<Reason>),
    earlier: Option<(Admitted, Option<Preloaded>)>,
    began: Instant,
    timed: Timed<'_>,
) -> Result<Step<D>, <D::Features as Features>::Error> {
    let RequestContext { engine, arrival, .. } = context;
    let features = &decision.query().features;
    arrival.answered_by(&lane.source);
    features.accept(lane)?;
    features.encode(lane, &mut workspace.row)?;
    let (admitted, preloaded) = earlier.map_or((None, None), |(admitted, read)| (Some(admitted), read));
    let origins = match features::fill(engine, &lane.loaded, features.keys(), preloaded.as_ref(), workspace) {
        Filled::Done(origins) => origins,
        Filled::Waiting(waiting) => {
            let (lane, row) = (lane.clone(), workspace.row.clone());
            return Ok(Step::Load(Loading { lane, row, instead, admitted, began, waiting }));
        }
    };
    Ok(proceed(context, decision, workspace, (lane, instead), admitted, (began, origins), timed)?)
}

/// Waits for the computed features within their share of the SLA, and runs the stages from `admit`.
async fn on_source<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    loading: Loading,
) -> Result<Step<D>, Rejection> {
    let Loading { lane, row, instead, admitted, began, waiting } = loading;
    let RequestContext { engine, arrival, checkpoint, .. } = context;
    let timed = arrival.measure(Stage::Features);
    let Some(computed) = &lane.loaded.shape.computed else {
        return Err(engine.defect("sequence", "features of a bundle without computed features"));
    };
    let (values, mut origins) = waiting.wait(engine, arrival, checkpoint, computed).await;
    with_workspace(|workspace| {
        workspace.set_row(&row);
        let keys = decision.query().features.keys();
        computed.apply(values.as_deref().map_err(|reason| *reason), keys, &mut workspace.row, &mut origins);
        proceed(context, decision, workspace, (&lane, instead), admitted, (began, origins), timed)
    })
}

/// Runs the stages from `admit`, with a complete row. `began` is the beginning of the stage `features`.
fn proceed<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    workspace: &mut Workspace,
    (lane, instead): (&ActiveLane, Option<Reason>),
    admitted: Option<Admitted>,
    (began, origins): (Instant, Origins),
    timed: Timed<'_>,
) -> Result<Step<D>, Rejection> {
    let RequestContext { engine, arrival, checkpoint, id, .. } = context;
    let loaded = &*lane.loaded;
    decision.read_inputs(loaded, workspace.parts(loaded).1)?;
    let encoded = Instant::now();
    drop(timed);
    let timings = Timings { data_load_us: micros(encoded - began), ..Timings::default() };
    let measured = Measured { timings, origins };

    let setup = decision.setup(context, loaded);
    let times_nodes = workspace.is_timed() || arrival.is_traced();
    let (row, memory, _) = workspace.parts(loaded);
    if times_nodes {
        memory.eval.time_nodes(true);
    }
    let restricted = D::restrict(context, loaded, row, memory);
    let admit = || admitted.unwrap_or_else(|| admit::single(context, loaded, instead, encoded));
    let evaluated = match restricted.and_then(|()| admit()) {
        Err(failed) => Err(failed),
        Ok(permit) if permit.place() == Place::Pool => {
            workspace.count_nodes(loaded, |times| arrival.ran(&loaded.nodes, times));
            let held = Held::of(lane, workspace);
            let timed = times_nodes;
            return Ok(Step::Pool(Pooled { held, instead, permit, setup, measured, timed }));
        }
        Ok(permit) => evaluate::inline(engine, checkpoint, permit, encoded, |deadline| {
            let names = Names { checkpoint: &checkpoint.name, id };
            let _timed = arrival.measure(Stage::Evaluate);
            evaluate::evaluate(engine, loaded, workspace, id, deadline, encoded, |row, memory| {
                D::evaluate(setup, loaded, names, row, memory, deadline)
            })
        }),
    };
    let ready = Instant::now();
    arrival.ready(ready);
    let measured = measured.with_exec(micros(ready - encoded));
    conclude(context, decision, workspace, lane, setup, evaluated, instead, measured)
}

async fn on_pool<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    pooled: Pooled<D>,
) -> Result<Step<D>, Rejection> {
    let Pooled { held, instead, permit, setup, measured, timed: times_nodes } = pooled;
    let evaluation = {
        let (loaded, row, inputs) = (Arc::clone(&held.lane.loaded), held.row.clone(), held.inputs.clone());
        let (id, checkpoint) = (context.id.to_owned(), context.checkpoint.name.clone());
        move |engine: &Engine, deadline: &Deadline<'_>, began| {
            with_workspace(|workspace| {
                workspace.set_row(&row);
                D::install(&inputs, workspace.parts(&loaded).1);
                let names = Names { checkpoint: &checkpoint, id: &id };
                workspace.parts(&loaded).1.eval.time_nodes(times_nodes);
                let evaluated =
                    evaluate::evaluate(engine, &loaded, workspace, &id, deadline, began, |row, memory| {
                        let mut evaluated = D::evaluate(setup, &loaded, names, row, memory, deadline)?;
                        D::detach(&mut evaluated, memory);
                        Ok(evaluated)
                    });
                let mut times: Option<Box<[u64]>> = None;
                workspace.count_nodes(&loaded, |all| times = Some(all.into()));
                evaluated.map(|evaluated| (evaluated, times))
            })
        }
    };
    let timed = context.arrival.measure(Stage::Evaluate);
    let (evaluated, exec_us) = evaluate::on_pool(context, permit, evaluation).await?;
    drop(timed);
    let evaluated = evaluated.map(|(evaluated, times)| {
        if let Some(times) = times {
            context.arrival.ran(&held.lane.loaded.nodes, &times);
        }
        evaluated
    });
    with_workspace(|workspace| {
        held.install(workspace);
        workspace.parts(&held.lane.loaded).1.eval.time_nodes(times_nodes);
        let measured = measured.with_exec(exec_us);
        conclude(context, decision, workspace, &held.lane, setup, evaluated, instead, measured)
    })
}

/// Runs the stages `decide` and `record`.
#[expect(clippy::too_many_arguments, reason = "the results of the stages before")]
fn conclude<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    workspace: &mut Workspace,
    lane: &ActiveLane,
    setup: D::Setup,
    evaluated: Result<D::Evaluated, Failed>,
    instead: Option<Reason>,
    mut measured: Measured,
) -> Result<Step<D>, Rejection> {
    let RequestContext { engine, arrival, checkpoint, .. } = context;
    measured.timings.decided_at_us = engine.clock.unix_us();
    let timed = arrival.measure(Stage::Decide);
    let choice = decision.decide(context, &lane.loaded, workspace, setup, evaluated, instead);
    workspace.count_nodes(&lane.loaded, |times| arrival.ran(&lane.loaded.nodes, times));
    let choice = choice?;
    drop(timed);
    let counters = engine.counters.checkpoint(checkpoint.index);
    counters.exec.record(Duration::from_micros(measured.timings.exec_us.into()));
    counters.rows.fetch_add(1, Relaxed);
    lane.loaded.answered(1);
    let appended = match &engine.log {
        None => Appended::Refused,
        Some(log) => {
            let _timed = arrival.measure(Stage::Log);
            let (row, memory, record) = workspace.parts(&lane.loaded);
            let outcome = D::outcome(&choice, &lane.loaded, memory, true);
            let ruled = D::ruled(&choice, memory);
            let answered = Answered {
                reasons: D::reasons(&choice),
                ruled,
                faulted: with_rules(D::faulted(&choice), ruled),
                ..answered(context, decision, lane, row, D::fallback(&choice), measured, outcome)
            };
            record::append(engine, log, &answered, checkpoint.durability, record)
        }
    };
    match appended {
        Appended::Recorded => finish(context, decision, workspace, lane, choice, measured, true),
        Appended::Refused => finish(context, decision, workspace, lane, choice, measured, false),
        Appended::Pending(commit) => {
            let held = Held::of(lane, workspace);
            return Ok(Step::Commit(Pending { held, choice, measured, commit }));
        }
    }
    .map(Step::Answered)
}

/// Waits for the record within the request's time. A late record counts as not recorded.
async fn committed<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    pending: Pending<D>,
) -> Result<D::Answer, Rejection> {
    let RequestContext { engine, arrival, checkpoint, id, .. } = context;
    let Pending { held, choice, measured, commit } = pending;
    // A request with two decisions has the time of both.
    let within = context.linked.map_or(checkpoint.record_within, |linked| {
        checkpoint.record_within.saturating_add(linked.record_within)
    });
    let allowed = arrival.timeout().map_or(within, |timeout| timeout.min(within));
    let until = if D::needs_record(&choice) {
        // The rest of the time must suffice for the reply and for finding the best action, which takes as long as
        // this evaluation did.
        let evaluation = Duration::from_micros(measured.timings.exec_us.into());
        arrival.at + allowed.mul_f64(FOR_RECORD).saturating_sub(evaluation)
    } else {
        // A fallback for a late model is decided at its deadline, so its record gets additional time.
        let late = FOR_LATE_RECORD.min(checkpoint.sla / 4);
        (arrival.at + allowed).max(Instant::now() + late)
    };
    let timed = arrival.measure(Stage::Log);
    let recorded = commit.within(&engine.watchdog, until).await;
    drop(timed);
    record::committed(engine, &checkpoint.name, id, recorded);
    with_workspace(|workspace| {
        held.install(workspace);
        finish(context, decision, workspace, &held.lane, choice, measured, recorded)
    })
}

/// Returns the answer, and passes it to the lane's sink.
fn finish<D: Decision>(
    context: RequestContext<'_>,
    decision: &D,
    workspace: &mut Workspace,
    lane: &ActiveLane,
    mut choice: D::Choice,
    measured: Measured,
    logged: bool,
) -> Result<D::Answer, Rejection> {
    let loaded = &*lane.loaded;
    if !logged && D::needs_record(&choice) {
        choice = decision.unrecorded(context, loaded, workspace, choice)?;
    }
    let fallback = D::fallback(&choice);
    if let Some(reason) = fallback {
        context.engine.counters.checkpoint(context.checkpoint.index).fell_back(reason);
    }
    if let Some(sink) = &lane.sink {
        let (row, memory, _) = workspace.parts(loaded);
        let outcome = D::outcome(&choice, loaded, memory, false);
        sink.answered(&answered(context, decision, lane, row, fallback, measured, outcome));
    }
    let Measured { timings, origins } = measured;
    Ok(decision.answer(choice, workspace.parts(loaded).1, lane, timings, origins.defaulted, logged))
}

/// The functions that had no result in a transform or in the rules.
pub(super) fn with_rules(faulted: FunctionSet, ruled: Option<&Ruled>) -> FunctionSet {
    ruled.map_or(faulted, |ruled| faulted.or(ruled.faulted))
}

fn answered<'a, D: Decision>(
    context: RequestContext<'a>,
    decision: &'a D,
    lane: &'a ActiveLane,
    row: &'a [f32],
    fallback: Option<Reason>,
    measured: Measured,
    outcome: Outcome<'a>,
) -> Answered<'a> {
    let RequestContext { checkpoint, id, recorded_entity, linked, .. } = context;
    Answered {
        checkpoint: &checkpoint.name,
        linked: linked.map_or("", |linked| &linked.name),
        id,
        entity: recorded_entity,
        row,
        named: decision.query().features.named(),
        keys: decision.query().features.keys(),
        origins: measured.origins,
        timings: measured.timings,
        outcome,
        ..lane.answered(fallback)
    }
}

// === impl Measured ===

impl Measured {
    fn with_exec(self, exec_us: u32) -> Measured {
        Measured { timings: Timings { exec_us, ..self.timings }, ..self }
    }
}

// === impl Held ===

impl<D: Decision> Held<D> {
    fn of(lane: &ActiveLane, workspace: &mut Workspace) -> Held<D> {
        let (row, memory, _) = workspace.parts(&lane.loaded);
        Held { lane: lane.clone(), row: row.clone(), inputs: D::inputs(memory) }
    }

    /// Installs the inputs in this thread's memory.
    fn install(&self, workspace: &mut Workspace) {
        workspace.set_row(&self.row);
        D::install(&self.inputs, workspace.parts(&self.lane.loaded).1);
    }
}
