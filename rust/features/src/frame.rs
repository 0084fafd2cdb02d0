//! Frames: length and CRC32C, then bytes; and the binary form of an event in the frames of the journal.

use std::io;

use crate::bytes::u32_at;
use crate::event::Event;

/// Bytes before the payload: its length and its checksum.
pub(crate) const HEAD: usize = 8;
/// Greatest length of a payload.
const MAX_PAYLOAD: usize = 1 << 24;

/// An event that was read from the journal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnedEvent {
    pub(crate) received_at_us: i64,
    pub(crate) occurred_at_us: i64,
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) keys: Vec<(String, String)>,
    pub(crate) numbers: Vec<(String, f64)>,
    pub(crate) texts: Vec<(String, String)>,
}

/// Appends a frame with the payload that `write` appends.
pub(crate) fn wrap(to: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0; HEAD]);
    write(to);
    let payload = to.get(start + HEAD..).unwrap_or_default();
    let (length, sum) = (payload.len() as u32, crc32c::crc32c(payload));
    if let Some(head) = to.get_mut(start..start + HEAD) {
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The payload of the frame at the beginning of `bytes`; `None` if the frame is not complete or its checksum differs.
pub(crate) fn payload(bytes: &[u8]) -> Option<&[u8]> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let sum = u32::from_le_bytes(bytes.get(4..HEAD)?.try_into().ok()?);
    if length > MAX_PAYLOAD {
        return None;
    }
    let payload = bytes.get(HEAD..HEAD + length)?;
    (crc32c::crc32c(payload) == sum).then_some(payload)
}

/// Reads the next frame of a file into `to`. Returns whether it is complete and its checksum is right.
pub(crate) fn next(from: &mut impl io::Read, to: &mut Vec<u8>) -> io::Result<bool> {
    to.resize(HEAD, 0);
    from.read_exact(to)?;
    let length = u32_at(to, 0) as usize;
    if length > MAX_PAYLOAD {
        return Ok(false);
    }
    to.resize(HEAD + length, 0);
    from.read_exact(to.get_mut(HEAD..).unwrap_or_default())?;
    let right = payload(to).is_some();
    to.drain(..HEAD);
    Ok(right)
}

/// Appends the frame of an event.
pub(crate) fn write(event: &Event<'_>, received_at_us: i64, to: &mut Vec<u8>) {
    wrap(to, |to| write_event(event, received_at_us, to));
}

fn write_event(event: &Event<'_>, received_at_us: i64, to: &mut Vec<u8>) {
    to.extend_from_slice(&received_at_us.to_le_bytes());
    to.extend_from_slice(&event.occurred_at_us.to_le_bytes());
    text(event.kind, to);
    text(event.id, to);
    count(event.keys.len(), to);
    for (entity, key) in event.keys {
        text(entity, to);
        text(key, to);
    }
    count(event.numbers.len(), to);
    for (field, number) in event.numbers {
        text(field, to);
        to.extend_from_slice(&number.to_le_bytes());
    }
    count(event.texts.len(), to);
    for (field, value) in event.texts {
        text(field, to);
        text(value, to);
    }
}

/// Reads the frame at the beginning of `bytes`. Returns the event and the length of the frame; `None` if the frame is not
/// complete or its checksum differs.
pub(crate) fn read(bytes: &[u8]) -> Option<(OwnedEvent, usize)> {
    let payload = payload(bytes)?;
    let mut reader = Reader(payload);
    let event = OwnedEvent {
        received_at_us: reader.number()?,
        occurred_at_us: reader.number()?,
        kind: reader.text()?,
        id: reader.text()?,
        keys: reader.list(|reader| Some((reader.text()?, reader.text()?)))?,
        numbers: reader
            .list(|reader| Some((reader.text()?, f64::from_bits(reader.number()?.cast_unsigned()))))?,
        texts: reader.list(|reader| Some((reader.text()?, reader.text()?)))?,
    };
    Some((event, HEAD + payload.len()))
}

/// Appends the frame of an event without some of its keys. If no key is left, numbers and texts are left out too. The id
/// stays, so that the event is still recognised as a duplicate.
pub(crate) fn write_without(event: &OwnedEvent, erased: impl Fn(&str, &str) -> bool, to: &mut Vec<u8>) {
    let keys = event.keys.iter().filter(|(entity, key)| !erased(entity, key));
    let keys: Vec<(&str, &str)> = keys.map(|(entity, key)| (&**entity, &**key)).collect();
    let content = !keys.is_empty();
    let numbers = event.numbers.iter().filter(|_| content).map(|(field, number)| (&**field, *number));
    let texts = event.texts.iter().filter(|_| content).map(|(field, value)| (&**field, &**value));
    let stays = Event {
        kind: &event.kind,
        id: &event.id,
        occurred_at_us: event.occurred_at_us,
        keys: &keys,
        numbers: &numbers.collect::<Vec<_>>(),
        texts: &texts.collect::<Vec<_>>(),
    };
    write(&stays, event.received_at_us, to);
}

/// Appends a text. The rules for events limit its length to far below 65,536 bytes.
pub(crate) fn text(text: &str, to: &mut Vec<u8>) {
    count(text.len(), to);
    to.extend_from_slice(text.as_bytes());
}

fn count(count: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&(count as u16).to_le_bytes());
}

/// The rest of a payload.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn number(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn count(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?)))
    }

    pub(crate) fn str(&mut self) -> Option<&'a str> {
        let length = self.count()?;
        str::from_utf8(self.take(length)?).ok()
    }

    fn text(&mut self) -> Option<String> {
        self.str().map(str::to_owned)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        (0..count).map(|_| one(self)).collect()
    }
}
