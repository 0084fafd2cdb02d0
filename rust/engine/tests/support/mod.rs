//! An engine without a server: a small bundle of each kind, a simulated disk, and the test's thread.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use scorer_core::bundle::testing::{self, Files};
use scorer_core::bundle::{Digest, MANIFEST};
use scorer_engine::*;
use scorer_log::Reader;
use scorer_log::sim::SimMachine;
use scorer_proto::v1::{DecisionRecord, LogRecord, log_record};
use serde_json::{Value, json};

pub const FRAUD: &str = "fraud.checkout";
pub const ACTION: &str = "action.authorise";
/// The static action.
pub const FALLBACK: &str = "3ds=none|exemption=none";

pub struct World {
    pub engine: Arc<Engine>,
    pub machine: SimMachine,
    pub fraud: String,
    pub action: String,
    directory: tempfile::TempDir,
}

/// A record of what the sink of a lane received.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub checkpoint: String,
    pub id: String,
    pub row: Vec<f32>,
    pub reason: String,
    pub label: String,
    pub action: String,
    pub score: f64,
    pub propensity: f64,
}

#[derive(Default)]
pub struct Recorder(pub Mutex<Vec<Seen>>);

/// A row in schema order, as a client with the schema's fingerprint sends it.
pub struct Dense {
    pub fingerprint: Option<u64>,
    pub values: Vec<f32>,
}

pub struct DenseRows(pub u32, pub Vec<f32>);

// === impl World ===

/// Returns an engine with one live lane at each checkpoint and a decision log.
pub fn world() -> World {
    world_with(|_| ())
}

/// Returns such an engine with changed settings; `{"checkpoints": .., "log": .., "remembered": ..,
/// "explain_queue": ..}`.
pub fn world_with(change: impl FnOnce(&mut Value)) -> World {
    let world = empty_world(change);
    world.publish(1, &world.fraud.clone(), &world.action.clone());
    world
}

/// Returns an engine with loaded bundles and without lanes.
pub fn empty_world(change: impl FnOnce(&mut Value)) -> World {
    empty_world_from(change, None)
}

/// Returns such an engine with a source of computed features.
pub fn empty_world_from(change: impl FnOnce(&mut Value), source: Option<Arc<dyn FeatureSource>>) -> World {
    let mut settings = json!({
        "checkpoints": {
            FRAUD: {"kind": "score", "p99_ms": 60_000.0, "fallback": {"decision": "review", "score": 0.5}},
            ACTION: {"kind": "action", "p99_ms": 60_000.0, "fallback": {"action": FALLBACK}},
        },
        "log": {"dir": "/log"},
        "remembered": 1000,
        "explain_queue": 32,
    });
    change(&mut settings);
    let config = EngineConfig {
        checkpoints: serde_json::from_value(settings["checkpoints"].take()).unwrap(),
        log: serde_json::from_value(settings["log"].take()).unwrap(),
        remembered: settings["remembered"].as_u64().unwrap() as usize,
        explain_queue: settings["explain_queue"].as_u64().unwrap() as usize,
        memory_budget_bytes: settings["memory_budget_bytes"].as_u64(),
        feature_source: source,
        ..EngineConfig::default()
    };
    let machine = SimMachine::new(7);
    let env = machine.start();
    let events = Arc::new(Events::new(Arc::clone(&env.clock)));
    let engine = Engine::new(&config, env, events, Arc::new(()), Instant::now()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let fraud = load(&engine, directory.path(), &testing::score_files("fraud", 0.0));
    let action = load(&engine, directory.path(), &testing::action_files("action", 0.0));
    World { engine, machine, fraud, action, directory }
}

fn load(engine: &Engine, directory: &Path, files: &Files) -> String {
    try_load(engine, directory, files).unwrap()
}

fn try_load(engine: &Engine, directory: &Path, files: &Files) -> Result<String, LoadError> {
    let manifest: Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
    let digest = manifest["digest"].as_str().unwrap().to_owned();
    let path = directory.join(digest.trim_start_matches("sha256:"));
    std::fs::create_dir_all(&path).unwrap();
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).unwrap();
    }
    let expected: Digest = digest.parse().unwrap();
    let request =
        LoadRequest { path: &path, expected, vetting: &Vetting::default(), live: None, low_priority: false };
    engine.bundles.load(&request, &|| 0, &engine.events)?;
    Ok(digest)
}

impl World {
    /// Loads another bundle.
    pub fn load(&self, files: &Files) -> String {
        load(&self.engine, self.directory.path(), files)
    }

    /// Loads another bundle, which may be refused.
    pub fn try_load(&self, files: &Files) -> Result<String, LoadError> {
        try_load(&self.engine, self.directory.path(), files)
    }

    /// Activates one live lane at each checkpoint.
    pub fn publish(&self, version: u64, fraud: &str, action: &str) {
        let table = json!({"version": version, "checkpoints": {
            FRAUD: [{"name": "live", "bundle": fraud, "share": 1.0}],
            ACTION: [{"name": "live", "bundle": action, "share": 1.0}],
        }});
        self.engine.publish(self.engine.compile(&serde_json::from_value(table).unwrap()).unwrap());
    }

