//! Evaluating many rows: on this thread if they are few, else chunk by chunk on the pool, where everything that
//! a shopper waits for goes first.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_core::admission::{Outcome, Place, Queue, Reply, Served, Start};
use scorer_core::bundle::ScoreOut;

use super::admit::Ticket;
use super::arrive::Arrival;
use super::budget::Until;
use super::evaluate::{self, Failed, with_workspace};
use crate::bundles::Loaded;
use crate::metrics::Reason;
use crate::pool::{Expire, Meeting, Met, Work};
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

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
pub(crate) async fn evaluate(
    shared: &Shared,
    arrival: &Arrival,
    checkpoint: &Checkpoint,
    rows: Rows,
    about: &str,
) -> Result<(Vec<Evaluated>, Duration), Refusal> {
    let counters = &shared.metrics.checkpoint(checkpoint.index).sla;
    let (now, count) = (Instant::now(), rows.count());
    let ticket = shared.admission.ask(now, arrival, checkpoint, &rows.loaded, count as u32, about);
    let ticket = ticket.map_err(|shed| {
        counters.shed(shed.reason);
        Refusal::shed(&shed)
    })?;
    let Some(admitted) = ticket.ticket() else { return Err(Refusal::Draining) };
    if let Some(reason) = admitted.would_shed() {
        counters.would_shed(reason);
    }
    let (place, chunk, queue) = (admitted.place(), admitted.chunk_rows() as usize, admitted.queue());
    let finish_by = shared.admission.instant(admitted.finish_by());
    if place == Place::Inline {
        return evaluate::inline(shared, checkpoint, ticket, now, |until| {
            let mut out = Vec::with_capacity(count);
            rows.evaluate(shared, 0..count, until, &mut out);
            if out.last().is_some_and(is_late) { Err(Failed::late()) } else { Ok(out) }
        })
        .map(|out| (out, now.elapsed()))
        .map_err(|failed| failed.refusal(shared, checkpoint));
    }
    let (meeting, waiting) = Meeting::new();
    if let Some(at) = finish_by {
        let meeting: Arc<dyn Expire> = Arc::clone(&meeting) as _;
        shared.watchdog.watch(at, Arc::downgrade(&meeting));
    }
    shared.pool.push(Box::new(Many {
        checkpoint: checkpoint.index,
        meeting,
        ticket: Some(ticket),
        queue,
        finish_by,
        chunk: chunk.max(1),
        out: Vec::with_capacity(count),
        exec: Duration::ZERO,
        rows,
    }));
    match waiting.wait().await {
        Some(Met::Done(done)) => Ok(done),
        Some(Met::Late) => Err(Refusal::Deadline),
        None => Err(Refusal::Draining),
    }
}

fn is_late(row: &Evaluated) -> bool {
    row.as_ref().is_err_and(|failed| failed.reason == Reason::Late)
}

/// Rows on the pool.
struct Many {
    checkpoint: usize,
    meeting: Arc<Meeting<(Vec<Evaluated>, Duration)>>,
    ticket: Option<Ticket>,
    queue: Queue,
    finish_by: Option<Instant>,
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
        self.queue
    }

    fn run(&mut self, shared: &Shared) -> bool {
        let Some(ticket) = &mut self.ticket else { return false };
        let began = Instant::now();
        let until = Until::new(self.finish_by, Some(&self.meeting.cell));
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
                return true;
            }
        }
        if over {
            self.meeting.expire();
        }
        self.end(shared, over);
        false
    }
}

impl Many {
    fn end(&mut self, shared: &Shared, over: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let given = if over {
            Err(self.meeting.cell.state())
        } else {
            self.meeting.give((std::mem::take(&mut self.out), self.exec))
        };
        if given == Err(Reply::Fallback) && !self.exec.is_zero() {
            shared.metrics.checkpoint(self.checkpoint).sla.late_results.fetch_add(1, Relaxed);
        }
        let outcome = if given.is_ok() { Outcome::Model } else { Outcome::Failed };
        let now = shared.admission.nanos(Instant::now());
        ticket.finish(now, Served { exec: self.exec.into(), outcome });
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        // Nothing to abandon once it has been told.
        self.meeting.abandon();
    }
}
