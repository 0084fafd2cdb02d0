//! The body of a request that tonic reads. Its messages count among the bytes in flight until they are complete.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tonic::Status;

/// Length of the flag and the length field before every message, in bytes.
const PREFIX: usize = 5;

/// Called with the number of bytes that have arrived of an incomplete message. It may reject the message.
pub(crate) type Arrived = Box<dyn Fn(usize) -> Result<(), Status> + Send + Sync>;

/// A body whose messages are counted.
pub(crate) struct Metered {
    body: Incoming,
    arrived: Arrived,
    messages: Messages,
}

/// Finds the messages in a body that arrives in pieces.
#[derive(Debug, Default)]
struct Messages {
    prefix: [u8; PREFIX],
    /// Number of bytes of the prefix that have arrived.
    filled: usize,
    /// Number of bytes of the message that have arrived.
    come: usize,
    missing: usize,
}

// === impl Metered ===

impl Metered {
    pub(crate) fn new(body: Incoming, arrived: Arrived) -> Metered {
        Metered { body, arrived, messages: Messages::default() }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            let incomplete = self.messages.come(data);
            (self.arrived)(incomplete)?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl Messages ===

impl Messages {
    /// Processes bytes that have arrived. Returns the number of bytes of the last message that have arrived, if it is
    /// not complete.
    fn come(&mut self, mut bytes: &[u8]) -> usize {
        while !bytes.is_empty() {
            if self.missing == 0 {
                let take = bytes.len().min(PREFIX - self.filled);
                self.prefix[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
                self.filled += take;
                bytes = &bytes[take..];
                if self.filled == PREFIX {
                    let [_, length @ ..] = self.prefix;
                    (self.filled, self.come) = (0, 0);
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            } else {
                let take = bytes.len().min(self.missing);
                self.missing -= take;
                self.come += take;
                bytes = &bytes[take..];
            }
        }
        if self.missing == 0 { 0 } else { self.come }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_messages_count() {
        let mut messages = Messages::default();
        assert_eq!(messages.come(&[0, 0, 0]), 0);
        assert_eq!(messages.come(&[0, 10, 1, 2, 3]), 3);
        assert_eq!(messages.come(&[4, 5, 6, 7, 8, 9]), 9);
        // The end of one message, an empty message, and the start of a third.
        assert_eq!(messages.come(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 7, 7]), 2);
        assert_eq!(messages.come(&[0; 254]), 0);
        assert_eq!(messages.come(&[0, 255, 255, 255, 255]), 0);
        assert_eq!(messages.come(&[0; 100]), 100);
    }
}
