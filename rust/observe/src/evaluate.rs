//! Evaluates requests for an observe lane and builds the records of its observations.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use prost::encoding::message;
use scorer_core::budget::Budget;
use scorer_core::bundle::{EvalError, EvalScratch, FunctionSet, ScoreOut, SelectOut};
use scorer_core::policy::{Mask, PolicyError};
use scorer_engine::{
    BoundLists, Kind, Level, Loaded, Ruled, Shape, fill_faulted, fill_origins, micros, rules_of_record,
};
use scorer_os::sched::thread_cpu_time;
use scorer_proto::v1::{DecisionRecord, ObservationRecord};
use scorer_rules::{Exhausted, Request};
use serde_json::json;

use crate::counters::Failure;
use crate::job::Job;
use crate::lane::{Here, Lane};
use crate::mapping::Mapping;
use crate::thread::Env;

/// Field number of `LogRecord.observation`. `prost::encoding` is not a documented API; a test of the engine compares
/// its results with those of the documented API.
const OBSERVATION: u32 = 5;
/// Greatest CPU time of one evaluation. An evaluation that takes more is stopped.
const LIMIT: Duration = Duration::from_millis(100);
/// Number of chunks of trees between two reads of the CPU clock, because each read is a system call.
const CHECK_EVERY: u32 = 64;
/// Number of answering bundles whose mappings are kept: the active bundles and those replaced recently.
const KEPT: usize = 8;

/// One lane's working memory for evaluations. After the first requests it does not allocate.
pub(crate) struct Evaluator {
    job: Job,
    row: Vec<f32>,
    eligible: Mask,
    /// The eligible set before the rules of the lane's bundle.
    requested: Mask,
    eval: EvalScratch,
    /// The external lists of the current evaluation. They are released with its record.
    lists: Option<Arc<BoundLists>>,
    mappings: Vec<(Arc<Shape>, Mapping)>,
    record: ObservationRecord,
    decision: DecisionRecord,
    payload: Vec<u8>,
}

enum Out {
    Score {
        out: ScoreOut,
        /// The score within the caps and floors of the rules.
        within: f64,
    },
    Select(SelectOut),
}

// === impl Out ===

impl Out {
    /// The functions of the bundle that had no result in a transform.
    fn faulted(&self) -> FunctionSet {
        match self {
            Out::Score { out, .. } => out.faulted,
            Out::Select(out) => out.faulted,
        }
    }
}

// === impl Evaluator ===

impl Evaluator {
    pub(crate) fn new(loaded: &Loaded) -> Evaluator {
        Evaluator {
            job: Job::default(),
            row: Vec::new(),
            eligible: Mask::all(loaded.bundle.catalogue().len()),
            requested: Mask::all(loaded.bundle.catalogue().len()),
            eval: EvalScratch::new(&loaded.bundle),
            lists: None,
            mappings: Vec::new(),
            record: ObservationRecord::default(),
            decision: DecisionRecord::default(),
            payload: Vec::new(),
        }
    }

    /// Evaluates the oldest request in the queue. Returns false if the queue is empty.
    pub(crate) fn next(&mut self, lane: &Lane, here: &Here, env: &Env) -> bool {
        if !here.queue.pop(&mut self.job) {
            return false;
        }
        let done = &lane.counters.done;
        let now = Instant::now();
        done.busy_since.store(env.since_start(now), Relaxed);
        let lag = self.job.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let fits = self.map(&here.loaded);
        let data_load = now.elapsed();
        let began = thread_cpu_time();
        let result = if fits { self.evaluate(lane, here, env) } else { Err(Failure::Features) };
        let exec = thread_cpu_time().saturating_sub(began);
        if fits {
            done.exec.record(exec);
            done.quantiles.record(u64::try_from(exec.as_nanos()).unwrap_or(u64::MAX));
        }
        if let Err(failure) = &result {
            done.failed(*failure);
        }
        self.fill(lane, here, env, &result, [lag, data_load, exec]);
        self.payload.clear();
        message::encode(OBSERVATION, &self.record, &mut self.payload);
        if !env.logs || !here.hand_over(&self.payload) {
            done.unlogged.fetch_add(1, Relaxed);
        }
        done.evaluated.fetch_add(1, Relaxed);
        done.busy_since.store(0, Relaxed);
        // The queue uses the job's memory again; it must not keep the shape alive.
        self.job.shape = None;
        true
    }

