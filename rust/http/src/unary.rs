//! The codec of unary gRPC calls, with one message in each direction.
//!
//! tonic's codec is made for streams. For each call it allocates two buffers of 8 KiB and half a dozen boxes, which
//! cost more than the message.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use prost::Message;
use prost::bytes::{Buf as _, BytesMut};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::Limit;

/// Length of the flag and the length field before every message, in bytes.
const PREFIX: usize = 5;
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Length in bytes up to which a message is decoded without a check of its decoded size, because even a message of
/// empty elements then takes little memory.
const SMALL: usize = 4096;

/// Number of bytes of a message after whose arrival their decoded size is counted before more are read, and again at
/// four times as many. Together these counts add at most a third to the count of the whole message.
const EARLY: usize = 64 << 10;

/// The limits of a message.
pub struct Bounds<'a> {
    /// Limit on the length in bytes.
    pub length: usize,
    /// Limit on the memory of the decoded message in bytes.
    pub decoded: usize,
    /// Returns whether the decoded form of an encoded message, or of its first part, takes at most this number of
    /// bytes.
    pub is_within: fn(&[u8], usize) -> bool,
    /// Called with the number of bytes that have arrived, when it exceeds 4 KiB. It may reject the message.
    pub arrived: &'a (dyn Fn(usize) -> Result<(), Status> + Sync),
    /// Time at which the message must have arrived.
    pub until: Instant,
    /// Called with the limit that rejects the message.
    pub limited: &'a (dyn Fn(Limit) + Sync),
}

