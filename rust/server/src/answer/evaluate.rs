//! Stage 6: running the bundle, on this thread, with memory that this thread keeps. A panic stops here.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::{Evaluation, Outcome, Served, Shed, Start};
use scorer_core::bundle::{EvalError, EvalScratch, ScoreOut};
use scorer_core::policy::{Mask, PolicyError};
use scorer_proto::v1::DecisionRecord;
use serde_json::json;

use super::admit::Ticket;
use super::budget::Until;
use super::{Turn, micros};
use crate::bundles::Loaded;
use crate::events::Level;
use crate::metrics::Reason;
use crate::pool::{self, Met, One};
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// Bundles whose working memory one thread keeps: those in force, and those just replaced. With more than
/// that in force, memory is made anew for some requests.
const KEPT: usize = 32;

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// One thread's memory for answering: after the first request nothing here allocates.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) row: Vec<f32>,
    pub(crate) record: Record,
    /// Newest last.
    kept: Vec<ForBundle>,
}

/// Working memory for one bundle.
pub(crate) struct ForBundle {
    serial: u64,
    pub(crate) eval: EvalScratch,
    pub(crate) eligible: Mask,
}

/// The record being written, and its encoded form.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) decision: DecisionRecord,
    pub(crate) payload: Vec<u8>,
}

/// Runs one request's synchronous part on this thread's workspace.
pub(crate) fn with_workspace<T>(work: impl FnOnce(&mut Workspace) -> T) -> T {
    WORKSPACE.with_borrow_mut(work)
}

/// Why the model did not answer, and the id under which the operator was told.
pub(crate) struct Failed {
    pub(crate) reason: Reason,
    told: Option<Refusal>,
}

/// Runs an admitted evaluation on this thread, unless it is too late for it.
pub(crate) fn inline<T>(
    shared: &Shared,
    checkpoint: &Checkpoint,
    mut ticket: Ticket,
    now: Instant,
    work: impl FnOnce(&Until<'_>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let finish_by = ticket.ticket().and_then(|it| shared.admission.instant(it.finish_by()));
    if ticket.start(shared.admission.nanos(now)) == Start::TooLate {
        return Err(Failed::late());
    }
    let result = work(&Until::new(finish_by, None));
    let end = Instant::now();
    if result.as_ref().is_err_and(|failed| failed.reason == Reason::Late) {
        shared.metrics.checkpoint(checkpoint.index).sla.late_results.fetch_add(1, Relaxed);
    }
    let served = Served { exec: (end - now).into(), outcome: outcome(&result) };
    ticket.finish(shared.admission.nanos(end), served);
    result
}

/// Runs an admitted evaluation on the pool and waits for it: what came of it, and the microseconds it took.
///
/// # Errors
/// The server is going down.
pub(crate) async fn on_pool<T: Send + 'static>(
    turn: Turn<'_>,
    ticket: Ticket,
    work: impl FnOnce(&Shared, &Until<'_>, Instant) -> Result<T, Failed> + Send + 'static,
) -> Result<(Result<T, Failed>, u32), Refusal> {
    let timed = move |shared: &Shared, until: &Until<'_>| {
        let began = Instant::now();
        let result = work(shared, until, began);
        let outcome = outcome(&result);
        ((result, micros(began.elapsed())), outcome)
    };
    let one = |job| One::new(job, timed);
    let (met, ready) = pool::evaluate(turn.shared, turn.checkpoint.index, ticket, one).await?;
    turn.arrival.ready(ready);
    Ok(match met {
        Met::Done(done) => done,
        Met::Late => (Err(Failed::late()), 0),
    })
}

/// Who answers after this evaluation.
fn outcome<T>(result: &Result<T, Failed>) -> Outcome {
    if result.is_ok() { Outcome::Model } else { Outcome::Fallback }
}

/// Runs `work` on the bundle's memory; a panic or an evaluation error is told to the operator and becomes
/// the reason of a fallback. The bundle's breaker hears of either.
pub(crate) fn evaluate<T>(
    shared: &Shared,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    until: &Until<'_>,
    now: Instant,
    work: impl FnOnce(&[f32], &mut ForBundle) -> Result<T, EvalError>,
) -> Result<T, Failed> {
    let (result, evaluation) = match guarded(shared, loaded, workspace, id, until, work) {
        Ok(Ok(out)) => (Ok(out), Some(Evaluation::Good)),
        Ok(Err(error)) => {
            let failed = failed(shared, loaded, &error);
            let evaluation = (failed.reason == Reason::NonFinite).then_some(Evaluation::NonFinite);
            (Err(failed), evaluation)
        }
        Err(panic) => {
            let told = shared.panicked("evaluation", panic.as_ref());
            (Err(Failed { reason: Reason::Panic, told: Some(told) }), Some(Evaluation::Panic))
        }
    };
    let opened = evaluation.is_some_and(|it| loaded.breaker.record(shared.admission.nanos(now), it));
    if opened {
        let fields = json!({"bundle": &*loaded.digest_text, "openings": loaded.breaker.openings()});
        shared.events.push(Level::Error, "breaker_opened", fields);
    }
    result
}

