//! Evaluates many rows: few rows on this thread, more in chunks on the pool, at a lower priority than single rows.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_admission::{Outcome as ServedOutcome, Place, Queue, Served, Start};
use scorer_core::bundle::ScoreOut;

use super::evaluate::{self, Failed, with_workspace};
use super::pooled::{self, Job};
use super::{RequestContext, admit};
use crate::bundles::Loaded;
use crate::deadline::Deadline;
use crate::engine::Engine;
use crate::pool::{Expire as _, Outcome, Progress, Work};
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::stages::Stage;

/// The score of a row, or the reason why the model has none.
pub(crate) type Evaluated = Result<ScoreOut, Failed>;

/// The rows of one request.
pub(crate) struct RowSet {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) id: String,
    pub(crate) values: Arc<Vec<f32>>,
    /// Number of values per row, at least 1.
    pub(crate) width: usize,
}

/// Evaluates all rows or none, because a batch as a whole has no fallback.
///
/// # Errors
/// The batch was shed, or did not end in time.
pub(crate) async fn evaluate(
    context: RequestContext<'_>,
    rows: RowSet,
) -> Result<(Vec<Evaluated>, Duration), Rejection> {
    let RequestContext { engine, arrival, checkpoint, .. } = context;
    let (now, count) = (Instant::now(), rows.count());
    let permit =
        admit::rows(context, &rows.loaded, count as u32, now).map_err(|shed| Rejection::shed(&shed))?;
    let _timed = arrival.measure(Stage::Evaluate);
    let chunk = permit.chunk_rows().max(1) as usize;
    if permit.place() == Place::Inline {
        return evaluate::inline(engine, checkpoint, permit, now, |deadline| {
            let mut out = Vec::with_capacity(count);
            rows.evaluate(engine, 0..count, deadline, &mut out);
            if out.last().is_some_and(is_late) { Err(Failed::late()) } else { Ok(out) }
        })
        .map(|out| (out, now.elapsed()))
        .map_err(|failed| failed.rejection(engine, checkpoint));
    }
    let out = Vec::with_capacity(count);
    let many = |job| Many { job, chunk, rows, out, exec: Duration::ZERO };
    match pooled::run(engine, checkpoint.index, permit, many).await?.0 {
        Outcome::Done(done) => Ok(done),
        Outcome::TimedOut => Err(Rejection::Deadline),
    }
}

fn is_late(row: &Evaluated) -> bool {
    row.as_ref().is_err_and(|failed| failed.reason == Reason::Late)
}

/// Rows on the pool.
struct Many {
    job: Job<(Vec<Evaluated>, Duration)>,
    /// Rows of one part.
    chunk: usize,
    rows: RowSet,
    out: Vec<Evaluated>,
    exec: Duration,
}

// === impl RowSet ===

impl RowSet {
    fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// Evaluates a range of rows, and stops at the first row that exceeds the deadline.
    fn evaluate(
        &self,
        engine: &Engine,
        range: std::ops::Range<usize>,
        deadline: &Deadline<'_>,
        out: &mut Vec<Evaluated>,
    ) {
        with_workspace(|workspace| {
            let now = Instant::now();
            let (loaded, id) = (&*self.loaded, &self.id);
            let values = &self.values[range.start * self.width..range.end * self.width];
            match evaluate::together(engine, loaded, workspace, id, deadline, now, values) {
                Some(Ok(scores)) => return out.extend(scores.into_iter().map(Ok)),
                Some(Err(late)) => return out.push(Err(late)),
                None => {}
            }
            for row in values.chunks_exact(self.width) {
                workspace.set_row(row);
                out.push(evaluate::evaluate(engine, loaded, workspace, id, deadline, now, |row, memory| {
                    loaded.bundle.score(row, deadline, &mut memory.eval)
                }));
                if out.last().is_some_and(is_late) {
                    return;
                }
            }
        });
    }
}

impl Work for Many {
    fn queue(&self) -> Queue {
        self.job.queue()
    }

    fn run(&mut self) -> Progress {
        let Some(mut permit) = self.job.permit.take() else { return Progress::Done };
        let engine = Arc::clone(&self.job.engine);
        let began = Instant::now();
        let deadline = self.job.deadline();
        let first = self.out.is_empty();
        let too_late = first && permit.start(engine.admission.nanos(began)) == Start::TooLate;
        let mut over = too_late || deadline.is_over();
        if !over {
            let from = self.out.len();
            let to = (from + self.chunk).min(self.rows.count());
            self.rows.evaluate(&engine, from..to, &deadline, &mut self.out);
            self.exec += began.elapsed();
            permit.progress((to - from) as u32);
            over = self.out.last().is_some_and(is_late);
            if !over && to < self.rows.count() {
                self.job.permit = Some(permit);
                return Progress::More;
            }
        }
        let completed = if over {
            self.job.completion.expire();
            Err(self.job.completion.cell.state())
        } else {
            self.job.completion.complete(Ok((std::mem::take(&mut self.out), self.exec)))
        };
        if let Err(first) = completed
            && !self.exec.is_zero()
        {
            self.job.discarded(first);
        }
        let outcome = if completed.is_ok() { ServedOutcome::Model } else { ServedOutcome::Failed };
        let now = engine.admission.nanos(Instant::now());
        permit.finish(now, Served { exec: self.exec.into(), outcome });
        Progress::Done
    }

    fn panicked(&mut self, panic: &(dyn Any + Send)) {
        self.job.panicked(panic);
    }
}
