//! Reads bundles from directories. No other module reads bundles from the file system.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use scorer_core::bundle::{
    Bundle, BundleError, Digest, FileEntry, GoldenRow, MANIFEST, MAX_FILE_BYTES, MAX_MANIFEST_BYTES,
    Manifest, ReadError, Revised, SIGNATURE, Step,
};
use scorer_signing::MAX_ENVELOPE_BYTES;
use serde::Serialize;

/// Times of the stages of loading, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Reading the files.
    pub read_ms: f64,
    /// Computing their SHA-256.
    pub verify_ms: f64,
    /// Validating and compiling the bundle.
    pub assemble_ms: f64,
    /// Scoring the golden cases.
    pub golden_ms: f64,
    /// Replaying rows and measuring their times.
    pub warm_up_ms: f64,
}

/// Reads, verifies and compiles the bundle in a directory.
///
/// The directory must hold only the files of the manifest and a signature, and links and directories in place of a file
/// are refused. Without `expected`, a directory whose name is 64 hexadecimal digits must hold the bundle of that
/// digest.
///
/// # Errors
/// Returns a [`BundleError`] that describes the first fault.
pub fn load(path: &Path, expected: Option<&Digest>) -> Result<Bundle, BundleError> {
    load_timed(path, expected, &[]).map(|(bundle, ..)| bundle)
}

/// Does what [`load`] does, and also returns the rows of the golden cases.
///
/// # Errors
/// Fails as [`load`] does.
pub fn load_with_rows(
    path: &Path,
    expected: Option<&Digest>,
) -> Result<(Bundle, Vec<GoldenRow>), BundleError> {
    load_timed(path, expected, &[]).map(|(bundle, rows, _)| (bundle, rows))
}

/// Does what [`load`] does, and also returns the golden cases' rows and the time of each stage but the warm-up. Forests
/// of `known` bundles are shared.
pub(crate) fn load_timed(
    path: &Path,
    expected: Option<&Digest>,
    known: &[&Bundle],
) -> Result<(Bundle, Vec<GoldenRow>, Stages), BundleError> {
    let began = Instant::now();
    let manifest = read(path, MANIFEST, MAX_MANIFEST_BYTES)
        .map_err(|source| BundleError::Read { file: MANIFEST.to_owned(), source })?;
    let parsed = Manifest::parse(&manifest)?;
    let named = path.file_name().and_then(|name| format!("sha256:{}", name.to_string_lossy()).parse().ok());
    if let Some(expected) = expected.copied().or(named)
        && expected != parsed.digest
    {
        return Err(BundleError::Unexpected { found: parsed.digest, expected });
    }
    let listing = list(path).map_err(|source| BundleError::Read { file: ".".to_owned(), source })?;
    parsed.check_listing(listing.iter().map(String::as_str))?;
    let reading = Cell::new(began.elapsed());
    let mut stages = Stages::default();
    let mut since = Instant::now();
    let timed_read = |name: &str| {
        let began = Instant::now();
        let bytes = read(path, name, MAX_FILE_BYTES);
        reading.set(reading.get() + began.elapsed());
        bytes
    };
    let before = reading.get();
    let mut done = |step: Step| {
        let took = since.elapsed();
        since = Instant::now();
        match step {
            Step::Verified => stages.verify_ms = millis(took.saturating_sub(reading.get() - before)),
            Step::Compiled => stages.assemble_ms = millis(took),
            Step::Golden => stages.golden_ms = millis(took),
        }
    };
    let (bundle, rows) = Bundle::assemble_in_steps(&manifest, &timed_read, known, &mut done)?;
    stages.read_ms = millis(reading.get());
    Ok((bundle, rows, stages))
}

/// Verifies the bundle in a directory and makes its next revision; see [`Bundle::revise`].
///
/// # Errors
/// Fails as [`load`] does, and if the revision is not valid.
pub fn revise(
    path: &Path,
    expected: &Digest,
    manifest: Manifest,
    changing: &BTreeMap<String, Vec<u8>>,
) -> Result<Revised, BundleError> {
    let read = |name: &str| read(path, name, MAX_FILE_BYTES);
    load(path, Some(expected))?.revise(manifest, changing, &read)
}

