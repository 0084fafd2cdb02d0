//! Roll-outs: the time from the move of an alias to the first answer by the new bundle, by stage.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scorer_core::bundle::Digest;
use scorer_engine::{BundleListener, Events, Histogram, Level, LoadReport, Loaded, Stages};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Why and since when a bundle is loaded, as the control plane gives it in JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFor {
    /// The checkpoint at which the bundle will answer. The warm-up is compared with its SLA and its live bundle.
    /// Without a checkpoint, the warm-up is not compared.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// Time of the change of the alias, in microseconds since the Unix epoch.
    #[serde(default)]
    pub changed_at_us: Option<i64>,
    /// Time at which the control plane detected the change, in microseconds since the Unix epoch.
    #[serde(default)]
    pub noticed_at_us: Option<i64>,
    /// Time of fetching the bundle's files, in microseconds.
    #[serde(default)]
    pub fetch_us: u64,
    /// Whether to accept the bundle even if it is slower than `warmup_max_ratio` allows, for a deliberate release of a
    /// larger model.
    #[serde(default)]
    pub allow_slower: bool,
    /// The name that the bundle's signature must state; any name if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// The lowest accepted release of each bundle name.
    #[serde(default)]
    pub floors: BTreeMap<String, u64>,
    /// Whether this server has accepted the bundle before, as the last known good bundle or the one before it.
    #[serde(default)]
    pub known: bool,
}

/// One bundle's roll-out at one checkpoint.
#[derive(Clone, Debug)]
struct Rollout {
    checkpoint: String,
    lane_table: u64,
    request: LoadFor,
    stages: Stages,
    /// Start of loading, in microseconds since the Unix epoch.
    began_us: i64,
    /// Activation of the table, in microseconds since the Unix epoch.
    swapped_us: i64,
}

/// The request for which a bundle was loaded, until a table names the bundle.
#[derive(Clone, Debug)]
struct Loading {
    request: LoadFor,
    stages: Stages,
    began_us: i64,
}

/// All roll-outs.
pub(crate) struct Rollouts {
    events: Arc<Events>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bundles in memory that no table has named yet.
    loading: HashMap<Digest, Loading>,
    /// Active bundles without a first answer.
    awaited: HashMap<Digest, Vec<Rollout>>,
    timings: BTreeMap<String, Timings>,
}

/// The measured roll-outs at one checkpoint.
#[derive(Debug)]
pub(crate) struct Timings {
    /// Times from the change of an alias to the first answer.
    pub(crate) total: Histogram,
    /// Seconds by stage of the newest roll-out.
    pub(crate) stages: Vec<(&'static str, f64)>,
}

// === impl Rollout ===

impl Rollout {
    /// Returns the seconds of each stage, in order, and the total as the last entry.
    fn finish(&self, first_answer_us: i64) -> Vec<(&'static str, f64)> {
        let seconds = |from: i64, to: i64| (to - from).max(0) as f64 / 1e6;
        let noticed = self.request.noticed_at_us.unwrap_or(self.began_us);
        // The clocks of two machines may differ. A change is never detected before it was made.
        let changed = self.request.changed_at_us.unwrap_or(noticed).min(noticed);
        let Stages { read_ms, verify_ms, assemble_ms, golden_ms, warm_up_ms } = self.stages;
        let loading = (read_ms + verify_ms + assemble_ms + golden_ms + warm_up_ms) / 1e3;
        let fetch = self.request.fetch_us as f64 / 1e6;
        let swap = (seconds(noticed, self.swapped_us) - fetch - loading).max(0.0);
        vec![
            ("notice", seconds(changed, noticed)),
            ("fetch", fetch),
            ("read", read_ms / 1e3),
            ("verify", verify_ms / 1e3),
            ("assemble", assemble_ms / 1e3),
            ("golden", golden_ms / 1e3),
            ("warm_up", warm_up_ms / 1e3),
            ("swap", swap),
            ("first_answer", seconds(self.swapped_us, first_answer_us)),
            ("total", seconds(changed, first_answer_us)),
        ]
    }
}

// === impl Rollouts ===

impl Rollouts {
    pub(crate) fn new(events: Arc<Events>) -> Rollouts {
        Rollouts { events, state: Mutex::default() }
    }

    /// Stores the request for which a bundle was loaded.
    pub(crate) fn loaded(&self, digest: Digest, request: &LoadFor, report: &LoadReport, began_us: i64) {
        let stages = if report.already_loaded { Stages::default() } else { report.stages };
        let loading = Loading { request: request.clone(), stages, began_us };
        self.lock().loading.insert(digest, loading);
    }