    /// Discards all requests in the queue and returns their number.
    pub(crate) fn discard(&mut self, here: &Here) -> u64 {
        let mut count = 0;
        while here.queue.pop(&mut self.job) {
            self.job.shape = None;
            count += 1;
        }
        count
    }

    /// Converts the row and the eligible actions for the lane's bundle. Returns false if the bundle's schema rejects
    /// them.
    fn map(&mut self, loaded: &Loaded) -> bool {
        let Evaluator { job, row, eligible, mappings, record, .. } = self;
        let Job { shape, computed, .. } = job;
        let Some(shape) = shape else { return false };
        let (schema, catalogue) = (loaded.bundle.schema(), loaded.bundle.catalogue());
        let at = match mappings.iter().position(|(known, _)| Arc::ptr_eq(known, shape)) {
            Some(at) => at,
            None => {
                if mappings.len() == KEPT {
                    mappings.remove(0);
                }
                mappings.push((Arc::clone(shape), Mapping::compile(shape, schema, catalogue)));
                mappings.len() - 1
            }
        };
        let mapping = &mappings[at].1;
        mapping.mask(job.restricted.then_some(&*job.eligible), eligible);
        let fits = mapping.row(&job.row, &job.others, schema, row, &mut record.absent_features);
        if let Some(own) = &loaded.shape.computed {
            computed.fill(own, shape, row, &mut record.absent_features);
        }
        fits
    }

