//! The key file of decision tokens, which is read again when it changes.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_engine::{KeyError, KeyFileError, KeyRing, Level, read_secret};
use serde_json::json;

use crate::files::Followed;
use crate::services::Services;

/// Interval at which the file is checked for changes.
const PERIOD: Duration = Duration::from_secs(1);
/// Size in bytes from which a key file is refused.
const MAX_FILE: u64 = 64 << 10;

/// A key file and its version.
pub(crate) struct KeyFile {
    pub(crate) keys: KeyRing,
    pub(crate) version: Version,
}

/// The reason why a key file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("token keys {path}: cannot be read ({source})", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("token keys {path}: {MAX_FILE} bytes or more; a key file is small", path = .path.display())]
    TooLarge { path: PathBuf },
    #[error("token keys {path}: every user of the machine may access it; chmod 600 it", path = .path.display())]
    Open { path: PathBuf },
    #[error("token keys {path}: {error}", path = .path.display())]
    Keys { path: PathBuf, error: KeyFileError },
}

/// Distinguishes versions of the file. A file that replaces another has a different inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    inode: u64,
    changed_ns: (i64, i64),
    bytes: u64,
    mode: u32,
}

// === impl Version ===

impl Version {
    fn of(metadata: &Metadata) -> Version {
        Version {
            inode: metadata.ino(),
            changed_ns: (metadata.ctime(), metadata.ctime_nsec()),
            bytes: metadata.len(),
            mode: metadata.mode(),
        }
    }
}

/// Reads a key file.
///
/// # Errors
/// Returns a [`KeysError`] that names the file, the rule and the remedy, and contains no secret.
pub(crate) fn read(path: &Path) -> Result<KeyFile, KeysError> {
    let file = read_secret(path, MAX_FILE - 1).map_err(|error| match error {
        KeyError::Read { path, source } => KeysError::Read { path, source },
        KeyError::Exposed { path } => KeysError::Open { path },
        // `read_secret` does not check the contents, so it returns no other error.
        other => KeysError::Read { path: path.to_owned(), source: io::Error::other(other) },
    })?;
    if file.bytes.len() as u64 >= MAX_FILE {
        return Err(KeysError::TooLarge { path: path.to_owned() });
    }
    let keys =
        KeyRing::from_json(&file.bytes).map_err(|error| KeysError::Keys { path: path.to_owned(), error })?;
    Ok(KeyFile { keys, version: Version::of(&file.metadata) })
}

/// Follows the configured key file. If a new version cannot be used, the previous keys stay in use.
pub(crate) fn followed(services: &Arc<Services>) -> Option<Followed> {
    let path = services.config.outcomes.token_keys.clone()?;
    let services = Arc::clone(services);
    let mut seen = services.token_keys;
    Some(Followed::every(PERIOD, move || look(&services, &path, &mut seen)))
}

/// Checks the file once. `seen` is its version at the last check; `None` if it did not exist.
fn look(services: &Services, path: &Path, seen: &mut Option<Version>) {
    let found = fs::metadata(path).ok().map(|metadata| Version::of(&metadata));
    if *seen == found {
        return;
    }
    *seen = found;
    match read(path) {
        Ok(file) => {
            // The version is that of the file that was read, so a later change is detected at the next check.
            *seen = Some(file.version);
            let ids: Vec<_> = file.keys.ids().map(|id| format!("{id:08x}")).collect();
            services.engine.tokens.set(file.keys);
            services.engine.events.push(Level::Info, "token_keys_loaded", json!({"keys": ids}));
        }
        Err(error) => {
            services.engine.tokens.refusals.fetch_add(1, Relaxed);
            let fields = json!({"error": error.to_string(), "kept": services.engine.tokens.keys()});
            services.engine.events.push(Level::Error, "token_keys_refused", fields);
        }
    }
}
