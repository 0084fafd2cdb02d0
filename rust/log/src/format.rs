//! The format on disk: the segment header, the record frame and the seal. `docs/decision-log.md` describes it too.

use crc32c::{crc32c, crc32c_append};

/// First bytes of every segment.
pub(crate) const MAGIC: [u8; 8] = *b"scorerDL";
/// Version of this format.
pub(crate) const VERSION: u16 = 1;
/// Bytes of the segment header.
pub(crate) const HEADER_LEN: usize = 96;
/// Bytes before a frame's payload.
pub(crate) const FRAME_LEN: usize = 16;
/// Every frame starts at a multiple of this, which limits the positions where a search expects the next good frame.
pub(crate) const ALIGN: usize = 8;
/// The length field has 24 bits.
pub(crate) const MAX_PAYLOAD: usize = (1 << 24) - 1;
/// Bytes of a sealing frame, payload included.
pub(crate) const SEAL_LEN: usize = FRAME_LEN + SEAL_PAYLOAD;
const SEAL_PAYLOAD: usize = 32;
/// Segment numbers and sequences are below this value, which no log reaches. Computations with numbers from a damaged
/// or forged file therefore cannot overflow.
const END: u64 = 1 << 62;

/// The content of a frame. The code 0 means "never written", so zeroed blocks are never read as records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One record of the log.
    Record,
    /// The end of the segment.
    Seal,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Record => 1,
            Self::Seal => 2,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Record),
            2 => Some(Self::Seal),
            _ => None,
        }
    }
}

/// Head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Identity of the log directory. A segment copied from another log has a different one.
    pub(crate) log: [u8; 16],
    /// Identity of this segment, which is part of every frame's CRC.
    pub(crate) segment: [u8; 16],
    /// Position in the directory.
    pub(crate) number: u64,
    /// Time of creation in microseconds since the Unix epoch.
    pub(crate) created_us: i64,
    /// Sequence of the first record. Records of earlier segments from this sequence on are void.
    pub(crate) first: u64,
    /// Every sequence below this was on stable storage when the segment was created.
    pub(crate) durable: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0_u8; HEADER_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(slot) = out.get_mut(at..at + bytes.len()) {
                slot.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(HEADER_LEN as u16).to_le_bytes());
        put(&[0; 4]);
        put(&self.log);
        put(&self.segment);
        put(&self.number.to_le_bytes());
        put(&self.created_us.to_le_bytes());
        put(&self.first.to_le_bytes());
        put(&self.durable.to_le_bytes());
        put(&[0; 12]);
        let crc = out.first_chunk::<{ HEADER_LEN - 4 }>().map_or(0, |head| crc32c(head));
        if let Some(slot) = out.last_chunk_mut::<4>() {
            *slot = crc.to_le_bytes();
        }
        out
    }

    /// Decodes a header. `Err` describes the fault.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else { return Err("the header is cut short") };
        if !bytes.starts_with(&MAGIC) {
            return Err("it does not start with a decision-log header");
        }
        let (body, crc) = bytes.split_at(HEADER_LEN - 4);
        if u32_at(crc, 0) != crc32c(body) {
            return Err("the header's checksum is wrong");
        }
        if u16::from_le_bytes([bytes[8], bytes[9]]) != VERSION {
            return Err("it is of a newer format version");
        }
        if [48, 64, 72].iter().any(|at| u64_at(bytes, *at) >= END) {
            return Err("it holds a number that no log reaches");
        }
        Ok(Self {
            log: uuid_at(bytes, 16),
            segment: uuid_at(bytes, 32),
            number: u64_at(bytes, 48),
            created_us: u64_at(bytes, 56).cast_signed(),
            first: u64_at(bytes, 64),
            durable: u64_at(bytes, 72),
        })
    }
}

/// The content of the sealing frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Records in the segment.
    pub(crate) records: u64,
    /// First sequence; equal to `next` if there are no records.
    pub(crate) first: u64,
    /// The sequence after the last.
    pub(crate) next: u64,
    /// The sequence at which the log continues: `next`, or a later one if recovery found that the machine had stopped
    /// before the records in between were on stable storage.
    pub(crate) resume: u64,
}

impl Seal {
    pub(crate) fn encode(&self) -> [u8; SEAL_PAYLOAD] {
        let mut out = [0_u8; SEAL_PAYLOAD];
        for (slot, value) in out.chunks_exact_mut(8).zip([self.records, self.first, self.next, self.resume]) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let reached = (0..SEAL_PAYLOAD).step_by(8).all(|at| u64_at(payload, at) < END);
        (payload.len() == SEAL_PAYLOAD && reached).then(|| Self {
            records: u64_at(payload, 0),
            first: u64_at(payload, 8),
            next: u64_at(payload, 16),
            resume: u64_at(payload, 24),
        })
    }
}

/// A frame's fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) crc: u32,
    pub(crate) sequence: u64,
    /// Payload bytes.
    pub(crate) len: usize,
}

impl Frame {
    /// Parses the fixed part. Returns `None` if it cannot be a frame. The caller must still check the CRC.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<FRAME_LEN>()?;
        let kind = Kind::from_code(head[7])?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], 0]) as usize;
        let sequence = u64_at(head, 8);
        (sequence < END).then_some(Self { kind, crc: u32_at(head, 0), sequence, len })
    }

    /// Whether the CRC is that of this payload in this segment.
    pub(crate) fn verify(&self, segment: &[u8; 16], payload: &[u8]) -> bool {
        self.crc == seal_crc(crc32c(payload), segment, self.kind, payload.len(), self.sequence)
    }

    /// Bytes from this frame's start to the next one's.
    pub(crate) const fn span(&self) -> usize {
        span(self.len)
    }
}

