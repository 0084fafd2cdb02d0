//! Stage `evaluate`: runs the bundle with per-thread working memory, and catches panics.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::{Evaluation, Outcome as ServedOutcome, Served, Shed, Start};
use scorer_core::bundle::{EvalError, EvalScratch, ScoreOut};
use scorer_core::policy::{Mask, PolicyError};
use serde_json::json;

use super::RequestContext;
use super::pooled::{self, Single};
use super::record::RecordBuffer;
use crate::bundles::{Loaded, Ruled};
use crate::checkpoint::Checkpoint;
use crate::deadline::Deadline;
use crate::engine::Engine;
use crate::events::Level;
use crate::gate::AdmissionPermit;
use crate::pool::Outcome;
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::timings::micros;

/// Number of bundles whose working memory a thread keeps: the active ones and those that were just replaced. With more
/// active bundles, some requests allocate the memory again.
const KEPT: usize = 32;

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// The working memory of one thread, which does not allocate after the first request.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) row: Vec<f32>,
    /// The values of computed features.
    pub(crate) values: Vec<f32>,
    pub(crate) record: RecordBuffer,
    /// Number of requests since the nodes of one were timed.
    untimed: u32,
    /// Newest last.
    kept: Vec<BundleMemory>,
}

/// A thread times the nodes of one decision in this many; the evaluations of the others read no clock. It is a prime, so
/// that decisions which come in a fixed order, such as the two of a `Decide`, are all timed.
const TIMED: u32 = 61;

/// Working memory for one bundle.
pub(crate) struct BundleMemory {
    serial: u64,
    pub(crate) eval: EvalScratch,
    pub(crate) eligible: Mask,
    /// The eligible set of the request, while `ruled` is there.
    pub(crate) requested: Mask,
    /// The result of the rules on the eligible actions; absent without rules.
    pub(crate) ruled: Option<Ruled>,
}

/// Runs one request's synchronous part on this thread's workspace.
pub(crate) fn with_workspace<T>(work: impl FnOnce(&mut Workspace) -> T) -> T {
    WORKSPACE.with_borrow_mut(work)
}

/// The reason why the model did not answer, and the rejection if there is no fallback.
pub(crate) struct Failed {
    pub(crate) reason: Reason,
    rejection: Option<Rejection>,
}

/// Runs an admitted evaluation on this thread, unless its deadline cannot be met.
pub(crate) fn inline<T>(
    engine: &Engine,
    checkpoint: &Checkpoint,
    mut permit: AdmissionPermit,
    now: Instant,
    work: impl FnOnce(&Deadline<'_>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let finish_by = engine.admission.instant(permit.finish_by());
    if permit.start(engine.admission.nanos(now)) == Start::TooLate {
        return Err(Failed::late());
    }
    let result = work(&Deadline::new(finish_by, None));
    let end = Instant::now();
    if result.as_ref().is_err_and(|failed| failed.reason == Reason::Late) {
        engine.counters.checkpoint(checkpoint.index).late_results.fetch_add(1, Relaxed);
    }
    let served = Served { exec: (end - now).into(), outcome: served(&result) };
    permit.finish(engine.admission.nanos(end), served);
    result
}

/// Runs an admitted evaluation on the pool, waits for it, and returns its result and its time in microseconds.
///
/// # Errors
/// The server is stopping, or the evaluation panicked.
pub(crate) async fn on_pool<T: Send + 'static>(
    context: RequestContext<'_>,
    permit: AdmissionPermit,
    work: impl FnOnce(&Engine, &Deadline<'_>, Instant) -> Result<T, Failed> + Send + 'static,
) -> Result<(Result<T, Failed>, u32), Rejection> {
    let timed = move |engine: &Engine, deadline: &Deadline<'_>| {
        let began = Instant::now();
        let result = work(engine, deadline, began);
        let outcome = served(&result);
        ((result, micros(began.elapsed())), outcome)
    };
    let single = |job| Single::new(job, timed);
    let RequestContext { engine, arrival, checkpoint, .. } = context;
    let (outcome, ready) = pooled::run(engine, checkpoint.index, permit, single).await?;
    arrival.ready(ready);
    Ok(match outcome {
        Outcome::Done(done) => done,
        Outcome::TimedOut => (Err(Failed::late()), 0),
    })
}

