//! What the kernel shows beside what the disk holds, and everything that can go wrong between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use super::chance::Rng;

/// How often an operation fails, per mille.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// `write_at` fails, after writing any part.
    pub write: u64,
    /// `write_at` writes less than asked and returns how much.
    pub short_write: u64,
    /// `read_at` reads less than asked and returns how much.
    pub short_read: u64,
    /// `sync_data` fails and forgets.
    pub sync: u64,
    /// `truncate` fails.
    pub truncate: u64,
    /// `create` fails.
    pub create: u64,
    /// `rename` or `remove` fails.
    pub rename: u64,
    /// `sync_dir` fails.
    pub sync_dir: u64,
}

#[derive(Clone)]
pub(crate) enum Change {
    Write(u64, Vec<u8>),
    Cut(u64),
}

#[derive(Default)]
pub(crate) struct Inode {
    pub(crate) shown: Vec<u8>,
    pub(crate) stable: Vec<u8>,
    /// What `stable` lacks, in order.
    pub(crate) outstanding: Vec<Change>,
}

#[derive(Clone)]
pub(crate) enum Move {
    Link(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    /// Apart, so that looking changes nothing else.
    pub(crate) read_rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) capacity: u64,
    pub(crate) inodes: Vec<Inode>,
    pub(crate) shown: BTreeMap<PathBuf, usize>,
    pub(crate) stable: BTreeMap<PathBuf, usize>,
    pub(crate) moves: Vec<Move>,
    pub(crate) dirs: BTreeSet<PathBuf>,
    pub(crate) locks: BTreeSet<PathBuf>,
    /// Handles of an earlier boot are dead.
    pub(crate) boot: u64,
    pub(crate) dead: bool,
    pub(crate) crash_in: Option<u64>,
    pub(crate) syncs: u64,
    pub(crate) writes: u64,
}

impl State {
    pub(crate) fn used(&self) -> u64 {
        self.shown.values().map(|inode| self.inodes[*inode].shown.len() as u64).sum()
    }

    pub(crate) fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other("the simulated process is gone")) } else { Ok(()) }
    }

    /// Counts towards the crash; true if it is now.
    pub(crate) fn crashes(&mut self) -> bool {
        let now = self.crash_in.is_some_and(|left| left == 0);
        self.crash_in = self.crash_in.map(|left| left.saturating_sub(1));
        self.dead |= now;
        now
    }

    /// A changing operation that happens whole or not at all.
    pub(crate) fn change(&mut self, per_mille: u64) -> io::Result<()> {
        self.alive()?;
        if self.crashes() {
            return self.alive();
        }
        if self.rng.chance(per_mille) { Err(eio()) } else { Ok(()) }
    }

    pub(crate) fn write(&mut self, inode: usize, offset: u64, bytes: &[u8]) {
        let inode = &mut self.inodes[inode];
        apply(&mut inode.shown, &Change::Write(offset, bytes.to_vec()));
        inode.outstanding.push(Change::Write(offset, bytes.to_vec()));
    }

    pub(crate) fn write_at(&mut self, inode: usize, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.alive()?;
        self.writes += 1;
        let grown = (offset + bytes.len() as u64).saturating_sub(self.inodes[inode].shown.len() as u64);
        let room = self.capacity.saturating_sub(self.used());
        let missing = usize::try_from(grown.saturating_sub(room)).unwrap_or(usize::MAX);
        let fits = bytes.len().saturating_sub(missing);
        if self.crashes() {
            let part = self.rng.up_to(fits);
            self.write(inode, offset, &bytes[..part]);
            self.alive()?;
        }
        if self.rng.chance(self.faults.write) {
            let part = self.rng.up_to(fits);
            self.write(inode, offset, &bytes[..part]);
            return Err(eio());
        }
        let mut part = fits;
        if self.rng.chance(self.faults.short_write) {
            part = 1 + self.rng.up_to(fits.saturating_sub(1));
        }
        let part = part.min(fits);
        if part == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write(inode, offset, &bytes[..part]);
        Ok(part)
    }

    pub(crate) fn sync_data(&mut self, inode: usize) -> io::Result<()> {
        self.syncs += 1;
        self.alive()?;
        if self.crashes() {
            return self.alive();
        }
        let failed = self.rng.chance(self.faults.sync);
        let inode = &mut self.inodes[inode];
        let outstanding = std::mem::take(&mut inode.outstanding);
        if failed {
            return Err(eio());
        }
        for change in &outstanding {
            apply(&mut inode.stable, change);
        }
        Ok(())
    }

    pub(crate) fn lose_power(&mut self) {
        let moves = std::mem::take(&mut self.moves);
        let kept = self.rng.up_to(moves.len());
        let mut stable = std::mem::take(&mut self.stable);
        for step in moves.into_iter().take(kept) {
            step.apply(&mut stable);
        }
        for inode in &mut self.inodes {
            let outstanding = std::mem::take(&mut inode.outstanding);
            let kept = self.rng.up_to(outstanding.len());
            for (at, change) in outstanding.iter().take(kept).enumerate() {
                let torn = at + 1 == kept && self.rng.chance(700);
                match change {
                    Change::Write(offset, bytes) if torn => {
                        let part = self.rng.up_to(bytes.len());
                        let mut bytes = bytes.clone();
                        if self.rng.chance(300) {
                            // The length reached the disk, the block did not.
                            bytes[part..].fill(0);
                        } else {
                            bytes.truncate(part);
                        }
                        apply(&mut inode.stable, &Change::Write(*offset, bytes));
                    }
                    change => apply(&mut inode.stable, change),
                }
            }
            inode.shown.clone_from(&inode.stable);
        }
        self.shown.clone_from(&stable);
        self.stable = stable;
    }
}

impl Move {
    pub(crate) fn apply(self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Link(path, inode) => {
                names.insert(path, inode);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
            Self::Unlink(path) => {
                names.remove(&path);
            }
        }
    }
}

pub(crate) fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, bytes) => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let end = start + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(bytes);
        }
        Change::Cut(len) => content.resize(usize::try_from(*len).unwrap_or(usize::MAX), 0),
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}
