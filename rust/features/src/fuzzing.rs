//! Parsers of the store's files for the fuzz target: whatever the bytes are, they are read or refused.

use crate::definition::FeatureSet;
use crate::erasures::Erasures;
use crate::frame::{self, OwnedEvent};
use crate::snapshot;
use crate::tables::Tables;

/// Reads frames of events, and writes each of them without a key.
pub fn journal(mut bytes: &[u8]) {
    let without = |event: &OwnedEvent| {
        let mut written = Vec::new();
        frame::write_without(event, |_, key| key.len() == 1, &mut written);
        written
    };
    while let Some((event, length)) = frame::read(bytes) {
        let written = without(&event);
        let again = frame::read(&written).map(|(event, _)| without(&event));
        assert_eq!(again, Some(written), "an event that is written can be read");
        bytes = bytes.get(length..).unwrap_or_default();
    }
}

/// Reads a snapshot of a feature set.
pub fn snapshot(set: &FeatureSet, bytes: &[u8]) {
    let empty = |salt| Tables::new(std::slice::from_ref(set), 1 << 20, salt);
    if let Ok((tables, positions)) = snapshot::load(&mut &*bytes, &empty, &Erasures::default()) {
        assert!(positions.least <= positions.greatest);
        let (entities, memory) = tables.size();
        assert!(entities == 0 || memory > 0);
    }
}

/// Reads a list of erasures.
pub fn erasures(bytes: &[u8]) {
    if let Some(erasures) = Erasures::decode(bytes) {
        assert_eq!(Erasures::decode(&erasures.encode()), Some(erasures));
    }
}

/// Computes the checksums of the frames of a mutated file.
pub fn seal(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 4).and_then(|head| head.try_into().ok()) {
        let length = u32::from_le_bytes(length) as usize;
        let start = at + frame::HEAD;
        let Some(payload) = start.checked_add(length).and_then(|end| bytes.get(start..end)) else { return };
        let sum = crc32c::crc32c(payload).to_le_bytes();
        if let Some(place) = bytes.get_mut(at + 4..start) {
            place.copy_from_slice(&sum);
        }
        at = start + length;
    }
}
