//! The real server on a Unix socket, one per process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use scorer_core::bundle::MANIFEST;
use scorer_core::bundle::testing::{self, Files};
use scorer_server::{Lane, LaneTable, Server, ServerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The checkpoint that scores.
pub const FRAUD: &str = "fraud.checkout";
/// The checkpoint that selects actions.
pub const ACTION: &str = "action.authorise";
/// The version of the first lane table.
pub const FIRST_VERSION: u64 = 1;

/// A server with one bundle at each checkpoint.
pub struct Serving {
    /// The server.
    pub server: Server,
    /// The digest of the score bundle.
    pub fraud: String,
    /// The digest of the action bundle.
    pub action: String,
    /// Path of its Unix socket.
    pub socket: PathBuf,
    _directory: TempDir,
}

/// Returns the server, which the first call starts.
pub fn server() -> &'static Serving {
    static SERVING: OnceLock<Serving> = OnceLock::new();
    SERVING.get_or_init(start)
}

fn start() -> Serving {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("server.sock");
    // Without a decision log, because minutes of requests would fill the disk.
    let config = json!({
        "uds": socket,
        "threads": 1,
        "checkpoints": {
            FRAUD: {"kind": "score", "p99_ms": 10_000.0, "max_batch_rows": 100,
                    "fallback": {"decision": "review", "score": 0.5}},
            ACTION: {"kind": "action", "p99_ms": 10_000.0, "fallback": {"action": "3ds=none|exemption=none"}},
        },
    });
    let config = ServerConfig::from_json(&config.to_string()).expect("the configuration is valid");
    let server = Server::start(config).expect("the server starts");
    let fraud = load(&server, directory.path(), &testing::score_files("fraud", 0.0));
    let action = load(&server, directory.path(), &testing::action_files("action", 0.0));
    let lane =
        |bundle: &String| Some(vec![Lane { name: "live".to_owned(), bundle: bundle.clone(), share: 1.0 }]);
    let checkpoints = BTreeMap::from([(FRAUD.to_owned(), lane(&fraud)), (ACTION.to_owned(), lane(&action))]);
    let table = LaneTable {
        version: FIRST_VERSION,
        checkpoints,
        previous: BTreeMap::new(),
        observe: BTreeMap::new(),
    };
    server.swap(&table).expect("the bundles answer");
    Serving { server, fraud, action, socket, _directory: directory }
}

fn load(server: &Server, directory: &Path, files: &Files) -> String {
    let manifest: Value = serde_json::from_slice(&files[MANIFEST]).expect("a manifest");
    let digest = manifest["digest"].as_str().expect("a digest").to_owned();
    let path = directory.join(digest.trim_start_matches("sha256:"));
    fs::create_dir_all(&path).expect("a directory");
    for (name, bytes) in files {
        fs::write(path.join(name), bytes).expect("a file");
    }
    server.load(&path, &digest).expect("the bundle loads");
    digest
}
