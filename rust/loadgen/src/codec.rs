//! Requests as they go over the wire, encoded before the run; replies read where they are counted.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Length of a generated request id: 32 hexadecimal digits.
pub(crate) const ID_LENGTH: usize = 32;
const ID_HEADER: [u8; 2] = [2 << 3 | 2, ID_LENGTH as u8];
/// gRPC's prefix of a message: a flag, and its length in four bytes.
pub(crate) const PREFIX: usize = 5;

/// A message in gRPC's framing.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    framed(message, 0, |_| {})
}

/// A message of `body` and a request id as field 2, which all methods that take an id have it in.
pub(crate) fn frame_with_id(body: &[u8], id: &[u8; ID_LENGTH]) -> Bytes {
    // Protobuf merges fields as they come: appending one is setting it.
    framed(body, ID_HEADER.len() + ID_LENGTH, |frame| {
        frame.put_slice(&ID_HEADER);
        frame.put_slice(id);
    })
}

fn framed(message: &[u8], more: usize, append: impl FnOnce(&mut BytesMut)) -> Bytes {
    let length = message.len() + more;
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    // Payloads come from memory and are far below 4 GiB; the server's limit is lower still.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put_slice(message);
    append(&mut frame);
    frame.freeze()
}

/// The one message of a unary reply, or `None` if the bytes are not exactly one uncompressed message.
pub(crate) fn unframe(mut body: Bytes) -> Option<Bytes> {
    let prefix: [u8; PREFIX] = body.get(..PREFIX)?.try_into().ok()?;
    let [0, length @ ..] = prefix else { return None };
    let length = u32::from_be_bytes(length) as usize;
    (body.len() == PREFIX + length).then(|| body.split_off(PREFIX))
}

/// 32 hexadecimal digits of the run's seed, the thread and the request's number.
pub(crate) fn request_id(run: u64, number: u64) -> [u8; ID_LENGTH] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let value = u128::from(run) << 64 | u128::from(number);
    std::array::from_fn(|i| DIGITS[(value >> (4 * (ID_LENGTH - 1 - i)) & 0xF) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use scorer_proto::v1::{NoopRequest, ScoreRequest, SelectActionRequest};

    #[test]
    fn an_id_is_hexadecimal_and_whole() {
        let id = request_id(0x0123_4567_89AB_CDEF, 0x10);
        assert_eq!(std::str::from_utf8(&id).unwrap(), "0123456789abcdef0000000000000010");
    }

    #[test]
    fn the_appended_field_is_the_request_id() {
        let body = ScoreRequest { checkpoint: "c".into(), ..Default::default() }.encode_to_vec();
        let bytes = unframe(frame_with_id(&body, &request_id(1, 2))).unwrap();
        let expected = "00000000000000010000000000000002";
        let score = ScoreRequest::decode(bytes.clone()).unwrap();
        assert_eq!((score.checkpoint.as_str(), score.request_id.as_str()), ("c", expected));
        assert_eq!(SelectActionRequest::decode(bytes).unwrap().request_id, expected);
        assert!(NoopRequest::decode(b"".as_slice()).unwrap().payload.is_empty());
    }

    #[test]
    fn a_reply_is_exactly_one_message() {
        assert_eq!(frame(b"abc").as_ref(), b"\0\0\0\0\x03abc");
        assert_eq!(unframe(frame(b"abc")).unwrap().as_ref(), b"abc");
        assert_eq!(unframe(frame(b"")).unwrap().as_ref(), b"");
        let twice = [frame(b"a"), frame(b"b")].concat();
        for wrong in [b"".as_slice(), b"\0\0\0\0", b"\0\0\0\0\x02a", b"\x01\0\0\0\x01a", &twice] {
            assert_eq!(unframe(Bytes::copy_from_slice(wrong)), None, "{wrong:?}");
        }
    }
}