    /// Removes a bundle that is unloaded.
    pub(crate) fn forget(&self, digest: &Digest) {
        let mut state = self.lock();
        state.loading.remove(digest);
        state.awaited.remove(digest);
    }

    /// Records that a table which names a bundle for a checkpoint will be activated next.
    pub(crate) fn activated(&self, digest: Digest, checkpoint: &str, lane_table: u64) {
        let swapped_us = self.events.now_us();
        let mut state = self.lock();
        let is_for =
            |loading: &Loading| loading.request.checkpoint.as_deref().is_none_or(|at| at == checkpoint);
        let loading = state.loading.get(&digest).filter(|loading| is_for(loading)).cloned();
        if loading.is_some() {
            state.loading.remove(&digest);
        }
        // If the bundle was not loaded for it, the roll-out starts with the swap.
        let Loading { request, stages, began_us } = loading.unwrap_or_else(|| Loading {
            request: LoadFor::default(),
            stages: Stages::default(),
            began_us: swapped_us,
        });
        let checkpoint = checkpoint.to_owned();
        let awaited = state.awaited.entry(digest).or_default();
        awaited.retain(|rollout| rollout.checkpoint != checkpoint);
        awaited.push(Rollout { checkpoint, lane_table, request, stages, began_us, swapped_us });
    }

    /// Reads the timings by checkpoint.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, Timings>) -> T) -> T {
        read(&self.lock().timings)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BundleListener for Rollouts {
    fn first_answer(&self, loaded: &Loaded) {
        let now = self.events.now_us();
        let rollouts = self.lock().awaited.remove(&loaded.digest).unwrap_or_default();
        for rollout in rollouts {
            let stages = rollout.finish(now);
            let mut fields = json!({
                "checkpoint": rollout.checkpoint,
                "bundle": &*loaded.digest_text,
                "lane_table": rollout.lane_table,
            });
            if let (Some(fields), Value::Object(stages)) = (fields.as_object_mut(), in_millis(&stages)) {
                fields.extend(stages);
            }
            self.lock().add(rollout.checkpoint, stages);
            self.events.push(Level::Info, "first_answer", fields);
        }
    }

    fn freed(&self, loaded: &Loaded) {
        let thread = std::thread::current();
        let fields = json!({"bundle": &*loaded.digest_text, "thread": thread.name().unwrap_or("unnamed")});
        self.events.push(Level::Info, "bundle_freed", fields);
    }
}

// === impl State ===

impl State {
    fn add(&mut self, checkpoint: String, stages: Vec<(&'static str, f64)>) {
        let new = || Timings { total: Histogram::of_loads(), stages: Vec::new() };
        let timings = self.timings.entry(checkpoint).or_insert_with(new);
        if let Some(&(_, total)) = stages.last() {
            timings.total.record(Duration::from_secs_f64(total));
        }
        timings.stages = stages;
    }
}

/// Converts stages to the fields of an event, in milliseconds.
fn in_millis(stages: &[(&'static str, f64)]) -> Value {
    let millis = |seconds: f64| (seconds * 1e6).round() / 1e3;
    stages.iter().map(|&(stage, seconds)| (format!("{stage}_ms"), json!(millis(seconds)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_add_up_to_the_whole() {
        let stages =
            Stages { read_ms: 1.0, verify_ms: 2.0, assemble_ms: 3.0, golden_ms: 4.0, warm_up_ms: 5.0 };
        let request = LoadFor {
            changed_at_us: Some(1_000_000),
            noticed_at_us: Some(1_250_000),
            fetch_us: 10_000,
            ..LoadFor::default()
        };
        let rollout = Rollout {
            checkpoint: "c".to_owned(),
            lane_table: 2,
            request,
            stages,
            began_us: 1_262_000,
            swapped_us: 1_300_000,
        };
        let found = rollout.finish(1_304_000);
        let of = |name: &str| found.iter().find(|(stage, _)| *stage == name).unwrap().1;
        assert_eq!((of("notice"), of("fetch"), of("first_answer"), of("total")), (0.25, 0.01, 0.004, 0.304));
        assert!((of("swap") - 0.025).abs() < 1e-9);
        let sum: f64 = found[..found.len() - 1].iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - of("total")).abs() < 1e-9, "{found:?}");
        // The clock of the registry is ahead.
        let ahead = LoadFor { changed_at_us: Some(9_000_000), ..rollout.request.clone() };
        assert_eq!(Rollout { request: ahead, ..rollout }.finish(1_304_000)[0], ("notice", 0.0));
    }
}
