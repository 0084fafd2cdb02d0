//! The engine, which answers requests independently of the transport.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use scorer_log::{Clock, Env, LogError};
use scorer_signing::Trust;
use serde_json::json;
use uuid::Uuid;

use crate::answers::{Scored, Selected};
use crate::arrival::Arrival;
use crate::bundles::{BundleListener, Computing, ListTable, Store};
use crate::checkpoint::{AddError, Checkpoint, Checkpoints};
use crate::computed::FeatureSource;
use crate::config::{CheckpointConfig, LogSettings, OutcomeSettings};
use crate::counters::Counters;
use crate::decision_log::DecisionLog;
use crate::desk::Desk;
use crate::error::SwapError;
use crate::events::{Events, Level};
use crate::gate::Gate;
use crate::idempotency::IdempotencyCache;
use crate::lanes::{ActiveLanes, LaneTable};
use crate::pool::{Pool, Watchdog};
use crate::privacy::{Privacy, PrivacyConfig, PrivacyError};
use crate::rejection::Rejection;
use crate::reporting::ReportLimits;
use crate::tokens::Tokens;

/// Number of answers of each kind in the idempotency cache.
const REMEMBERED: usize = 65_536;
/// Limit on the bytes of the answers' probabilities. With 256 actions, an answer takes 1 KiB.
const REMEMBERED_BYTES: usize = 32 << 20;
/// Number of explanations that may wait or run.
const EXPLAIN_QUEUE: usize = 32;
/// Share of the SLA that a read of computed features may take.
const FEATURE_SHARE: f64 = 0.25;

/// Configuration of an engine.
pub struct EngineConfig {
    /// The checkpoints by name.
    pub checkpoints: BTreeMap<String, CheckpointConfig>,
    /// The decision log. Without it nothing is recorded and exploration is off.
    pub log: Option<LogSettings>,
    /// The rules for storing data of requests.
    pub privacy: PrivacyConfig,
    /// Number of threads that evaluate.
    pub threads: usize,
    /// Greatest number of requests in flight.
    pub max_inflight: usize,
    /// Memory limit of the process for loading bundles, in bytes. The default is derived from the system's limit.
    pub memory_budget_bytes: Option<u64>,
    /// The rules for accepting bundles.
    pub trust: Trust,
    /// Number of answers of each kind in the idempotency cache.
    pub remembered: usize,
    /// The rules for reported outcomes.
    pub outcomes: OutcomeSettings,
    /// Greatest number of explanations on demand that wait or run.
    pub explain_queue: usize,
    /// The source of computed features. Without it, bundles with computed features are refused.
    pub feature_source: Option<Arc<dyn FeatureSource>>,
    /// Share of the SLA that a read of computed features may take, above 0 and at most 1.
    pub feature_share: f64,
}

/// An error while an engine is built.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The settings of admission control are inconsistent.
    #[error("{0}")]
    Config(String),
    /// The decision log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The rules of privacy cannot be applied.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// The reaper's thread could not be started.
    #[error("the reaper's thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// Checkpoints, lanes, bundles and the answer path. Callers and running evaluations share it.
pub struct Engine {
    /// The configured checkpoints.
    pub checkpoints: Checkpoints,
    /// The active lanes. Each request loads them once, by [`Engine::lanes`].
    lanes: ArcSwap<ActiveLanes>,
    /// The bundles in memory.
    pub bundles: Store,
    /// The external lists of rules.
    pub lists: Arc<ListTable>,
    /// Admission control.
    pub admission: Arc<Gate>,
    pub(crate) pool: Pool,
    pub(crate) watchdog: Watchdog,
    /// The queue of explanations on demand, apart from the answers.
    pub(crate) desk: Desk,
    pub(crate) remembered: Remembered,
    /// The decision log, if one is configured.
    pub log: Option<DecisionLog>,
    /// The rules for storing data of requests.
    pub privacy: Arc<Privacy>,
    /// The keys of decision tokens.
    pub tokens: Tokens,
    pub(crate) reports: ReportLimits,
    /// Share of the SLA that a read of computed features may take.
    pub(crate) feature_share: f64,
    /// The wall clock of records.
    pub clock: Arc<dyn Clock>,
    /// The engine's counters.
    pub counters: Counters,
    /// Events for the operator.
    pub events: Arc<Events>,
    /// Injected faults of evaluations.
    #[cfg(feature = "fault-injection")]
    pub faults: crate::fault::Faults,
    #[cfg(feature = "fault-injection")]
    lane_loads: std::sync::atomic::AtomicU64,
}

