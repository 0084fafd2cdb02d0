//! The key file of decision tokens, followed while the server runs.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_engine::{KeyFileError, KeyRing, Level};
use serde_json::json;

use crate::files::Followed;
use crate::services::Services;

/// How often the file is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// Largest key file, bytes.
const MAX_FILE: u64 = 64 << 10;
/// What users that are neither the owner nor of the group may do with a file.
const OTHERS: u32 = 0o007;

/// A key file as it was read.
pub(crate) struct KeyFile {
    pub(crate) keys: KeyRing,
    pub(crate) version: Version,
}

/// Why a key file is not used.
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

/// Tells a file from the one that was read before: a file that is replaced has another inode.
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
/// [`KeysError`] names the file, the rule and the remedy, and no secret.
pub(crate) fn read(path: &Path) -> Result<KeyFile, KeysError> {
    let unreadable = |source| KeysError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.mode() & OTHERS != 0 {
        return Err(KeysError::Open { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 >= MAX_FILE {
        return Err(KeysError::TooLarge { path: path.to_owned() });
    }
    let keys =
        KeyRing::from_json(&bytes).map_err(|error| KeysError::Keys { path: path.to_owned(), error })?;
    Ok(KeyFile { keys, version: Version::of(&metadata) })
}

/// The configured key file. One that cannot be used leaves the keys before it in force.
pub(crate) fn followed(services: &Arc<Services>) -> Option<Followed> {
    let path = services.config.outcomes.token_keys.clone()?;
    let services = Arc::clone(services);
    let mut seen = services.token_keys;
    Some(Followed::every(PERIOD, move || look(&services, &path, &mut seen)))
}

/// Looks at the file once. `seen` is what it was at the last look; `None` if it was not there.
fn look(services: &Services, path: &Path, seen: &mut Option<Version>) {
    let found = fs::metadata(path).ok().map(|metadata| Version::of(&metadata));
    if *seen == found {
        return;
    }
    *seen = found;
    match read(path) {
        Ok(file) => {
            // What was written between the two looks is read at the next one.
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
