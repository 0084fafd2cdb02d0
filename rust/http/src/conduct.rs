//! Observes the peer of one connection: the frames that it sends, whether it reads its replies, and the limits that it
//! has reached.
//!
//! h2 itself limits header blocks, small DATA frames and resets of streams that it has not passed to the service. This
//! module adds limits that need time: rates instead of counts over the life of a connection, and replies that are not
//! read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use tokio::sync::Notify;

use crate::bucket::Bucket;
use crate::frames::{CONTINUATION, DATA, END_STREAM, Frame, Frames, HEADERS, RST_STREAM};
use crate::turn::Turn;
use crate::{ConnectionEvents, Limit, Settings};

/// Length of the connection preface, which is not a frame.
const PREFACE: usize = 24;
/// Number of frames without content that each request, or DATA frame with content, allows: window updates, a PING for a
/// measurement, and its acknowledgement.
const PAID: u32 = 4;
/// Length in bytes below which processing a DATA frame costs more than its content.
const SMALL: u32 = 1024;
/// The work of a request, and of cancelling it, in frames.
const REQUEST_WORK: u32 = 4;
/// Number of bytes of header fields whose decoding counts as the work of one frame.
const FIELDS_PER_FRAME: u32 = 256;
/// The error code of RST_STREAM for a stream above the limit.
const REFUSED_STREAM: u32 = 7;
/// Error codes that do not indicate an error of the peer: NO_ERROR, REFUSED_STREAM, CANCEL.
const NO_ERRORS: [u32; 3] = [0, REFUSED_STREAM, 8];

/// The state of one connection that its task, its socket and its streams share.
pub(crate) struct Conduct {
    events: Arc<dyn ConnectionEvents>,
    /// Number of streams whose task is running.
    tasks: AtomicUsize,
    /// Number of requests that the service has received on the connection.
    begun: AtomicU64,
    /// Number of streams that the peer has opened on the connection.
    opened: AtomicU64,
    /// Number of streams that neither side has ended on the wire.
    open: AtomicUsize,
    /// Number of streams that have ended on the wire.
    ended: AtomicU64,
    /// Whether the socket's send buffer is full.
    blocked: AtomicBool,
    /// Number of bytes written to the socket.
    written: AtomicU64,
    /// Number of requests whose message did not arrive or whose reply was not read.
    unfinished: AtomicU32,
    most_unfinished: u32,
    /// Number of streams that were reset because of an error of the peer.
    strays: AtomicUsize,
    /// Whether GOAWAY has been sent.
    leaving: AtomicBool,
    /// The limit that ends the connection, as its position in [`Limit::ALL`] plus one; 0 if there is none.
    over: AtomicU8,
    /// Wakes the connection's task when `over` is set.
    wake: Notify,
}

/// The socket's part of the state: incoming and outgoing frames.
pub(crate) struct Traffic {
    conduct: Arc<Conduct>,
    inbound: Frames,
    outbound: Frames,
    /// Numbers of the open streams, ascending.
    streams: Vec<u32>,
    /// The highest number so far.
    newest: u32,
    /// Value of [`Conduct::begun`] when it was last read.
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

    /// Ends the connection because of `limit`. Only the first call has an effect.
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

    /// Reports that a limit was applied.
    pub(crate) fn report(&self, limit: Limit) {
        self.events.limited(limit);
    }

    /// Records the start of a stream's task.
    pub(crate) fn stream_begins(&self) {
        self.tasks.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
    }

    /// Records the end of a stream's task.
    pub(crate) fn stream_ends(&self) {
        self.tasks.fetch_sub(1, Relaxed);
    }

    /// Counts a request whose message did not arrive or whose reply was not read. Too many of them end the connection.
    pub(crate) fn unfinished(&self) {
        if self.unfinished.fetch_add(1, Relaxed) + 1 >= self.most_unfinished {
            self.exceed(Limit::Unfinished);
        }
    }

    /// Whether bytes wait for the peer to read: the socket's send buffer is full, or a complete reply waits for the
    /// peer's HTTP/2 window.
    pub(crate) fn owes(&self) -> bool {
        self.blocked.load(Relaxed) || self.open.load(Relaxed) > self.tasks.load(Relaxed)
    }

    /// Returns a value that changes whenever the peer reads something.
    pub(crate) fn taken(&self) -> (u64, u64) {
        // While the socket has room, written bytes do not show progress, because they may be answers to PINGs.
        let written = if self.blocked.load(Relaxed) { self.written.load(Relaxed) } else { 0 };
        (written, self.ended.load(Relaxed))
    }

    /// Number of requests on the connection so far; `None` while one is being answered.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        (self.tasks.load(Relaxed) == 0).then(|| self.opened.load(Relaxed))
    }

    /// Whether the socket's send buffer is full.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Relaxed)
    }

    /// Records that the connection is being ended gracefully. Frames that the peer sends meanwhile are not misuse.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Relaxed);
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }

    /// Number of streams that were reset because of an error of the peer.
    pub(crate) fn strays(&self) -> usize {
        self.strays.load(Relaxed)
    }
}

// === impl Traffic ===

impl Traffic {
    /// Creates the state of a connection, which starts with its preface.
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

    /// Processes bytes that the peer has sent. Returns how many of them may be passed on in this turn.
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

    /// Processes a frame that the peer has sent. Returns whether it contains a request or a part of one.
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
            // A client may send large frames until it learns that its request has been answered, so only small ones
            // count.
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

    /// Counts a frame without content.
    fn control_frame(&mut self) {
        if !self.control.spend() {
            self.conduct.exceed(Limit::ControlFrames);
        }
    }

    /// Counts a request. It takes a token, which is returned when the service has received the request.
    fn request(&mut self) {
        let begun = self.conduct.begun.load(Relaxed);
        self.rejected.pay(u32::try_from(begun - self.begun).unwrap_or(u32::MAX));
        self.begun = begun;
        // Requests that arrive after GOAWAY do not count: their client sends them again on another connection.
        if !self.rejected.spend() && !self.conduct.is_leaving() {
            self.conduct.exceed(Limit::RejectedRequests);
        }
    }

    /// Processes bytes that were written to the socket.
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

    /// Sets whether the socket's send buffer is full.
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

/// Returns the work of processing a frame, in frames.
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