/// The idempotency caches by kind.
pub(crate) struct Remembered {
    pub(crate) scores: IdempotencyCache<Scored>,
    pub(crate) selections: IdempotencyCache<Selected>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            checkpoints: BTreeMap::new(),
            log: None,
            privacy: PrivacyConfig::default(),
            threads: 1,
            max_inflight: 2048,
            memory_budget_bytes: None,
            trust: Trust::default(),
            remembered: REMEMBERED,
            outcomes: OutcomeSettings::default(),
            explain_queue: EXPLAIN_QUEUE,
            feature_source: None,
            feature_share: FEATURE_SHARE,
        }
    }
}

// === impl Engine ===

impl Engine {
    /// Opens the log and builds the engine. `started` is the origin of its time. There are no lanes yet, and the pool
    /// does not run work before [`Engine::serve_pool`].
    ///
    /// # Errors
    /// Returns an [`EngineError`].
    pub fn new(
        config: &EngineConfig,
        env: Env,
        events: Arc<Events>,
        listener: Arc<dyn BundleListener>,
        started: Instant,
    ) -> Result<Arc<Engine>, EngineError> {
        let clock = Arc::clone(&env.clock);
        let counters = Counters::new(config.checkpoints.values().map(CheckpointConfig::sla));
        let computing =
            Computing { source: config.feature_source.clone(), counters: Arc::clone(&counters.features) };
        let privacy = Privacy::new(&config.privacy)?;
        let log = config.log.as_ref().map(|log| DecisionLog::open(log, env, &events)).transpose()?;
        let admission = Gate::new(&config.checkpoints, config.threads, config.max_inflight, started)
            .map_err(|error| EngineError::Config(error.to_string()))?;
        Ok(Arc::new(Engine {
            checkpoints: Checkpoints::new(&config.checkpoints),
            lanes: ArcSwap::from_pointee(ActiveLanes::none(config.checkpoints.len())),
            bundles: Store::start(
                config.memory_budget_bytes,
                config.trust.clone(),
                config.privacy.features.clone(),
                computing,
                listener,
            )
            .map_err(EngineError::Thread)?,
            lists: Arc::new(ListTable::new()),
            admission,
            pool: Pool::default(),
            watchdog: Watchdog::default(),
            desk: Desk::new(config.explain_queue),
            remembered: Remembered {
                scores: IdempotencyCache::new(config.remembered, REMEMBERED_BYTES),
                selections: IdempotencyCache::new(config.remembered, REMEMBERED_BYTES),
            },
            log,
            privacy: Arc::new(privacy),
            tokens: Tokens::default(),
            reports: ReportLimits::new(&config.outcomes, started),
            clock,
            feature_share: config.feature_share,
            counters,
            events,
            #[cfg(feature = "fault-injection")]
            faults: crate::fault::Faults::default(),
            #[cfg(feature = "fault-injection")]
            lane_loads: std::sync::atomic::AtomicU64::default(),
        }))
    }

    /// Adds a checkpoint without lanes. `prepare` extends everything that is stored by checkpoint index, before
    /// requests can find the checkpoint. Returns whether it is new; adding the same checkpoint again has no effect.
    ///
    /// # Errors
    /// Returns an [`AddError`]; nothing has then changed.
    pub fn add_checkpoint(
        &self,
        name: &str,
        config: &CheckpointConfig,
        prepare: impl FnOnce(),
    ) -> Result<bool, AddError> {
        self.checkpoints.add(name, config, |index| {
            let admitted =
                self.admission.add(config).map_err(|error| AddError::Settings(error.to_string()))?;
            debug_assert_eq!(admitted, index);
            self.counters.add(config.sla());
            prepare();
            Ok(())
        })
    }

    /// The active lanes.
    pub fn lanes(&self) -> Guard<Arc<ActiveLanes>> {
        #[cfg(feature = "fault-injection")]
        self.lane_loads.fetch_add(1, Relaxed);
        self.lanes.load()
    }

    /// Checks a lane table against the checkpoints and the loaded bundles.
    ///
    /// # Errors
    /// Returns a [`SwapError`].
    pub fn compile(&self, table: &LaneTable) -> Result<ActiveLanes, SwapError> {
        ActiveLanes::compile(table, &self.checkpoints, &self.bundles)
    }

