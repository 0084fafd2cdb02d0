//! Loads the computed features of a request: at once if the source is ready, else within a share of the SLA.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::computed::{Computed, EntityKeys, LaterValues, Loading, Origins};
use crate::defaulted::Defaulted;
use crate::engine::Engine;
use crate::pool::{Completion, Expire};

/// The state of a row after its columns were requested.
pub(crate) enum Filled {
    /// The row is complete.
    Done(Origins),
    /// The source has not answered yet.
    Waiting(Waiting),
}

/// A read that has not ended.
pub(crate) struct Waiting {
    read: LaterValues,
    began: Instant,
    /// The columns that the request stated, and the time of the read.
    pub(crate) origins: Origins,
}

/// The values of all columns of a bundle, read before its row was encoded.
pub(crate) struct Preloaded {
    values: Result<Vec<f32>, Defaulted>,
    at_us: i64,
    /// One bit for each entity whose state cannot be used.
    unusable: u16,
}

// === impl Computed ===

impl Computed {
    /// Fills the columns of an encoded row that the request does not state. `values` is working memory.
    pub(crate) fn fill(
        &self,
        keys: &dyn EntityKeys,
        at_us: i64,
        row: &mut [f32],
        values: &mut Vec<f32>,
    ) -> Filled {
        let mut origins = Origins::default();
        self.note_stated(row, &mut origins);
        if origins.stated() as usize == self.len() {
            self.apply(Ok(&[]), keys, row, &mut origins);
            return Filled::Done(origins);
        }
        origins.at_us = at_us;
        let began = Instant::now();
        let result = match self.begin(keys, at_us, values) {
            Loading::Waiting(read) => return Filled::Waiting(Waiting { read, began, origins }),
            Loading::Ready(found) => Ok(found),
            Loading::Failed => Err(Defaulted::Failed),
        };
        self.count(result, began.elapsed());
        origins.unusable = result.map_or(0, |found| found.unusable);
        self.apply(result.map(|_| &**values), keys, row, &mut origins);
        Filled::Done(origins)
    }

    /// Fills the columns with values that were read before.
    pub(crate) fn fill_with(&self, preloaded: &Preloaded, keys: &dyn EntityKeys, row: &mut [f32]) -> Origins {
        let mut origins = Origins::at(preloaded.at_us);
        origins.unusable = preloaded.unusable;
        self.note_stated(row, &mut origins);
        self.apply(preloaded.values.as_deref().map_err(|reason| *reason), keys, row, &mut origins);
        origins
    }
}

// === impl Waiting ===

impl Waiting {
    /// Waits for the values, at most until the time that the load may take.
    pub(crate) async fn wait(
        self,
        engine: &Engine,
        arrival: &Arrival,
        checkpoint: &Checkpoint,
        computed: &Computed,
    ) -> (Result<Vec<f32>, Defaulted>, Origins) {
        let until = self.began + checkpoint.sla.mul_f64(engine.feature_share);
        let until = arrival.timeout().map_or(until, |timeout| until.min(arrival.at + timeout));
        self.wait_until(engine, until, computed).await
    }

    /// Waits for the values, at most until `until`.
    pub(crate) async fn wait_until(
        mut self,
        engine: &Engine,
        until: Instant,
        computed: &Computed,
    ) -> (Result<Vec<f32>, Defaulted>, Origins) {
        let (completion, expired) = Completion::<()>::new();
        let slot: Arc<dyn Expire> = completion;
        let watched: Weak<dyn Expire> = Arc::downgrade(&slot);
        engine.watchdog.watch(until, watched);
        let read = tokio::select! {
            biased;
            read = &mut self.read => read.map_err(|_| Defaulted::Failed),
            _ = expired.wait() => Err(Defaulted::Late),
        };
        let counted = read.as_ref().map(|(_, found)| *found).map_err(|reason| *reason);
        computed.count(counted, self.began.elapsed());
        self.origins.unusable = counted.map_or(0, |found| found.unusable);
        (read.map(|(values, _)| values), self.origins)
    }
}

/// Reads the features of several bundles as of one time, and waits for all of them together. Columns with the same
/// feature have the same value.
pub(crate) async fn read_all<const N: usize>(
    engine: &Engine,
    arrival: &Arrival,
    wanted: [Option<(&Computed, &Checkpoint)>; N],
    keys: &dyn EntityKeys,
) -> [Option<Preloaded>; N] {
    let at_us = engine.clock.unix_us();
    let mut begun = wanted.map(|wanted| {
        let (computed, checkpoint) = wanted?;
        let mut values = Vec::new();
        let began = Instant::now();
        let origins = Origins::at(at_us);
        Some(match computed.begin(keys, at_us, &mut values) {
            Loading::Ready(found) => {
                computed.count(Ok(found), began.elapsed());
                (computed, Begun::Read(Ok(values), found.unusable))
            }
            Loading::Failed => {
                computed.count(Err(Defaulted::Failed), began.elapsed());
                (computed, Begun::Read(Err(Defaulted::Failed), 0))
            }
            Loading::Waiting(read) => {
                (computed, Begun::Waiting(Waiting { read, began, origins }, checkpoint))
            }
        })
    });
    for place in &mut begun {
        // The reads run at the same time only if their source works on them without being polled; otherwise they follow
        // one another within the same time limits.
        let Some((computed, Begun::Waiting(..))) = place else { continue };
        let computed = *computed;
        if let Some((_, Begun::Waiting(waiting, checkpoint))) = place.take() {
            let (values, origins) = waiting.wait(engine, arrival, checkpoint, computed).await;
            *place = Some((computed, Begun::Read(values, origins.unusable)));
        }
    }
    let mut known: Vec<([u8; 32], f32)> = Vec::new();
    begun.map(|place| {
        let (computed, Begun::Read(mut values, unusable)) = place? else { return None };
        if let Ok(values) = &mut values {
            for ((_, digest), value) in computed.named().zip(values) {
                match known.iter().find(|(other, _)| other == digest) {
                    Some((_, before)) => *value = *before,
                    None => known.push((*digest, *value)),
                }
            }
        }
        Some(Preloaded { values, at_us, unusable })
    })
}

/// A read of [`read_all`].
enum Begun<'a> {
    Read(Result<Vec<f32>, Defaulted>, u16),
    Waiting(Waiting, &'a Checkpoint),
}
