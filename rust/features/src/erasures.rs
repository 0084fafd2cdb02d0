//! Erasures that are not complete: entities whose state was removed from memory, and whose keys are still in files.
//!
//! They are in the file `erasures`, beside the journal. An erasure covers the events up to a sequence. It is complete when
//! a later snapshot was written and no file of the journal has the key in these events.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use scorer_log::Fs;

use crate::frame::{self, Reader};
use crate::segments::{self, Segment};
use crate::sequential::{self, Sequential};

/// Name of the file.
const NAME: &str = "erasures";
/// Greatest number of erasures that are not complete.
pub(crate) const MAX: usize = 10_000;
/// Greatest size of the file that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// An erasure of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Erasure {
    /// Sequence of the last event that it covers.
    pub(crate) last: u64,
    /// Time of the call in microseconds since the Unix epoch.
    pub(crate) at_us: i64,
}

/// The erasures that are not complete, by entity and key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Erasures(BTreeMap<String, BTreeMap<String, Erasure>>);

// === impl Erasures ===

impl Erasures {
    fn all(&self) -> impl Iterator<Item = (&String, &String, &Erasure)> {
        self.0.iter().flat_map(|(entity, keys)| keys.iter().map(move |(key, one)| (entity, key, one)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an event of an entity is covered.
    pub(crate) fn covers(&self, entity: &str, key: &str, sequence: u64) -> bool {
        self.0.get(entity).and_then(|keys| keys.get(key)).is_some_and(|one| sequence <= one.last)
    }

    /// Adds an erasure. It replaces an earlier one of the same entity.
    pub(crate) fn add(&mut self, entity: &str, key: &str, new: Erasure) {
        let keys = self.0.entry(entity.to_owned()).or_default();
        keys.entry(key.to_owned()).and_modify(|known| known.last = known.last.max(new.last)).or_insert(new);
    }

    /// Removes erasures that are complete. One that was repeated since then stays.
    pub(crate) fn remove(&mut self, complete: &Erasures) {
        self.0.retain(|entity, keys| {
            let complete = complete.0.get(entity);
            keys.retain(|key, one| complete.and_then(|keys| keys.get(key)) != Some(one));
            !keys.is_empty()
        });
    }

    /// Sequence of the last event that is covered.
    pub(crate) fn last(&self) -> u64 {
        self.all().map(|(_, _, one)| one.last).max().unwrap_or(0)
    }

    /// Time of the oldest erasure.
    pub(crate) fn oldest_us(&self) -> Option<i64> {
        self.all().map(|(_, _, one)| one.at_us).min()
    }

    /// Reads the file of a directory.
    pub(crate) fn read(fs: &dyn Fs, directory: &Path) -> io::Result<Erasures> {
        let Some(file) = Sequential::open(fs, &directory.join(NAME))? else { return Ok(Erasures::default()) };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Erasures::decode(&bytes).ok_or_else(|| {
            io::Error::other("the list of erasures is damaged; remove the file and repeat the erasures")
        })
    }

    /// Writes the file of a directory.
    pub(crate) fn write(&self, fs: &dyn Fs, directory: &Path) -> io::Result<()> {
        sequential::publish(fs, &directory.join(NAME), |file| file.write_all(&self.encode())).map(|_| ())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (entity, key, one) in self.all() {
            frame::wrap(&mut bytes, |to| {
                to.extend_from_slice(&one.last.to_le_bytes());
                to.extend_from_slice(&one.at_us.to_le_bytes());
                frame::text(entity, to);
                frame::text(key, to);
            });
        }
        bytes
    }

    /// Reads what [`Erasures::encode`] returns; `None` if a byte differs.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Erasures> {
        let mut all = Erasures::default();
        while !bytes.is_empty() {
            let payload = frame::payload(bytes)?;
            let mut reader = Reader(payload);
            let (last, at_us) = (reader.number()?.cast_unsigned(), reader.number()?);
            all.add(reader.str()?, reader.str()?, Erasure { last, at_us });
            bytes = bytes.get(frame::HEAD + payload.len()..)?;
        }
        Some(all)
    }

    /// Removes the keys from the events of a file that is not written any more. Bytes of it that are no event are removed
    /// too. Returns the size of the file if it changed.
    pub(crate) fn erase(&self, fs: &dyn Fs, segment: &Segment) -> io::Result<Option<u64>> {
        let bytes = segments::read(fs, segment)?;
        let (mut rest, mut sequence) = (&bytes[..], segment.first);
        let mut without: Option<Vec<u8>> = None;
        while let Some((event, length)) = frame::read(rest) {
            let erased = |entity: &str, key: &str| self.covers(entity, key, sequence);
            let at = bytes.len() - rest.len();
            if event.keys.iter().any(|(entity, key)| erased(entity, key)) {
                let to = without.get_or_insert_with(|| bytes.get(..at).unwrap_or_default().to_vec());
                frame::write_without(&event, erased, to);
            } else if let Some(to) = &mut without {
                to.extend_from_slice(rest.get(..length).unwrap_or_default());
            }
            rest = rest.get(length..).unwrap_or_default();
            sequence += 1;
        }
        if !rest.is_empty() && without.is_none() {
            without = Some(bytes.get(..bytes.len() - rest.len()).unwrap_or_default().to_vec());
        }
        let Some(without) = without else { return Ok(None) };
        sequential::publish(fs, &segment.path, |file| file.write_all(&without)).map(Some)
    }
}
