//! Reading of key files, with a check of their permissions.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The permissions of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;
/// The write permission of these users.
const OTHERS_WRITE: u32 = 0o002;

/// The reason why a key cannot be used. Messages never contain the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("key file {}: {source}; name a file that the server can read", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Users other than the owner and the group may access the file.
    #[error("key file {}: other users can read it; run chmod o= on it", path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
    },
    /// The key is too short or too long.
    #[error(
        "key file {}: {bytes} bytes; a key has {shortest} to {longest} random bytes, such as of: openssl rand -hex 32",
        path.display()
    )]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Length of the key in bytes, without trailing white space.
        bytes: usize,
        /// Smallest length of a key in bytes.
        shortest: usize,
        /// Largest length of a key in bytes.
        longest: u64,
    },
    /// The file does not contain a usable key.
    #[error("key file {}: {rule}", path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// The rule that the file breaks, and the remedy.
        rule: &'static str,
    },
}

/// The contents of a key file.
pub struct KeyFile {
    /// The file's bytes. If the file is larger than allowed, one byte more than the limit.
    pub bytes: Vec<u8>,
    /// The metadata of the file that was read.
    pub metadata: Metadata,
}

// === impl KeyFile ===

impl KeyFile {
    /// Returns whether users other than the owner and the group may write the file.
    pub(crate) fn is_writable_by_others(&self) -> bool {
        self.metadata.mode() & OTHERS_WRITE != 0
    }
}

/// Reads a public file, at most `longest` bytes and one more.
pub(crate) fn read(path: &Path, longest: u64) -> Result<KeyFile, KeyError> {
    read_checked(path, longest, |_| Ok(()))
}

/// Reads a file that only its owner and its group may access, at most `longest` bytes and one more.
///
/// # Errors
/// Fails with [`KeyError::Read`] if the file cannot be read, and with [`KeyError::Exposed`] if other users may access
/// it. In the second case its contents are not read.
pub fn read_secret(path: &Path, longest: u64) -> Result<KeyFile, KeyError> {
    read_checked(path, longest, |metadata| {
        if metadata.mode() & OTHERS != 0 { Err(KeyError::Exposed { path: path.to_owned() }) } else { Ok(()) }
    })
}

/// Opens a file, checks the metadata of the opened file, and then reads it.
fn read_checked(
    path: &Path,
    longest: u64,
    check: impl FnOnce(&Metadata) -> Result<(), KeyError>,
) -> Result<KeyFile, KeyError> {
    let unreadable = |source| KeyError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    check(&metadata)?;
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(KeyFile { bytes, metadata })
}
