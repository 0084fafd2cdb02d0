//! Reads files that hold keys.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What users that are neither the owner nor of the group may do with a file.
const OTHERS: u32 = 0o007;
/// They may write it.
const OTHERS_WRITE: u32 = 0o002;

/// Why a key cannot be used. The key itself is never named.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("key file {}: {source}; name a file that the server can read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's own error.
        #[source]
        source: io::Error,
    },
    /// Every user of the machine could read it.
    #[error("key file {}: other users can read it; run chmod o= on it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// It holds too little, or too much.
    #[error(
        "key file {}: {bytes} bytes; a key has {shortest} to {longest} random bytes, such as of: openssl rand -hex 32",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// What it holds, without white space at the end.
        bytes: usize,
        /// Fewest bytes of a key.
        shortest: usize,
        /// Most bytes of a key.
        longest: u64,
    },
    /// It holds something else.
    #[error("key file {}: {rule}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks, and the remedy.
        rule: &'static str,
    },
}

/// A key file as it was read.
pub struct KeyFile {
    /// What it holds: one byte more than was allowed, if it is larger.
    pub bytes: Vec<u8>,
    /// Its mode, and what tells it from another version of the file.
    pub metadata: Metadata,
}

// === impl KeyFile ===

impl KeyFile {
    /// Whether every user of the machine may replace what it holds.
    pub(crate) fn is_writable_by_others(&self) -> bool {
        self.metadata.mode() & OTHERS_WRITE != 0
    }
}

/// Reads at most one byte more than `longest`.
pub(crate) fn read(path: &Path, longest: u64) -> Result<KeyFile, KeyError> {
    let read = || {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        file.take(longest + 1).read_to_end(&mut bytes)?;
        Ok(KeyFile { bytes, metadata })
    };
    read().map_err(|source| KeyError::Read { path: path.to_owned(), source })
}

/// Reads a file that nobody but its owner and its group may access.
///
/// # Errors
/// It cannot be read, or other users may access it.
pub fn read_secret(path: &Path, longest: u64) -> Result<KeyFile, KeyError> {
    let file = read(path, longest)?;
    if file.metadata.mode() & OTHERS != 0 {
        return Err(KeyError::Exposed { path: path.to_owned() });
    }
    Ok(file)
}
