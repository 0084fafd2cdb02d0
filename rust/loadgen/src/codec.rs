//! Bytes in, bytes out: requests are encoded before the run, replies are read where they are counted.

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A codec that leaves messages as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Request;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

/// An encoded request and, if it has one, its own id.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Encoded before the run; without `request_id`.
    pub(crate) body: Bytes,
    /// Sent as field 2, which all methods that take an id have it in.
    pub(crate) id: Option<[u8; ID_LENGTH]>,
}

/// Length of a generated request id: 32 hexadecimal digits.
pub(crate) const ID_LENGTH: usize = 32;
const ID_HEADER: [u8; 2] = [2 << 3 | 2, ID_LENGTH as u8];

impl Encoder for Raw {
    type Item = Request;
    type Error = Status;

    fn encode(&mut self, request: Request, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(request.body);
        if let Some(id) = request.id {
            // Protobuf merges fields as they come: appending one is setting it.
            buffer.put_slice(&ID_HEADER);
            buffer.put_slice(&id);
        }
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
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
        let mut bytes = ScoreRequest { checkpoint: "c".into(), ..Default::default() }.encode_to_vec();
        bytes.extend_from_slice(&ID_HEADER);
        bytes.extend_from_slice(&request_id(1, 2));
        let expected = "00000000000000010000000000000002";
        let score = ScoreRequest::decode(bytes.as_slice()).unwrap();
        assert_eq!((score.checkpoint.as_str(), score.request_id.as_str()), ("c", expected));
        assert_eq!(SelectActionRequest::decode(bytes.as_slice()).unwrap().request_id, expected);
        assert!(NoopRequest::decode(b"".as_slice()).unwrap().payload.is_empty());
    }
}
