//! The server as the control plane sees it: start, load, swap, unload, drain.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use scorer_core::bundle::{Bundle, Digest};
use scorer_engine::{
    AddError, BundleListener, CheckpointConfig, DecisionLog, Engine, EngineConfig, EngineError, Events,
    FeatureSource, LaneTable, Level, ListError, ListReport, ListRequest, Live, LoadError, LoadReport,
    LoadRequest, Loaded, SwapError, UnloadError, Vetting,
};
use scorer_log::Env;
use scorer_observe::{ObserveConfig, Observers, SchemaCache};
use serde_json::json;

use crate::config::{Role, ServerConfig, check_name};
use crate::counters::Counters;
use crate::error::ServerError;
use crate::features::{FeatureStore, ForgetEntityError, Forgotten, RedisFeatures, forget};
use crate::health::Health;
use crate::rollout::{LoadFor, Rollouts};
use crate::run::{Addresses, Listeners, Running};
use crate::security::{Operator, Security};
use crate::senders::Senders;
use crate::services::Services;
use crate::share::{Most, Shares};
use crate::status::Status;
use crate::token_keys;
use crate::tracing::Tracer;

/// How long a server that is dropped without a drain waits for the requests in flight.
const DROP_WITHIN: Duration = Duration::from_millis(500);

/// A running data plane. Its methods may be called from any thread and never wait for requests.
pub struct Server {
    services: Arc<Services>,
    addresses: Addresses,
    /// Held during a swap, an unload or the addition of a checkpoint: one at a time.
    changes: Mutex<()>,
    /// The id of the process that started the server; a forked child must not stop it.
    owner: u32,
    running: Mutex<Option<Running>>,
}

// === impl Server ===

