//! Evaluations on the pool: their common part, and evaluations of one row.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::{Outcome as Served, Queue, Reply, Served as ServedBy, Start};

use crate::deadline::Deadline;
use crate::engine::Engine;
use crate::gate::AdmissionPermit;
use crate::pool::{Completed, Completion, Expire, Progress, Work};
use crate::rejection::Rejection;

/// Result of an evaluation. A rejection is a defect of the server.
type Evaluated<T> = Result<T, Rejection>;

/// The evaluation of one request. If it is dropped before it ran, the waiting task is notified.
pub(crate) struct Job<T> {
    pub(crate) engine: Arc<Engine>,
    checkpoint: usize,
    pub(crate) completion: Arc<Completion<Evaluated<T>>>,
    /// The permit; taken when the evaluation ends.
    pub(crate) permit: Option<AdmissionPermit>,
    queue: Queue,
    finish_by: Option<Instant>,
}

/// Runs the work that `work` creates from the job on the pool, and waits for it until the permit's deadline.
///
/// # Errors
/// The server stopped first, or the work panicked.
pub(crate) async fn run<T: Send + 'static, W: Work + 'static>(
    engine: &Arc<Engine>,
    checkpoint: usize,
    permit: AdmissionPermit,
    work: impl FnOnce(Job<T>) -> W,
) -> Result<Completed<T>, Rejection> {
    let (completion, receiver) = Completion::new();
    let finish_by = engine.admission.instant(permit.finish_by());
    if let Some(at) = finish_by {
        let completion: Arc<dyn Expire> = Arc::clone(&completion) as _;
        engine.watchdog.watch(at, Arc::downgrade(&completion));
    }
    let queue = permit.queue();
    let engine_of_job = Arc::clone(engine);
    let job = Job { engine: engine_of_job, checkpoint, completion, permit: Some(permit), queue, finish_by };
    engine.pool.push(Box::new(work(job)));
    let (outcome, at) = receiver.wait().await.ok_or(Rejection::Draining)?;
    Ok((outcome.transpose()?, at))
}

// === impl Job ===

impl<T> Job<T> {
    /// Returns the deadline of the evaluation.
    pub(crate) fn deadline(&self) -> Deadline<'_> {
        Deadline::new(self.finish_by, Some(&self.completion.cell))
    }

    pub(crate) fn queue(&self) -> Queue {
        self.queue
    }

    /// Discards a result that arrived after `first` had determined the reply.
    pub(crate) fn discarded(&self, first: Reply) {
        if first == Reply::Fallback {
            self.engine.counters.checkpoint(self.checkpoint).late_results.fetch_add(1, Relaxed);
        }
    }

    /// Reports a panic as an event, and its id to the caller.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) {
        let rejection = self.engine.panicked("pool", panic);
        // The caller may have been answered at the deadline already.
        let _ = self.completion.complete(Err(rejection));
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        // This has no effect after the reply was determined.
        self.completion.abandon();
    }
}

/// An evaluation without chunks.
pub(crate) struct Single<T, F> {
    job: Job<T>,
    evaluate: Option<F>,
}

// === impl Single ===

impl<T, F: FnOnce(&Engine, &Deadline<'_>) -> (T, Served)> Single<T, F> {
    pub(crate) fn new(job: Job<T>, evaluate: F) -> Single<T, F> {
        Single { job, evaluate: Some(evaluate) }
    }
}

impl<T: Send, F: FnOnce(&Engine, &Deadline<'_>) -> (T, Served) + Send> Work for Single<T, F> {
    fn queue(&self) -> Queue {
        self.job.queue
    }

    fn run(&mut self) -> Progress {
        let (Some(mut permit), Some(evaluate)) = (self.job.permit.take(), self.evaluate.take()) else {
            return Progress::Done;
        };
        let began = Instant::now();
        if self.job.completion.cell.state() != Reply::Pending {
            return Progress::Done;
        }
        let engine = &*self.job.engine;
        if permit.start(engine.admission.nanos(began)) == Start::TooLate {
            self.job.completion.expire();
            return Progress::Done;
        }
        let (result, outcome) = evaluate(engine, &self.job.deadline());
        let now = Instant::now();
        let outcome = match self.job.completion.complete(Ok(result)) {
            Ok(()) => outcome,
            Err(first) => {
                self.job.discarded(first);
                Served::Fallback
            }
        };
        permit.finish(engine.admission.nanos(now), ServedBy { exec: (now - began).into(), outcome });
        Progress::Done
    }

    fn panicked(&mut self, panic: &(dyn Any + Send)) {
        self.job.panicked(panic);
    }
}

#[cfg(all(test, feature = "fault-injection"))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use scorer_log::{Env, RealClock};

    use super::*;
    use crate::engine::EngineConfig;
    use crate::events::Events;

    #[test]
    fn a_panic_on_the_pool_is_an_internal_error_whose_id_is_in_the_events() {
        let checkpoints = serde_json::from_str(r#"{"c":{"kind":"score"}}"#).unwrap();
        let config = EngineConfig { checkpoints, ..EngineConfig::default() };
        let events = Arc::new(Events::new(Arc::new(RealClock::default())));
        let engine = Engine::new(&config, Env::real(), events, Arc::new(()), Instant::now()).unwrap();
        let now = Instant::now();
        let permit = engine.admission.permit(now).unwrap();
        let single =
            |job| Single::new(job, |_: &Engine, _: &Deadline<'_>| -> ((), Served) { panic!("a defect") });
        let mut future = pin!(run(&engine, 0, permit, single));
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert!(engine.run_pool_once());
        let Poll::Ready(Err(Rejection::Internal { id })) = future.as_mut().poll(&mut context) else {
            panic!("not an internal error");
        };
        assert!(engine.events.take().iter().any(|line| line.contains(&id) && line.contains("a defect")));
    }
}