    /// Activates lanes. Every request that starts after this call uses them. The previous lanes are freed after the
    /// last request that uses them has ended.
    pub fn publish(&self, lanes: ActiveLanes) {
        let lanes = Arc::new(lanes);
        for (checkpoint, lane) in lanes.all() {
            self.admission.expect(checkpoint, &lane.loaded);
        }
        for checkpoint in self.checkpoints.iter() {
            if let Some(previous) = lanes.previous(checkpoint.index) {
                self.admission.expect(checkpoint.index, &previous.loaded);
            }
        }
        self.check_sensitive(&lanes);
        let before = self.lanes.swap(Arc::clone(&lanes));
        for (checkpoint, lane) in before.all() {
            let previous = lanes.previous(checkpoint);
            let kept = previous.is_some_and(|previous| previous.loaded.serial == lane.loaded.serial);
            if !kept && !lanes.has(checkpoint, &lane.loaded.digest) {
                self.admission.forget(checkpoint, &lane.loaded);
            }
        }
        self.bundles.retire(before);
    }

    /// Reports privacy rules for features that no active bundle has.
    fn check_sensitive(&self, lanes: &ActiveLanes) {
        let features = lanes.all().flat_map(|(_, lane)| &lane.loaded.shape.features);
        let unknown = self.privacy.unknown_features(features);
        if !unknown.is_empty() && lanes.all().next().is_some() {
            let remedy = "correct the name in [privacy] features, or remove it";
            let what = json!({"features": unknown, "remedy": remedy});
            self.events.push(Level::Warning, "sensitive_features_unknown", what);
        }
    }

    /// Finds the checkpoint of a request, and stores it in the arrival for counters.
    ///
    /// # Errors
    /// Fails if no such checkpoint is configured.
    pub fn checkpoint_of(&self, arrival: &Arrival, name: &str) -> Result<&Checkpoint, Rejection> {
        let checkpoint = self.checkpoints.get(name)?;
        arrival.set_checkpoint(checkpoint.index);
        Ok(checkpoint)
    }

    /// The log, if it can store a record now.
    pub(crate) fn available_log(&self) -> Option<&DecisionLog> {
        self.log.as_ref().filter(|log| log.available())
    }

    /// Counts a panic in `what` and reports it as an event. Returns the rejection for the caller, with the event's id.
    pub fn panicked(&self, what: &str, panic: &(dyn Any + Send)) -> Rejection {
        self.counters.panics.fetch_add(1, Relaxed);
        Rejection::Internal { id: self.events.defect(what, panic) }
    }

    /// Reports a state that the code should exclude.
    pub(crate) fn defect(&self, what: &str, details: &str) -> Rejection {
        let id = Uuid::now_v7().to_string();
        self.events.push(Level::Error, "internal_error", json!({"id": id, "in": what, "error": details}));
        Rejection::Internal { id }
    }

    /// Runs the pool's work on the calling thread until [`Engine::close`].
    pub fn serve_pool(&self) {
        self.pool.serve();
    }

    /// Ends work whose deadline has passed until [`Engine::close`], and calls `tick` every `period`.
    pub fn watch_deadlines(&self, period: Duration, tick: impl FnMut()) {
        self.watchdog.run(period, tick);
    }

    /// Ends the threads of the pool, of explanations and of the watchdog. Running evaluations end at their deadlines;
    /// waiting ones are rejected.
    pub fn close(&self) {
        self.pool.close();
        self.desk.close();
        self.watchdog.close();
    }
}

/// Functions with which tests do the work of threads step by step.
#[cfg(feature = "fault-injection")]
impl Engine {
    /// Runs one part of the pool's waiting work on this thread. Returns false if none waits.
    pub fn run_pool_once(&self) -> bool {
        self.pool.run_one()
    }

    /// Sets the cost that admission control assumes for one row at a checkpoint.
    pub fn assume_cost(&self, checkpoint: &str, row: Duration) {
        if let Some(checkpoint) = self.checkpoints.find(checkpoint) {
            for lane in self.lanes.load().of(checkpoint.index) {
                self.admission.assume(checkpoint.index, &lane.loaded, row);
            }
        }
    }

    /// Number of times that the active lanes were loaded.
    pub fn lane_loads(&self) -> u64 {
        self.lane_loads.load(Relaxed)
    }

    /// Number of watched deadlines, including those of finished work.
    pub fn watched(&self) -> usize {
        self.watchdog.len()
    }

    /// Numbers of cached scores and selections.
    pub fn remembered(&self) -> (usize, usize) {
        (self.remembered.scores.len(), self.remembered.selections.len())
    }
}
