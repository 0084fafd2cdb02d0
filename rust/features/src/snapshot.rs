//! The snapshot: the state of every shard as of one event, in the file `snapshot`.
//!
//! It is a sequence of frames: a head, blocks of ids and of entities, and an end with their number. Every shard is copied
//! under its lock, with the sequence of the last event as of then, so that other shards are in use meanwhile. A start
//! applies to a shard the events after its own sequence.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::path::Path;

use scorer_log::Fs;

use crate::erasures::Erasures;
use crate::frame::{self, Reader};
use crate::ids;
use crate::sequential::{self, Sequential};
use crate::state;
use crate::tables::Tables;

/// Name of the file.
const NAME: &str = "snapshot";
/// The first bytes of the head. Another form of the state needs another version.
const MAGIC: &[u8] = b"scorer features 2";
/// Size of a block from which on the next one begins, in bytes.
const BLOCK: usize = 1 << 20;
/// Number of bytes after which the file is synced, so that the journal never waits for many of them.
const SYNC_BYTES: usize = 64 << 20;
/// Greatest number of shards that a file may have.
const MAX_SHARDS: usize = 1 << 16;
/// Number of ids in a block.
const IDS_OF_BLOCK: usize = BLOCK / 24;
/// The kinds of frames.
const IDS: u8 = 1;
const ENTITIES: u8 = 2;
const END: u8 = 3;

/// The sequence of the last event that each shard of a snapshot has. Without a snapshot, all are 0.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    salt: u128,
    ids: BTreeMap<String, Vec<Option<u64>>>,
    sets: Vec<Vec<Option<u64>>>,
    pub(crate) least: u64,
    pub(crate) greatest: u64,
}

/// Writes the snapshot of a directory. `position` returns the sequence of the last event, and `settle` returns when the
/// events up to a sequence are on stable storage. `stop` ends the writing between two shards. Returns the size in
/// bytes.
pub(crate) fn write(
    fs: &dyn Fs,
    directory: &Path,
    tables: &Tables,
    position: &dyn Fn() -> u64,
    settle: &dyn Fn(u64) -> Result<(), String>,
    stop: &dyn Fn() -> bool,
) -> io::Result<u64> {
    let greatest = Cell::new(0);
    let noted = |at: u64| {
        greatest.set(greatest.get().max(at));
        if stop() { Err(io::Error::from(io::ErrorKind::Interrupted)) } else { Ok(()) }
    };
    sequential::publish(fs, &directory.join(NAME), |file| {
        let mut out = Out::new(file);
        out.put(|to| {
            head(tables, to);
            to.extend_from_slice(&tables.salt.to_le_bytes());
        })?;
        for (name, kind) in &tables.kinds {
            let shards = kind.ids.shards();
            for (shard, (at, ids)) in kind.ids.all(position).enumerate() {
                noted(at)?;
                let mut parts = ids.chunks(IDS_OF_BLOCK);
                let mut part = parts.next().unwrap_or_default();
                loop {
                    out.put(|to| {
                        to.push(IDS);
                        frame::text(name, to);
                        numbers(&[shards as u64, shard as u64, at], to);
                        for (received_at_us, hash) in part {
                            to.extend_from_slice(&received_at_us.to_le_bytes());
                            to.extend_from_slice(&hash.to_le_bytes());
                        }
                    })?;
                    part = match parts.next() {
                        Some(part) => part,
                        None => break,
                    };
                }
            }
        }
        let (mut copy, mut ends) = (Vec::new(), Vec::new());
        for set in 0..tables.sets.len() {
            let Some(state) = tables.sets.get(set) else { break };
            for shard in 0..state.shards() {
                let at = copy_shard(tables, set, shard, position, &mut copy, &mut ends);
                noted(at)?;
                let mut start = 0;
                for end in &ends {
                    out.put(|to| to.extend_from_slice(copy.get(start..*end).unwrap_or_default()))?;
                    start = *end;
                }
            }
        }
        let blocks = out.blocks;
        out.put(|to| {
            to.push(END);
            numbers(&[blocks], to);
        })?;
        out.file.flush()?;
        settle(greatest.get()).map_err(io::Error::other)
    })
}

