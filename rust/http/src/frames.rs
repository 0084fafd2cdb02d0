//! Finds the frames in a stream of HTTP/2 bytes and skips their payloads.

/// Length of a frame header in bytes.
const HEAD: usize = 9;
/// Number of bytes of a payload that are kept: the error code of RST_STREAM.
const KEPT: usize = 4;

/// The types of frames that this module distinguishes.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;
/// The flag of DATA and HEADERS that ends a stream.
pub(crate) const END_STREAM: u8 = 1;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    /// Length of its payload in bytes.
    pub(crate) length: u32,
    /// The error code, if it is RST_STREAM.
    pub(crate) code: u32,
}

/// Finds frames in bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Number of bytes to skip, which belong to a payload or to no frame.
    skip: usize,
    head: [u8; HEAD + KEPT],
    filled: usize,
}

// === impl Frames ===

impl Frames {
    /// Creates a scanner for a stream whose first `skip` bytes are not frames.
    pub(crate) fn after(skip: usize) -> Frames {
        Frames { skip, ..Frames::default() }
    }

    /// Calls `found` for each frame whose header is complete with these bytes, until it returns false. Returns the
    /// number of bytes that were scanned: all, or those up to the end of that header.
    pub(crate) fn scan(&mut self, bytes: &[u8], mut found: impl FnMut(Frame) -> bool) -> usize {
        let mut scanned = 0;
        loop {
            let skip = self.skip.min(bytes.len() - scanned);
            self.skip -= skip;
            scanned += skip;
            if scanned == bytes.len() {
                return scanned;
            }
            let take = self.wanted().min(bytes.len() - scanned);
            self.head[self.filled..self.filled + take].copy_from_slice(&bytes[scanned..scanned + take]);
            self.filled += take;
            scanned += take;
            if self.wanted() == 0 {
                let frame = self.frame();
                self.skip = frame.length as usize - (self.filled - HEAD);
                self.filled = 0;
                if !found(frame) {
                    return scanned;
                }
            }
        }
    }

    /// Number of bytes that are missing to complete the frame.
    fn wanted(&self) -> usize {
        if self.filled < HEAD {
            return HEAD - self.filled;
        }
        let kept = if self.head[3] == RST_STREAM { KEPT.min(self.length() as usize) } else { 0 };
        HEAD + kept - self.filled
    }

    fn length(&self) -> u32 {
        u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]])
    }

    fn frame(&self) -> Frame {
        let [_, _, _, kind, flags, stream @ .., a, b, c, d] = self.head;
        let code = if self.filled == HEAD + KEPT { u32::from_be_bytes([a, b, c, d]) } else { 0 };
        // The first bit of a stream's number is reserved.
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        Frame { kind, flags, stream, length: self.length(), code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
    }

    #[test]
    fn frames_are_found_wherever_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        write(&mut bytes, 4, 0, 0, &[]);
        write(&mut bytes, HEADERS, 4, 1, &[7; 300]);
        write(&mut bytes, DATA, END_STREAM, 1, &[1; 70_000]);
        write(&mut bytes, RST_STREAM, 0, 0x8000_0003, &5_u32.to_be_bytes());
        write(&mut bytes, RST_STREAM, 0, 5, &[9]);
        write(&mut bytes, 6, 1, 0, &[0; 8]);
        let frame = |kind, flags, stream, length, code| Frame { kind, flags, stream, length, code };
        let expected = [
            frame(4, 0, 0, 0, 0),
            frame(HEADERS, 4, 1, 300, 0),
            frame(DATA, END_STREAM, 1, 70_000, 0),
            frame(RST_STREAM, 0, 3, 4, 5),
            frame(RST_STREAM, 0, 5, 1, 0),
            frame(6, 1, 0, 8, 0),
        ];
        for piece in [1, 2, 3, 7, 9, 10, 13, 100, bytes.len()] {
            let mut frames = Frames::after(24);
            let mut seen = Vec::new();
            for mut piece in bytes.chunks(piece) {
                // Each scan ends with a frame.
                while !piece.is_empty() {
                    let scanned = frames.scan(piece, |frame| {
                        seen.push(frame);
                        false
                    });
                    piece = &piece[scanned..];
                }
            }
            assert_eq!(seen, expected, "in pieces of {piece}");
        }
    }
}