/// Returns the files that a bundle's manifest lists, without verifying them; see [`load`].
pub(crate) fn files(path: &Path) -> Result<BTreeMap<String, FileEntry>, BundleError> {
    let manifest = read(path, MANIFEST, MAX_MANIFEST_BYTES)
        .map_err(|source| BundleError::Read { file: MANIFEST.to_owned(), source })?;
    Ok(Manifest::parse(&manifest)?.files)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the digest that a bundle's manifest states, without verifying it; see [`load`].
///
/// # Errors
/// Fails if there is no manifest or it is not valid.
pub fn digest(path: &Path) -> Result<Digest, BundleError> {
    let manifest = read(path, MANIFEST, MAX_MANIFEST_BYTES)
        .map_err(|source| BundleError::Read { file: MANIFEST.to_owned(), source })?;
    Ok(Manifest::parse(&manifest)?.digest)
}

/// Returns the signature in a bundle's directory, if there is one, without verifying it.
pub(crate) fn signature(path: &Path) -> Result<Option<Vec<u8>>, BundleError> {
    match read(path, SIGNATURE, MAX_ENVELOPE_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ReadError::Missing) => Ok(None),
        Err(source) => Err(BundleError::Read { file: SIGNATURE.to_owned(), source }),
    }
}

fn list(path: &Path) -> Result<Vec<String>, ReadError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| explain(&error))? {
        names.push(entry.map_err(|error| explain(&error))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Reads a regular file of at most `limit` bytes. The kind is that of the opened file, so the file cannot be replaced
/// between the check and the read. The file is opened non-blocking, so that a pipe in its place cannot block the
/// caller.
pub(crate) fn read(directory: &Path, name: &str, limit: u64) -> Result<Vec<u8>, ReadError> {
    let (file, size) = open(directory, name, limit)?;
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| explain(&error))?;
    Ok(bytes)
}

/// Opens a file as [`read`] does, and returns it with its size.
pub(crate) fn open(directory: &Path, name: &str, limit: u64) -> Result<(File, u64), ReadError> {
    let path = directory.join(name);
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let file = match file {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(ReadError::NotAFile("a symbolic link"));
        }
        other => other.map_err(|error| explain(&error))?,
    };
    let metadata = file.metadata().map_err(|error| explain(&error))?;
    if metadata.is_dir() {
        return Err(ReadError::NotAFile("a directory"));
    }
    if !metadata.is_file() {
        return Err(ReadError::NotAFile("a device or pipe"));
    }
    if metadata.len() > limit {
        return Err(ReadError::TooLarge { bytes: metadata.len(), limit });
    }
    Ok((file, metadata.len()))
}

pub(crate) fn explain(error: &io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound {
        ReadError::Missing
    } else {
        ReadError::Io(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use scorer_core::bundle::testing::{self, Files};

    use super::*;

    fn written(files: &Files) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(directory.path().join(name), bytes).unwrap();
        }
        directory
    }

    /// Loads a bundle after `change` has replaced one of its files.
    fn changed(name: &str, change: impl FnOnce(&Path)) -> BundleError {
        let directory = written(&testing::score_files("fraud", 0.0));
        let path = directory.path().join(name);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        change(&path);
        load(directory.path(), None).unwrap_err()
    }

    /// Fault case 56.
    #[test]
    fn only_regular_files_are_read() {
        let outside = tempfile::NamedTempFile::new().unwrap();
        let error = changed("forest.bin", |path| symlink(outside.path(), path).unwrap());
        assert!(error.to_string().contains("a symbolic link"), "{error}");
        let error = changed("forest.bin", |path| fs::create_dir(path).unwrap());
        assert!(error.to_string().contains("a directory"), "{error}");
        let error = changed("forest.bin", |path| drop(UnixListener::bind(path).unwrap()));
        assert!(matches!(error, BundleError::Read { .. }), "{error}");
        let error = changed("golden.bin", |path| File::create(path).unwrap().set_len(10 << 30).unwrap());
        assert!(error.to_string().contains("more than the limit"), "{error}");
        let error = changed("schema.json", |_| ());
        assert!(error.to_string().contains("missing"), "{error}");
        let error = changed("notes.txt", |path| fs::write(path, "hello").unwrap());
        assert!(matches!(error, BundleError::Extra(_)), "{error}");
    }

    #[test]
    fn the_digest_asked_for_is_the_digest_loaded() {
        let directory = written(&testing::score_files("fraud", 0.0));
        let digest = *load(directory.path(), None).unwrap().digest();
        assert!(load(directory.path(), Some(&digest)).is_ok());
        let other = Digest([7; 32]);
        assert!(matches!(
            load(directory.path(), Some(&other)),
            Err(BundleError::Unexpected { expected, .. }) if expected == other
        ));
    }

    #[test]
    fn a_missing_directory_is_told() {
        let error = load(Path::new("/nonexistent/bundle"), None).unwrap_err();
        assert!(
            error.to_string().contains("manifest.json") && error.to_string().contains("missing"),
            "{error}"
        );
    }
}
