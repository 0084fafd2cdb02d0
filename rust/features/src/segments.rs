//! The files of the journal: `events-<number>-<time>.log`, each from the time of its first event on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::frame::{self, OwnedEvent};

/// A file of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) number: u64,
    /// Time of its creation in microseconds since the Unix epoch.
    pub(crate) since_us: i64,
    pub(crate) bytes: u64,
}

/// The files in a directory, oldest first.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| {
            let (number, since) = name.strip_prefix("events-")?.strip_suffix(".log")?.split_once('-')?;
            Some((number.parse().ok()?, since.parse().ok()?))
        });
        if let Some((number, since_us)) = parts {
            segments.push(Segment { path: entry.path(), number, since_us, bytes: entry.metadata()?.len() });
        }
    }
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

/// Creates a file, whose name must be new.
pub(crate) fn create(directory: &Path, number: u64, since_us: i64) -> io::Result<(Segment, File)> {
    let path = directory.join(format!("events-{number:010}-{since_us}.log"));
    let file = File::options().create_new(true).append(true).open(&path)?;
    Ok((Segment { path, number, since_us, bytes: 0 }, file))
}

/// Reads the events of a file. Returns the number of bytes at its end that are not a complete event.
pub(crate) fn replay(segment: &Segment, each: &mut dyn FnMut(OwnedEvent)) -> io::Result<u64> {
    let bytes = fs::read(&segment.path)?;
    let mut rest = &bytes[..];
    while let Some((event, length)) = frame::read(rest) {
        each(event);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(rest.len() as u64)
}

/// Cuts bytes from the end of a file.
pub(crate) fn cut(segment: &mut Segment, bytes: u64) -> io::Result<()> {
    let file = File::options().write(true).open(&segment.path)?;
    segment.bytes = segment.bytes.saturating_sub(bytes);
    file.set_len(segment.bytes)?;
    file.sync_all()
}

/// Removes files whose events are all older than `before_us`. The newest file stays.
pub(crate) fn prune(segments: &mut Vec<Segment>, before_us: i64) -> io::Result<()> {
    let old = segments.iter().skip(1).take_while(|next| next.since_us < before_us).count();
    for segment in segments.drain(..old) {
        fs::remove_file(&segment.path)?;
    }
    Ok(())
}
