//! The table of lists in memory, and the loads that replace it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use scorer_core::bundle::{Digest, ListManifest};
use scorer_rules::{KeySet, ListKey};
use scorer_signing::Floors;
use serde::Serialize;

use super::super::bound::{BoundLists, ListRead};
use super::super::store::{Loaded, Store};
use super::super::vetting::Vetting;
use super::error::{ListError, ListRefusal};
use super::read;
use crate::error::LoadError;
use crate::events::Events;

/// A version must have at least one element for this many in use, unless the publisher confirmed that it shrinks.
const SHRINKS: u64 = 2;

/// A version in memory.
#[derive(Debug, Clone)]
struct Held {
    manifest: Arc<ListManifest>,
    loaded_at_us: i64,
    load_ms: f64,
    /// A set for each key of the bundles that read the list.
    sets: Vec<(ListKey, Arc<KeySet>)>,
}

#[derive(Debug, Default)]
struct Table {
    held: BTreeMap<String, Held>,
    /// By the serial number of the bundle, ascending.
    bound: Vec<(u64, Arc<BoundLists>)>,
}

/// The external lists of a server.
#[derive(Debug)]
pub struct ListTable {
    active: ArcSwap<Table>,
    /// Serialises loads, so that at most one list exists twice at a time.
    loading: Mutex<()>,
    /// Serialises replacements of the table. It is held for a moment only, because bundles are unloaded under it.
    changing: Mutex<()>,
    counts: Mutex<BTreeMap<String, Counts>>,
}

/// What happened to the versions of one list.
#[derive(Debug, Default, Clone)]
struct Counts {
    loads: u64,
    refused: BTreeMap<&'static str, u64>,
}

/// A request to load a version.
#[derive(Debug)]
pub struct ListRequest<'a> {
    /// The directory of the version.
    pub path: &'a Path,
    /// The digest that it must have.
    pub expected: Digest,
    /// Name of the list.
    pub name: &'a str,
    /// Versions below this one are refused, because one of them was in use before a restart.
    pub minimum_version: u64,
    /// Whether this server has accepted the version before.
    pub known: bool,
    /// Whether to load at low priority, because the server is answering requests.
    pub low_priority: bool,
}

/// Report on a load.
#[derive(Debug, Clone, Serialize)]
pub struct ListReport {
    /// Name of the list.
    pub name: String,
    /// The version.
    pub version: u64,
    /// The version that was in use before; 0 if none was.
    pub previous: u64,
    /// Its digest.
    pub digest: String,
    /// Number of elements, duplicates included.
    pub elements: u64,
    /// Time of the load in milliseconds.
    pub load_ms: f64,
    /// Number of bundles in memory that read the list.
    pub bundles: usize,
    /// Whether the version was in use already and nothing had to be built.
    pub already_loaded: bool,
}

/// The state of a list.
#[derive(Debug, Clone, Serialize)]
pub struct ListStatus {
    /// Name of the list.
    pub name: String,
    /// `string` or `int`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The version; 0 if none is loaded.
    pub version: u64,
    /// Its digest; empty if none is loaded.
    pub digest: String,
    /// Number of elements, duplicates included.
    pub elements: u64,
    /// Memory of the sets in bytes.
    pub bytes: u64,
    /// Time of publication, in milliseconds since the Unix epoch; 0 if none is loaded.
    pub published_at_ms: i64,
    /// Time at which the version came into use, in microseconds since the Unix epoch.
    pub loaded_at_us: i64,
    /// Duration of the load in milliseconds.
    pub load_ms: f64,
    /// Digests of the bundles in memory that declare the list.
    pub bundles: Vec<String>,
    /// Digests of those of them for which the version counts as not loaded, because it is too old or of another type.
    pub unfit: Vec<String>,
    /// Number of versions that came into use since the start.
    pub loads: u64,
    /// Refused versions and failed copies since the start, by cause.
    pub refused: BTreeMap<&'static str, u64>,
}

// === impl ListTable ===

