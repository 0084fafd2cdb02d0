//! The start of a store: reads the snapshot and the later events of the journal.

use std::io;
use std::path::{Path, PathBuf};

use scorer_log::Fs;

use crate::erasures::Erasures;
use crate::event::Event;
use crate::frame::OwnedEvent;
use crate::segments::{self, Segment};
use crate::snapshot::{self, Positions};
use crate::tables::Tables;

/// What was read at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of events after the snapshot.
    pub events: u64,
    /// Number of entities of the snapshot.
    pub snapshot_entities: u64,
    /// Why the snapshot was not used. All files of the journal were then read.
    pub snapshot_unused: Option<String>,
    /// Number of events of kinds that no set declares any more.
    pub skipped: u64,
    /// Files with bytes at their end that are not a complete event, with the number of these bytes.
    pub damaged: Vec<(PathBuf, u64)>,
}

/// The state that was read.
pub(crate) struct Recovered {
    pub(crate) tables: Tables,
    pub(crate) erasures: Erasures,
    pub(crate) files: Vec<Segment>,
    /// Sequence of the last event.
    pub(crate) last: u64,
    /// Size of the files that were read, in bytes.
    pub(crate) replayed: u64,
    pub(crate) report: Recovery,
}

/// Reads the state in a directory. `empty` makes tables of the sets for a salt.
pub(crate) fn recover(
    fs: &dyn Fs,
    directory: &Path,
    empty: &dyn Fn(u128) -> Tables,
    salt: u128,
) -> Result<Recovered, (PathBuf, io::Error)> {
    let fail = |source| (directory.to_owned(), source);
    // Files that were written when the process ended.
    for entry in fs.list(directory).map_err(fail)? {
        if entry.name.ends_with(".new") {
            fs.remove(&directory.join(entry.name)).map_err(fail)?;
        }
    }
    let erasures = Erasures::read(fs, directory).map_err(fail)?;
    let mut report = Recovery::default();
    let snapshot = snapshot::read(fs, directory, empty, &erasures).unwrap_or_else(|reason| {
        report.snapshot_unused = Some(reason);
        None
    });
    let (tables, positions) = snapshot.unwrap_or_else(|| (empty(salt), Positions::default()));
    report.snapshot_entities = tables.size().0;
    let mut files = segments::list(fs, directory).map_err(fail)?;
    // A new event has a sequence that neither the snapshot nor an erasure covers, also if the events before are lost.
    let (mut last, mut replayed) = (positions.greatest.max(erasures.last()), 0);
    for at in 0..files.len() {
        let next = files.get(at + 1).map(|next| next.first);
        let Some(file) = files.get_mut(at) else { break };
        // The newest file is read in any case, for the sequence of its last event.
        if next.is_some_and(|next| next <= positions.least + 1) {
            continue;
        }
        let path = file.path.clone();
        let fail = |source| (path.clone(), source);
        let mut each = |sequence: u64, event: OwnedEvent| {
            replay(&tables, &event, sequence, &positions, &erasures, &mut report);
        };
        let read = segments::replay(fs, file, &mut each).map_err(fail)?;
        replayed += file.bytes;
        last = last.max((file.first + read.events).saturating_sub(1));
        if read.damaged > 0 {
            report.damaged.push((file.path.clone(), read.damaged));
        }
        if next.is_none() {
            segments::cut(fs, file, read.damaged).map_err(fail)?;
        }
    }
    if let Some(empty) = files.pop_if(|file| file.bytes == 0) {
        fs.remove(&empty.path).map_err(|source| (empty.path, source))?;
    }
    if report.events == 0 {
        replayed = 0;
    }
    Ok(Recovered { tables, erasures, files, last, replayed, report })
}

/// Applies an event of the journal, as it was applied when it was recorded.
fn replay(
    tables: &Tables,
    event: &OwnedEvent,
    sequence: u64,
    positions: &Positions,
    erasures: &Erasures,
    report: &mut Recovery,
) {
    let numbers: Vec<(&str, f64)> = event.numbers.iter().map(|(name, value)| (&**name, *value)).collect();
    let read = Event {
        kind: &event.kind,
        id: &event.id,
        occurred_at_us: event.occurred_at_us,
        keys: &pairs(&event.keys),
        numbers: &numbers,
        texts: &pairs(&event.texts),
    };
    let erased = |entity: &str, key: &str| erasures.covers(entity, key, sequence);
    match tables.replay(&read, event.received_at_us, sequence, positions, &erased) {
        None => report.skipped += 1,
        Some(changed) => report.events += u64::from(changed),
    }
}

fn pairs(list: &[(String, String)]) -> Vec<(&str, &str)> {
    list.iter().map(|(name, value)| (&**name, &**value)).collect()
}
