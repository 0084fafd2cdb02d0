//! A file system, a clock and identifiers that a seed decides about. For tests, of this crate and of others.
//!
//! The model keeps, for every file, what the kernel would show (the page cache) beside what the disk holds, and
//! the writes between the two. `kill` takes the process away and leaves the page cache; `power_loss` takes the
//! page cache away and keeps a prefix of the outstanding writes, the last of them torn. A failed `sync_data` drops
//! the outstanding writes from what the disk will ever hold, and the next one succeeds: the behaviour of Linux
//! that makes a retry a lie.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake};

use crate::clock::{Clock, Random};
use crate::fs::{DirLock, Entry, Env, File, Fs};
use crate::sync;

/// Runs a future on the calling thread, which sleeps while it is pending.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

mod chance;
mod disk;

pub use chance::{Rng, SimClock, SimRandom};
pub use disk::Faults;
use disk::{Change, Inode, Move, State, apply};

struct Shared {
    state: Mutex<State>,
    /// `sync_data` waits.
    sync_gate: Gate,
    /// Every changing operation waits.
    stall_gate: Gate,
}

/// Where operations wait while it is closed. With loom's lock, other threads may run before an operation.
#[derive(Default)]
struct Gate {
    /// Whether it is closed, and how many operations wait.
    state: sync::Mutex<(bool, usize)>,
    changed: sync::Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        self.lock().0 = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.lock();
        state.1 += 1;
        self.changed.notify_all();
        let mut state =
            self.changed.wait_while(state, |state| state.0).unwrap_or_else(PoisonError::into_inner);
        state.1 -= 1;
    }

    /// Waits until an operation waits.
    fn wait_for_one(&self) {
        drop(self.changed.wait_while(self.lock(), |state| state.1 == 0));
    }

    fn lock(&self) -> sync::MutexGuard<'_, (bool, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The simulated disk, from outside. Clones are the same one.
#[derive(Clone)]
pub struct SimFs(Arc<Shared>);

/// The disk as one process sees it: after `kill` or `power_loss` it can do nothing more.
struct Process {
    fs: SimFs,
    boot: u64,
}

impl Process {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.fs.lock();
        if state.boot != self.boot {
            return Err(io::Error::other("the simulated process is gone"));
        }
        state.alive()?;
        Ok(state)
    }
}

impl SimFs {
    /// An empty disk whose chances a seed decides.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            rng: Rng::new(seed),
            read_rng: Rng::new(!seed),
            faults: Faults::default(),
            capacity: u64::MAX,
            inodes: Vec::new(),
            shown: BTreeMap::new(),
            stable: BTreeMap::new(),
            moves: Vec::new(),
            dirs: BTreeSet::new(),
            locks: BTreeSet::new(),
            boot: 0,
            dead: false,
            crash_in: None,
            syncs: 0,
            writes: 0,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            sync_gate: Gate::default(),
            stall_gate: Gate::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Sets how often operations fail from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Sets how many bytes the disk holds.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity = bytes;
    }

    /// Bytes in all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Stops everything in the middle of the `n`th changing operation from now.
    pub fn crash_in(&self, n: u64) {
        self.lock().crash_in = Some(n);
    }

    /// Whether a crash has happened and neither `kill` nor `power_loss` was called yet.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// The process is gone: its handles are dead, its locks are free, the page cache stays.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.dead = false;
        state.crash_in = None;
        state.locks.clear();
    }

    /// The machine lost power: what is not on stable storage is gone, but for a prefix.
    pub fn power_loss(&self) {
        self.kill();
        self.lock().lose_power();
    }

    /// `sync_data` calls so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// `write_at` calls so far, those that wait for a stalled disk not included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// While held, `sync_data` waits.
    pub fn hold_sync(&self, hold: bool) {
        self.0.sync_gate.set(hold);
    }

    /// While stalled, every operation that changes a file waits, as on a disk that has stopped to answer.
    pub fn stall(&self, stalled: bool) {
        self.0.stall_gate.set(stalled);
    }

    /// Waits until an operation waits for the stalled disk.
    pub fn wait_until_stalled(&self) {
        self.0.stall_gate.wait_for_one();
    }

    /// Inverts one bit, on the disk and in the page cache.
    pub fn flip(&self, path: &Path, offset: u64, bit: u8) {
        let mut state = self.lock();
        if let Some(inode) = state.shown.get(path).copied() {
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            let inode = &mut state.inodes[inode];
            for bytes in [&mut inode.shown, &mut inode.stable] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Takes a file away, on the disk and in the page cache.
    pub fn vanish(&self, path: &Path) {
        let mut state = self.lock();
        state.shown.remove(path);
        state.stable.remove(path);
    }

    /// Files with their lengths.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.lock();
        state
            .shown
            .iter()
            .map(|(path, inode)| (path.clone(), state.inodes[*inode].shown.len() as u64))
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SimHold;

impl DirLock for SimHold {}

struct SimFile {
    fs: SimFs,
    inode: usize,
    boot: u64,
}

impl SimFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.fs.lock();
        if state.boot != self.boot {
            return Err(io::Error::other("the simulated process is gone"));
        }
        Ok(state)
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        state.alive()?;
        let short = state.faults.short_read;
        let mut len = buf.len();
        if len > 1 && state.read_rng.chance(short) {
            len = 1 + state.read_rng.up_to(len - 2);
        }
        let content = &state.inodes[self.inode].shown;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let len = len.min(content.len() - start).min(buf.len());
        buf[..len].copy_from_slice(&content[start..start + len]);
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.fs.0.stall_gate.pass();
        self.state()?.write_at(self.inode, offset, buf)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.fs.0.stall_gate.pass();
        let mut state = self.state()?;
        let per_mille = state.faults.truncate;
        state.change(per_mille)?;
        let inode = &mut state.inodes[self.inode];
        apply(&mut inode.shown, &Change::Cut(len));
        inode.outstanding.push(Change::Cut(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.0.stall_gate.pass();
        self.fs.0.sync_gate.pass();
        self.state()?.sync_data(self.inode)
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.state()?;
        state.alive()?;
        Ok(state.inodes[self.inode].shown.len() as u64)
    }
}

struct SimLock {
    fs: SimFs,
    path: PathBuf,
    boot: u64,
}

impl DirLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.fs.lock();
        if state.boot == self.boot {
            state.locks.remove(&self.path);
        }
    }
}