    /// Attaches a sink to every lane.
    pub fn observe(&self, sink: &Arc<Recorder>) {
        let mut lanes = self.engine.lanes().keeping_previous(|_| true);
        lanes.set_sinks(|_, _| Some(Arc::clone(sink) as Arc<dyn AnswerSink>));
        self.engine.publish(lanes);
    }

    pub fn score(&self, id: &str, amount: f32) -> Result<Answer<Scored>, Rejection> {
        self.run(self.engine.score(&now(), score(id, amount)))
    }

    pub fn select(&self, id: &str, amount: f32) -> Result<Answer<Selected>, Rejection> {
        self.run(self.engine.select(&now(), select(id, amount)))
    }

    /// Polls to completion, and runs the pool's work in between on this thread.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        for _ in 0..10_000 {
            if let Poll::Ready(out) = poll(future.as_mut()) {
                return out;
            }
            if !self.engine.run_pool_once() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        panic!("the future waits for an event that does not happen");
    }

    /// Polls to completion while other threads do the work.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Poll::Ready(out) = poll(future.as_mut()) {
                return out;
            }
            assert!(Instant::now() < until, "the future waits for an event that does not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `work` while a thread watches deadlines, and closes the engine.
    pub fn watched<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| self.engine.watch_deadlines(Duration::from_secs(3600), || ()));
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self.engine.close();
            result.unwrap()
        })
    }

    /// Closes the log and reads its decisions.
    pub fn decisions(&self) -> Vec<DecisionRecord> {
        let log = self.engine.log.as_ref().unwrap();
        let _ = log.seal();
        let mut reader = Reader::open(self.machine.start().fs, log.dir()).unwrap();
        let mut decisions = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let record: LogRecord = prost::Message::decode(record.payload).unwrap();
            if let Some(log_record::Record::Decision(decision)) = record.record {
                decisions.push(decision);
            }
        }
        decisions
    }

    pub fn counters(&self, checkpoint: &str) -> &CheckpointCounters {
        self.engine.counters.checkpoint(self.engine.checkpoints.get(checkpoint).unwrap().index)
    }
}

/// Polls once.
pub fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the timing of a request that has just arrived and has no deadline.
pub fn now() -> Arrival {
    Arrival::new(Instant::now(), None, 1)
}

pub fn dense(amount: f32) -> Dense {
    Dense { fingerprint: None, values: vec![amount, 0.0, 0.0] }
}

pub fn score(id: &str, amount: f32) -> Query<'static, Dense> {
    Query { checkpoint: FRAUD, request_id: id.to_owned(), entity: "", features: dense(amount), reasons: 0 }
}

pub fn select(id: &str, amount: f32) -> SelectQuery<'static, Dense> {
    let query = Query { checkpoint: ACTION, ..score(id, amount) };
    SelectQuery { query, eligible: None, include_pmf: true }
}

impl Features for Dense {
    type Error = Rejection;

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Rejection> {
        let own = lane.loaded.bundle.schema().fingerprint();
        check_dense(self.fingerprint.unwrap_or(own), &self.values, &lane.loaded, row)
    }

    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        given: &[(&str, scorer_core::schema::Value<'_>)],
    ) -> Result<(), Rejection> {
        let schema = lane.loaded.bundle.schema();
        let mut values = self.values.clone();
        for (name, value) in given {
            let at = schema.index_of(name).unwrap();
            values[at] = schema.encode_value(at, *value)?;
        }
        check_dense(schema.fingerprint(), &values, &lane.loaded, row)
    }

    fn hash(&self, content: &mut Content) {
        self.values.iter().for_each(|value| content.number(value.to_bits().into()));
    }
}

impl Rows for DenseRows {
    type Error = Rejection;

    fn count(&self) -> u32 {
        self.0
    }

    fn values(&mut self, _: &ActiveLane) -> Result<Vec<f32>, Rejection> {
        Ok(std::mem::take(&mut self.1))
    }
}

impl AnswerSink for Recorder {
    fn answered(&self, answered: &Answered<'_>) {
        let mut seen = Seen {
            checkpoint: answered.checkpoint.to_owned(),
            id: answered.id.to_owned(),
            row: answered.row.to_vec(),
            reason: answered.fallback_reason.to_owned(),
            label: String::new(),
            action: String::new(),
            score: 0.0,
            propensity: 0.0,
        };
        match answered.outcome {
            Outcome::Score { score, label, .. } => (seen.score, seen.label) = (score, label.to_owned()),
            Outcome::Action { action, propensity, .. } => {
                (seen.action, seen.propensity) = (action.to_owned(), propensity);
            }
        }
        self.0.lock().unwrap().push(seen);
    }
}

/// The id of a selection's action.
pub fn action_of(selected: &Selected) -> &str {
    &selected.source.actions[selected.index as usize].id
}
