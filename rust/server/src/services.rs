//! The state that the server's adapters share: the engine, the counters and the configuration.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use scorer_admission::Nanos;
use scorer_engine::{ActiveLanes, Checkpoint, Engine};
use scorer_observe::{ObserveLanes, Observers, SchemaCache};

use crate::config::{Role, ServerConfig};
use crate::counters::Counters;
use crate::features::{FeatureStore, RedisFeatures, StoreStatus};
use crate::health::Health;
use crate::rollout::Rollouts;
use crate::security::Security;
use crate::senders::Senders;
use crate::share::Shares;
use crate::token_keys;
use crate::tracing::Tracer;

/// Shared by the adapters, the listeners and the handle that the control plane holds.
pub(crate) struct Services {
    pub(crate) config: ServerConfig,
    pub(crate) engine: Arc<Engine>,
    pub(crate) observers: Observers,
    pub(crate) security: Arc<Security>,
    pub(crate) health: Health,
    /// In a shadow pool: what each live server has sent.
    pub(crate) senders: Senders,
    /// The requests and bytes that each peer has in flight.
    pub(crate) shares: Arc<Shares>,
    pub(crate) schemas: SchemaCache,
    pub(crate) counters: Counters,
    pub(crate) rollouts: Arc<Rollouts>,
    /// The store of computed features, if feature sets are configured and their state is in this process.
    pub(crate) features: Option<Arc<FeatureStore>>,
    /// The computed features whose state is in Redis, if it is configured.
    pub(crate) redis: Option<Arc<RedisFeatures>>,
    /// Samples requests for traces, if traces are configured.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The key file of decision tokens that was read at the start, if one is configured.
    pub(crate) token_keys: Option<token_keys::Version>,
    pub(crate) started: Instant,
    pub(crate) started_at_us: i64,
    /// Microseconds from the start to the first readiness; 0 before it.
    pub(crate) ready_after_us: AtomicU64,
    pub(crate) draining: AtomicBool,
}

// === impl Services ===

impl Services {
    /// Ends the current window of admission control and of the counters, renews the privacy keys if it is time, and
    /// reports the upkeep of the log as events. Called once a window.
    pub(crate) fn tick(&self) {
        self.engine.admission.tick();
        self.engine.privacy.renew(Instant::now());
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.tick(Nanos(now));
        if let Some(log) = &self.engine.log {
            log.report_upkeep(&self.engine.events);
        }
    }

    /// The status of the source of computed features, if one is configured.
    pub(crate) fn feature_status(&self) -> Option<StoreStatus> {
        let store = self.features.as_ref().map(|store| store.status());
        store.or_else(|| self.redis.as_ref().map(|redis| redis.status()))
    }

    /// Activates lanes, and the observe lanes if given.
    pub(crate) fn publish(&self, lanes: ActiveLanes, observe: Option<ObserveLanes>) {
        // A checkpoint of a shadow pool is ready without a lane that answers.
        let serves = |checkpoint: &Checkpoint| {
            self.config.role == Role::Shadow || !lanes.of(checkpoint.index).is_empty()
        };
        let checkpoints = self.engine.checkpoints.iter();
        let serving: Vec<_> =
            checkpoints.map(|checkpoint| (checkpoint.name.as_str(), serves(checkpoint))).collect();
        self.engine.publish(lanes);
        if let Some(observe) = observe {
            self.observers.publish(observe);
        }
        self.health.set(serving.into_iter());
        if self.health.is_ready() {
            let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            // Keeps the time of the first readiness.
            let _ = self.ready_after_us.compare_exchange(0, micros, Relaxed, Relaxed);
        }
    }
}
