//! Answers requests that are not gRPC with a status and a text of HTTP.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use tonic::body::Body;

/// Time limit for the body of such a request.
const BODY_WITHIN: Duration = Duration::from_secs(1);
/// Number of bytes that are read of such a body.
const BODY_LIMIT: usize = 16 << 10;

/// Returns the status for a request that is not gRPC.
pub fn status<B>(request: &Request<B>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    let protobuf = rest.map(|rest| rest.strip_prefix(b"+proto").unwrap_or(rest));
    let accepted = protobuf.is_some_and(|rest| rest.first().is_none_or(|next| *next == b';'));
    (!accepted).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Answers such a request after its body has ended, so that the stream ends without a reset and errors of its later
/// frames are reported. It does not wait for a body that is longer or slower than the limits.
pub async fn answer(status: StatusCode, body: Incoming) -> Response<Body> {
    let _ = tokio::time::timeout(BODY_WITHIN, discard(body)).await;
    let text = match status {
        StatusCode::METHOD_NOT_ALLOWED => "This server answers gRPC, whose requests are POST.\n",
        _ => "This server answers gRPC, whose content-type is application/grpc or application/grpc+proto.\n",
    };
    let mut response = Response::new(Body::new(Full::from(text).map_err(|never| match never {})));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(http::header::ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

async fn discard(mut body: Incoming) {
    let mut left = BODY_LIMIT;
    while !body.is_end_stream() {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) => {
                let read = frame.data_ref().map_or(0, |data| data.len());
                let Some(rest) = left.checked_sub(read) else { return };
                left = rest;
            }
            Some(Err(_)) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_posts_of_protobuf_messages_are_grpc() {
        let status_of = |method: Method, kind: &str| {
            status(&Request::builder().method(method).uri("/").header(CONTENT_TYPE, kind).body(()).unwrap())
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert_eq!(status_of(Method::POST, kind), None, "{kind}");
        }
        for kind in [
            "",
            "application/grpc+json",
            "application/grpc-web",
            "application/json",
            "application/grpc+protocol",
        ] {
            assert_eq!(status_of(Method::POST, kind), Some(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{kind}");
        }
        assert_eq!(status_of(Method::GET, "application/grpc"), Some(StatusCode::METHOD_NOT_ALLOWED));
    }
}
