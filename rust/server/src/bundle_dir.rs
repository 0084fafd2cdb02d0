//! Reads a bundle's directory: the only place where bundle bytes meet the file system.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use scorer_core::bundle::{
    Bundle, BundleError, Digest, MANIFEST, MAX_FILE_BYTES, MAX_MANIFEST_BYTES, Manifest, ReadError,
};

/// Reads, verifies and compiles the bundle in a directory.
///
/// Anything beside the files of the manifest is refused, and so are links and directories in the place of a file.
/// Without `expected`, a directory that is named by 64 hexadecimal digits must still hold that bundle.
///
/// # Errors
/// The first thing that is wrong; see [`BundleError`].
pub fn load(path: &Path, expected: Option<&Digest>) -> Result<Bundle, BundleError> {
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
    Bundle::assemble(&manifest, &|name| read(path, name, MAX_FILE_BYTES))
}

fn list(path: &Path) -> Result<Vec<String>, ReadError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| explain(&error))? {
        names.push(entry.map_err(|error| explain(&error))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Reads a regular file of at most `limit` bytes. The kind is taken from the opened file, so nothing can be
/// swapped in between; non-blocking, so that a pipe in its place cannot hold the caller up.
fn read(directory: &Path, name: &str, limit: u64) -> Result<Vec<u8>, ReadError> {
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
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| explain(&error))?;
    Ok(bytes)
}

fn explain(error: &io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound {
        ReadError::Missing
    } else {
        ReadError::Io(error.to_string())
    }
}
