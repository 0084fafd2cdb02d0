//! The protocol of Redis, version 2: commands and replies.
//!
//! Of the protocol, only what reads and transactions need is here. A reply beyond the limits ends the connection.

use bytes::{Buf as _, Bytes, BytesMut};

/// Greatest length of a line in bytes.
const MAX_LINE: usize = 64 << 10;
/// Greatest length of a value in bytes.
const MAX_VALUE: i64 = 64 << 20;
/// Greatest number of elements of an array.
const MAX_ELEMENTS: i64 = 1 << 20;
/// Greatest depth of arrays in arrays.
const MAX_DEPTH: usize = 4;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Number(i64),
    /// A status, such as OK.
    Status(Bytes),
    /// The server refused the command.
    Error(String),
    /// A value.
    Value(Bytes),
    /// Several replies.
    Array(Vec<Reply>),
}

/// Bytes that are not of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply is not of the protocol of Redis: {0}")]
pub(crate) struct ProtocolError(&'static str);

/// Returns the bytes of a command.
#[must_use]
pub fn command<'a>(parts: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>) -> Vec<u8> {
    let mut to = Vec::with_capacity(256);
    write(&mut to, parts);
    to
}

/// Appends a command.
pub(crate) fn write<'a>(
    to: &mut Vec<u8>,
    parts: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
) {
    let parts = parts.into_iter();
    to.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        to.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        to.extend_from_slice(part);
        to.extend_from_slice(b"\r\n");
    }
}

/// Takes a reply from the beginning of the buffer; `None` if it is not complete.
pub(crate) fn take(buffer: &mut BytesMut) -> Result<Option<Reply>, ProtocolError> {
    let mut cursor = Cursor { bytes: buffer, at: 0 };
    let Some(shape) = cursor.shape(0)? else { return Ok(None) };
    let end = cursor.at;
    let mut bytes = buffer.split_to(end).freeze();
    Ok(Some(shape.reply(&mut bytes)))
}

/// The form of a complete reply, by which its bytes are divided without copies.
enum Shape {
    Nil(usize),
    Number(usize, i64),
    Status(usize),
    Error(usize),
    Value(usize, usize),
    Array(usize, Vec<Shape>),
}

/// A place in the bytes of replies.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

// === impl Cursor ===

impl Cursor<'_> {
    /// Returns the length of a line without its end, and moves behind it.
    fn line(&mut self) -> Result<Option<&[u8]>, ProtocolError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest.iter().take(MAX_LINE + 2).position(|byte| *byte == b'\n') else {
            return if rest.len() > MAX_LINE { Err(ProtocolError("a line is too long")) } else { Ok(None) };
        };
        let line = rest.get(..end).and_then(|line| line.strip_suffix(b"\r"));
        self.at += end + 1;
        line.map(Some).ok_or(ProtocolError("a line has no carriage return"))
    }

    fn shape(&mut self, depth: usize) -> Result<Option<Shape>, ProtocolError> {
        let Some(line) = self.line()? else { return Ok(None) };
        let length = line.len() + 2;
        let Some((kind, text)) = line.split_first() else { return Err(ProtocolError("a line is empty")) };
        let number = || {
            str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or(ProtocolError("a number has other characters"))
        };
        match *kind {
            b'+' => Ok(Some(Shape::Status(length))),
            b'-' => Ok(Some(Shape::Error(length))),
            b':' => Ok(Some(Shape::Number(length, number()?))),
            b'$' => match number()? {
                -1 => Ok(Some(Shape::Nil(length))),
                size @ 0..=MAX_VALUE => {
                    let size = size as usize;
                    let rest = self.bytes.get(self.at..).unwrap_or_default();
                    if rest.len() < size + 2 {
                        return Ok(None);
                    }
                    if rest.get(size..size + 2) != Some(b"\r\n") {
                        return Err(ProtocolError("a value does not end where it should"));
                    }
                    self.at += size + 2;
                    Ok(Some(Shape::Value(length, size)))
                }
                _ => Err(ProtocolError("a value is too long")),
            },
            b'*' => match number()? {
                -1 => Ok(Some(Shape::Nil(length))),
                count @ 0..=MAX_ELEMENTS if depth < MAX_DEPTH => {
                    let mut elements = Vec::new();
                    for _ in 0..count {
                        let Some(element) = self.shape(depth + 1)? else { return Ok(None) };
                        elements.push(element);
                    }
                    Ok(Some(Shape::Array(length, elements)))
                }
                _ => Err(ProtocolError("an array is too long or too deep")),
            },
            _ => Err(ProtocolError("the first byte is unknown")),
        }
    }
}