impl Fs for Process {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        state.dirs.insert(dir.to_owned());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let state = self.state()?;
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let files = state.shown.keys().map(|path| (path, false));
        let dirs = state.dirs.iter().map(|path| (path, true));
        let inside = |(path, directory): (&PathBuf, bool)| {
            let name = path.file_name().filter(|_| path.parent() == Some(dir))?;
            Some(Entry { name: name.to_string_lossy().into_owned(), directory })
        };
        Ok(files.chain(dirs).filter_map(inside).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.fs.0.stall_gate.pass();
        let mut state = self.state()?;
        let per_mille = state.faults.create;
        state.change(per_mille)?;
        if state.shown.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.used() >= state.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.shown.insert(path.to_owned(), inode);
        state.moves.push(Move::Link(path.to_owned(), inode));
        Ok(Arc::new(SimFile { fs: self.fs.clone(), inode, boot: state.boot }))
    }

    fn open(&self, path: &Path, _write: bool) -> io::Result<Arc<dyn File>> {
        let state = self.state()?;
        let inode = state.shown.get(path).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { fs: self.fs.clone(), inode, boot: state.boot }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        let per_mille = state.faults.rename;
        state.change(per_mille)?;
        let step = Move::Rename(from.to_owned(), to.to_owned());
        step.clone().apply(&mut state.shown);
        state.moves.push(step);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        let per_mille = state.faults.rename;
        state.change(per_mille)?;
        let step = Move::Unlink(path.to_owned());
        step.clone().apply(&mut state.shown);
        state.moves.push(step);
        Ok(())
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let content = {
            let state = self.state()?;
            let inode = state.shown.get(from).copied().ok_or(io::ErrorKind::NotFound)?;
            state.inodes[inode].shown.clone()
        };
        let file = self.create(to)?;
        crate::fs::write_all_at(&*file, &content, 0)?;
        file.sync_data()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        let per_mille = state.faults.sync_dir;
        state.change(per_mille)?;
        state.stable = state.shown.clone();
        state.moves.clear();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        let mut state = self.state()?;
        if !state.shown.contains_key(path) {
            let inode = state.inodes.len();
            state.inodes.push(Inode::default());
            state.shown.insert(path.to_owned(), inode);
            state.moves.push(Move::Link(path.to_owned(), inode));
        }
        if !state.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimLock { fs: self.fs.clone(), path: path.to_owned(), boot: state.boot })))
    }

    /// Every file is free: nothing reads a simulated log while it is pruned.
    fn hold(&self, path: &Path, _shared: bool) -> io::Result<Option<Box<dyn DirLock>>> {
        let state = self.state()?;
        if !state.shown.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Some(Box::new(SimHold)))
    }

    fn free(&self, _dir: &Path) -> io::Result<u64> {
        let state = self.state()?;
        Ok(state.capacity.saturating_sub(state.used()))
    }
}

/// A whole simulated machine.
pub struct SimMachine {
    /// Its disk.
    pub fs: SimFs,
    /// Its clock.
    pub clock: Arc<SimClock>,
    random: Arc<SimRandom>,
}

impl SimMachine {
    /// A machine for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = Arc::new(SimRandom::new(seed));
        Self { fs: SimFs::new(seed), clock: Arc::default(), random }
    }

    /// What a process started now sees. After `kill` or `power_loss` it sees nothing: start another.
    #[must_use]
    pub fn start(&self) -> Env {
        let boot = self.fs.lock().boot;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let random = Arc::clone(&self.random) as Arc<dyn Random>;
        Env { fs: Arc::new(Process { fs: self.fs.clone(), boot }), clock, random }
    }
}

impl std::fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimMachine")
    }
}

impl std::fmt::Debug for SimFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimFs")
    }
}