impl Server {
    /// Binds the addresses, opens the log and starts the threads. On return the server listens, and its health is
    /// NOT_SERVING.
    ///
    /// # Errors
    /// [`ServerError`]; then no thread runs and no address is bound.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        Server::start_in(config, Env::real())
    }

    /// As [`Server::start`], with the file system, the clock and the randomness of the log given.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_in(config: ServerConfig, env: Env) -> Result<Server, ServerError> {
        let started = Instant::now();
        config.check()?;
        let listeners = Listeners::bind(&config)?;
        let addresses = listeners.addresses()?;
        let services = Arc::new(services(config, env, &addresses, started)?);
        let running = Running::start(&services, listeners)?;
        let fields = json!({"addresses": &addresses, "version": env!("CARGO_PKG_VERSION")});
        services.engine.events.push(Level::Info, "started", fields);
        Ok(Server {
            services,
            addresses,
            changes: Mutex::default(),
            owner: std::process::id(),
            running: Mutex::new(Some(running)),
        })
    }

    /// Reads a bundle from its directory, verifies it completely, scores its golden cases, warms it up and keeps it in
    /// memory. If a bundle with that digest is in memory already, it stays as it is.
    ///
    /// # Errors
    /// [`LoadError`] states the defect of the bundle; the active lanes do not change.
    pub fn load(&self, path: &Path, digest: &str) -> Result<LoadReport, LoadError> {
        self.load_for(path, digest, &LoadFor::default())
    }

    /// As [`Server::load`], for a checkpoint: the warm-up alternates between the candidate and the checkpoint's live
    /// bundle, and a candidate that is too slow is refused. One load runs at a time, on a thread of low priority.
    ///
    /// # Errors
    /// As [`Server::load`].
    pub fn load_for(&self, path: &Path, digest: &str, wanted: &LoadFor) -> Result<LoadReport, LoadError> {
        let expected: Digest = digest.parse().map_err(|_| LoadError::Digest { digest: digest.to_owned() })?;
        if self.is_draining() {
            return Err(LoadError::Stopped);
        }
        let Services { engine, rollouts, counters, .. } = &*self.services;
        let live =
            wanted.checkpoint.as_deref().map(|name| self.live(name, wanted.allow_slower)).transpose()?;
        // A load runs at normal priority while no lane answers: there are no requests to protect.
        let low_priority = engine.lanes().all().next().is_some();
        let vetting =
            Vetting { name: wanted.name.clone(), floors: wanted.floors.clone(), known: wanted.known };
        let request = LoadRequest { path, expected, vetting: &vetting, live: live.as_ref(), low_priority };
        let began_us = engine.events.now_us();
        let result = engine.bundles.load(&request, &|| self.make_room(), &engine.events);
        match &result {
            Ok(report) => {
                rollouts.loaded(expected, wanted, report, began_us);
                if !report.already_loaded {
                    engine.lists.rebind(&engine.bundles);
                    counters.loads.fetch_add(1, Relaxed);
                    engine.events.push(Level::Info, "bundle_loaded", json!({"report": report}));
                }
            }
            Err(error) => {
                counters.load_rejected(error.reason());
                let fields =
                    json!({"bundle": digest, "reason": error.reason().as_str(), "error": error.to_string()});
                engine.events.push(Level::Error, "bundle_refused", fields);
            }
        }
        result
    }

    /// Loads a version of an external list and replaces the one before it for all bundles at once. The version must be at
    /// least `minimum_version`; `known` states whether this server has accepted it before.
    ///
    /// # Errors
    /// [`ListError`]; the version in use stays in use.
    pub fn load_list(
        &self,
        path: &Path,
        digest: &str,
        name: &str,
        minimum_version: u64,
        known: bool,
    ) -> Result<ListReport, ListError> {
        let expected: Digest = digest.parse().map_err(|_| LoadError::Digest { digest: digest.to_owned() })?;
        if self.is_draining() {
            return Err(LoadError::Stopped.into());
        }
        let engine = &self.services.engine;
        let low_priority = engine.lanes().all().next().is_some();
        let request = ListRequest { path, expected, name, minimum_version, known, low_priority };
        let result = engine.lists.load(&request, &engine.bundles, &engine.events);
        match &result {
            Ok(report) if report.already_loaded => {}
            Ok(report) => engine.events.push(Level::Info, "list_loaded", json!({"report": report})),
            Err(error) => {
                let reason = error.refusal().as_str();
                let fields = json!({
                    "list": name,
                    "digest": digest,
                    "reason": reason,
                    "error": error.to_string(),
                });
                engine.events.push(Level::Error, "list_refused", fields);
            }
        }
        result
    }

    /// Counts a version of an external list that the control plane could not copy.
    pub fn note_list_copy_failed(&self, name: &str) {
        self.services.engine.lists.copy_failed(name);
    }

    /// The SLA and the live bundle with which a candidate for a checkpoint is compared.
    fn live(&self, checkpoint: &str, allow_slower: bool) -> Result<Live, LoadError> {
        let engine = &self.services.engine;
        let checkpoint = engine
            .checkpoints
            .find(checkpoint)
            .ok_or_else(|| LoadError::UnknownCheckpoint { checkpoint: checkpoint.to_owned() })?;
        Ok(Live {
            loaded: engine.lanes().main(checkpoint.index).cloned(),
            p99_ms: checkpoint.config.p99_ms,
            max_ratio: if allow_slower { f64::INFINITY } else { checkpoint.config.warmup_max_ratio },
        })
    }

    /// Drops the bundles that are kept only for a rollback, and returns the bytes of their files. A bundle that shares
    /// most of its bytes with a live bundle stays, because dropping it would free almost no memory.
    fn make_room(&self) -> u64 {
        let _changing = lock(&self.changes);
        let Services { engine, observers, .. } = &*self.services;
        let (table, observing) = (engine.lanes(), observers.active());
        let observe = || observing.all().filter_map(|lane| lane.loaded());
        let in_use = || table.all().map(|(_, lane)| &lane.loaded).chain(observe());
        let live: HashSet<Digest> = in_use().map(|loaded| loaded.digest).collect();
        let mut counted: Vec<&Bundle> = in_use().map(|loaded| &loaded.bundle).collect();
        let idle: Vec<_> = engine
            .bundles
            .all()
            .into_iter()
            .filter(|loaded| loaded.was_live() && !live.contains(&loaded.digest))
            .filter(|loaded| loaded.bundle.shared_bytes(&counted) <= loaded.bytes / 2)
            .collect();
        if idle.is_empty() {
            return 0;
        }
        let stays = |digest: &Digest| idle.iter().all(|loaded| loaded.digest != *digest);
        self.services.publish(table.keeping_previous(stays), None);
        let mut bytes = 0;
        for loaded in &idle {
            // A forest that several of them share is freed, and counted, once.
            bytes += loaded.bytes - loaded.bundle.shared_bytes(&counted);
            counted.push(&loaded.bundle);
            let fields = json!({"bundle": &*loaded.digest_text, "why": "memory for another bundle"});
            engine.events.push(Level::Warning, "previous_bundle_let_go", fields);
            self.let_go(&loaded.digest);
        }
        bytes
    }

    /// Adds a checkpoint to those of the configuration. It has no lanes until a lane table gives it some, and the
    /// readiness of the whole server does not depend on it. Returns whether it is new; adding the same again has no
    /// effect.
    ///
    /// # Errors
    /// Its settings are not valid, it exists with other settings, or the server has been stopped. Then nothing has
    /// changed.
    pub fn add_checkpoint(&self, name: &str, config: &CheckpointConfig) -> Result<bool, ServerError> {
        let _changing = lock(&self.changes);
        let Services { engine, counters, health, .. } = &*self.services;
        if self.is_draining() {
            return Err(ServerError::Stopped);
        }
        check_name(name).map_err(AddError::Settings)?;
        Ok(engine.add_checkpoint(name, config, || {
            counters.add(name, config.sla());
            health.add(name);
        })?)
    }

    fn let_go(&self, digest: &Digest) {
        let engine = &self.services.engine;
        engine.bundles.unload(digest);
        engine.lists.rebind(&engine.bundles);
        self.services.rollouts.forget(digest);
    }

    /// Activates a lane table: every request that starts after the return is answered by these lanes. Activating the
    /// active table again has no effect.
    ///
    /// # Errors
    /// [`SwapError`]; the active table stays active.
    pub fn swap(&self, table: &LaneTable) -> Result<(), SwapError> {
        let _changing = lock(&self.changes);
        let result = self.swap_alone(table);
        let Services { engine, counters, .. } = &*self.services;
        match &result {
            Ok(()) => engine.events.push(Level::Info, "lanes_swapped", json!({"table": table})),
            Err(error) => {
                counters.swaps_rejected.fetch_add(1, Relaxed);
                let fields = json!({"version": table.version, "error": error.to_string()});
                engine.events.push(Level::Error, "lanes_refused", fields);
            }
        }
        result
    }

    /// Checks the table, starts the threads of its observe lanes, records it in the log and activates it. The caller
    /// holds `changes`.
    fn swap_alone(&self, table: &LaneTable) -> Result<(), SwapError> {
        let services = &self.services;
        let Services { engine, observers, .. } = &**services;
        if self.is_draining() {
            return Err(SwapError::Stopped);
        }
        if services.config.role == Role::Shadow {
            check_answers_nothing(table)?;
        }
        let (current, observing) = (engine.lanes(), observers.active());
        let mut lanes = engine.compile(table)?;
        let observe = observers.compile(table, &lanes)?;
        lanes.set_sinks(|checkpoint, loaded| observers.sink(&observe, checkpoint, loaded));
        if table.version <= current.version {
            let same = lanes.same_as(&current) && observe.same_as(&observing);
            if table.version != current.version || !same {
                return Err(SwapError::Version { version: table.version, current: current.version });
            }
            // Previous bundles may have been loaded or unloaded since.
            if !lanes.same_previous(&current) {
                services.publish(lanes, None);
            }
            return Ok(());
        }
        observers.start(&observe)?;
        if let Some(log) = &engine.log {
            let text = serde_json::to_string(table).unwrap_or_default();
            if let Err(error) = log.note_table(table.version, engine.clock.unix_us(), text) {
                // No reason to refuse the swap: the record of each decision states its bundle and lane as well.
                let fields = json!({"version": table.version, "error": error.to_string()});
                engine.events.push(Level::Warning, "lanes_not_logged", fields);
            }
        }
        for (checkpoint, lane) in lanes.all() {
            if lane.share > 0.0 && !current.has(checkpoint, &lane.loaded.digest) {
                let checkpoint = &engine.checkpoints.at(checkpoint).name;
                services.rollouts.activated(lane.loaded.digest, checkpoint, table.version);
                lane.loaded.expect_first_answer();
            }
        }
        drop(current);
        services.publish(lanes, Some(observe));
        services.counters.swaps.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Removes a bundle from those in memory; without effect if it is not there. The reaper frees its memory once the
    /// last request that uses it has ended.
    ///
    /// # Errors
    /// The bundle answers or observes at a checkpoint.
    pub fn unload(&self, digest: &str) -> Result<(), UnloadError> {
        let parsed: Digest = digest.parse().map_err(|_| UnloadError::Digest { digest: digest.to_owned() })?;
        let _changing = lock(&self.changes);
        let Services { engine, observers, .. } = &*self.services;
        let table = engine.lanes();
        if let Some((checkpoint, _)) = table.all().find(|(_, lane)| lane.loaded.digest == parsed) {
            let checkpoint = engine.checkpoints.at(checkpoint).name.clone();
            return Err(UnloadError::InUse { digest: digest.to_owned(), checkpoint });
        }
        let observes = |loaded: &Arc<Loaded>| loaded.digest == parsed;
        if let Some(lane) = observers.active().all().find(|lane| lane.loaded().is_some_and(observes)) {
            let (checkpoint, lane) = (lane.checkpoint.clone(), lane.table.name.clone());
            return Err(UnloadError::Observes { digest: digest.to_owned(), checkpoint, lane });
        }
        let mut previous = engine.checkpoints.iter().filter_map(|known| table.previous(known.index));
        if previous.any(|lane| lane.loaded.digest == parsed) {
            self.services.publish(table.keeping_previous(|digest| *digest != parsed), None);
        }
        drop(table);
        self.let_go(&parsed);
        Ok(())
    }

    /// Sets two metrics: whether the control plane could read the registry at its last attempt, and the time of the
    /// last successful read, in milliseconds since the Unix epoch.
    pub fn note_registry(&self, reachable: bool, last_seen_ms: u64) {
        self.services.counters.registry_reachable.store(reachable, Relaxed);
        self.services.counters.registry_seen_ms.store(last_seen_ms, Relaxed);
    }

    /// Removes an entity from the store of computed features. The call waits for the disk.
    ///
    /// # Errors
    /// The server has no such entities, the key breaks a rule, or the erasure is not on stable storage.
    pub fn forget_entity(&self, entity: &str, key: &str) -> Result<Forgotten, ForgetEntityError> {
        forget(&self.services.engine, self.services.features.as_deref(), entity, key)
    }

    /// Sets the metric of how many bundles the control plane keeps in quarantine.
    pub fn note_quarantined(&self, bundles: u64) {
        self.services.counters.quarantined.store(bundles, Relaxed);
    }

    /// Finds the principal of a control call with this bearer token, over a connection with these certificates (PEM),
    /// and decides whether it may operate this server.
    #[must_use]
    pub fn operator(&self, pem: &[u8], token: Option<&str>) -> Operator {
        self.services.security.operator(pem, token)
    }

    /// The addresses on which the server listens.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The current status.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.services)
    }

    /// Takes the events since the last call, one JSON object each.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.services.engine.events.take()
    }

    /// Stops the server: sets the health to NOT_SERVING, accepts no more connections, sends GOAWAY, waits up to
    /// `within` for the requests in flight, writes and seals the log, and ends every thread. A second call has no
    /// effect.
    pub fn drain(&self, within: Duration) {
        // Held until the drain ends, so that a second caller returns only after it.
        let mut running = lock(&self.running);
        let Some(running) = running.take() else { return };
        let began = Instant::now();
        let services = &self.services;
        services.draining.store(true, Release);
        services.health.drain();
        services.engine.events.push(Level::Info, "draining", json!({"within_seconds": within.as_secs_f64()}));
        let complete = running.stop(within);
        // The store answers no more reads and receives no more events, because all requests have ended.
        let stored = services.features.as_ref().map_or(Ok(()), |store| store.store.close());
        let sealed = services.engine.log.as_ref().map_or(Ok(()), DecisionLog::seal);
        services.engine.bundles.stop();
        let level = if complete && sealed.is_ok() && stored.is_ok() { Level::Info } else { Level::Warning };
        let fields = json!({
            "complete": complete,
            "inflight": services.engine.admission.inflight(),
            "feature_store_error": stored.err(),
            "log_error": sealed.err().map(|error| error.to_string()),
            "seconds": began.elapsed().as_secs_f64(),
        });
        services.engine.events.push(level, "stopped", fields);
    }

    /// Injects a fault into the request with this id.
    #[cfg(feature = "fault-injection")]
    pub fn inject(&self, id: &str, fault: crate::Fault) {
        self.services.engine.faults.set(id, fault);
    }

    /// Injects a fault into every explanation on demand.
    #[cfg(feature = "fault-injection")]
    pub fn inject_explanations(&self, fault: crate::Fault) {
        self.services.engine.faults.set(scorer_engine::EXPLANATION_FAULT, fault);
    }

    /// Number of explanations on demand that wait or run.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn explaining(&self) -> usize {
        self.services.engine.explaining()
    }

    /// Injects a fault into every evaluation of an observe lane, active now or later; `None` removes it.
    #[cfg(feature = "fault-injection")]
    pub fn inject_lane(&self, checkpoint: &str, lane: &str, fault: Option<crate::LaneFault>) {
        self.services.observers.faults().set(checkpoint, lane, fault);
    }

    /// Makes admission control assume that one row takes this long at a checkpoint.
    #[cfg(feature = "fault-injection")]
    pub fn assume_cost(&self, checkpoint: &str, row: Duration) {
        self.services.engine.assume_cost(checkpoint, row);
    }

    /// How many times the pointer to the active lanes was read.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn lane_loads(&self) -> u64 {
        self.services.engine.lane_loads()
    }

    /// Makes every evaluation from now on slower.
    #[cfg(feature = "fault-injection")]
    pub fn slow_down(&self, slowness: crate::Slowness) {
        self.services.engine.faults.slow_down(slowness);
    }

    fn is_draining(&self) -> bool {
        self.services.draining.load(Acquire)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            self.drain(DROP_WITHIN);
        } else {
            // In a forked child, the threads and the file of the socket belong to the parent process.
            std::mem::forget(lock(&self.running).take());
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Checks that no lane of a shadow pool's table answers requests.
fn check_answers_nothing(table: &LaneTable) -> Result<(), SwapError> {
    let lanes = table
        .checkpoints
        .iter()
        .flat_map(|(name, lanes)| lanes.iter().flatten().map(move |lane| (name, lane)));
    match lanes.into_iter().next() {
        None => Ok(()),
        Some((checkpoint, lane)) => Err(SwapError::Lane {
            checkpoint: checkpoint.clone(),
            lane: lane.name.clone(),
            reason:
                "the server is a shadow pool and answers no requests; give lanes that answer to a live server"
                    .to_owned(),
        }),
    }
}

fn services(
    config: ServerConfig,
    env: Env,
    addresses: &Addresses,
    started: Instant,
) -> Result<Services, ServerError> {
    let started_at_us = env.clock.unix_us();
    let events = Arc::new(Events::new(Arc::clone(&env.clock)));
    let security = Arc::new(Security::new(&config, &events)?);
    let rollouts = Arc::new(Rollouts::new(Arc::clone(&events)));
    let features = config.features.as_ref();
    let redis = features.map(|features| RedisFeatures::new(features, &events)).transpose()?.flatten();
    let features = features
        .filter(|features| features.redis.is_none())
        .map(|features| FeatureStore::open(features, started_at_us, &events))
        .transpose()?;
    let feature_source = features.clone().map(|store| store as Arc<dyn FeatureSource>);
    let feature_source =
        feature_source.or_else(|| redis.clone().map(|redis| redis as Arc<dyn FeatureSource>));
    let settings = EngineConfig {
        checkpoints: config.checkpoints.clone(),
        log: config.log.clone(),
        privacy: config.privacy.clone(),
        threads: config.threads,
        max_inflight: config.max_inflight,
        memory_budget_bytes: config.memory_budget_bytes,
        trust: config.bundles.clone(),
        outcomes: config.outcomes.clone(),
        explain_queue: config.explain_queue,
        feature_source,
        feature_share: config.features.as_ref().map_or(1.0, |features| features.sla_share),
        ..EngineConfig::default()
    };
    let listener: Arc<dyn BundleListener> = Arc::clone(&rollouts) as _;
    let engine = Engine::new(&settings, env, events, listener, started).map_err(|error| match error {
        EngineError::Config(rule) => ServerError::Config(rule),
        EngineError::Privacy(error) => ServerError::Config(error.to_string()),
        EngineError::Log(error) => ServerError::Log(error),
        EngineError::Thread(source) => ServerError::Start { what: "the reaper's thread", source },
    })?;
    let keys = config.outcomes.token_keys.as_deref().map(token_keys::read).transpose();
    let token_keys = keys.map_err(|error| ServerError::Config(error.to_string()))?.map(|file| {
        engine.tokens.set(file.keys);
        file.version
    });
    let observe = ObserveConfig {
        cpu: config.observe_cpu,
        queue: config.observe_queue,
        shadow_pool: config.shadow_pool.clone(),
        is_pool: config.role == Role::Shadow,
        server: addresses.name(),
    };
    let tracer = config.tracing.as_ref();
    let tracer = tracer.map(|tracing| Arc::new(Tracer::new(tracing, &addresses.name(), started)));
    Ok(Services {
        observers: Observers::new(&engine, &observe, started),
        engine,
        security,
        health: Health::new(config.role, config.checkpoints.keys()),
        senders: Senders::default(),
        shares: Shares::new(Most {
            requests: config.inflight_per_peer(),
            bytes: config.max_inflight_bytes,
            bytes_per_peer: config.inflight_bytes_per_peer(),
        }),
        schemas: SchemaCache::default(),
        counters: Counters::new(&config),
        rollouts,
        features,
        redis,
        tracer,
        token_keys,
        started,
        started_at_us,
        ready_after_us: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        config,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