/// Bytes that a payload of `len` takes in the file.
pub(crate) const fn span(len: usize) -> usize {
    (FRAME_LEN + len).next_multiple_of(ALIGN)
}

/// Completes a payload's CRC. The payload's part comes first, so that it can be computed before the writer's lock is
/// taken. The values added here are known only under the lock.
fn seal_crc(payload_crc: u32, segment: &[u8; 16], kind: Kind, len: usize, sequence: u64) -> u32 {
    let mut tail = [0_u8; 28];
    tail[..16].copy_from_slice(segment);
    tail[16..20].copy_from_slice(&word(kind, len));
    tail[20..].copy_from_slice(&sequence.to_le_bytes());
    crc32c_append(payload_crc, &tail)
}

const fn word(kind: Kind, len: usize) -> [u8; 4] {
    let len = (len as u32).to_le_bytes();
    [len[0], len[1], len[2], kind.code()]
}

/// Appends a whole frame. `payload_crc` is `crc32c(payload)`.
pub(crate) fn push_frame(
    out: &mut Vec<u8>,
    segment: &[u8; 16],
    kind: Kind,
    sequence: u64,
    payload: &[u8],
    payload_crc: u32,
) {
    let crc = seal_crc(payload_crc, segment, kind, payload.len(), sequence);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&word(kind, payload.len()));
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(payload);
    let pad = span(payload.len()) - FRAME_LEN - payload.len();
    out.extend_from_slice([0_u8; ALIGN].get(..pad).unwrap_or_default());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw))
}

fn uuid_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

/// Returns the file name of segment `number`. Names sort by number, and contain the UUID, so that records stay readable
/// if the header is damaged.
pub(crate) fn segment_name(number: u64, segment: &[u8; 16]) -> String {
    format!("{number:010}-{}.seg", uuid::Uuid::from_bytes(*segment).as_simple())
}

/// Parses the number and UUID in a segment's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(u64, [u8; 16])> {
    let (number, segment) = name.strip_suffix(".seg")?.split_once('-')?;
    (number.len() >= 10).then_some(())?;
    let segment = uuid::Uuid::parse_str(segment).ok()?;
    let number = number.parse().ok().filter(|number| *number < END)?;
    Some((number, segment.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_layout_is_fixed() {
        let header =
            Header { log: [7; 16], segment: [9; 16], number: 3, created_us: -5, first: 11, durable: 10 };
        let bytes = header.encode();
        assert_eq!(bytes.len(), 96);
        assert_eq!(&bytes[..8], b"scorerDL");
        assert_eq!(&bytes[8..16], &[1, 0, 96, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[64], 11);
        assert_eq!(Header::decode(&bytes), Ok(header));
        for at in 0..96 {
            let mut altered = bytes;
            altered[at] ^= 0x10;
            assert!(Header::decode(&altered).is_err(), "byte {at}");
        }
    }

    #[test]
    fn frame_crc_is_the_plain_crc_of_payload_segment_word_and_sequence() {
        let segment = [5_u8; 16];
        let mut out = Vec::new();
        push_frame(&mut out, &segment, Kind::Record, 258, b"hello", crc32c(b"hello"));
        assert_eq!(out.len(), 24);
        let mut whole = b"hello".to_vec();
        whole.extend_from_slice(&segment);
        whole.extend_from_slice(&[5, 0, 0, 1]);
        whole.extend_from_slice(&[2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[..4], crc32c(&whole).to_le_bytes());
        let frame = Frame::parse(&out).unwrap();
        assert!(frame.verify(&segment, b"hello"));
        assert!(!frame.verify(&[6; 16], b"hello"), "bytes of another segment never validate");
    }

    #[test]
    fn numbers_that_no_log_reaches_are_refused() {
        let header =
            Header { log: [7; 16], segment: [9; 16], number: 3, created_us: 0, first: 11, durable: 10 };
        for altered in [
            Header { number: u64::MAX, ..header },
            Header { first: END, ..header },
            Header { durable: u64::MAX, ..header },
        ] {
            assert!(Header::decode(&altered.encode()).is_err(), "{altered:?}");
        }
        let seal = Seal { records: 1, first: 1, next: 2, resume: 2 };
        assert_eq!(Seal::decode(&seal.encode()), Some(seal));
        assert_eq!(Seal::decode(&Seal { resume: u64::MAX, ..seal }.encode()), None);
        for (sequence, reached) in [(END - 1, true), (END, false), (u64::MAX, false)] {
            let mut out = Vec::new();
            push_frame(&mut out, &[5; 16], Kind::Record, sequence, b"a", crc32c(b"a"));
            assert_eq!(Frame::parse(&out).is_some(), reached, "{sequence}");
        }
        assert_eq!(parse_segment_name(&segment_name(u64::MAX, &[1; 16])), None);
    }

    #[test]
    fn names_round_trip_and_foreign_ones_are_refused() {
        let name = segment_name(12, &[0xab; 16]);
        assert_eq!(parse_segment_name(&name), Some((12, [0xab; 16])));
        for bad in ["x.seg", "12-ab.seg", "0000000012.seg", "0000000012-zz.seg", "LOCK"] {
            assert_eq!(parse_segment_name(bad), None, "{bad}");
        }
    }
}