/// Scores rows together, which takes a fraction of the time. `None` where any of them failed, and nothing has been
/// told or counted: one by one, each failure is told and counted once, for the row that it befell.
pub(crate) fn together(
    shared: &Shared,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    until: &Until<'_>,
    now: Instant,
    values: &[f32],
) -> Option<Result<Vec<ScoreOut>, Failed>> {
    let result = guarded(shared, loaded, workspace, id, until, |_, memory| {
        let mut out = Vec::new();
        loaded.bundle.score_rows(values, until, &mut memory.eval, &mut out)?;
        out.into_iter().collect::<Result<Vec<_>, _>>()
    });
    match result {
        Ok(Ok(out)) => {
            for _ in &out {
                loaded.breaker.record(shared.admission.nanos(now), Evaluation::Good);
            }
            Some(Ok(out))
        }
        Ok(Err(EvalError::OutOfTime(_))) => Some(Err(Failed::late())),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Runs `work` on the bundle's memory, with the faults that are injected, and stops a panic.
fn guarded<T>(
    shared: &Shared,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    until: &Until<'_>,
    work: impl FnOnce(&[f32], &mut ForBundle) -> Result<T, EvalError>,
) -> std::thread::Result<Result<T, EvalError>> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "fault-injection")]
        shared.faults.strike(id)?;
        let _ = (shared, id, until);
        let Workspace { row, kept, .. } = &mut *workspace;
        let memory = for_bundle(kept, loaded);
        #[cfg(feature = "fault-injection")]
        let began = Instant::now();
        let out = work(row, memory);
        #[cfg(feature = "fault-injection")]
        shared.faults.delay(began, until)?;
        out
    }));
    if result.is_err() {
        // Half-written working memory is not used again; the eligible set was not being written.
        for_bundle(&mut workspace.kept, loaded).eval = EvalScratch::new(&loaded.bundle);
    }
    result
}

/// The working memory for a bundle; made at the first request that this thread answers with it.
pub(crate) fn for_bundle<'a>(kept: &'a mut Vec<ForBundle>, loaded: &Loaded) -> &'a mut ForBundle {
    let at = match kept.iter().position(|it| it.serial == loaded.serial) {
        Some(at) => at,
        None => {
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push(ForBundle {
                serial: loaded.serial,
                eval: EvalScratch::new(&loaded.bundle),
                eligible: Mask::all(loaded.bundle.catalogue().len()),
            });
            kept.len() - 1
        }
    };
    &mut kept[at]
}

fn failed(shared: &Shared, loaded: &Loaded, error: &EvalError) -> Failed {
    match error {
        EvalError::NotFinite { .. }
        | EvalError::Policy(PolicyError::NonFiniteScore { .. } | PolicyError::ScoreAboveOne { .. }) => {
            Failed { reason: Reason::NonFinite, told: None }
        }
        EvalError::OutOfTime(_) => Failed::late(),
        // Ruled out by the stages before: a defect of ours, not of the request.
        EvalError::RowLength { .. }
        | EvalError::Kind { .. }
        | EvalError::Scratch
        | EvalError::Policy(
            PolicyError::NoEligibleAction | PolicyError::MaskLength { .. } | PolicyError::Length { .. },
        ) => {
            let told = shared.defect("evaluation", &format!("bundle {}: {error}", loaded.digest_text));
            Failed { reason: Reason::Error, told: Some(told) }
        }
    }
}

// === impl Failed ===

impl Failed {
    /// Not done in time, or not begun because it could not have been.
    pub(crate) fn late() -> Failed {
        Failed { reason: Reason::Late, told: Some(Refusal::Deadline) }
    }

    /// Not worked on.
    pub(crate) fn shed(shed: &Shed) -> Failed {
        Failed { reason: Reason::Overload, told: Some(Refusal::shed(shed)) }
    }

    /// The bundle is out of service.
    pub(crate) fn out_of_service(loaded: &Loaded) -> Failed {
        let told = Refusal::BreakerOpen { bundle: loaded.digest_text.to_string() };
        Failed { reason: Reason::Breaker, told: Some(told) }
    }

    /// What the caller is told where no fallback is configured, or none that the request allows.
    pub(crate) fn refusal(self, shared: &Shared, checkpoint: &Checkpoint) -> Refusal {
        self.told.unwrap_or_else(|| {
            let details =
                format!("checkpoint {:?}: {} and no fallback", checkpoint.name, self.reason.as_str());
            shared.defect("evaluation", &details)
        })
    }
}

// === impl Workspace ===

impl Workspace {
    /// Row, memory for the bundle, and record, at once.
    pub(crate) fn parts(&mut self, loaded: &Loaded) -> (&mut Vec<f32>, &mut ForBundle, &mut Record) {
        (&mut self.row, for_bundle(&mut self.kept, loaded), &mut self.record)
    }
}
