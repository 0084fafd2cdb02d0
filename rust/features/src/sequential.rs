//! Files that are written or read from a position on, over the file system of [`scorer_log`].

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use scorer_log::{File, Fs};

/// A file and the position of the next read or write.
pub(crate) struct Sequential {
    file: Arc<dyn File>,
    at: u64,
}

// === impl Sequential ===

impl Sequential {
    /// Creates a file. If it exists, it is replaced.
    pub(crate) fn replace(fs: &dyn Fs, path: &Path) -> io::Result<Sequential> {
        match fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Sequential::create(fs, path),
        }
    }

    /// Creates a file whose name must be new.
    pub(crate) fn create(fs: &dyn Fs, path: &Path) -> io::Result<Sequential> {
        Ok(Sequential { file: fs.create(path)?, at: 0 })
    }

    /// Opens a file for reading; `None` if there is none.
    pub(crate) fn open(fs: &dyn Fs, path: &Path) -> io::Result<Option<Sequential>> {
        match fs.open(path, false) {
            Ok(file) => Ok(Some(Sequential { file, at: 0 })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings all bytes to stable storage.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Read for Sequential {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Sequential {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file under another name, syncs it, and renames it, so that the file is always whole. Returns its size.
pub(crate) fn publish(
    fs: &dyn Fs,
    path: &Path,
    write: impl FnOnce(&mut Sequential) -> io::Result<()>,
) -> io::Result<u64> {
    let new = path.with_extension("new");
    let mut file = Sequential::replace(fs, &new)?;
    write(&mut file)?;
    file.sync()?;
    fs.rename(&new, path)?;
    fs.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    Ok(file.at)
}
