//! The files of the journal: `journal-<sequence>-<time>.log`, by the sequence of their first event and the time from which
//! on their events were received. The sequence of an event follows from its position in the file.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use scorer_log::Fs;

use crate::frame::{self, OwnedEvent};
use crate::sequential::Sequential;

/// A file of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// Sequence of its first event.
    pub(crate) first: u64,
    /// Time of its creation in microseconds since the Unix epoch.
    pub(crate) since_us: i64,
    pub(crate) bytes: u64,
}

/// What was read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Number of events.
    pub(crate) events: u64,
    /// Number of bytes at its end that are not a complete event.
    pub(crate) damaged: u64,
}

/// The files in a directory, oldest first.
pub(crate) fn list(fs: &dyn Fs, directory: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs.list(directory)? {
        let parts = entry.name.strip_prefix("journal-").and_then(|name| name.strip_suffix(".log"));
        let parts = parts.and_then(|name| {
            let (first, since) = name.split_once('-')?;
            Some((first.parse().ok()?, since.parse().ok()?))
        });
        if let Some((first, since_us)) = parts {
            let path = directory.join(&entry.name);
            let bytes = fs.open(&path, false)?.len()?;
            segments.push(Segment { path, first, since_us, bytes });
        }
    }
    segments.sort_by_key(|segment| (segment.first, segment.since_us));
    Ok(segments)
}

/// Creates a file, whose name must be new.
pub(crate) fn create(
    fs: &dyn Fs,
    directory: &Path,
    first: u64,
    since_us: i64,
) -> io::Result<(Segment, Sequential)> {
    let path = directory.join(format!("journal-{first:020}-{since_us}.log"));
    let file = Sequential::create(fs, &path)?;
    fs.sync_dir(directory)?;
    Ok((Segment { path, first, since_us, bytes: 0 }, file))
}

/// The bytes of a file.
pub(crate) fn read(fs: &dyn Fs, segment: &Segment) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(segment.bytes).unwrap_or(0));
    let file = Sequential::open(fs, &segment.path)?;
    file.ok_or(io::ErrorKind::NotFound)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the events of a file with their sequences.
pub(crate) fn replay(
    fs: &dyn Fs,
    segment: &Segment,
    each: &mut dyn FnMut(u64, OwnedEvent),
) -> io::Result<Replayed> {
    let bytes = read(fs, segment)?;
    let (mut rest, mut events) = (&bytes[..], 0);
    while let Some((event, length)) = frame::read(rest) {
        each(segment.first + events, event);
        rest = rest.get(length..).unwrap_or_default();
        events += 1;
    }
    Ok(Replayed { events, damaged: rest.len() as u64 })
}

/// Cuts bytes from the end of a file, and syncs it.
pub(crate) fn cut(fs: &dyn Fs, segment: &mut Segment, bytes: u64) -> io::Result<()> {
    let file = fs.open(&segment.path, true)?;
    segment.bytes = segment.bytes.saturating_sub(bytes);
    if bytes > 0 {
        file.truncate(segment.bytes)?;
    }
    file.sync_data()
}
