//! What every part of the data plane shares.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use arc_swap::ArcSwap;
use scorer_log::Clock;
use serde_json::json;
use uuid::Uuid;

use crate::answer::admit::Door;
use crate::answer::exposure::Exposure;
use crate::answer::features::FeatureSource;
use crate::answer::score::Scored;
use crate::answer::select::Selected;
use crate::bundles::{Reaper, Store};
use crate::config::{DurabilityClass, FallbackConfig, Kind, Role, ServerConfig};
use crate::decisions::Decisions;
use crate::events::{Events, Level};
use crate::health::Health;
use crate::lanes::LanesInForce;
use crate::metrics::Metrics;
use crate::observe::Keeper;
use crate::pool::{Pool, Watchdog};
use crate::refusal::{Refusal, shortened};
use crate::replay::Replay;
use crate::shadow::{Forwarder, Remembered, Senders};

/// Shared by the requests, the listeners and the handle that the control plane holds.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    /// In the order of their names; a checkpoint's index is its place here.
    pub(crate) checkpoints: Box<[Checkpoint]>,
    pub(crate) by_name: HashMap<String, usize>,
    /// Loaded once per request.
    pub(crate) lanes: ArcSwap<LanesInForce>,
    pub(crate) bundles: Store,
    pub(crate) reaper: Reaper,
    pub(crate) log: Option<Decisions>,
    pub(crate) features: Box<dyn FeatureSource>,
    pub(crate) admission: Arc<Door>,
    pub(crate) pool: Pool,
    pub(crate) watchdog: Watchdog,
    pub(crate) keeper: Keeper,
    pub(crate) scores: Replay<Scored>,
    pub(crate) selections: Replay<Selected>,
    pub(crate) health: Health,
    /// The way to the shadow pool, where there is one.
    pub(crate) forwarder: Option<Arc<Forwarder>>,
    /// For a shadow pool: who sends to it, and by which schemas.
    pub(crate) senders: Senders,
    pub(crate) schemas: Remembered,
    pub(crate) metrics: Metrics,
    pub(crate) events: Arc<Events>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) started_at_us: i64,
    /// Microseconds from start to ready; 0 before.
    pub(crate) ready_after_us: AtomicU64,
    pub(crate) draining: AtomicBool,
    #[cfg(feature = "fault-injection")]
    pub(crate) faults: crate::fault::Faults,
}

/// A configured checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) durability: DurabilityClass,
    pub(crate) fallback: Option<FallbackConfig>,
    pub(crate) exposure: Option<Exposure>,
    pub(crate) max_batch_rows: u32,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn checkpoint(&self, name: &str) -> Option<&Checkpoint> {
        self.by_name.get(name).map(|&index| &self.checkpoints[index])
    }

    /// The refusal of a name that is not configured.
    pub(crate) fn unknown_checkpoint(&self, name: &str) -> Refusal {
        let known: Vec<_> = self.config.checkpoints.keys().map(String::as_str).collect();
        Refusal::UnknownCheckpoint { name: shortened(name), known: known.join(", ") }
    }

    /// The log, if it could keep a record now.
    pub(crate) fn available_log(&self) -> Option<&Decisions> {
        self.log.as_ref().filter(|log| log.available())
    }

    /// A panic stopped `what`: counts it, tells the operator, and gives the caller the id to ask about.
    pub(crate) fn panicked(&self, what: &str, panic: &(dyn Any + Send)) -> Refusal {
        self.metrics.panics.fetch_add(1, Relaxed);
        Refusal::Internal { id: self.events.defect(what, panic) }
    }

    /// Something happened that the code rules out.
    pub(crate) fn defect(&self, what: &str, details: &str) -> Refusal {
        let id = Uuid::now_v7().to_string();
        self.events.push(Level::Error, "internal_error", json!({"id": id, "in": what, "error": details}));
        Refusal::Internal { id }
    }

    /// Brings what is counted over windows of time up to date.
    pub(crate) fn tick(&self) {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.metrics.tick(scorer_admission::Nanos(now));
    }

    /// Puts a lane table in force and lets the one before go.
    pub(crate) fn put_in_force(&self, lanes: LanesInForce) {
        let lanes = Arc::new(lanes);
        for (checkpoint, lane) in lanes.all() {
            self.admission.expect(checkpoint, &lane.loaded);
        }
        for previous in self.checkpoints.iter().filter_map(|it| Some((it.index, lanes.previous(it.index)?))) {
            self.admission.expect(previous.0, &previous.1.loaded);
        }
        let before = self.lanes.swap(Arc::clone(&lanes));
        for (checkpoint, lane) in before.all() {
            let kept = lanes.previous(checkpoint).is_some_and(|it| it.loaded.serial == lane.loaded.serial);
            if !kept && !lanes.has(checkpoint, &lane.loaded.digest) {
                self.admission.forget(checkpoint, &lane.loaded);
            }
        }
        for gone in before.observers().filter(|it| !lanes.observers().any(|new| Arc::ptr_eq(it, new))) {
            gone.close();
        }
        self.reaper.retire(before);
        // A shadow pool needs no lanes that answer: whatever it has to observe, it is there for it.
        let serves = |it: &Checkpoint| self.config.role == Role::Shadow || !lanes.of(it.index).is_empty();
        let serving = self.checkpoints.iter().map(|it| (it.name.as_str(), serves(it)));
        self.health.set(serving);
        if self.health.is_ready() {
            let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            // Ready once is when it became ready.
            let _ = self.ready_after_us.compare_exchange(0, micros, Relaxed, Relaxed);
        }
    }
}

/// Sorted checkpoints and where to find each.
pub(crate) fn checkpoints(config: &ServerConfig) -> (Box<[Checkpoint]>, HashMap<String, usize>) {
    let checkpoints: Box<[_]> = config
        .checkpoints
        .iter()
        .enumerate()
        .map(|(index, (name, it))| Checkpoint {
            index,
            name: name.clone(),
            kind: it.kind,
            durability: it.durability(),
            fallback: it.fallback.clone(),
            exposure: it.caps.as_ref().map(Exposure::new),
            max_batch_rows: it.max_batch_rows,
        })
        .collect();
    let by_name = checkpoints.iter().map(|it| (it.name.clone(), it.index)).collect();
    (checkpoints, by_name)
}
