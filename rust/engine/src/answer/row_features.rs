//! Stage `features` of a batch: fills the computed features of its rows.

use std::time::Instant;

use super::RequestContext;
use super::load::Filled;
use crate::bundles::Loaded;
use crate::computed::{EntityKeys, Origins};
use crate::gate::BATCH_WITHIN;
use crate::query::Rows;

/// Number of rows that are read before other requests may run on this thread.
const CHUNK: usize = 64;

/// The keys of all rows of a batch.
pub(super) trait BatchKeys: Sync {
    fn key(&self, row: usize, entity: &str) -> Option<&str>;
}

/// The keys of one row of a batch.
#[derive(Clone, Copy)]
pub(super) struct KeysOfRow<'a> {
    pub(super) keys: &'a dyn BatchKeys,
    pub(super) row: usize,
}

impl<R: Rows> BatchKeys for R {
    fn key(&self, row: usize, entity: &str) -> Option<&str> {
        Rows::key(self, row, entity)
    }
}

impl EntityKeys for KeysOfRow<'_> {
    fn key(&self, entity: &str) -> Option<&str> {
        self.keys.key(self.row, entity)
    }
}

/// Fills the computed features that the rows do not state, all as of one time, and returns where the values of each row
/// came from. The result is empty if the bundle has no computed features. All reads together may take the share of the
/// batch's time that one read may take of the SLA.
pub(super) async fn fill_rows(
    context: RequestContext<'_>,
    loaded: &Loaded,
    keys: &dyn BatchKeys,
    values: &mut [f32],
    width: usize,
) -> Vec<Origins> {
    let Some(computed) = &loaded.shape.computed else { return Vec::new() };
    let RequestContext { engine, arrival, .. } = context;
    let at_us = engine.clock.unix_us();
    let time = arrival.timeout().unwrap_or(BATCH_WITHIN).min(BATCH_WITHIN);
    let until = Instant::now() + time.mul_f64(engine.feature_share);
    let mut scratch = Vec::new();
    let mut origins = Vec::with_capacity(values.len() / width);
    for (number, row) in values.chunks_exact_mut(width).enumerate() {
        if number % CHUNK == CHUNK - 1 {
            tokio::task::yield_now().await;
        }
        let keys = KeysOfRow { keys, row: number };
        origins.push(match computed.fill(&keys, at_us, row, &mut scratch) {
            Filled::Done(origins) => origins,
            Filled::Waiting(waiting) => {
                let (read, mut origins) = waiting.wait_until(engine, until, computed).await;
                computed.apply(read.as_deref().map_err(|reason| *reason), &keys, row, &mut origins);
                origins
            }
        });
    }
    origins
}
