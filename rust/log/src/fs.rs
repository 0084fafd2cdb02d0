//! The operations of the file system that the log uses, and whose failures it survives.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use crate::clock::{Clock, Random, RealClock, RealRandom};

/// An open file. Offsets are explicit, so there is no shared cursor.
pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`. Returns 0 at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes up to `buf.len()` bytes at `offset`. It may write fewer.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts the file to `len` bytes.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Calls `fdatasync`. After an error it is not known which bytes are on the disk, and a second call may succeed
    /// without having written them, so callers never retry it.
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// A lock on a directory, which is released when this is dropped.
pub trait DirLock: Send + Sync {}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// File name, without the directory.
    pub name: String,
    /// Whether it is itself a directory.
    pub directory: bool,
}

/// The file system.
pub trait Fs: Send + Sync {
    /// Creates the directory and its parents. Succeeds if they exist.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Entries of a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;
    /// Creates a file that must not exist yet, for reading and writing.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file, for reading or for both.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Renames within one file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Copies a file to a path that does not exist yet.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Brings the directory's entries to stable storage.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the writer's lock on `path`, which is created if it does not exist. Returns `None` if another process
    /// holds it. The kernel releases it when the holder ends in any way.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>>;
    /// Takes an existing file's lock, shared or exclusive. Returns `None` if another holder prevents it. The kernel
    /// releases it when the holder ends in any way.
    fn hold(&self, path: &Path, shared: bool) -> io::Result<Option<Box<dyn DirLock>>>;
    /// Number of bytes that can still be written under `dir`.
    fn free(&self, dir: &Path) -> io::Result<u64>;
}

/// The environment of the log.
#[derive(Clone)]
pub struct Env {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers.
    pub random: Arc<dyn Random>,
}

impl Env {
    /// The file system, clocks and randomness of this machine.
    #[must_use]
    pub fn real() -> Self {
        Self { fs: Arc::new(RealFs), clock: Arc::new(RealClock::default()), random: Arc::new(RealRandom) }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

/// Writes all of `bytes` at `offset`. After an error, some of them may be in the file.
pub(crate) fn write_all_at(file: &dyn File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = bytes.get(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends. Returns the number of bytes read.
pub(crate) fn read_full_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Records contain personal data, so the owner may write, the group may read, and other users have no access. The umask
/// may restrict it further.
const FILE_MODE: u32 = 0o640;
const DIR_MODE: u32 = 0o750;

/// The operating system's file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealFs;

struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

struct RealLock {
    _file: fs::File,
}

impl DirLock for RealLock {}

impl Fs for RealFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        fs::read_dir(dir)?
            .map(|entry| {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok(Entry { name, directory: entry.file_type()?.is_dir() })
            })
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(FILE_MODE);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile(fs::OpenOptions::new().read(true).write(write).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::copy(from, to)?;
        fs::File::open(to)?.sync_all()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { _file: file }))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn hold(&self, path: &Path, shared: bool) -> io::Result<Option<Box<dyn DirLock>>> {
        let file = fs::File::open(path)?;
        match if shared { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => Ok(Some(Box::new(RealLock { _file: file }))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn free(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