/// Returns the source of the answer after this evaluation.
fn served<T>(result: &Result<T, Failed>) -> ServedOutcome {
    if result.is_ok() { ServedOutcome::Model } else { ServedOutcome::Fallback }
}

/// Runs `work` on the bundle's memory. A panic or an evaluation error is reported as an event, counts in the bundle's
/// breaker, and becomes the reason of a fallback.
pub(crate) fn evaluate<T>(
    engine: &Engine,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    deadline: &Deadline<'_>,
    now: Instant,
    work: impl FnOnce(&[f32], &mut BundleMemory) -> Result<T, EvalError>,
) -> Result<T, Failed> {
    let (result, evaluation) = match guarded(engine, loaded, workspace, id, deadline, work) {
        Ok(Ok(out)) => (Ok(out), Some(Evaluation::Good)),
        Ok(Err(error)) => {
            let failed = Failed::of(engine, loaded, &error);
            let evaluation = (failed.reason == Reason::NonFinite).then_some(Evaluation::NonFinite);
            (Err(failed), evaluation)
        }
        Err(panic) => {
            let rejection = engine.panicked("evaluation", panic.as_ref());
            (Err(Failed { reason: Reason::Panic, rejection: Some(rejection) }), Some(Evaluation::Panic))
        }
    };
    if let Some(evaluation) = evaluation {
        count(engine, loaded, now, evaluation);
    }
    result
}

/// Counts the result of an evaluation in the bundle's breaker, and reports it if the breaker opens.
pub(super) fn count(engine: &Engine, loaded: &Loaded, now: Instant, evaluation: Evaluation) {
    if loaded.breaker.record(engine.admission.nanos(now), evaluation) {
        let fields = json!({"bundle": &*loaded.digest_text, "openings": loaded.breaker.openings()});
        engine.events.push(Level::Error, "breaker_opened", fields);
    }
}

/// Scores rows together, which takes a fraction of the time. Returns `None` if a row failed, without reporting or
/// counting it: the caller then scores the rows one by one, which reports and counts each failure once.
pub(crate) fn together(
    engine: &Engine,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    deadline: &Deadline<'_>,
    now: Instant,
    values: &[f32],
) -> Option<Result<Vec<ScoreOut>, Failed>> {
    let result = guarded(engine, loaded, workspace, id, deadline, |_, memory| {
        let mut out = Vec::new();
        loaded.bundle.score_rows(values, deadline, &mut memory.eval, &mut out)?;
        out.into_iter().collect::<Result<Vec<_>, _>>()
    });
    match result {
        Ok(Ok(out)) => {
            loaded.breaker.record_good(engine.admission.nanos(now), out.len() as u32);
            Some(Ok(out))
        }
        Ok(Err(EvalError::OutOfTime(_))) => Some(Err(Failed::late())),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Runs `work` on the bundle's memory with injected faults, and catches a panic.
fn guarded<T>(
    engine: &Engine,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    deadline: &Deadline<'_>,
    work: impl FnOnce(&[f32], &mut BundleMemory) -> Result<T, EvalError>,
) -> std::thread::Result<Result<T, EvalError>> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "fault-injection")]
        engine.faults.strike(id, &loaded.digest_text)?;
        let _ = (engine, id, deadline);
        let Workspace { row, kept, .. } = &mut *workspace;
        let memory = memory_for(kept, loaded);
        #[cfg(feature = "fault-injection")]
        let began = Instant::now();
        let out = work(row, memory);
        loaded.functions.take(&mut memory.eval);
        #[cfg(feature = "fault-injection")]
        engine.faults.delay(began, deadline)?;
        out
    }));
    if result.is_err() {
        // Partly written working memory is discarded. The eligible set was not being written.
        memory_for(&mut workspace.kept, loaded).eval = EvalScratch::new(&loaded.bundle);
    }
    result
}

/// Returns the working memory for a bundle, which the first request on this thread allocates.
fn memory_for<'a>(kept: &'a mut Vec<BundleMemory>, loaded: &Loaded) -> &'a mut BundleMemory {
    let at = match kept.iter().position(|memory| memory.serial == loaded.serial) {
        Some(at) => at,
        None => {
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push(BundleMemory {
                serial: loaded.serial,
                eval: EvalScratch::new(&loaded.bundle),
                eligible: Mask::all(loaded.bundle.catalogue().len()),
                requested: Mask::all(loaded.bundle.catalogue().len()),
                ruled: None,
            });
            kept.len() - 1
        }
    };
    &mut kept[at]
}

