//! The binary form of an event in the journal: length and CRC32C, then the event.

use crate::event::Event;

/// Bytes before the event: its length and its checksum.
const HEAD: usize = 8;
/// Greatest length of an event.
const MAX_PAYLOAD: usize = 1 << 20;

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

/// Appends the frame of an event.
pub(crate) fn write(event: &Event<'_>, received_at_us: i64, to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(&[0; HEAD]);
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
    let payload = to.get(start + HEAD..).unwrap_or_default();
    let (length, sum) = (payload.len() as u32, crc32c::crc32c(payload));
    if let Some(head) = to.get_mut(start..start + HEAD) {
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Reads the frame at the beginning of `bytes`. Returns the event and the length of the frame; `None` if the frame is not
/// complete or its checksum differs.
pub(crate) fn read(bytes: &[u8]) -> Option<(OwnedEvent, usize)> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let sum = u32::from_le_bytes(bytes.get(4..HEAD)?.try_into().ok()?);
    if length > MAX_PAYLOAD {
        return None;
    }
    let payload = bytes.get(HEAD..HEAD + length)?;
    if crc32c::crc32c(payload) != sum {
        return None;
    }
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
    Some((event, HEAD + length))
}

/// Writes a text. The rules for events limit its length to far below 65,536 bytes.
fn text(text: &str, to: &mut Vec<u8>) {
    count(text.len(), to);
    to.extend_from_slice(text.as_bytes());
}

fn count(count: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&(count as u16).to_le_bytes());
}

struct Reader<'a>(&'a [u8]);

// === impl Reader ===

impl Reader<'_> {
    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn count(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?)))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.count()?;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        (0..count).map(|_| one(self)).collect()
    }
}
