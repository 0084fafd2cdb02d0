//! `ScoreBatch`: many rows, one bundle. Nothing is recorded unless every row has been answered.
//!
//! A batch is not remembered by its id: a retry is scored again (with the same result on the same bundle)
//! and recorded again; readers of the log keep the first row of an id.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_core::bundle::ScoreOut;
use scorer_proto::v1::{ScoreBatchRequest, ScoreBatchResponse};

use super::arrive::Arrival;
use super::evaluate::{Failed, with_workspace};
use super::log::{self, Said};
use super::rows::{self, Rows};
use super::{Decision, Times, Turn, decode, features, micros, reply, route, score};
use crate::bundles::Loaded;
use crate::config::{DurabilityClass, Kind};
use crate::lanes::LaneInForce;
use crate::metrics::Reason;
use crate::observe;
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// Rows recorded at a time, after which other requests get their turn on this thread.
const CHUNK: usize = 64;

/// Answers one request.
pub(crate) async fn answer(
    shared: &Shared,
    arrival: &Arrival,
    request: ScoreBatchRequest,
) -> Result<ScoreBatchResponse, Refusal> {
    let checkpoint = decode::checkpoint(shared, arrival, &request.checkpoint, Kind::Score)?;
    arrival.check_deadline()?;
    decode::entity(&request.entity)?;
    if request.rows == 0 {
        return Err(Refusal::NoRows);
    }
    if request.rows > checkpoint.max_batch_rows {
        return Err(Refusal::TooManyRows { rows: request.rows, max: checkpoint.max_batch_rows });
    }
    let id = decode::request_id(request.request_id)?.text;
    let (entity, values) = (request.entity.as_str(), Arc::new(request.values));

    let table = shared.lanes.load_full();
    let began = Instant::now();
    let lane = route::lane(&table, checkpoint, entity, &id)?;
    let (lane, instead) = route::in_service(shared, &table, checkpoint, lane, &id, began);
    let loaded = &*lane.loaded;
    if instead == Some(Reason::Breaker) {
        return Err(Failed::out_of_service(loaded).refusal(shared, checkpoint));
    }
    let width = check(loaded, request.schema_fingerprint, &values, request.rows)?;
    let data_load_us = micros(began.elapsed());

    let work = Rows {
        loaded: Arc::clone(&lane.loaded),
        id: id.clone(),
        values: Arc::clone(&values),
        width: width.max(1),
    };
    let (evaluated, exec) =
        rows::evaluate(Turn { shared, arrival, checkpoint, id: &id, entity, named: None }, work).await?;
    let times = Times { data_load_us, exec_us: micros(exec) };
    let counters = shared.metrics.checkpoint(checkpoint.index);
    let mut rows = Vec::with_capacity(evaluated.len());
    for (row, evaluated) in values.chunks_exact(width.max(1)).zip(evaluated) {
        let (out, fallback) = score::or_static(shared, arrival, checkpoint, loaded, row, evaluated)?;
        let fallback = fallback.or(instead);
        if let Some(reason) = fallback {
            counters.fell_back(reason, 1);
        }
        rows.push((out, fallback));
    }
    counters.exec.record(exec);
    counters.rows.fetch_add(rows.len() as u64, Relaxed);
    loaded.answered(rows.len() as u64);

    if rows.iter().any(|(_, fallback)| fallback.is_some()) {
        arrival.fell_back();
    }
    let batch = Batch { checkpoint, lane, id: &id, entity, times };
    batch.record(shared, &values, width, &rows).await;
    let mut response = batch.reply(&rows);
    response.request_id = id;
    Ok(response)
}

/// One row's answer.
type Row = (ScoreOut, Option<Reason>);

struct Batch<'a> {
    checkpoint: &'a Checkpoint,
    lane: &'a LaneInForce,
    id: &'a str,
    entity: &'a str,
    times: Times,
}

/// Checks shape and every value; returns the width of a row.
fn check(loaded: &Loaded, fingerprint: u64, values: &[f32], rows: u32) -> Result<usize, Refusal> {
    features::check_fingerprint(fingerprint, loaded)?;
    let schema = loaded.bundle.schema();
    let width = schema.len();
    if values.len() != width * rows as usize {
        return Err(Refusal::Shape { got: values.len(), rows, features: width });
    }
    for (row, values) in values.chunks_exact(width.max(1)).enumerate() {
        schema.check_dense(values).map_err(|error| Refusal::Row { row, error })?;
    }
    Ok(width)
}

// === impl Batch ===

impl Batch<'_> {
    /// Each row is a decision of its own, `<request id>/<row>`: recorded, and offered to those who observe.
    async fn record(&self, shared: &Shared, values: &[f32], width: usize, rows: &[Row]) {
        if shared.log.is_none() && self.lane.watched.is_none() {
            return;
        }
        let Batch { checkpoint, lane, entity, times, .. } = *self;
        let mut id = String::with_capacity(self.id.len() + 8);
        for (chunk, rows_of_chunk) in rows.chunks(CHUNK).enumerate() {
            if chunk > 0 {
                tokio::task::yield_now().await;
            }
            with_workspace(|workspace| {
                for (at, (out, fallback)) in (chunk * CHUNK..).zip(rows_of_chunk) {
                    id.clear();
                    // Writing to a string cannot fail.
                    let _ = write!(id, "{}/{at}", self.id);
                    let decision = Decision { checkpoint, lane, id: &id, entity, fallback: *fallback, times };
                    let label = score::label(checkpoint, &lane.loaded, out);
                    let features = &values[at * width..(at + 1) * width];
                    let (margin, score) = (out.margin, out.score);
                    if let Some(log) = &shared.log {
                        let said = Said::Score { margin, score, label: &label };
                        let durability = self.durability(at + 1 == rows.len());
                        // As for single scores: what is not recorded is counted.
                        let record = &mut workspace.record;
                        let _ = log::append(shared, log, decision, features, said, durability, record);
                    }
                    let said = observe::Said::Score { margin, score, label: &label };
                    observe::offer(shared, decision, features, said, None);
                }
            });
        }
    }

    /// Bringing the last row to the device brings those before it along.
    fn durability(&self, last: bool) -> DurabilityClass {
        match self.checkpoint.durability {
            DurabilityClass::Sync if !last => DurabilityClass::Written,
            durability => durability,
        }
    }

    /// `served` names a fallback if at least one row has one; the records tell which.
    fn reply(&self, rows: &[Row]) -> ScoreBatchResponse {
        let loaded = &*self.lane.loaded;
        let mut labels: Vec<String> = loaded.labels.iter().map(|label| label.to_string()).collect();
        let mut decisions = Vec::with_capacity(rows.len());
        for (out, _) in rows {
            let band = if out.band < loaded.labels.len() {
                out.band
            } else {
                let label = score::label(self.checkpoint, loaded, out);
                labels.iter().position(|known| **known == *label).unwrap_or_else(|| {
                    labels.push(label.to_string());
                    labels.len() - 1
                })
            };
            decisions.push(band as u32);
        }
        let fallback = rows.iter().find_map(|(_, fallback)| *fallback);
        ScoreBatchResponse {
            request_id: String::new(),
            scores: rows.iter().map(|(out, _)| out.score).collect(),
            margins: rows.iter().map(|(out, _)| out.margin).collect(),
            decisions,
            labels,
            served: Some(reply::served(&self.lane.source, fallback, self.times)),
        }
    }
}