// === impl Failed ===

impl Failed {
    fn of(engine: &Engine, loaded: &Loaded, error: &EvalError) -> Failed {
        match error {
            EvalError::NotFinite { .. }
            | EvalError::Policy(PolicyError::NonFiniteScore { .. } | PolicyError::ScoreAboveOne { .. }) => {
                Failed { reason: Reason::NonFinite, rejection: None }
            }
            EvalError::OutOfTime(_) => Failed::late(),
            // Earlier stages exclude these errors, so they are defects of the server and not of the request.
            EvalError::RowLength { .. }
            | EvalError::Kind { .. }
            | EvalError::Scratch
            | EvalError::NoCovers
            | EvalError::Action { .. }
            | EvalError::Policy(
                PolicyError::NoEligibleAction | PolicyError::MaskLength { .. } | PolicyError::Length { .. },
            ) => {
                let details = format!("bundle {}: {error}", loaded.digest_text);
                Failed { reason: Reason::Error, rejection: Some(engine.defect("evaluation", &details)) }
            }
        }
    }

    /// Creates the failure of an evaluation that did not end in time, or was not started because it could not.
    pub(crate) fn late() -> Failed {
        Failed { reason: Reason::Late, rejection: Some(Rejection::Deadline) }
    }

    /// Creates the failure of an evaluation that admission control shed.
    pub(crate) fn shed(shed: &Shed) -> Failed {
        Failed { reason: Reason::Overload, rejection: Some(Rejection::shed(shed)) }
    }

    /// Creates the failure of a selection of which the rules leave no action.
    pub(crate) fn nothing_allowed(loaded: &Loaded) -> Failed {
        let rejection = Rejection::NothingAllowed { bundle: loaded.digest_text.to_string() };
        Failed { reason: Reason::NothingAllowed, rejection: Some(rejection) }
    }

    /// Creates the failure of an evaluation of rules, which was reported as a defect of the server.
    pub(crate) fn of_rules(defect: Rejection) -> Failed {
        Failed { reason: Reason::RulesFailed, rejection: Some(defect) }
    }

    /// Creates the failure of an evaluation whose bundle's breaker is open.
    pub(crate) fn out_of_service(loaded: &Loaded) -> Failed {
        let rejection = Rejection::BreakerOpen { bundle: loaded.digest_text.to_string() };
        Failed { reason: Reason::Breaker, rejection: Some(rejection) }
    }

    /// Returns the rejection of a request for which there is no fallback, or none that it allows.
    pub(crate) fn rejection(self, engine: &Engine, checkpoint: &Checkpoint) -> Rejection {
        self.rejection.unwrap_or_else(|| {
            let details =
                format!("checkpoint {:?}: {} and no fallback", checkpoint.name, self.reason.as_str());
            engine.defect("evaluation", &details)
        })
    }
}

// === impl Workspace ===

impl Workspace {
    /// Borrows the row, the memory for the bundle and the record at the same time.
    pub(crate) fn parts(&mut self, loaded: &Loaded) -> (&mut Vec<f32>, &mut BundleMemory, &mut RecordBuffer) {
        (&mut self.row, memory_for(&mut self.kept, loaded), &mut self.record)
    }

    /// Returns whether the nodes of this decision are timed: one in [`TIMED`] on each thread, not the first ones, for
    /// which the thread allocates its memory.
    pub(crate) fn is_timed(&mut self) -> bool {
        self.untimed += 1;
        let timed = self.untimed == TIMED;
        if timed {
            self.untimed = 0;
        }
        timed
    }

    /// Adds the times of the nodes since they are measured, and passes them to `also`. Nothing is measured afterwards.
    pub(crate) fn count_nodes(&mut self, loaded: &Loaded, also: impl FnOnce(&[u64])) {
        let eval = &mut self.parts(loaded).1.eval;
        if let Some(times) = eval.node_times() {
            loaded.nodes.add(times);
            also(times);
            eval.time_nodes(false);
        }
    }

    /// Replaces the row.
    pub(crate) fn set_row(&mut self, row: &[f32]) {
        self.row.clear();
        self.row.extend_from_slice(row);
    }
}
