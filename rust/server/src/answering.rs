//! A reply under way, and what the messages of its request may take.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use http::Response;
use tonic::body::Body;

/// What a message may take decoded, in parts of the longest message of its kind. Features by short names come to three.
pub(crate) const DECODED: usize = 4;

/// A reply under way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;
