//! Exact explanations on demand. They are computed beside the answer path: on threads of their own, with a limit of
//! their own on how many wait or run, and without a permit of admission control.

mod target;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_admission::Pressure;
use scorer_core::explain::{Contribution, Largest};

use crate::answer::check_reasons;
use crate::arrival::Arrival;
use crate::bundles::{FaultedFunctions, Loaded, Shape};
use crate::counters::NotExplained;
use crate::engine::Engine;
use crate::pool::{Completion, Expire, Outcome};
use crate::query::Features;
use crate::rejection::Rejection;
use crate::stages::Stage;
use work::{Explaining, Task};

/// Time limit of an explanation whose caller set none.
const WITHIN: Duration = Duration::from_secs(5);

/// A row whose score is to be explained.
pub struct ExplainQuery<'a, F> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// Digest of the bundle, `sha256:<hex>`. If it is empty, the bundle with the largest share of the traffic.
    pub bundle: &'a str,
    /// The bundles that observe at the checkpoint, which `bundle` may name as well.
    pub observing: &'a [Arc<Loaded>],
    /// The row.
    pub features: F,
    /// Id of the explained action; empty at a checkpoint of kind `score`.
    pub action: &'a str,
    /// Id of an action to compare with; empty for none.
    pub against: &'a str,
    /// Number of reasons of each explanation.
    pub reasons: u32,
}

/// The explanation of a row.
#[derive(Clone)]
pub struct Explanation {
    /// Digest of the bundle, `sha256:<hex>`.
    pub bundle: Arc<str>,
    /// The columns and actions that the explanations refer to.
    pub shape: Arc<Shape>,
    /// The score, or that of the action.
    pub explained: Attributed,
    /// The action that it is compared with.
    pub against: Option<Attributed>,
    /// The explained action minus the other one.
    pub difference: Option<Attributed>,
    /// Time of the computation in microseconds.
    pub exec_us: u32,
    /// The functions of the bundle that had no result.
    pub faulted: FaultedFunctions,
}

/// One explained margin. Baseline and contributions add up to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Attributed {
    /// Position of the action in the catalogue.
    pub action: Option<usize>,
    /// Expectation of the margin over the training rows.
    pub baseline: f64,
    /// The margin, such as log-odds.
    pub margin: f64,
    /// The score that comes from the margin.
    pub score: f64,
    /// The exact contribution of each column.
    pub contributions: Vec<f64>,
    /// The largest of the contributions.
    pub reasons: Vec<Contribution>,
}

impl Engine {
    /// Explains a row by exact contributions. Nothing is decided and nothing is recorded.
    ///
    /// # Errors
    /// The query breaks a rule, the bundle cannot be explained, the server is under pressure, as many explanations wait
    /// or run as may, or there is no result before the deadline.
    pub async fn explain<F: Features>(
        self: &Arc<Engine>,
        arrival: &Arrival,
        query: ExplainQuery<'_, F>,
    ) -> Result<Explanation, F::Error> {
        let checkpoint = self.checkpoint_of(arrival, query.checkpoint)?;
        arrival.check_deadline()?;
        check_reasons(query.reasons)?;
        let lane = target::lane(&self.lanes(), checkpoint, query.bundle, query.observing)?;
        let loaded = &lane.loaded;
        if !loaded.bundle.explains() {
            return Err(Rejection::NoCovers { bundle: loaded.digest_text.to_string() }.into());
        }
        let actions = target::actions(checkpoint, loaded, query.action, query.against)?;
        let mut row = Vec::new();
        query.features.accept(&lane)?;
        query.features.encode(&lane, &mut row)?;
        let task = Task { loaded: Arc::clone(loaded), row, actions, reasons: query.reasons as usize };
        let counters = &self.counters.explanations;
        let timed = arrival.measure(Stage::Evaluate);
        let result = self.run_explanation(arrival, task).await;
        drop(timed);
        match &result {
            Ok(explanation) => _ = counters.exec.record(Duration::from_micros(explanation.exec_us.into())),
            Err(Rejection::ExplanationsFull { .. }) => counters.refused(NotExplained::Full),
            Err(Rejection::ExplanationsStopped) => counters.refused(NotExplained::Pressure),
            Err(Rejection::Deadline) => counters.refused(NotExplained::Deadline),
            Err(_) => {}
        }
        Ok(result?)
    }

    /// Runs the task on the threads for explanations and waits for the result until the deadline.
    async fn run_explanation(
        self: &Arc<Engine>,
        arrival: &Arrival,
        task: Task,
    ) -> Result<Explanation, Rejection> {
        // Explanations stop before any answer does.
        if self.admission.pressure() >= Pressure::NoExplain {
            return Err(Rejection::ExplanationsStopped);
        }
        let place = self.desk.enter()?;
        let finish_by = deadline(arrival)?;
        let (completion, receiver) = Completion::<Result<Explanation, Rejection>>::new();
        let expiring: Arc<dyn Expire> = Arc::clone(&completion) as _;
        self.watchdog.watch(finish_by, Arc::downgrade(&expiring));
        drop(expiring);
        self.desk.push(Box::new(Explaining::new(self, completion, finish_by, task, place)));
        let (outcome, _) = receiver.wait().await.ok_or(Rejection::Draining)?;
        match outcome.transpose()? {
            Outcome::Done(explanation) => Ok(explanation),
            Outcome::TimedOut => Err(Rejection::Deadline),
        }
    }

    /// Computes explanations on the calling thread until [`Engine::close`].
    pub fn serve_explanations(&self) {
        self.desk.serve();
    }

    /// Number of explanations that wait or run.
    pub fn explaining(&self) -> usize {
        self.desk.occupied()
    }

    /// Computes one waiting explanation on this thread. Returns false if none waits.
    #[cfg(feature = "fault-injection")]
    pub fn run_explanation_once(&self) -> bool {
        self.desk.run_one()
    }
}

/// Returns the time at which the caller stops waiting.
fn deadline(arrival: &Arrival) -> Result<Instant, Rejection> {
    arrival.check_deadline()?;
    // A limit beyond the clock's range is no limit.
    Ok(arrival.at.checked_add(arrival.timeout().unwrap_or(WITHIN)).unwrap_or(arrival.at + WITHIN))
}

impl Attributed {
    /// Subtracts another explanation of the same forest.
    fn minus(&self, other: &Attributed, reasons: usize) -> Attributed {
        let contributions: Vec<f64> =
            self.contributions.iter().zip(&other.contributions).map(|(one, other)| one - other).collect();
        Attributed {
            action: None,
            baseline: self.baseline - other.baseline,
            margin: self.margin - other.margin,
            score: self.score - other.score,
            reasons: Largest::of(&contributions, reasons).as_slice().to_vec(),
            contributions,
        }
    }
}