// === impl Shape ===

impl Shape {
    fn reply(self, bytes: &mut Bytes) -> Reply {
        // A line without its first byte and its end.
        let mut line = |length: usize| bytes.split_to(length).slice(1..length - 2);
        match self {
            Shape::Nil(length) => {
                line(length);
                Reply::Nil
            }
            Shape::Number(length, number) => {
                line(length);
                Reply::Number(number)
            }
            Shape::Status(length) => Reply::Status(line(length)),
            Shape::Error(length) => Reply::Error(String::from_utf8_lossy(&line(length)).into_owned()),
            Shape::Value(length, size) => {
                line(length);
                let value = bytes.split_to(size);
                bytes.advance(2);
                Reply::Value(value)
            }
            Shape::Array(length, elements) => {
                line(length);
                Reply::Array(elements.into_iter().map(|element| element.reply(bytes)).collect())
            }
        }
    }
}

// === impl Reply ===

impl Reply {
    /// The value; `None` if there is none or the reply is not a value.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Reply::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The error of the server, if it refused the command or a part of it.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(error) => Some(error),
            Reply::Array(elements) => elements.iter().find_map(Reply::error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write_reply(reply: &Reply, to: &mut Vec<u8>) {
        match reply {
            Reply::Nil => to.extend_from_slice(b"$-1\r\n"),
            Reply::Number(number) => to.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Reply::Status(text) => to.extend_from_slice(&[b"+", &text[..], b"\r\n"].concat()),
            Reply::Error(text) => to.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            Reply::Value(value) => {
                to.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                to.extend_from_slice(&[&value[..], b"\r\n"].concat());
            }
            Reply::Array(elements) => {
                to.extend_from_slice(format!("*{}\r\n", elements.len()).as_bytes());
                elements.iter().for_each(|element| write_reply(element, to));
            }
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let leaf = prop_oneof![
            Just(Reply::Nil),
            any::<i64>().prop_map(Reply::Number),
            prop::collection::vec(b'A'..b'z', 0..9).prop_map(|text| Reply::Status(text.into())),
            prop::collection::vec(b'A'..b'z', 0..9)
                .prop_map(|text| Reply::Error(String::from_utf8(text).unwrap())),
            bytes().prop_map(|value| Reply::Value(value.into())),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| prop::collection::vec(inner, 0..5).prop_map(Reply::Array))
    }

    proptest! {
        #[test]
        fn replies_are_read_whatever_the_parts_in_which_they_arrive(
            replies in prop::collection::vec(any_reply(), 1..5),
            part in 1_usize..50,
        ) {
            let mut bytes = Vec::new();
            replies.iter().for_each(|reply| write_reply(reply, &mut bytes));
            let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(part) {
                buffer.extend_from_slice(part);
                while let Some(reply) = take(&mut buffer).unwrap() {
                    got.push(reply);
                }
            }
            prop_assert_eq!(got, replies);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take(&mut buffer) {}
        }
    }

    #[test]
    fn bytes_beyond_the_limits_are_an_error() {
        for wrong in [
            &b"!1\r\n"[..],
            b"\r\n",
            b":1x\r\n",
            b"+OK\n",
            b"$99999999999\r\n",
            b"$1\r\nabc",
            b"*9999999999\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(take(&mut BytesMut::from(wrong)).is_err(), "{wrong:?}");
        }
        assert!(take(&mut BytesMut::from(&vec![b'+'; MAX_LINE + 9][..])).is_err());
        assert_eq!(command([&b"GET"[..], b"a"]), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
