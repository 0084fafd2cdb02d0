//! Reads a bundle's files as data from a stranger: plain files inside the directory only, no links, and
//! never more bytes than the limits.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use scorer_core::bundle::{MAX_FILE_BYTES, MAX_MANIFEST_BYTES, ReadError, is_file_name};

/// All files of a bundle together, bytes.
const MAX_BUNDLE_BYTES: u64 = 2 << 30;
const MANIFEST: &str = "manifest.json";

/// One bundle directory, opened for reading.
pub(crate) struct BundleDirectory {
    path: PathBuf,
    read: Cell<u64>,
}

// === impl BundleDirectory ===

impl BundleDirectory {
    pub(crate) fn open(path: &Path) -> Result<BundleDirectory, String> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                Ok(BundleDirectory { path: path.to_owned(), read: Cell::new(0) })
            }
            Ok(_) => Err("is not a directory; give the bundle's directory".to_owned()),
            Err(error) => Err(format!("{error}; give the bundle's directory")),
        }
    }

    pub(crate) fn manifest(&self) -> Result<Vec<u8>, ReadError> {
        self.read_at_most(MANIFEST, MAX_MANIFEST_BYTES)
    }

    /// Reads one of the files that a bundle may have. The names come from the manifest.
    pub(crate) fn file(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        if !is_file_name(name) {
            return Err(ReadError::Io("no bundle has a file of this name".to_owned()));
        }
        self.read_at_most(name, MAX_FILE_BYTES)
    }

    /// Names of everything in the directory; what is no text cannot be a bundle's.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.read.get()
    }

    fn read_at_most(&self, name: &str, limit: u64) -> Result<Vec<u8>, ReadError> {
        let file = OpenOptions::new()
            .read(true)
            // Not through a link, and not waiting for a writer of a FIFO.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(self.path.join(name))
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP) => ReadError::NotAFile("a link"),
                Some(libc::ENOENT) => ReadError::Missing,
                Some(libc::ENXIO) => ReadError::NotAFile("a socket or device"),
                _ => ReadError::Io(error.to_string()),
            })?;
        let content = read_plain(&file, limit.min(MAX_BUNDLE_BYTES.saturating_sub(self.read.get())))?;
        self.read.set(self.read.get() + content.len() as u64);
        Ok(content)
    }
}

fn read_plain(file: &File, limit: u64) -> Result<Vec<u8>, ReadError> {
    let io = |error: io::Error| ReadError::Io(error.to_string());
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(ReadError::NotAFile("a directory"));
    }
    if !metadata.is_file() {
        return Err(ReadError::NotAFile("a pipe or device"));
    }
    let bytes = metadata.len();
    if bytes > limit {
        return Err(ReadError::TooLarge { bytes, limit });
    }
    let mut content = Vec::with_capacity(bytes as usize);
    // One byte more than there should be: a file that grows is noticed, not followed.
    file.take(bytes + 1).read_to_end(&mut content).map_err(io)?;
    if content.len() as u64 != bytes {
        return Err(ReadError::Io("it changed while it was read; a bundle must not be written in place".to_owned()));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn reads_plain_files_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("manifest.json"), b"{}").unwrap();
        fs::write(at("outside"), b"secret").unwrap();
        symlink(at("outside"), at("forest.bin")).unwrap();
        fs::create_dir(at("schema.json")).unwrap();
        let _socket = UnixListener::bind(at("actions.json")).unwrap();
        File::create(at("golden.bin")).unwrap().set_len(10 << 30).unwrap();

        let bundle = BundleDirectory::open(directory.path()).unwrap();
        assert_eq!(bundle.manifest().unwrap(), b"{}");
        assert_eq!(bundle.file("forest.bin"), Err(ReadError::NotAFile("a link")));
        assert_eq!(bundle.file("schema.json"), Err(ReadError::NotAFile("a directory")));
        assert_eq!(bundle.file("actions.json"), Err(ReadError::NotAFile("a socket or device")));
        assert!(matches!(bundle.file("golden.bin"), Err(ReadError::TooLarge { .. })));
        assert_eq!(bundle.file("reference.json"), Err(ReadError::Missing));
        for name in ["../outside", "/etc/passwd", "outside", ""] {
            assert!(matches!(bundle.file(name), Err(ReadError::Io(_))), "{name}");
        }
        assert_eq!(bundle.bytes(), 2);
    }

    #[test]
    fn wants_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), b"").unwrap();
        for (name, says) in [("file", "not a directory"), ("missing", "No such file")] {
            let error = BundleDirectory::open(&directory.path().join(name)).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
    }
}
