//! One request and its reply.

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use prost::Message as _;
use scorer_proto::CODE_NAMES;
use scorer_proto::v1::{ScoreBatchResponse, ScoreResponse, SelectActionResponse, Served};

use crate::codec::unframe;
use crate::config::Reply;
use crate::record::Ending;

/// A unary gRPC call: the one message of the reply, or how it ended instead.
pub(crate) async fn unary(
    sender: SendRequest<Bytes>,
    head: Request<()>,
    body: Bytes,
) -> Result<Bytes, &'static str> {
    let mut sender = sender.ready().await.map_err(|error| lost(&error))?;
    let (reply, mut stream) = sender.send_request(head, false).map_err(|error| lost(&error))?;
    stream.send_data(body, true).map_err(|error| lost(&error))?;
    let reply = reply.await.map_err(|error| lost(&error))?;
    if reply.status() != StatusCode::OK {
        return Err("http_status");
    }
    if let Some(ended) = status(reply.headers()) {
        return Err(ended.err().unwrap_or("malformed_reply"));
    }
    let mut stream = reply.into_body();
    let mut message = Bytes::new();
    while let Some(data) = stream.data().await {
        let data = data.map_err(|error| lost(&error))?;
        // A connection that is going away has no use for the room.
        let _gone = stream.flow_control().release_capacity(data.len());
        message = if message.is_empty() { data } else { joined(&message, &data) };
    }
    let trailers = stream.trailers().await.map_err(|error| lost(&error))?;
    trailers.as_ref().and_then(status).unwrap_or(Err("malformed_reply"))?;
    unframe(message).ok_or("malformed_reply")
}

fn joined(head: &[u8], tail: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(head.len() + tail.len());
    whole.extend_from_slice(head);
    whole.extend_from_slice(tail);
    whole.freeze()
}

/// The result of the call as headers or trailers state it; `None` if they do not.
fn status(headers: &HeaderMap) -> Option<Result<(), &'static str>> {
    let code = headers.get("grpc-status")?.as_bytes();
    Some(if code == b"0" { Ok(()) } else { Err(name(code)) })
}

/// The name as gRPC spells it.
fn name(code: &[u8]) -> &'static str {
    let number = std::str::from_utf8(code).ok().and_then(|text| text.parse::<usize>().ok());
    number.and_then(|number| CODE_NAMES.get(number)).copied().unwrap_or("UNKNOWN")
}

/// A stream or connection that ended without a status.
fn lost(error: &h2::Error) -> &'static str {
    match error.reason() {
        Some(h2::Reason::REFUSED_STREAM) => "refused_stream",
        _ if error.is_reset() => "stream_reset",
        _ => "connection_lost",
    }
}

/// The content of a reply's message.
pub(crate) fn read(kind: Reply, message: Bytes) -> Ending {
    let served: Result<Option<Served>, prost::DecodeError> = match kind {
        Reply::Opaque => return Ending::Reply { fallback: None, exec_us: None },
        Reply::Score => ScoreResponse::decode(message).map(|reply| reply.served),
        Reply::Batch => ScoreBatchResponse::decode(message).map(|reply| reply.served),
        Reply::Action => SelectActionResponse::decode(message).map(|reply| reply.served),
    };
    match served {
        Err(_) => Ending::Error("malformed_reply"),
        Ok(served) => {
            let served = served.unwrap_or_default();
            let by_model = served.fallback_source.is_empty();
            let reason = if served.fallback_reason.is_empty() {
                served.fallback_source
            } else {
                served.fallback_reason
            };
            Ending::Reply {
                fallback: (!by_model).then_some(reason),
                exec_us: by_model.then_some(served.exec_us),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_is_told_from_the_model() {
        let reply = |served: Option<Served>| {
            Bytes::from(ScoreResponse { served, ..Default::default() }.encode_to_vec())
        };
        let model = Served { exec_us: 9, ..Default::default() };
        let fallback =
            Served { fallback_source: "checkpoint".into(), fallback_reason: "late".into(), ..model.clone() };
        assert_eq!(
            read(Reply::Score, reply(Some(model))),
            Ending::Reply { fallback: None, exec_us: Some(9) }
        );
        let expected = Ending::Reply { fallback: Some("late".into()), exec_us: None };
        assert_eq!(read(Reply::Score, reply(Some(fallback))), expected);
        assert_eq!(read(Reply::Score, Bytes::from_static(b"\xFF")), Ending::Error("malformed_reply"));
        assert_eq!(
            read(Reply::Opaque, Bytes::from_static(b"\xFF")),
            Ending::Reply { fallback: None, exec_us: None }
        );
    }

    #[test]
    fn codes_are_named_and_strange_ones_are_unknown() {
        let names: Vec<_> = ["4", "8", "16", "17", "x", ""].map(|code| name(code.as_bytes())).into();
        let expected = ["DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNKNOWN", "UNKNOWN"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5], "UNKNOWN");
    }
}
