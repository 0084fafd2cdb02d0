//! The future of a reply, and the limit on the memory of decoded messages.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use http::Response;
use tonic::body::Body;

/// Limit on the memory of a decoded message, as a multiple of the longest message of its kind. Features with short
/// names need three times their encoded length.
pub(crate) const DECODED: usize = 4;

/// The future of a reply.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;