    fn evaluate(&mut self, lane: &Lane, here: &Here, env: &Env) -> Result<Out, Failure> {
        let loaded = &here.loaded;
        self.lists = env.lists.of(loaded);
        let Evaluator { job, row, eligible, requested, eval, lists, .. } = &mut *self;
        let lists = lists.as_deref().map(|bound| &bound.lists);
        requested.clone_from(eligible);
        let (bundle, id) = (&loaded.bundle, job.id.as_bytes());
        // Rules see the time of the answer, so that those of two equal bundles have equal results.
        let request =
            Request { seconds: job.answered_at_us.div_euclid(1_000_000), id, exhausted: Exhausted::NONE };
        let until = Limited { began: thread_cpu_time(), asked: Cell::new(0) };
        let result = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(feature = "fault-injection")]
            env.faults.strike(&lane.checkpoint, &lane.table.name)?;
            match loaded.kind {
                Kind::Score => {
                    let out = bundle.score(row, &until, eval)?;
                    bundle.apply_rules_with(lists, row, Some(out.score), request, eval)?;
                    let ruled = bundle.ruled_score(out.score, eval);
                    let (within, band) =
                        ruled.map_or((out.score, out.band), |ruled| (ruled.score, ruled.band));
                    Ok(Out::Score { out: ScoreOut { band, ..out }, within })
                }
                Kind::Action => {
                    bundle.apply_rules_with(lists, row, None, request, eval)?;
                    if !bundle.restrict(eligible, eval) {
                        return Err(PolicyError::NoEligibleAction.into());
                    }
                    bundle.select(row, eligible, &lane.checkpoint, &job.id, &until, eval).map(Out::Select)
                }
            }
        }));
        loaded.functions.take(eval);
        match result {
            Ok(Ok(out)) => Ok(out),
            Ok(Err(error)) => Err(failure(&error)),
            Err(panic) => {
                // A panic can leave this memory in an inconsistent state, so it is replaced.
                self.eval = EvalScratch::new(&loaded.bundle);
                let panics = lane.counters.done.failures()[Failure::Panic as usize].1 + 1;
                // Reported at powers of two, so that a lane that panics at every request does not displace other
                // events.
                if panics.is_power_of_two() {
                    let id = env.events.defect("observe lane", panic.as_ref());
                    let fields = json!({
                        "id": id,
                        "checkpoint": lane.checkpoint,
                        "lane": lane.table.name,
                        "bundle": &*loaded.digest_text,
                        "panics": panics,
                    });
                    env.events.push(Level::Error, "observer_panicked", fields);
                }
                Err(Failure::Panic)
            }
        }
    }

    /// Fills the record. Every field is written, because the record still holds the previous observation, whose buffers
    /// are used again.
    fn fill(
        &mut self,
        lane: &Lane,
        here: &Here,
        env: &Env,
        result: &Result<Out, Failure>,
        [lag, data_load, exec]: [Duration; 3],
    ) {
        let Evaluator { job, row, eligible, requested, eval, lists, record, decision: to, payload, .. } =
            self;
        let lists = lists.take();
        let loaded = &*here.loaded;
        set(&mut to.decision_id, &job.id);
        set(&mut to.checkpoint, &lane.checkpoint);
        set(&mut to.lane, &lane.table.name);
        to.lane_table = job.lane_table;
        to.bundle.clear();
        to.bundle.extend_from_slice(&lane.digest.0);
        to.decided_at_us = env.clock.unix_us();
        set(&mut to.entity, &job.entity);
        std::mem::swap(&mut to.features, row);
        to.schema_fingerprint = loaded.bundle.schema().fingerprint();
        fill_origins(to, loaded.shape.computed.as_ref(), job.computed.origins());
        let faulted = result
            .as_ref()
            .map_or_else(|_| FunctionSet::default(), |out| out.faulted().or(eval.faulted_in_rules()));
        fill_faulted(to, &loaded.shape, faulted);
        to.data_load_us = micros(data_load);
        to.exec_us = micros(exec);
        (to.margin, to.score) = (0.0, 0.0);
        to.decision.clear();
        to.eligible_mask.clear();
        to.pmf.clear();
        to.action_index = 0;
        to.action.clear();
        (to.propensity, to.expected_reward) = (0.0, 0.0);
        if loaded.kind == Kind::Action && !eligible.is_full() {
            to.eligible_mask = eligible.to_bytes();
        }
        to.requested_mask.clear();
        to.rules = match (result, eval.ruling()) {
            (Ok(out), Some(ruling)) => {
                let within = if let Out::Score { within, .. } = out { *within } else { 0.0 };
                Some(rules_of_record(
                    &Ruled::of(ruling, within, lists.as_deref(), Exhausted::NONE),
                    &loaded.shape,
                ))
            }
            _ => None,
        };
        if to.rules.is_some() && loaded.kind == Kind::Action && !requested.is_full() {
            to.requested_mask = requested.to_bytes();
        }
        match result {
            Ok(Out::Score { out, .. }) => {
                (to.margin, to.score) = (out.margin, out.score);
                set(&mut to.decision, loaded.labels.get(out.band).map_or("", |label| label));
            }
            Ok(Out::Select(out)) => {
                to.pmf.extend_from_slice(eval.pmf());
                to.action_index = out.index as u32;
                set(&mut to.action, loaded.actions.get(out.index).map_or("", |action| &action.id));
                (to.propensity, to.expected_reward) = (out.propensity, out.expected_reward);
            }
            Err(_) => {}
        }
        set(&mut record.error, result.as_ref().err().map_or("", |failure| failure.as_str()));
        set(&mut record.live_lane, &job.lane);
        record.live_bundle.clear();
        record.live_bundle.extend_from_slice(&job.bundle);
        (record.live_margin, record.live_score) = (job.margin, job.score);
        set(&mut record.live_decision, &job.decision);
        set(&mut record.live_action, &job.action);
        (record.live_expected_reward, record.live_propensity) = (job.expected_reward, job.propensity);
        set(&mut record.live_fallback_reason, &job.fallback_reason);
        (record.live_data_load_us, record.live_exec_us) = (job.timings.data_load_us, job.timings.exec_us);
        env.privacy.withhold(&loaded.shape.sensitive, to, payload);
        record.lag_us = micros(lag);
        record.answered_at_us = job.answered_at_us;
        // The record owns the decision, so it is taken out and put back.
        let decision = std::mem::take(to);
        if let Some(before) = record.decision.replace(decision) {
            *to = before;
        }
    }
}

/// The budget of one evaluation, in CPU time of its thread, because other threads may preempt it for any length of
/// time.
struct Limited {
    began: Duration,
    asked: Cell<u32>,
}

impl Budget for Limited {
    fn spent(&self) -> bool {
        let asked = self.asked.get() + 1;
        self.asked.set(asked);
        asked.is_multiple_of(CHECK_EVERY) && thread_cpu_time().saturating_sub(self.began) > LIMIT
    }
}

fn failure(error: &EvalError) -> Failure {
    match error {
        EvalError::NotFinite { .. }
        | EvalError::Policy(PolicyError::NonFiniteScore { .. } | PolicyError::ScoreAboveOne { .. }) => {
            Failure::NonFinite
        }
        EvalError::OutOfTime(_)
        | EvalError::RowLength { .. }
        | EvalError::Kind { .. }
        | EvalError::Scratch
        | EvalError::NoCovers
        | EvalError::Action { .. }
        | EvalError::Policy(
            PolicyError::NoEligibleAction | PolicyError::MaskLength { .. } | PolicyError::Length { .. },
        ) => Failure::Error,
    }
}

fn set(field: &mut String, value: &str) {
    field.clear();
    field.push_str(value);
}
