//! What the peer of one connection does: the frames that it sends, what it takes of what it is owed, and the limits that
//! it has reached.
//!
//! h2 has limits of its own, on header blocks, small DATA frames and resets of streams that it has not handed out. This
//! module adds those that need time: rates instead of counts over the life of a connection, and replies that are not
//! taken.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use tokio::sync::Notify;

use crate::bucket::Bucket;
use crate::frames::{CONTINUATION, DATA, END_STREAM, Frame, Frames, HEADERS, RST_STREAM};
use crate::turn::Turn;
use crate::{ConnectionEvents, Limit, Settings};

/// The length of the connection preface, which is no frame.
const PREFACE: usize = 24;
/// Frames without content that a request, or a DATA frame with content, pays for: window updates, a PING for a
/// measurement, its acknowledgement.
const PAID: u32 = 4;
/// A DATA frame below this length, bytes, costs more than its content.
const SMALL: u32 = 1024;
/// The work of a request, and of cancelling it, in frames.
const REQUEST_WORK: u32 = 4;
/// Bytes of header fields whose decoding is the work of one frame.
const FIELDS_PER_FRAME: u32 = 256;
/// The error code of RST_STREAM for a stream above the limit.
const REFUSED_STREAM: u32 = 7;
/// Error codes that are no error of the peer: NO_ERROR, REFUSED_STREAM, CANCEL.
const NO_ERRORS: [u32; 3] = [0, REFUSED_STREAM, 8];

/// The state of one connection that its task, its socket and its streams share.
pub(crate) struct Conduct {
    events: Arc<dyn ConnectionEvents>,
    /// Streams whose task runs.
    tasks: AtomicUsize,
    /// Requests that the service has got, since the beginning.
    begun: AtomicU64,
    /// Streams that the peer has opened, since the beginning.
    opened: AtomicU64,
    /// Streams that neither side has ended on the wire.
    open: AtomicUsize,
    /// Streams that have ended on the wire.
    ended: AtomicU64,
    /// The socket has no room.
    blocked: AtomicBool,
    /// Bytes that the socket has taken.
    written: AtomicU64,
    /// Requests whose message did not come or whose reply was not taken.
    unfinished: AtomicU32,
    most_unfinished: u32,
    /// Streams that were reset for an error of the peer.
    strays: AtomicUsize,
    /// GOAWAY has been sent.
    leaving: AtomicBool,
    /// The limit that ends the connection, as its place in [`Limit::ALL`] plus one.
    over: AtomicU8,
    /// Wakes the connection's task when that is set.
    wake: Notify,
}

/// The socket's part: what comes in and goes out.
pub(crate) struct Traffic {
    conduct: Arc<Conduct>,
    inbound: Frames,
    outbound: Frames,
    /// Numbers of the open streams, ascending.
    streams: Vec<u32>,
    /// The highest number so far.
    newest: u32,
    /// [`Conduct::begun`] when it was last looked at.
    begun: u64,
    control: Bucket,
    resets: Bucket,
    rejected: Bucket,
    strays: Bucket,
}

// === impl Conduct ===

impl Conduct {
    pub(crate) fn new(events: Arc<dyn ConnectionEvents>, most_unfinished: u32) -> Arc<Conduct> {
        Arc::new(Conduct {
            events,
            tasks: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            written: AtomicU64::new(0),
            unfinished: AtomicU32::new(0),
            most_unfinished,
            strays: AtomicUsize::new(0),
            leaving: AtomicBool::new(false),
            over: AtomicU8::new(0),
            wake: Notify::new(),
        })
    }

    /// Ends the connection because of `limit`; the first one counts.
    pub(crate) fn exceed(&self, limit: Limit) {
        if self.over.compare_exchange(0, limit as u8 + 1, Relaxed, Relaxed).is_ok() {
            self.wake.notify_one();
        }
    }

    /// Resolves with the limit that ends the connection.
    pub(crate) async fn exceeded(&self) -> Limit {
        loop {
            if let Some(limit) = usize::from(self.over.load(Relaxed)).checked_sub(1) {
                return Limit::ALL[limit];
            }
            self.wake.notified().await;
        }
    }

    /// Reports that a limit acted.
    pub(crate) fn report(&self, limit: Limit) {
        self.events.limited(limit);
    }

    /// A stream's task begins.
    pub(crate) fn stream_begins(&self) {
        self.tasks.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
    }

    /// A stream's task has ended.
    pub(crate) fn stream_ends(&self) {
        self.tasks.fetch_sub(1, Relaxed);
    }

    /// A request's message did not come, or its reply was not taken; too many of those end the connection.
    pub(crate) fn unfinished(&self) {
        if self.unfinished.fetch_add(1, Relaxed) + 1 >= self.most_unfinished {
            self.exceed(Limit::Unfinished);
        }
    }

    /// Whether the peer is owed bytes that it does not take: the socket has no room, or a reply is complete and still
    /// waits for the peer's HTTP/2 window.
    pub(crate) fn owes(&self) -> bool {
        self.blocked.load(Relaxed) || self.open.load(Relaxed) > self.tasks.load(Relaxed)
    }

    /// Changes with all that the peer takes.
    pub(crate) fn taken(&self) -> (u64, u64) {
        // While the socket has room, bytes are no progress: they may be answers to PINGs.
        let written = if self.blocked.load(Relaxed) { self.written.load(Relaxed) } else { 0 };
        (written, self.ended.load(Relaxed))
    }