/// Reads a call's only message, up to the end of its stream.
///
/// # Errors
/// Returns UNIMPLEMENTED for a compressed message and for any number of messages but one, RESOURCE_EXHAUSTED for a
/// message above a limit, INTERNAL for a malformed message, DEADLINE_EXCEEDED for a late message, and CANCELLED if the
/// stream was reset.
pub async fn message<M, B>(request: Request<B>, bounds: Bounds<'_>) -> Result<M, Status>
where
    M: Message + Default,
    B: hyper::body::Body<Data = Bytes, Error: Display> + Unpin,
{
    if let Some(encoding) = request.headers().get(ENCODING).filter(|name| *name != "identity") {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let mut status = Status::unimplemented(format!(
            "messages compressed with {encoding:?} are not accepted; send them uncompressed"
        ));
        status.metadata_mut().as_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        return Err(status);
    }
    let message = timely(read(request.into_body(), &bounds), &bounds).await?;
    if message.len() > SMALL {
        check_decoded(&message, &bounds)?;
    }
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// Rejects a message, or the first part of one, whose decoded form would take too much memory.
fn check_decoded(message: &[u8], bounds: &Bounds<'_>) -> Result<(), Status> {
    if (bounds.is_within)(message, bounds.decoded) {
        return Ok(());
    }
    (bounds.limited)(Limit::DecodedBytes);
    Err(Status::resource_exhausted(format!(
        "the message has so many elements that it would take more than {} bytes of memory; send fewer at once",
        bounds.decoded
    )))
}

/// Waits for the message. The timer is created only if the message has not arrived yet.
async fn timely(
    read: impl Future<Output = Result<Bytes, Status>>,
    bounds: &Bounds<'_>,
) -> Result<Bytes, Status> {
    let mut read = pin!(read);
    if let Poll::Ready(message) = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
        return message;
    }
    tokio::time::timeout_at(bounds.until.into(), read).await.unwrap_or_else(|_| {
        (bounds.limited)(Limit::Body);
        crate::streams::message_is_late();
        Err(Status::deadline_exceeded(
            "the request's message did not arrive in time; send it with the request or raise body_timeout_ms",
        ))
    })
}

/// Reads the message's bytes. They nearly always arrive in one frame and are then not copied.
async fn read<B>(mut body: B, bounds: &Bounds<'_>) -> Result<Bytes, Status>
where
    B: hyper::body::Body<Data = Bytes, Error: Display> + Unpin,
{
    let limit = bounds.length;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut announced = 0;
    let mut early = EARLY;
    while !body.is_end_stream() {
        let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await else { break };
        // The stream was reset or its connection was closed, so no client receives this status.
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                // Once, instead of at every doubling. The pages of what has not arrived take no memory.
                rest.reserve(PREFIX + announced);
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
        let part: &[u8] = if rest.is_empty() { &first } else { &rest };
        // A message above the limit is rejected before the rest of it is read.
        let length = length(part, limit).inspect_err(|status| {
            if status.code() == Code::ResourceExhausted {
                (bounds.limited)(Limit::MessageBytes);
            }
        })?;
        announced = length.unwrap_or(0);
        if part.len() > SMALL {
            (bounds.arrived)(part.len())?;
        }
        if part.len() >= early {
            early = part.len() * 4;
            check_decoded(part.get(PREFIX..).unwrap_or_default(), bounds)?;
        }
    }
    let mut whole = if rest.is_empty() { first } else { rest.freeze() };
    match length(&whole, limit)? {
        Some(length) if whole.len() == PREFIX + length => {
            whole.advance(PREFIX);
            Ok(whole)
        }
        None if whole.is_empty() => Err(Status::unimplemented("protocol error: no message in the request")),
        _ => Err(Status::internal("protocol error: the request ends within its message")),
    }
}

/// Returns the length that the message's prefix states; `None` until the prefix has been read. More bytes than that are
/// an error.
fn length(got: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some((&[flag, a, b, c, d], message)) = got.split_first_chunk::<PREFIX>() else { return Ok(None) };
    if flag != 0 {
        return Err(Status::internal(format!(
            "protocol error: compression flag {flag} without a grpc-encoding; send messages uncompressed"
        )));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > limit {
        return Err(Status::resource_exhausted(format!(
            "message of {length} bytes; at most {limit} are allowed"
        )));
    }
    if message.len() > length {
        return Err(Status::unimplemented("protocol error: more than one message in a unary call"));
    }
    Ok(Some(length))
}

/// Returns the reply of one message and the status OK.
pub fn reply<M: Message>(message: &M) -> Response<Body> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    // Replies are far smaller than 4 GiB.
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    let mut response = Response::new(Body::new(Unary { message: Some(bytes.into()), ended: false }));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The body of a reply: the message, then the trailers.
struct Unary {
    message: Option<Bytes>,
    ended: bool,
}

impl hyper::body::Body for Unary {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.message.as_ref().map_or(0, |message| message.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use http_body_util::StreamBody;
    use prost::DecodeError;
    use prost::bytes::{Buf, BufMut};
    use prost::encoding::{DecodeContext, WireType, skip_field};

    use super::*;

    /// Elements that were decoded.
    static ELEMENTS: AtomicUsize = AtomicUsize::new(0);

    /// A message that counts its elements as they are decoded.
    #[derive(Debug, Default)]
    struct Counted;

    impl Message for Counted {
        fn encode_raw(&self, _: &mut impl BufMut) {}

        fn merge_field(
            &mut self,
            tag: u32,
            wire: WireType,
            buffer: &mut impl Buf,
            context: DecodeContext,
        ) -> Result<(), DecodeError> {
            ELEMENTS.fetch_add(1, Relaxed);
            skip_field(wire, tag, buffer, context)
        }

        fn encoded_len(&self) -> usize {
            0
        }

        fn clear(&mut self) {}
    }

    /// Reads a message of so many empty elements in frames of 16 KiB. Returns the result, and how many frames were read.
    async fn read_elements(count: usize) -> (Result<Counted, Status>, usize) {
        let content = [3 << 3 | 2, 0].repeat(count);
        let mut bytes = vec![0];
        bytes.extend_from_slice(&(content.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&content);
        let read = AtomicUsize::new(0);
        let frames: Vec<_> = bytes.chunks(16 << 10).map(Bytes::copy_from_slice).collect();
        let frames = frames.into_iter().inspect(|_| _ = read.fetch_add(1, Relaxed));
        let body =
            StreamBody::new(tokio_stream::iter(frames.map(|data| Ok::<_, Infallible>(Frame::data(data)))));
        let bounds = Bounds {
            length: 2 << 20,
            decoded: 8 << 20,
            is_within: |part, most| part.len() / 2 * 512 <= most,
            arrived: &|_| Ok(()),
            until: Instant::now() + Duration::from_secs(60),
            limited: &|limit| assert_eq!(limit, Limit::DecodedBytes),
        };
        let result = message::<Counted, _>(Request::new(body), bounds).await;
        (result, read.load(Relaxed))
    }

    #[tokio::test]
    async fn of_too_many_elements_none_is_decoded_and_most_are_not_read() {
        let (result, frames) = read_elements(1 << 20).await;
        assert_eq!(result.unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!((ELEMENTS.load(Relaxed), frames), (0, EARLY >> 14), "of 129 frames");
        let (result, frames) = read_elements(16 << 10).await;
        result.unwrap();
        assert_eq!((ELEMENTS.load(Relaxed), frames), (16 << 10, 3));
    }

    #[test]
    fn the_length_in_the_prefix_is_enforced() {
        assert_eq!(length(&[], 10).unwrap(), None);
        assert_eq!(length(&[0, 0, 0, 0], 10).unwrap(), None);
        assert_eq!(length(&[0, 0, 0, 0, 10], 10).unwrap(), Some(10));
        assert_eq!(length(&[0, 0, 0, 0, 2, 1, 2], 10).unwrap(), Some(2));
        for (got, code) in [
            (&[0, 0, 0, 0, 11][..], tonic::Code::ResourceExhausted),
            (&[1, 0, 0, 0, 1], tonic::Code::Internal),
            (&[7, 0, 0, 0, 1], tonic::Code::Internal),
            (&[0, 0, 0, 0, 1, 1, 0], tonic::Code::Unimplemented),
            (&[0, 255, 255, 255, 255], tonic::Code::ResourceExhausted),
        ] {
            assert_eq!(length(got, 10).unwrap_err().code(), code, "{got:?}");
        }
    }
}
