//! `ScoreBatch`: many rows, one bundle. Nothing is recorded unless every row has been answered.
//!
//! Batches are not in the idempotency cache. A retry is scored again, with the same result on the same bundle, and
//! recorded again. Readers of the log keep the first record of an id.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_core::bundle::FunctionSet;

use super::evaluate::{Failed, with_workspace};
use super::features::check_rows;
use super::many::{self, RowSet};
use super::row_features::{BatchKeys, KeysOfRow, fill_rows};
use super::rules::{self, Ruling};
use super::sequence::with_rules;
use super::{RequestContext, decide, identify, record, route};
use crate::answered::{Answered, Outcome};
use crate::answers::{Answer, Band, BatchRow, Score, ScoredBatch};
use crate::arrival::Arrival;
use crate::bundles::{BoundLists, FaultedFunctions, Ruled};
use crate::computed::Origins;
use crate::config::Kind;
use crate::decision_log::{Appended, Commit};
use crate::engine::Engine;
use crate::gate::BATCH_WITHIN;
use crate::lanes::ActiveLane;
use crate::query::{BatchQuery, Rows};
use crate::reason::Reason;
use crate::rejection::Rejection;
use crate::stages::Stage;
use crate::timings::{Timings, micros};

/// Number of rows that are recorded before other requests may run on this thread.
const CHUNK: usize = 64;

// === impl Engine ===

impl Engine {
    /// Scores many rows.
    ///
    /// # Errors
    /// The request breaks a rule, or a row has neither a score nor a fallback.
    pub async fn score_batch<R: Rows>(
        self: &Arc<Engine>,
        arrival: &Arrival,
        query: BatchQuery<'_, R>,
    ) -> Result<Answer<ScoredBatch>, R::Error> {
        let BatchQuery { checkpoint, request_id, entity, mut rows } = query;
        let checkpoint = identify::checkpoint(self, arrival, checkpoint, Kind::Score)?;
        arrival.check_deadline()?;
        identify::check_entity(entity)?;
        let recorded_entity = &*self.privacy.entity(entity)?;
        let count = rows.count();
        if count == 0 {
            return Err(Rejection::NoRows.into());
        }
        if count > checkpoint.max_batch_rows {
            return Err(Rejection::TooManyRows { rows: count, max: checkpoint.max_batch_rows }.into());
        }
        let id = identify::request_id(&self.privacy, request_id)?.text;
        let context = RequestContext {
            engine: self,
            arrival,
            checkpoint,
            id: &id,
            entity,
            recorded_entity,
            linked: None,
        };

        let table = Arc::clone(&self.lanes());
        let began = Instant::now();
        let timed = arrival.measure(Stage::Features);
        let lane = route::lane(context, &table)?;
        let (lane, instead) = route::in_service(context, &table, lane, began);
        arrival.answered_by(&lane.source);
        rows.accept(lane)?;
        if instead == Some(Reason::Breaker) {
            return Err(Failed::out_of_service(&lane.loaded).rejection(self, checkpoint).into());
        }
        let mut values = rows.values(lane)?;
        let width = check_rows(&lane.loaded, &values, count)?.max(1);
        rows.check_keys()?;
        let origins = fill_rows(context, &lane.loaded, &rows, &mut values, width).await;
        let values = Arc::new(values);
        let data_load_us = micros(began.elapsed());
        drop(timed);

        let batch = Batch { context, lane, values, width, keys: &rows, origins };
        let value = batch.answer(instead, data_load_us).await?;
        if value.rows.iter().any(|row| row.fallback.is_some()) {
            arrival.fell_back();
        }
        Ok(Answer { id, value, replayed: false })
    }
}

struct Batch<'a> {
    context: RequestContext<'a>,
    lane: &'a ActiveLane,
    values: Arc<Vec<f32>>,
    /// Values of one row, at least 1.
    width: usize,
    keys: &'a dyn BatchKeys,
    /// Where the computed features of each row came from; empty if there are none.
    origins: Vec<Origins>,
}

/// The score of one row, the reason if a fallback gave it, and the result of the rules.
type Decided = (Score, Option<Reason>, Option<Ruled>);

// === impl Batch ===

