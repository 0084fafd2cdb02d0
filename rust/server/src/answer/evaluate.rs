//! Stage 6: running the bundle, on this thread, with memory that this thread keeps. A panic stops here.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use scorer_core::bundle::{EvalError, EvalScratch};
use scorer_core::policy::{Mask, PolicyError};
use scorer_proto::v1::DecisionRecord;

use crate::bundles::Loaded;
use crate::metrics::Reason;
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

/// Runs `work` on the bundle's memory; a panic or an evaluation error is told to the operator and becomes
/// the reason of a fallback.
pub(crate) fn evaluate<T>(
    shared: &Shared,
    loaded: &Loaded,
    workspace: &mut Workspace,
    id: &str,
    work: impl FnOnce(&[f32], &mut ForBundle) -> Result<T, EvalError>,
) -> Result<T, Failed> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "fault-injection")]
        shared.faults.strike(id)?;
        let _ = id;
        let Workspace { row, kept, .. } = &mut *workspace;
        work(row, for_bundle(kept, loaded))
    }));
    match result {
        Ok(Ok(out)) => Ok(out),
        Ok(Err(error)) => Err(failed(shared, loaded, &error)),
        Err(panic) => {
            // Half-written working memory is not used again; the eligible set was not being written.
            for_bundle(&mut workspace.kept, loaded).eval = EvalScratch::new(&loaded.bundle);
            let told = shared.panicked("evaluation", panic.as_ref());
            Err(Failed { reason: Reason::Panic, told: Some(told) })
        }
    }
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
        // Ruled out by the stages before: a defect of ours, not of the request.
        EvalError::RowLength { .. }
        | EvalError::Kind { .. }
        | EvalError::Scratch
        | EvalError::OutOfTime(_)
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
