//! The computation of one explanation, on a thread for explanations.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use scorer_admission::{Queue, Reply};
use scorer_core::bundle::{EvalError, EvalScratch, FunctionSet};
use scorer_core::explain::Largest;

use super::target::Actions;
use super::{Attributed, Explanation};
use crate::bundles::{FaultedFunctions, Loaded};
use crate::deadline::Deadline;
use crate::desk::Place;
use crate::engine::Engine;
#[cfg(feature = "fault-injection")]
use crate::fault::EXPLANATION_FAULT;
use crate::pool::{Completion, Progress, Work};
use crate::rejection::Rejection;
use crate::timings::micros;

/// Number of bundles whose working memory a thread keeps.
const KEPT: usize = 8;

thread_local! {
    /// The working memory of the bundles that this thread has explained, by serial number, the newest last.
    static KEPT_MEMORY: RefCell<Vec<(u64, EvalScratch)>> = const { RefCell::new(Vec::new()) };
}

/// A row with the bundle and the actions to explain.
pub(super) struct Task {
    pub(super) loaded: Arc<Loaded>,
    pub(super) row: Vec<f32>,
    pub(super) actions: Option<Actions>,
    pub(super) reasons: usize,
}

/// A task in the queue, with the caller that waits for it.
pub(super) struct Explaining {
    engine: Arc<Engine>,
    completion: Arc<Completion<Result<Explanation, Rejection>>>,
    finish_by: Instant,
    task: Task,
    place: Option<Place>,
}

impl Explaining {
    pub(super) fn new(
        engine: &Arc<Engine>,
        completion: Arc<Completion<Result<Explanation, Rejection>>>,
        finish_by: Instant,
        task: Task,
        place: Place,
    ) -> Explaining {
        Explaining { engine: Arc::clone(engine), completion, finish_by, task, place: Some(place) }
    }

    /// Replies, unless the caller has been answered or is gone.
    fn reply(&mut self, result: Result<Explanation, Rejection>) {
        // The place is free before the caller can send its next request.
        self.place = None;
        let _ = self.completion.complete(result);
    }
}

impl Work for Explaining {
    fn queue(&self) -> Queue {
        Queue::First
    }

    fn run(&mut self) -> Progress {
        if self.completion.cell.state() == Reply::Pending {
            let deadline = Deadline::new(Some(self.finish_by), Some(&self.completion.cell));
            #[cfg(feature = "fault-injection")]
            let result =
                self.engine.faults.strike(EXPLANATION_FAULT, "").and_then(|()| self.task.explain(&deadline));
            #[cfg(not(feature = "fault-injection"))]
            let result = self.task.explain(&deadline);
            let result = result.map_err(|error| match error {
                EvalError::OutOfTime(_) => Rejection::Deadline,
                error => {
                    let details = format!("bundle {}: {error}", self.task.loaded.digest_text);
                    self.engine.defect("explanation", &details)
                }
            });
            self.reply(result);
        }
        Progress::Done
    }

    fn panicked(&mut self, panic: &(dyn Any + Send)) {
        // Memory that is partly written is discarded.
        KEPT_MEMORY.with_borrow_mut(Vec::clear);
        let rejection = self.engine.panicked("explanation", panic);
        self.reply(Err(rejection));
    }
}

impl Drop for Explaining {
    fn drop(&mut self) {
        // This has no effect after the reply.
        self.completion.abandon();
    }
}

impl Task {
    fn explain(&self, deadline: &Deadline<'_>) -> Result<Explanation, EvalError> {
        let began = Instant::now();
        if deadline.is_over() {
            return Err(scorer_core::budget::OutOfTime.into());
        }
        KEPT_MEMORY.with_borrow_mut(|kept| {
            let memory = memory_for(kept, &self.loaded);
            let mut faulted = FunctionSet::default();
            let mut attributed = |action| {
                let found = self.attributed(action, deadline, memory);
                faulted = faulted.or(self.loaded.functions.take(memory));
                found
            };
            let explained = attributed(self.actions.map(|actions| actions.explained))?;
            let against = self.actions.and_then(|actions| actions.against);
            let against = against.map(|action| attributed(Some(action))).transpose()?;
            Ok(Explanation {
                bundle: Arc::clone(&self.loaded.digest_text),
                shape: Arc::clone(&self.loaded.shape),
                difference: against.as_ref().map(|against| explained.minus(against, self.reasons)),
                explained,
                against,
                exec_us: micros(began.elapsed()),
                faulted: FaultedFunctions::of(&self.loaded.shape, faulted),
            })
        })
    }

    fn attributed(
        &self,
        action: Option<usize>,
        deadline: &Deadline<'_>,
        memory: &mut EvalScratch,
    ) -> Result<Attributed, EvalError> {
        let found = self.loaded.bundle.explain(&self.row, action, deadline, memory)?;
        let contributions = memory.contributions();
        Ok(Attributed {
            action,
            baseline: found.expectation,
            margin: found.margin,
            score: found.score,
            contributions: contributions.to_vec(),
            reasons: Largest::of(contributions, self.reasons).as_slice().to_vec(),
        })
    }
}

/// Returns the working memory for a bundle, which the first explanation on this thread allocates.
fn memory_for<'a>(kept: &'a mut Vec<(u64, EvalScratch)>, loaded: &Loaded) -> &'a mut EvalScratch {
    let at = kept.iter().position(|(serial, _)| *serial == loaded.serial).unwrap_or_else(|| {
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((loaded.serial, EvalScratch::new(&loaded.bundle)));
        kept.len() - 1
    });
    &mut kept[at].1
}