impl Batch<'_> {
    /// Runs the stages from `admit` to the end.
    async fn answer(&self, instead: Option<Reason>, data_load_us: u32) -> Result<ScoredBatch, Rejection> {
        let RequestContext { engine, arrival, checkpoint, id, .. } = self.context;
        let loaded = &*self.lane.loaded;
        let rows = RowSet {
            loaded: Arc::clone(&self.lane.loaded),
            id: id.to_owned(),
            values: Arc::clone(&self.values),
            width: self.width,
        };
        let (evaluated, exec) = many::evaluate(self.context, rows).await?;
        let timings = Timings { decided_at_us: engine.clock.unix_us(), data_load_us, exec_us: micros(exec) };
        let counters = engine.counters.checkpoint(checkpoint.index);
        let timed = arrival.measure(Stage::Decide);
        // Taken once, so that all rows see the same versions.
        let lists = engine.lists.of(loaded);
        let mut rows = Vec::with_capacity(evaluated.len());
        // A batch that is rejected uses no budget of a rule, so all rows have an answer before rules are evaluated.
        let rows_of_values = || self.values.chunks_exact(self.width);
        let answers = rows_of_values()
            .zip(evaluated)
            .map(|(row, evaluated)| decide::or_static(self.context, loaded, row, evaluated))
            .collect::<Result<Vec<_>, Rejection>>()?;
        for (at, (row, (mut score, fallback))) in rows_of_values().zip(answers).enumerate() {
            let (ruled, failed) = self.ruled(at, row, lists.as_deref(), &mut score);
            let fallback = fallback.or(failed).or(instead);
            if let Some(reason) = fallback {
                counters.fell_back(reason);
            }
            rows.push((score, fallback, ruled));
        }
        drop(timed);
        counters.exec.record(exec);
        counters.rows.fetch_add(rows.len() as u64, Relaxed);
        loaded.answered(rows.len() as u64);
        // This is stored before the first row is recorded, because rows stay recorded if the caller leaves between
        // chunks.
        arrival.decided_batch(id, timings.decided_at_us, rows.len() as u32);
        let unlogged = self.record(&rows, timings).await;
        Ok(self.scored(rows, timings, unlogged))
    }

    /// Applies the rules to one row.
    fn ruled(
        &self,
        at: usize,
        row: &[f32],
        lists: Option<&BoundLists>,
        score: &mut Score,
    ) -> (Option<Ruled>, Option<Reason>) {
        let loaded = &*self.lane.loaded;
        if loaded.bundle.rules().is_none() {
            return (None, None);
        }
        let id = format!("{}/{at}", self.context.id);
        with_workspace(|workspace| {
            let eval = &mut workspace.parts(loaded).1.eval;
            rules::of_score(self.context, loaded, lists, Ruling { id: &id, row, eval }, score)
        })
    }

    /// Records each row as a separate decision `<request id>/<row>` and passes it to the lane's sink. Returns the
    /// number of rows that are not recorded with the checkpoint's durability.
    async fn record(&self, rows: &[Decided], timings: Timings) -> u32 {
        let Batch { context, lane, values, width, keys, origins } = self;
        let RequestContext { engine, arrival, checkpoint, recorded_entity, .. } = *context;
        let mut unlogged = if engine.log.is_none() { rows.len() as u32 } else { 0 };
        if engine.log.is_none() && lane.sink.is_none() {
            return unlogged;
        }
        let _timed = arrival.measure(Stage::Log);
        let mut id = String::with_capacity(context.id.len() + 8);
        let mut pending: Vec<(usize, Commit)> = Vec::new();
        for (chunk, rows_of_chunk) in rows.chunks(CHUNK).enumerate() {
            if chunk > 0 {
                tokio::task::yield_now().await;
            }
            with_workspace(|workspace| {
                for (at, (score, fallback, ruled)) in (chunk * CHUNK..).zip(rows_of_chunk) {
                    id.clear();
                    // Writing to a string cannot fail.
                    let _ = write!(id, "{}/{at}", context.id);
                    let label = decide::label(checkpoint, &lane.loaded, score.band);
                    let row = &values[at * width..(at + 1) * width];
                    let outcome = Outcome::Score { margin: score.margin, score: score.score, label: &label };
                    let answered = Answered {
                        checkpoint: &checkpoint.name,
                        id: &id,
                        entity: recorded_entity,
                        row,
                        keys: &KeysOfRow { keys: *keys, row: at },
                        origins: origins.get(at).copied().unwrap_or_default(),
                        timings,
                        ruled: ruled.as_ref(),
                        faulted: with_rules(score.faulted, ruled.as_ref()),
                        outcome,
                        ..lane.answered(*fallback)
                    };
                    if let Some(log) = &engine.log {
                        // Rows that are written together share one `fdatasync`. Unrecorded rows are counted.
                        let record = &mut workspace.record;
                        match record::append(engine, log, &answered, checkpoint.durability, record) {
                            Appended::Recorded => {}
                            Appended::Refused => unlogged += 1,
                            Appended::Pending(commit) => pending.push((at, commit)),
                        }
                    }
                    if let Some(sink) = &lane.sink {
                        sink.answered(&answered);
                    }
                }
            });
        }
        let until = arrival.at + arrival.timeout().unwrap_or(BATCH_WITHIN).min(BATCH_WITHIN);
        for (at, commit) in pending {
            let recorded = commit.within(&engine.watchdog, until).await;
            record::committed(engine, &checkpoint.name, &format!("{}/{at}", context.id), recorded);
            unlogged += u32::from(!recorded);
        }
        unlogged
    }

    fn scored(&self, decided: Vec<Decided>, timings: Timings, unlogged: u32) -> ScoredBatch {
        let loaded = &*self.lane.loaded;
        let mut labels: Vec<Arc<str>> = loaded.labels.to_vec();
        let mut place = |band: Band| match band {
            Band::Of(at) => at,
            Band::Fallback | Band::BeyondCaps => {
                let label = decide::label(self.context.checkpoint, loaded, band);
                labels.iter().position(|known| *known == label).unwrap_or_else(|| {
                    labels.push(label);
                    labels.len() - 1
                })
            }
        };
        let row = |(score, fallback, ruled): &Decided| BatchRow {
            score: score.score,
            margin: score.margin,
            label: place(score.band),
            fallback: *fallback,
            faulted: with_rules(score.faulted, ruled.as_ref()),
        };
        let rows: Vec<BatchRow> = decided.iter().map(row).collect();
        let ruled = decided.into_iter().filter_map(|(_, _, ruled)| ruled).collect();
        let (source, shape) = (Arc::clone(&self.lane.source), Arc::clone(&loaded.shape));
        let defaulted = self.origins.iter().filter_map(|origins| origins.defaulted).max();
        let faulted = rows.iter().fold(FunctionSet::default(), |all, row| all.or(row.faulted));
        let faulted = FaultedFunctions::of(&shape, faulted);
        ScoredBatch { source, rows, labels, timings, defaulted, faulted, unlogged, ruled, shape }
    }
}
