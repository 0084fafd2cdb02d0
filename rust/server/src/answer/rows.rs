//! Evaluating many rows: on this thread if they are few, else chunk by chunk on the pool, where everything that
//! a shopper waits for goes first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_admission::{Outcome, Place, Queue, Served, Start};
use scorer_core::bundle::ScoreOut;

use super::Turn;
use super::admit;
use super::budget::Until;
use super::evaluate::{self, Failed, with_workspace};
use crate::bundles::Loaded;
use crate::metrics::Reason;
use crate::pool::{self, Expire as _, Job, Met, Work};
use crate::refusal::Refusal;
use crate::state::Shared;

/// A score, or why the model has none.
pub(crate) type Evaluated = Result<ScoreOut, Failed>;

/// The rows of one request.
pub(crate) struct Rows {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) id: String,
    pub(crate) values: Arc<Vec<f32>>,
    /// Values of one row, at least 1.
    pub(crate) width: usize,
}

/// Evaluates all rows, or none: batches have no fallback but that of single rows.
///
/// # Errors
/// Shed, or not done in time.
pub(crate) async fn evaluate(turn: Turn<'_>, rows: Rows) -> Result<(Vec<Evaluated>, Duration), Refusal> {
    let Turn { shared, checkpoint, .. } = turn;
    let (now, count) = (Instant::now(), rows.count());
    let ticket = admit::ask(turn, &rows.loaded, count as u32, now).map_err(|shed| Refusal::shed(&shed))?;
    let Some(admitted) = ticket.ticket() else { return Err(Refusal::Draining) };
    let (place, chunk) = (admitted.place(), admitted.chunk_rows().max(1) as usize);
    if place == Place::Inline {
        return evaluate::inline(shared, checkpoint, ticket, now, |until| {
            let mut out = Vec::with_capacity(count);
            rows.evaluate(shared, 0..count, until, &mut out);
            if out.last().is_some_and(is_late) { Err(Failed::late()) } else { Ok(out) }
        })
        .map(|out| (out, now.elapsed()))
        .map_err(|failed| failed.refusal(shared, checkpoint));
    }
    let out = Vec::with_capacity(count);
    let many = |job| Many { job, chunk, rows, out, exec: Duration::ZERO };
    match pool::evaluate(shared, checkpoint.index, ticket, many).await?.0 {
        Met::Done(done) => Ok(done),
        Met::Late => Err(Refusal::Deadline),
    }
}

fn is_late(row: &Evaluated) -> bool {
    row.as_ref().is_err_and(|failed| failed.reason == Reason::Late)
}

/// Rows on the pool.
struct Many {
    job: Job<(Vec<Evaluated>, Duration)>,
    /// Rows between two turns.
    chunk: usize,
    rows: Rows,
    out: Vec<Evaluated>,
    exec: Duration,
}

// === impl Rows ===

impl Rows {
    pub(crate) fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// Evaluates a range of rows; stops at the first that is out of time.
    fn evaluate(
        &self,
        shared: &Shared,
        range: std::ops::Range<usize>,
        until: &Until<'_>,
        out: &mut Vec<Evaluated>,
    ) {
        with_workspace(|workspace| {
            let now = Instant::now();
            let (loaded, id) = (&*self.loaded, &self.id);
            let values = &self.values[range.start * self.width..range.end * self.width];
            match evaluate::together(shared, loaded, workspace, id, until, now, values) {
                Some(Ok(scores)) => return out.extend(scores.into_iter().map(Ok)),
                Some(Err(late)) => return out.push(Err(late)),
                None => {}
            }
            for row in values.chunks_exact(self.width) {
                workspace.row.clear();
                workspace.row.extend_from_slice(row);
                out.push(evaluate::evaluate(shared, loaded, workspace, id, until, now, |row, memory| {
                    loaded.bundle.score(row, until, &mut memory.eval)
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
        self.job.queue
    }

    fn run(&mut self, shared: &Shared) -> bool {
        let Some(mut ticket) = self.job.ticket.take() else { return false };
        let began = Instant::now();
        let until = self.job.until();
        let first = self.out.is_empty();
        let too_late = first && ticket.start(shared.admission.nanos(began)) == Start::TooLate;
        let mut over = too_late || until.is_over();
        if !over {
            let from = self.out.len();
            let to = (from + self.chunk).min(self.rows.count());
            self.rows.evaluate(shared, from..to, &until, &mut self.out);
            self.exec += began.elapsed();
            ticket.progress((to - from) as u32);
            over = self.out.last().is_some_and(is_late);
            if !over && to < self.rows.count() {
                self.job.ticket = Some(ticket);
                return true;
            }
        }
        let given = if over {
            self.job.meeting.expire();
            Err(self.job.meeting.cell.state())
        } else {
            self.job.meeting.give((std::mem::take(&mut self.out), self.exec))
        };
        if let Err(first) = given
            && !self.exec.is_zero()
        {
            self.job.discarded(shared, first);
        }
        let outcome = if given.is_ok() { Outcome::Model } else { Outcome::Failed };
        let now = shared.admission.nanos(Instant::now());
        ticket.finish(now, Served { exec: self.exec.into(), outcome });
        false
    }
}
