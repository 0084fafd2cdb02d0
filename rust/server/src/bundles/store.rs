//! The bundles in memory, ready to answer.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use scorer_core::budget::Unlimited;
use scorer_core::bundle::{Bundle, Digest, EvalScratch, Kind as BundleKind};
use serde::Serialize;
use serde_json::json;

use crate::bundle_dir;
use crate::config::Kind;
use crate::error::LoadError;
use crate::events::{Events, Level};

/// Rows scored at load, so that the first request meets warm caches and mapped pages.
const WARM_UP_ROWS: usize = 256;

/// One loaded bundle with what answering needs ready-made.
pub(crate) struct Loaded {
    pub(crate) bundle: Bundle,
    pub(crate) digest: Digest,
    /// `sha256:<hex>`, as it goes into every reply.
    pub(crate) digest_text: Arc<str>,
    pub(crate) kind: Kind,
    /// Outlives the bundle where a remembered answer refers to it.
    pub(crate) actions: Arc<[ActionInfo]>,
    /// Of the score bands, ascending.
    pub(crate) labels: Box<[Arc<str>]>,
    /// Tells the scratch of one load from that of another.
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    pub(crate) load_ms: f64,
    pub(crate) decisions: AtomicU64,
    events: Arc<Events>,
}

/// What a reply says about an action.
#[derive(Debug)]
pub(crate) struct ActionInfo {
    pub(crate) id: String,
    pub(crate) factors: HashMap<String, String>,
}

/// What loading a bundle found.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// `sha256:<hex>`.
    pub digest: String,
    /// The bundle's name.
    pub name: String,
    /// `score` or `action`.
    pub kind: &'static str,
    /// Time to read, verify, score the golden cases and warm up, milliseconds.
    pub load_ms: f64,
    /// Bytes of its files.
    pub bytes: u64,
    /// It was in memory already; nothing was done.
    pub already_loaded: bool,
}

/// Every loaded bundle by digest.
pub(crate) struct Store {
    loaded: Mutex<HashMap<Digest, Arc<Loaded>>>,
    next_serial: AtomicU64,
}

// === impl Store ===

impl Store {
    pub(crate) fn new() -> Store {
        Store { loaded: Mutex::default(), next_serial: AtomicU64::new(0) }
    }

    /// Reads, verifies and warms the bundle at `path`, which must have the digest `expected`.
    pub(crate) fn load(
        &self,
        path: &Path,
        expected: Digest,
        events: &Arc<Events>,
    ) -> Result<LoadReport, LoadError> {
        if let Some(loaded) = self.get(&expected) {
            return Ok(loaded.report(true));
        }
        let started = Instant::now();
        let bundle = catch_unwind(AssertUnwindSafe(|| read(path, &expected))).unwrap_or_else(|panic| {
            let id = events.defect("bundle load", panic.as_ref());
            Err(LoadError::Panic { path: path.to_owned(), id })
        })?;
        let loaded = Arc::new(Loaded {
            digest: expected,
            digest_text: expected.to_string().into(),
            kind: kind(&bundle),
            actions: actions(&bundle),
            labels: bundle.labels().iter().map(|label| label.as_str().into()).collect(),
            serial: self.next_serial.fetch_add(1, Relaxed),
            bytes: bundle.file_bytes(),
            load_ms: started.elapsed().as_secs_f64() * 1e3,
            decisions: AtomicU64::new(0),
            events: Arc::clone(events),
            bundle,
        });
        let report = loaded.report(false);
        // Two loads of one digest at once: either is as good.
        self.lock().entry(expected).or_insert(loaded);
        Ok(report)
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        self.lock().get(digest).cloned()
    }

    pub(crate) fn remove(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        self.lock().remove(digest)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by_key(|loaded| loaded.serial);
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Loaded>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path, expected: &Digest) -> Result<Bundle, LoadError> {
    let bundle = bundle_dir::load(path, Some(expected))
        .map_err(|source| LoadError::Bundle { path: path.to_owned(), source })?;
    warm_up(&bundle);
    Ok(bundle)
}

/// Walks the bundle with rows of missing values and of zeros; the golden cases were scored by `assemble`.
fn warm_up(bundle: &Bundle) {
    let mut scratch = EvalScratch::new(bundle);
    let mut row = vec![0.0_f32; bundle.schema().len()];
    let everything = scorer_core::policy::Mask::all(bundle.catalogue().len());
    for at in 0..WARM_UP_ROWS {
        row.fill(if at % 2 == 0 { 0.0 } else { f32::NAN });
        match bundle.kind() {
            // A row that cannot be scored warms just as well.
            BundleKind::Score => _ = bundle.score(&row, &Unlimited, &mut scratch),
            BundleKind::Action => _ = bundle.select_greedy(&row, &everything, &Unlimited, &mut scratch),
        }
    }
}

fn kind(bundle: &Bundle) -> Kind {
    match bundle.kind() {
        BundleKind::Score => Kind::Score,
        BundleKind::Action => Kind::Action,
    }
}

fn actions(bundle: &Bundle) -> Arc<[ActionInfo]> {
    let info = |action: &scorer_core::policy::Action| ActionInfo {
        id: action.id.clone(),
        factors: action.factors.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
    };
    bundle.catalogue().iter().map(info).collect()
}

// === impl Loaded ===

impl Loaded {
    pub(crate) fn report(&self, already_loaded: bool) -> LoadReport {
        LoadReport {
            digest: self.digest_text.to_string(),
            name: self.bundle.name().to_owned(),
            kind: self.kind.as_str(),
            load_ms: self.load_ms,
            bytes: self.bytes,
            already_loaded,
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let thread = thread::current();
        let fields = json!({"bundle": &*self.digest_text, "thread": thread.name().unwrap_or("unnamed")});
        self.events.push(Level::Info, "bundle_freed", fields);
    }
}
