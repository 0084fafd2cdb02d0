//! The segment being written.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::format::{HEADER_LEN, Header, Kind, SEAL_LEN, Seal, push_frame, segment_name};
use crate::fs::{Env, File, write_all_at};

/// Suffix of a segment that is not complete and must not be read yet.
const TEMPORARY: &str = ".tmp";

pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) file: Arc<dyn File>,
    /// Offset of the next frame. There are only good frames before it.
    pub(crate) offset: u64,
    pub(crate) first: u64,
    pub(crate) records: u64,
}

impl Segment {
    /// Creates a file with a header. Its directory entry is not yet on stable storage. A `hidden` segment becomes
    /// readable by `reveal`.
    pub(crate) fn create(env: &Env, dir: &Path, header: &Header, hidden: bool) -> io::Result<Self> {
        let name = segment_name(header.number, &header.segment);
        let path = if hidden { dir.join(format!("{name}{TEMPORARY}")) } else { dir.join(&name) };
        let file = env.fs.create(&path)?;
        if let Err(error) = write_all_at(&*file, &header.encode(), 0) {
            // If it cannot be removed, it is an empty segment, which the next start removes.
            let _ = env.fs.remove(&path);
            return Err(error);
        }
        Ok(Self {
            name,
            uuid: header.segment,
            file,
            offset: HEADER_LEN as u64,
            first: header.first,
            records: 0,
        })
    }

    /// Renames a hidden segment to its final name, and brings the name to stable storage.
    pub(crate) fn reveal(&self, env: &Env, dir: &Path) -> io::Result<()> {
        env.fs.rename(&dir.join(format!("{}{TEMPORARY}", self.name)), &dir.join(&self.name))?;
        env.fs.sync_dir(dir)
    }

    /// Removes a hidden segment that could not be completed.
    pub(crate) fn discard_hidden(&self, env: &Env, dir: &Path) {
        let _ = env.fs.remove(&dir.join(format!("{}{TEMPORARY}", self.name)));
    }

    /// Marks the segment as finished. If this fails, the next start reads the whole segment instead of its seal.
    pub(crate) fn seal(&self, next: u64) -> io::Result<()> {
        write_seal(
            &*self.file,
            &self.uuid,
            self.offset,
            Seal { records: self.records, first: self.first, next, resume: next },
        )
    }
}

/// Writes a seal at `offset`. After a failure it removes an incomplete seal, if the file system allows it.
pub(crate) fn write_seal(file: &dyn File, uuid: &[u8; 16], offset: u64, seal: Seal) -> io::Result<()> {
    let payload = seal.encode();
    let mut frame = Vec::with_capacity(SEAL_LEN);
    push_frame(&mut frame, uuid, Kind::Seal, seal.next, &payload, crc32c::crc32c(&payload));
    write_all_at(file, &frame, offset).inspect_err(|_| {
        let _ = file.truncate(offset);
    })
}

pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(TEMPORARY).is_some_and(|name| crate::format::parse_segment_name(name).is_some())
}