/// Copies the blocks of a shard under its lock. `ends` are the ends of the blocks. Returns the sequence of its last event.
fn copy_shard(
    tables: &Tables,
    set: usize,
    shard: usize,
    position: &dyn Fn() -> u64,
    copy: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) -> u64 {
    copy.clear();
    ends.clear();
    let Some(state) = tables.sets.get(set) else { return 0 };
    let Some(locked) = state.lock(shard) else { return 0 };
    let at = position();
    for kind in 0..state.kinds.len() {
        let mut start = None;
        let Some(entities) = locked.entities(kind) else { continue };
        for (key, newest_us, data) in entities.all() {
            if start.is_none() {
                start = Some(copy.len());
                block(set, state.shards(), shard, kind, at, copy);
            }
            frame::text(key, copy);
            copy.extend_from_slice(&newest_us.to_le_bytes());
            numbers(&[data.len() as u64], copy);
            copy.extend_from_slice(data);
            if start.is_some_and(|start| copy.len() - start >= BLOCK) {
                start = None;
                ends.push(copy.len());
            }
        }
        if start.is_some() {
            ends.push(copy.len());
        }
    }
    if ends.is_empty() {
        block(set, state.shards(), shard, 0, at, copy);
        ends.push(copy.len());
    }
    at
}

/// Appends the beginning of a block of entities.
fn block(set: usize, shards: usize, shard: usize, kind: usize, at: u64, to: &mut Vec<u8>) {
    to.push(ENTITIES);
    numbers(&[set as u64, shards as u64, shard as u64, kind as u64, at], to);
}

fn numbers(numbers: &[u64], to: &mut Vec<u8>) {
    numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}

/// What a snapshot starts with: the version and the sets.
fn head(tables: &Tables, to: &mut Vec<u8>) {
    to.extend_from_slice(MAGIC);
    for state in &tables.sets {
        to.extend_from_slice(&state.set.digest());
    }
}

/// Reads the snapshot of a directory into the tables that `empty` returns for its salt. Entities that were erased later are
/// left out. Returns nothing if there is no snapshot, and the reason if it cannot be used.
pub(crate) fn read(
    fs: &dyn Fs,
    directory: &Path,
    empty: &dyn Fn(u128) -> Tables,
    erasures: &Erasures,
) -> Result<Option<(Tables, Positions)>, String> {
    match Sequential::open(fs, &directory.join(NAME)).map_err(|error| error.to_string())? {
        None => Ok(None),
        Some(file) => load(&mut BufReader::with_capacity(BLOCK, file), empty, erasures).map(Some),
    }
}

