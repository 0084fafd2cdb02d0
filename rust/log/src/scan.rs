//! Reads one segment frame by frame, skips damage, and reports its position.

use std::io;
use std::sync::Arc;

use crate::format::{ALIGN, Frame, HEADER_LEN, Kind, SEAL_LEN, Seal};
use crate::fs::{File, read_full_at};

const CHUNK: usize = 1 << 20;

/// A window on a file that moves forward and holds at most one chunk or one record.
struct Window {
    file: Arc<dyn File>,
    /// Length of the file at the start of the scan. Bytes that a writer adds later are not read.
    end: u64,
    base: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Returns `len` bytes at `offset`, or fewer at the end of the file.
    fn get(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        let held = offset.checked_sub(self.base).and_then(|skip| usize::try_from(skip).ok());
        if held.and_then(|skip| self.bytes.get(skip..skip + len)).is_none() {
            self.bytes.resize(len.max(CHUNK.min(left)), 0);
            let got = read_full_at(&*self.file, &mut self.bytes, offset)?;
            self.bytes.truncate(got);
            self.base = offset;
        }
        let skip = usize::try_from(offset - self.base).unwrap_or(usize::MAX);
        let rest = self.bytes.get(skip..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest))
    }
}

/// One step through a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A good record, whose payload `SegmentScan::payload` returns.
    Record { sequence: u64 },
    /// Bytes that are not a frame, with a good frame after them.
    Damage { offset: u64, bytes: u64 },
    /// The end of the segment, sealed or not, with `torn` bytes at the end that are not a frame.
    End { seal: Option<Seal>, torn: u64 },
}

/// A pass over one segment.
pub(crate) struct SegmentScan {
    window: Window,
    segment: [u8; 16],
    offset: u64,
    /// The lowest sequence that the next record may have.
    floor: u64,
    /// Offset after the last good frame.
    good_end: u64,
    payload: (u64, usize),
    seal: Option<Seal>,
    records: u64,
}

impl SegmentScan {
    /// Creates a scan that starts after the header. `first` is the header's first sequence, or 0 if the header is
    /// unreadable.
    pub(crate) fn new(file: Arc<dyn File>, segment: [u8; 16], first: u64) -> io::Result<Self> {
        let end = file.len()?;
        let offset = HEADER_LEN as u64;
        let window = Window { file, end, base: 0, bytes: Vec::new() };
        Ok(Self {
            window,
            segment,
            offset,
            floor: first,
            good_end: offset.min(end),
            payload: (0, 0),
            seal: None,
            records: 0,
        })
    }

    /// Offset after the last good frame.
    pub(crate) fn good_end(&self) -> u64 {
        self.good_end
    }

    /// Number of good records so far.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the payload of the record that `step` returned last.
    pub(crate) fn payload(&mut self) -> io::Result<&[u8]> {
        let (offset, len) = self.payload;
        self.window.get(offset, len)
    }

    /// Makes the next step. After `End` it returns `End` again.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let end = self.window.end;
        if self.offset >= end {
            return Ok(Step::End { seal: self.seal, torn: 0 });
        }
        if self.seal.is_none()
            && let Some(frame) = self.frame_at(self.offset, u64::MAX)?
        {
            let start = self.offset;
            self.offset += frame.span() as u64;
            self.good_end = self.offset.min(end);
            return match frame.kind {
                Kind::Record => {
                    self.payload = (start + Frame::LEN, frame.len);
                    self.floor = frame.sequence.saturating_add(1);
                    self.records += 1;
                    Ok(Step::Record { sequence: frame.sequence })
                }
                Kind::Seal => {
                    let (offset, len) = (start + Frame::LEN, frame.len);
                    self.seal = Seal::decode(self.window.get(offset, len)?);
                    self.step()
                }
            };
        }
        let start = self.offset;
        let next = if self.seal.is_some() { None } else { self.resync(start)? };
        let Some(next) = next else {
            self.offset = end;
            return Ok(Step::End { seal: self.seal, torn: end - start });
        };
        self.offset = next;
        Ok(Step::Damage { offset: start, bytes: next - start })
    }

    /// Returns the good frame at `offset`, if there is one with a sequence within `floor..=ceiling`.
    fn frame_at(&mut self, offset: u64, ceiling: u64) -> io::Result<Option<Frame>> {
        let segment = self.segment;
        let Some(frame) = Frame::parse(self.window.get(offset, Frame::LEN as usize)?) else {
            return Ok(None);
        };
        let too_long = offset + Frame::LEN + frame.len as u64 > self.window.end;
        if too_long || frame.sequence < self.floor || frame.sequence > ceiling {
            return Ok(None);
        }
        let payload = self.window.get(offset + Frame::LEN, frame.len)?;
        let good = payload.len() == frame.len && frame.verify(&segment, payload);
        Ok(good.then_some(frame))
    }

    /// Returns the offset of the next good frame after a bad one. Its sequence must be possible for the number of
    /// skipped bytes, which excludes nearly all false frames before the CRC is checked.
    fn resync(&mut self, start: u64) -> io::Result<Option<u64>> {
        let mut offset = start.next_multiple_of(ALIGN as u64);
        if offset == start {
            offset += ALIGN as u64;
        }
        while offset + Frame::LEN <= self.window.end {
            let skipped = (offset - start) / Frame::LEN + 1;
            let ceiling = if self.floor == 0 { u64::MAX } else { self.floor.saturating_add(skipped) };
            if self.frame_at(offset, ceiling)?.is_some() {
                return Ok(Some(offset));
            }
            offset += ALIGN as u64;
        }
        Ok(None)
    }
}

impl Frame {
    const LEN: u64 = crate::format::FRAME_LEN as u64;
}

/// Reads the seal at the end of a file, if there is a good one, which is a fast check of a finished segment.
pub(crate) fn read_seal(file: &dyn File, segment: &[u8; 16]) -> io::Result<Option<Seal>> {
    let Some(offset) = file.len()?.checked_sub(SEAL_LEN as u64) else { return Ok(None) };
    let mut raw = [0_u8; SEAL_LEN];
    if offset < HEADER_LEN as u64 || read_full_at(file, &mut raw, offset)? < SEAL_LEN {
        return Ok(None);
    }
    let payload = raw.get(Frame::LEN as usize..).unwrap_or_default();
    let frame = Frame::parse(&raw).filter(|frame| {
        frame.kind == Kind::Seal && frame.len == payload.len() && frame.verify(segment, payload)
    });
    Ok(frame.and_then(|_| Seal::decode(payload)))
}
