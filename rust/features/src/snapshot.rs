//! The snapshot: the state up to the end of one file of the journal, in the file `snapshot`.
//!
//! It is a sequence of frames: a head, blocks of ids and entities, and an end with their number. It is written beside the
//! file and renamed, so that there is a whole one or none.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use crate::frame::{self, Reader};
use crate::ids::Ids;
use crate::kinds::{self, EventKind};
use crate::state::SetState;

/// The first bytes of the head. Another form of the state needs another version.
const MAGIC: &[u8] = b"scorer features 1";
/// Size of a block from which on the next one begins, in bytes.
const BLOCK: usize = 1 << 20;
/// The kinds of frames.
const IDS: u8 = 1;
const ENTITIES: u8 = 2;
const END: u8 = 3;

/// A state that was read.
pub(crate) struct Loaded {
    pub(crate) sets: Vec<SetState>,
    pub(crate) kinds: BTreeMap<String, EventKind>,
    /// Number of the last file of the journal whose events it has.
    pub(crate) segment: u64,
}

/// Writes the snapshot of a directory.
pub(crate) fn write(
    directory: &Path,
    sets: &[SetState],
    kinds: &BTreeMap<String, EventKind>,
    segment: u64,
) -> io::Result<()> {
    let (path, new) = (directory.join("snapshot"), directory.join("snapshot.new"));
    let mut out = Out { file: BufWriter::new(File::create(&new)?), block: Vec::new(), blocks: 0 };
    out.put(|to| {
        let salt = kinds.values().next().map_or(0, |kind| kind.ids.salt());
        head(sets, to);
        to.extend_from_slice(&segment.to_le_bytes());
        to.extend_from_slice(&salt.to_le_bytes());
    })?;
    for (name, kind) in kinds {
        for ids in kind.ids.all() {
            for part in ids.chunks(BLOCK / 24) {
                out.put(|to| {
                    to.push(IDS);
                    frame::text(name, to);
                    for (received_at_us, hash) in part {
                        to.extend_from_slice(&received_at_us.to_le_bytes());
                        to.extend_from_slice(&hash.to_le_bytes());
                    }
                })?;
            }
        }
    }
    for (set, state) in sets.iter().enumerate() {
        for kind in 0..state.kinds.len() {
            state.each(kind, |entities| {
                let mut all = entities.all().peekable();
                while all.peek().is_some() {
                    out.put(|to| {
                        to.push(ENTITIES);
                        to.extend_from_slice(&(set as u64).to_le_bytes());
                        to.extend_from_slice(&(kind as u64).to_le_bytes());
                        let start = to.len();
                        while to.len() - start < BLOCK
                            && let Some((key, newest_us, data)) = all.next()
                        {
                            frame::text(key, to);
                            to.extend_from_slice(&newest_us.to_le_bytes());
                            to.extend_from_slice(&(data.len() as u64).to_le_bytes());
                            to.extend_from_slice(data);
                        }
                    })?;
                }
                Ok::<(), io::Error>(())
            })?;
        }
    }
    let blocks = out.blocks;
    out.put(|to| {
        to.push(END);
        to.extend_from_slice(&blocks.to_le_bytes());
    })?;
    let file = out.file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    File::open(directory)?.sync_all()
}

/// Reads the snapshot of a directory. Returns it, or why it is not used; neither if there is none.
pub(crate) fn read(directory: &Path, sets: Vec<SetState>) -> Result<Option<Loaded>, String> {
    let path = directory.join("snapshot");
    if !path.exists() {
        return Ok(None);
    }
    let file = File::open(&path).map_err(|error| error.to_string())?;
    load(&mut BufReader::with_capacity(BLOCK, file), sets).map(Some)
}

fn load(from: &mut impl io::Read, sets: Vec<SetState>) -> Result<Loaded, String> {
    let mut block = Vec::new();
    let mut next = |block: &mut Vec<u8>| match frame::next(from, block) {
        Ok(true) => Ok(()),
        Ok(false) => Err("a checksum differs".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    next(&mut block)?;
    let mut expected = Vec::new();
    head(&sets, &mut expected);
    let rest = block.strip_prefix(&*expected).ok_or("it is of other feature sets or of another version")?;
    let mut reader = Reader(rest);
    let (segment, salt) = (reader.number(), reader.take(16).and_then(<[u8]>::first_chunk));
    let (Some(segment), Some(salt)) = (segment, salt) else { return Err("its head is short".to_owned()) };
    let kinds = kinds::all(&sets, u128::from_le_bytes(*salt));
    let loaded = Loaded { sets, kinds, segment: segment.cast_unsigned() };
    let mut blocks = 1_u64;
    loop {
        next(&mut block)?;
        match block.split_first() {
            Some((&IDS, rest)) => loaded.ids(rest),
            Some((&ENTITIES, rest)) => loaded.entities(rest),
            Some((&END, rest)) if *rest == blocks.to_le_bytes() => return Ok(loaded),
            _ => None,
        }
        .ok_or("a block does not fit the feature sets")?;
        blocks += 1;
    }
}

/// What a snapshot starts with: the version and the sets.
fn head(sets: &[SetState], to: &mut Vec<u8>) {
    to.extend_from_slice(MAGIC);
    for state in sets {
        to.extend_from_slice(&state.set.digest());
    }
}

// === impl Loaded ===

impl Loaded {
    /// Restores a block of ids; `None` if it is not of this form.
    fn ids(&self, block: &[u8]) -> Option<()> {
        let mut reader = Reader(block);
        let ids: &Ids = &self.kinds.get(reader.str()?)?.ids;
        while !reader.0.is_empty() {
            let received_at_us = reader.number()?;
            ids.restore(received_at_us, u128::from_le_bytes(*reader.take(16)?.first_chunk()?));
        }
        Some(())
    }

    fn entities(&self, block: &[u8]) -> Option<()> {
        let mut reader = Reader(block);
        let set = self.sets.get(usize::try_from(reader.number()?).ok()?)?;
        let kind = usize::try_from(reader.number()?).ok()?;
        while !reader.0.is_empty() {
            let (key, newest_us) = (reader.str()?, reader.number()?);
            let length = usize::try_from(reader.number()?).ok()?;
            if !set.restore(kind, key, newest_us, reader.take(length)?) {
                return None;
            }
        }
        Some(())
    }
}

/// A snapshot that is written.
struct Out {
    file: BufWriter<File>,
    block: Vec<u8>,
    /// Number of frames.
    blocks: u64,
}

// === impl Out ===

impl Out {
    fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        frame::wrap(&mut self.block, write);
        self.blocks += 1;
        self.file.write_all(&self.block)
    }
}