impl ListTable {
    pub(crate) fn new() -> ListTable {
        ListTable {
            active: ArcSwap::from_pointee(Table::default()),
            loading: Mutex::default(),
            changing: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// The lists of a bundle's rules now; `None` if it declares no external list. A request calls this once.
    #[must_use]
    pub fn of(&self, loaded: &Loaded) -> Option<Arc<BoundLists>> {
        if loaded.bundle.rules().is_none_or(|rules| rules.external().is_empty()) {
            return None;
        }
        let table = self.active.load();
        let at = table.bound.binary_search_by_key(&loaded.serial, |(serial, _)| *serial).ok()?;
        table.bound.get(at).map(|(_, bound)| Arc::clone(bound))
    }

    /// Loads a version and replaces the one before it for all bundles at once. If the version is in use already, only the
    /// sets of bundles that have come since are built.
    ///
    /// # Errors
    /// Returns a [`ListError`]; nothing has then changed.
    pub fn load(
        &self,
        request: &ListRequest<'_>,
        store: &Store,
        events: &Events,
    ) -> Result<ListReport, ListError> {
        let _loading = lock(&self.loading);
        let result = self.prepare(request, store, events);
        let mut counts = lock(&self.counts);
        match &result {
            Ok(report) if !report.already_loaded => {
                counts.entry(request.name.to_owned()).or_default().loads += 1;
            }
            Ok(_) => {}
            Err(error) => {
                let of = counts.entry(request.name.to_owned()).or_default();
                *of.refused.entry(error.refusal().as_str()).or_default() += 1;
            }
        }
        result
    }

    fn prepare(
        &self,
        request: &ListRequest<'_>,
        store: &Store,
        events: &Events,
    ) -> Result<ListReport, ListError> {
        let &ListRequest { path, expected, name, known, low_priority, .. } = request;
        let began = Instant::now();
        let vetting = Vetting { name: Some(name.to_owned()), floors: Floors::default(), known };
        store.vet(path, &expected, &vetting).map_err(|error| match error {
            LoadError::Signature { path, source } => ListError::Signature { path, source },
            other => other.into(),
        })?;
        let manifest = read::manifest(path)?;
        let active = self.active.load_full();
        let held = active.held.get(name);
        check(request, &manifest, held)?;
        let bundles = readers(store, name);
        let same = held.filter(|held| held.manifest.digest == expected);
        let has = |key: &ListKey| same.is_some_and(|held| held.sets.iter().any(|(known, _)| known == key));
        let mut missing: Vec<ListKey> = Vec::new();
        for key in bundles.iter().filter_map(|loaded| key_for(loaded, &manifest)) {
            if !has(&key) && !missing.contains(&key) {
                missing.push(key);
            }
        }
        let already_loaded = same.is_some() && missing.is_empty();
        if !already_loaded {
            check_memory(&manifest, missing.len(), store)?;
            let built = store.on_loader_thread(low_priority, || {
                catch_unwind(AssertUnwindSafe(|| read::sets(path, &manifest, &missing))).unwrap_or_else(
                    |panic| {
                        let id = events.defect("list load", panic.as_ref());
                        Err(LoadError::Panic { path: path.to_owned(), id }.into())
                    },
                )
            })??;
            let next = Held {
                loaded_at_us: same.map_or_else(|| events.now_us(), |held| held.loaded_at_us),
                load_ms: began.elapsed().as_secs_f64() * 1e3,
                manifest: Arc::new(manifest.clone()),
                sets: built,
            };
            self.replace(store, |held| {
                // Only this load can have changed the version, but sets may have been released meanwhile.
                let before =
                    held.insert(name.to_owned(), next).filter(|before| before.manifest.digest == expected);
                if let (Some(before), Some(next)) = (before, held.get_mut(name)) {
                    next.sets.extend(before.sets);
                }
            });
        }
        Ok(ListReport {
            name: name.to_owned(),
            version: manifest.list.version,
            previous: held.map_or(0, |held| held.manifest.list.version),
            digest: expected.to_string(),
            elements: manifest.list.elements,
            load_ms: began.elapsed().as_secs_f64() * 1e3,
            bundles: bundles.len(),
            already_loaded,
        })
    }

    /// Takes in bundles that were loaded or unloaded, and frees the sets that no bundle reads any longer.
    pub fn rebind(&self, store: &Store) {
        self.replace(store, |_| ());
    }

    /// Replaces the table by one with changed versions, for the bundles that are in memory now.
    fn replace(&self, store: &Store, change: impl FnOnce(&mut BTreeMap<String, Held>)) {
        let _changing = lock(&self.changing);
        let mut held = self.active.load().held.clone();
        change(&mut held);
        let bundles = store.all();
        for (name, of) in &mut held {
            let manifest = Arc::clone(&of.manifest);
            let read = |key: &ListKey| {
                let mut keys = bundles.iter().filter(|one| declares(one, name));
                keys.any(|loaded| key_for(loaded, &manifest).as_ref() == Some(key))
            };
            of.sets.retain(|(key, _)| read(key));
        }
        let bound = bundles.iter().filter_map(|loaded| Some((loaded.serial, Arc::new(bind(loaded, &held)?))));
        let table = Arc::new(Table { bound: bound.collect(), held });
        let before = self.active.swap(Arc::clone(&table));
        let kept = |set: &Arc<KeySet>| {
            table.held.values().flat_map(|held| &held.sets).any(|(_, known)| Arc::ptr_eq(known, set))
        };
        // Requests may still hold what is replaced. The reaper frees it after them, on its own thread.
        for (_, set) in before.held.values().flat_map(|held| &held.sets).filter(|(_, set)| !kept(set)) {
            store.retire(Arc::clone(set));
        }
        for (_, bound) in &before.bound {
            store.retire(Arc::clone(bound));
        }
        store.retire(before);
    }

    /// Counts a version that the control plane could not copy.
    pub fn copy_failed(&self, name: &str) {
        let mut counts = lock(&self.counts);
        let of = counts.entry(name.to_owned()).or_default();
        *of.refused.entry(ListRefusal::Copy.as_str()).or_default() += 1;
    }

    /// The state of every list that a bundle in memory declares or that is loaded, by name.
    #[must_use]
    pub fn status(&self, store: &Store) -> Vec<ListStatus> {
        let table = self.active.load();
        let counts = lock(&self.counts);
        let bundles = store.all();
        let mut names: Vec<&str> = table.held.keys().map(String::as_str).collect();
        for loaded in &bundles {
            names.extend(externals(loaded).map(|external| external.name.as_str()));
        }
        names.sort_unstable();
        names.dedup();
        let state = |name: &str| {
            let held = table.held.get(name);
            let declared = || bundles.iter().filter(|loaded| declares(loaded, name));
            let kind = held.map(|held| held.manifest.list.kind).or_else(|| {
                bundles.iter().flat_map(|of| externals(of)).find(|of| of.name == name).map(|of| of.kind)
            });
            let fits = |loaded: &Loaded| held.is_none_or(|of| key_for(loaded, &of.manifest).is_some());
            let of = counts.get(name).cloned().unwrap_or_default();
            ListStatus {
                name: name.to_owned(),
                kind: kind.unwrap_or_default().as_str(),
                version: held.map_or(0, |held| held.manifest.list.version),
                digest: held.map(|held| held.manifest.digest.to_string()).unwrap_or_default(),
                elements: held.map_or(0, |held| held.manifest.list.elements),
                bytes: held.map_or(0, |held| held.sets.iter().map(|(_, set)| set.heap_bytes() as u64).sum()),
                published_at_ms: held.map_or(0, |held| held.manifest.list.published_at_ms),
                loaded_at_us: held.map_or(0, |held| held.loaded_at_us),
                load_ms: held.map_or(0.0, |held| held.load_ms),
                bundles: declared().map(|loaded| loaded.digest_text.to_string()).collect(),
                unfit: declared()
                    .filter(|loaded| !fits(loaded))
                    .map(|loaded| loaded.digest_text.to_string())
                    .collect(),
                loads: of.loads,
                refused: of.refused,
            }
        };
        names.into_iter().map(state).collect()
    }
}

/// Checks a version against the request and the version in use.
fn check(request: &ListRequest<'_>, manifest: &ListManifest, held: Option<&Held>) -> Result<(), ListError> {
    let &ListRequest { path, expected, name, .. } = request;
    let unexpected = |found: String, expected: String| {
        Err(ListError::Unexpected { path: path.to_owned(), found, expected })
    };
    if manifest.digest != expected {
        return unexpected(manifest.digest.to_string(), expected.to_string());
    }
    if manifest.name != name {
        return unexpected(format!("list {:?}", manifest.name), format!("list {name:?}"));
    }
    let version = manifest.list.version;
    let older = |current| Err(ListError::Older { name: name.to_owned(), version, current });
    let Some(held) = held.map(|held| &held.manifest) else {
        return if version < request.minimum_version { older(request.minimum_version) } else { Ok(()) };
    };
    let current = held.list.version;
    if version < current.max(request.minimum_version) {
        return older(current.max(request.minimum_version));
    }
    if version == current && held.digest != expected {
        let current = held.digest;
        return Err(ListError::Twice { name: name.to_owned(), version, digest: expected, current });
    }
    if manifest.list.kind != held.list.kind {
        return Err(ListError::Type {
            name: name.to_owned(),
            version,
            kind: manifest.list.kind.as_str(),
            current: held.list.kind.as_str(),
        });
    }
    let elements = manifest.list.elements;
    if elements.saturating_mul(SHRINKS) < held.list.elements && !manifest.list.shrinks {
        let current = held.list.elements;
        return Err(ListError::Shrunk { name: name.to_owned(), version, elements, current });
    }
    Ok(())
}

/// Checks that `sets` sets of a version fit the memory budget, beside the version that they replace.
fn check_memory(manifest: &ListManifest, sets: usize, store: &Store) -> Result<(), ListError> {
    let keys = usize::try_from(manifest.list.elements).unwrap_or(usize::MAX / 4);
    let needed = KeySet::bytes_for(keys).saturating_mul(sets) as u64;
    let Some((resident, budget)) = store.lacks_memory(needed) else { return Ok(()) };
    Err(ListError::Memory {
        name: manifest.name.clone(),
        version: manifest.list.version,
        needed_mib: needed.div_ceil(1 << 20),
        resident_mib: resident.div_ceil(1 << 20),
        budget_mib: budget.bytes >> 20,
        source_of_budget: budget.source.clone(),
    })
}

fn externals(loaded: &Loaded) -> impl Iterator<Item = &scorer_core::bundle::ExternalList> {
    loaded.bundle.rules().into_iter().flat_map(|rules| rules.external())
}

fn declares(loaded: &Loaded, name: &str) -> bool {
    externals(loaded).any(|external| external.name == name)
}

/// The bundles in memory that declare a list.
fn readers(store: &Store, name: &str) -> Vec<Arc<Loaded>> {
    store.all().into_iter().filter(|loaded| declares(loaded, name)).collect()
}

/// The key under which a bundle reads a version; `None` if the version is not one that its rules may read.
fn key_for(loaded: &Loaded, manifest: &ListManifest) -> Option<ListKey> {
    let fits = |external: &&scorer_core::bundle::ExternalList| {
        external.name == manifest.name
            && external.kind == manifest.list.kind
            && external.minimum_version <= manifest.list.version
    };
    externals(loaded).find(fits)?;
    loaded.bundle.rules().map(|rules| rules.lists().key())
}

/// The lists of one bundle; `None` if it declares no external list.
fn bind(loaded: &Loaded, held: &BTreeMap<String, Held>) -> Option<BoundLists> {
    let rules = loaded.bundle.rules().filter(|rules| !rules.external().is_empty())?;
    let (mut lists, mut read) = (rules.lists().clone(), Vec::new());
    for external in rules.external() {
        let of = held.get(&external.name);
        let set = of.and_then(|of| {
            let key = key_for(loaded, &of.manifest)?;
            of.sets.iter().find(|(known, _)| *known == key).map(|(_, set)| (of, set))
        });
        read.push(ListRead {
            name: external.name.clone(),
            version: set.map_or(0, |(of, _)| of.manifest.list.version),
            digest: set.map(|(of, _)| of.manifest.digest),
        });
        if let Some((_, set)) = set {
            lists = lists.with(external.list, Arc::clone(set));
        }
    }
    Some(BoundLists { lists, read: read.into() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