    /// Requests since the beginning, or `None` while one is being answered.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        (self.tasks.load(Relaxed) == 0).then(|| self.opened.load(Relaxed))
    }

    /// Whether a write found no room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Relaxed)
    }

    /// The connection is being ended gracefully: what its peer has sent meanwhile is no misuse.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Relaxed);
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }

    /// Streams that were reset for an error of the peer.
    pub(crate) fn strays(&self) -> usize {
        self.strays.load(Relaxed)
    }
}

// === impl Traffic ===

impl Traffic {
    /// Of a connection that begins with its preface.
    pub(crate) fn new(conduct: Arc<Conduct>, settings: &Settings) -> Traffic {
        Traffic {
            conduct,
            inbound: Frames::after(PREFACE),
            outbound: Frames::default(),
            streams: Vec::new(),
            newest: 0,
            begun: 0,
            control: Bucket::full(settings.control_frames),
            resets: Bucket::full(settings.resets),
            rejected: Bucket::full(settings.rejected_requests),
            strays: Bucket::full(settings.stray_frames),
        }
    }

    pub(crate) fn conduct(&self) -> &Conduct {
        &self.conduct
    }

    /// The peer has sent these bytes. Returns how many of them may be processed in this turn.
    pub(crate) fn received(&mut self, bytes: &[u8], turn: &mut Turn) -> usize {
        let mut inbound = std::mem::take(&mut self.inbound);
        let scanned = inbound.scan(bytes, |frame| {
            let progress = self.frame(frame);
            turn.work(work(frame), progress);
            !turn.is_over()
        });
        self.inbound = inbound;
        scanned
    }

    /// The peer has sent this frame. Returns whether it carries a request or a part of one.
    fn frame(&mut self, frame: Frame) -> bool {
        let known = self.streams.binary_search(&frame.stream);
        match frame.kind {
            HEADERS if frame.stream > self.newest => {
                self.control.pay(PAID);
                self.strays.pay(1);
                self.newest = frame.stream;
                self.streams.push(frame.stream);
                self.conduct.open.store(self.streams.len(), Relaxed);
                self.conduct.opened.fetch_add(1, Relaxed);
                self.request();
                true
            }
            // Trailers.
            HEADERS if known.is_ok() => true,
            DATA if known.is_ok() => {
                if frame.length > 0 {
                    self.control.pay(PAID);
                } else if frame.flags & END_STREAM == 0 {
                    self.control_frame();
                    return false;
                }
                true
            }
            // What a client sends until it learns that its request has been answered comes in larger parts.
            DATA => {
                if frame.length < SMALL && !self.strays.spend() && !self.conduct.is_leaving() {
                    self.conduct.exceed(Limit::StrayFrames);
                }
                false
            }
            RST_STREAM => {
                close(&mut self.streams, frame.stream, &self.conduct);
                if !self.resets.spend() {
                    self.conduct.exceed(Limit::Resets);
                }
                false
            }
            _ => {
                self.control_frame();
                false
            }
        }
    }

    /// A frame that carries nothing.
    fn control_frame(&mut self) {
        if !self.control.spend() {
            self.conduct.exceed(Limit::ControlFrames);
        }
    }

    /// A request, which spends a token that is given back when the service has got it.
    fn request(&mut self) {
        let begun = self.conduct.begun.load(Relaxed);
        self.rejected.pay(u32::try_from(begun - self.begun).unwrap_or(u32::MAX));
        self.begun = begun;
        // Requests that come after GOAWAY are not rejected: their client sends them again elsewhere.
        if !self.rejected.spend() && !self.conduct.is_leaving() {
            self.conduct.exceed(Limit::RejectedRequests);
        }
    }

    /// The socket has taken these bytes.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        let Traffic { conduct, outbound, streams, control, resets, rejected, .. } = self;
        conduct.written.fetch_add(bytes.len() as u64, Relaxed);
        outbound.scan(bytes, |frame| {
            if frame.kind == RST_STREAM {
                if !NO_ERRORS.contains(&frame.code) {
                    conduct.strays.fetch_add(1, Relaxed);
                }
                if frame.code == REFUSED_STREAM {
                    rejected.pay(1);
                }
            } else if ends_stream(frame) {
                resets.pay(1);
            }
            if frame.kind == DATA && frame.length > 0 {
                control.pay(PAID);
            }
            if ends_stream(frame) {
                close(streams, frame.stream, conduct);
            }
            true
        });
    }

    /// The socket has no room, or has it again.
    pub(crate) fn set_blocked(&mut self, blocked: bool) {
        self.conduct.blocked.store(blocked, Relaxed);
    }
}

fn ends_stream(frame: Frame) -> bool {
    match frame.kind {
        RST_STREAM => true,
        HEADERS | DATA => frame.flags & END_STREAM != 0,
        _ => false,
    }
}

fn close(streams: &mut Vec<u32>, stream: u32, conduct: &Conduct) {
    if let Ok(place) = streams.binary_search(&stream) {
        streams.remove(place);
        conduct.open.store(streams.len(), Relaxed);
        conduct.ended.fetch_add(1, Relaxed);
    }
}

/// The work that a frame makes, in frames.
fn work(frame: Frame) -> u32 {
    match frame.kind {
        HEADERS => REQUEST_WORK + frame.length / FIELDS_PER_FRAME,
        RST_STREAM => REQUEST_WORK,
        CONTINUATION => 1 + frame.length / FIELDS_PER_FRAME,
        _ => 1,
    }
}

#[cfg(test)]
pub(crate) mod tests;