pub(crate) fn load(
    from: &mut impl Read,
    empty: &dyn Fn(u128) -> Tables,
    erasures: &Erasures,
) -> Result<(Tables, Positions), String> {
    let mut block = Vec::new();
    let mut next = |block: &mut Vec<u8>| match frame::next(from, block) {
        Ok(true) => Ok(()),
        Ok(false) => Err("a checksum differs".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    next(&mut block)?;
    let salt = block.last_chunk().copied().map(u128::from_le_bytes).ok_or("its head is short")?;
    let tables = empty(salt);
    let mut expected = Vec::new();
    head(&tables, &mut expected);
    if block.get(..block.len() - size_of::<u128>()) != Some(&*expected) {
        return Err("it is of other feature sets or of another version".to_owned());
    }
    let mut positions = Positions {
        salt,
        sets: tables.sets.iter().map(|_| Vec::new()).collect(),
        least: u64::MAX,
        ..Positions::default()
    };
    let mut blocks = 1_u64;
    loop {
        next(&mut block)?;
        match block.split_first() {
            Some((&IDS, rest)) => positions.read_ids(rest, &tables),
            Some((&ENTITIES, rest)) => positions.read_entities(rest, &tables, erasures),
            Some((&END, rest)) if *rest == blocks.to_le_bytes() => break,
            _ => None,
        }
        .ok_or("a block does not fit the feature sets")?;
        blocks += 1;
    }
    if !positions.are_complete(&tables) {
        return Err("a shard is missing".to_owned());
    }
    tables.restored();
    Ok((tables, positions))
}

// === impl Positions ===

impl Positions {
    /// Sequence of the last event whose id the snapshot has, by the hash of the id.
    pub(crate) fn of_id(&self, kind: &str, hash: u128) -> u64 {
        let shards = self.ids.get(kind).map_or(&[][..], Vec::as_slice);
        shards.get(ids::shard_of(hash, shards.len())).copied().flatten().unwrap_or(0)
    }

    /// Sequence of the last event that an entity of the snapshot has.
    pub(crate) fn of_entity(&self, set: usize, kind: usize, key: &str) -> u64 {
        let shards = self.sets.get(set).map_or(&[][..], Vec::as_slice);
        let shard = state::shard_of(state::hash(self.salt, kind, key.as_bytes()), shards.len());
        shards.get(shard).copied().flatten().unwrap_or(0)
    }

    /// Restores a block of ids; `None` if it is not of this form.
    fn read_ids(&mut self, block: &[u8], tables: &Tables) -> Option<()> {
        let mut reader = Reader(block);
        let name = reader.str()?;
        let ids = &tables.kinds.get(name)?.ids;
        let shards = self.ids.entry(name.to_owned()).or_default();
        let at = note(shards, &mut reader, |_| Some(()))?.0;
        self.least = self.least.min(at);
        self.greatest = self.greatest.max(at);
        while !reader.0.is_empty() {
            let received_at_us = reader.number()?;
            ids.restore(received_at_us, u128::from_le_bytes(*reader.take(16)?.first_chunk()?));
        }
        Some(())
    }

    fn read_entities(&mut self, block: &[u8], tables: &Tables, erasures: &Erasures) -> Option<()> {
        let mut reader = Reader(block);
        let set = usize::try_from(reader.number()?).ok()?;
        let state = tables.sets.get(set)?;
        let kind = |reader: &mut Reader<'_>| usize::try_from(reader.number()?).ok();
        let (at, kind) = note(self.sets.get_mut(set)?, &mut reader, kind)?;
        self.least = self.least.min(at);
        self.greatest = self.greatest.max(at);
        let entity = state.kinds.get(kind).map_or("", |kind| &*kind.name);
        while !reader.0.is_empty() {
            let (key, newest_us) = (reader.str()?, reader.number()?);
            let length = usize::try_from(reader.number()?).ok()?;
            let data = reader.take(length)?;
            // An entity that a snapshot has is of before an erasure at the same event: afterwards, only a later event has it.
            if !erasures.covers(entity, key, at) && !state.restore(kind, key, newest_us, data) {
                return None;
            }
        }
        Some(())
    }

    fn are_complete(&self, tables: &Tables) -> bool {
        let whole = |shards: &Vec<Option<u64>>| !shards.is_empty() && shards.iter().all(Option::is_some);
        let ids = tables.kinds.keys().all(|kind| self.ids.get(kind).is_some_and(whole));
        ids && self.sets.iter().all(whole)
    }
}

/// Reads the number of shards, the number of a shard, what `between` reads, and the position of the shard.
fn note<T>(
    shards: &mut Vec<Option<u64>>,
    reader: &mut Reader<'_>,
    between: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<(u64, T)> {
    let count = usize::try_from(reader.number()?).ok()?;
    let shard = usize::try_from(reader.number()?).ok()?;
    let between = between(reader)?;
    let at = reader.number()?.cast_unsigned();
    if shards.is_empty() && count.is_power_of_two() && count <= MAX_SHARDS {
        shards.resize(count, None);
    }
    // A sequence never reaches this, so that sums with it do not overflow.
    if shards.len() != count || at >= 1 << 62 {
        return None;
    }
    let known = shards.get_mut(shard)?;
    if known.is_some_and(|known| known != at) {
        return None;
    }
    *known = Some(at);
    Some((at, between))
}

/// A snapshot that is written.
struct Out<'a> {
    file: BufWriter<&'a mut Sequential>,
    block: Vec<u8>,
    /// Number of frames.
    blocks: u64,
    unsynced: usize,
}

// === impl Out ===

impl<'a> Out<'a> {
    fn new(file: &'a mut Sequential) -> Out<'a> {
        Out { file: BufWriter::with_capacity(BLOCK, file), block: Vec::new(), blocks: 0, unsynced: 0 }
    }

    fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        frame::wrap(&mut self.block, write);
        self.blocks += 1;
        self.file.write_all(&self.block)?;
        self.unsynced += self.block.len();
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.flush()?;
            self.file.get_ref().sync()?;
        }
        Ok(())
    }
}
