//! Faults of a whole server for tests and benchmarks, compiled only with the feature `fault-injection`.
//!
//! If `scorer-server` is built with the feature, the environment variable `SCORER_FAULTS` names a JSON file, which is
//! read ten times per second, such as `{"slow": 10, "add_us": 500}`. Every evaluation then takes `slow` times as long
//! and `add_us` microseconds more of CPU time, and is stopped at its deadline like that of a slow model. The file may
//! contain faults of observe lanes, such as `{"lanes": {"fraud.checkout/cr-000017": "loop"}}`; see [`LaneFault`].
//! Without a file there are no faults.

use std::collections::HashMap;
use std::path::PathBuf;

use scorer_engine::Slowness;
use scorer_observe::LaneFault;
use serde::Deserialize;

use crate::services::Services;

/// The environment variable that names the file.
const FILE: &str = "SCORER_FAULTS";

/// The contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Content {
    slow: f64,
    add_us: f64,
    lanes: HashMap<String, LaneFault>,
}

impl Default for Content {
    fn default() -> Content {
        let Slowness { slow, add_us } = Slowness::default();
        Content { slow, add_us, lanes: HashMap::new() }
    }
}

/// The file of faults, if there is one.
pub(crate) struct FaultFile(Option<PathBuf>);

// === impl FaultFile ===

impl FaultFile {
    pub(crate) fn from_env() -> FaultFile {
        FaultFile(std::env::var_os(FILE).map(PathBuf::from))
    }

    /// Reads the file again.
    pub(crate) fn apply(&self, services: &Services) {
        let Some(file) = &self.0 else { return };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let content = if text.is_empty() { Ok(Content::default()) } else { serde_json::from_str(&text) };
        // A file that is being written may be incomplete. It is read again at the next call.
        if let Ok(Content { slow, add_us, lanes }) = content {
            services.engine.faults.slow_down(Slowness { slow, add_us });
            services.observers.faults().replace(lanes);
        }
    }
}
