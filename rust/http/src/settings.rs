//! Limits of sockets and connections.

use std::time::Duration;

use crate::Network;

/// Limits of sockets and connections. The defaults are what the server uses; each field gives the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Connections that the kernel holds between two accepts.
    pub backlog: i32,
    /// Mode of the Unix socket's file. By default its owner alone may connect.
    pub socket_mode: u32,
    /// Bytes that the kernel holds of one connection before its window closes. By itself the kernel grows this to
    /// 6 MiB, in which tens of thousands of requests would wait unseen; 256 KiB is a few milliseconds of work.
    pub receive_buffer: usize,
    /// Bytes that a connection reads in one poll: some hundred small requests, or a part of a large one.
    pub read_quota: usize,
    /// Work of a connection in one poll, in frames; a request counts as four. See [`Settings::read_quota`] for the
    /// bytes: of the smallest frames they hold 1,800, each of which may take microseconds.
    pub turn_work: u32,
    /// Connections that are open at once, per listener; one above is closed at accept.
    pub max_connections: usize,
    /// Those of one peer.
    pub max_connections_per_peer: usize,
    /// Connections that a peer opens. By default it may open all of [`Settings::max_connections_per_peer`] at once, as
    /// the processes of one host do after a restart.
    pub connection_rate: Rate,
    /// Time in which a peer may open no connection after one of them was closed for breaking a rule.
    pub misuse_pause: Duration,
    /// The same after several.
    pub misuse_pause_longest: Duration,
    /// Networks whose addresses stand for many clients, as those of load balancers do: they may open connections at any
    /// rate. Of an IPv6 address the first 64 bits count.
    pub trusted_networks: Vec<Network>,
    /// Time limit for the HTTP/2 preface of a new connection.
    pub preface_timeout: Duration,
    /// Time without a request after which a connection is closed gracefully.
    pub idle_timeout: Duration,
    /// The same while more than three quarters of [`Settings::max_connections`] are open.
    pub crowded_idle_timeout: Duration,
    /// Advertised concurrent streams per connection. A client opens another connection or waits; more streams are
    /// rejected with REFUSED_STREAM.
    pub max_concurrent_streams: u32,
    /// Streams that a peer may reset before the server has processed them; beyond this the connection is closed. h2's
    /// default of 20 is exceeded by a client whose requests time out together. One [`Settings::read_quota`] holds fewer
    /// than 4,096 resets, so only a defect of this crate would reach the limit.
    pub max_pending_resets: usize,
    /// Frames for streams that have ended, over the life of a connection; beyond this the connection is closed. Each
    /// costs the server one reset frame. Clients that give up calls send some: at half of the limit the connection is
    /// replaced by GOAWAY, with which no call is lost.
    pub max_stray_frames: usize,
    /// DATA frames of less than 1 KiB for streams that have ended or were never opened. Each request allows one more.
    pub stray_frames: Rate,
    /// Requests that the peer cancels. Each reply allows one more. A client that is overloaded sends thousands per second:
    /// requests that timed out in its own queue are sent and cancelled at once.
    pub resets: Rate,
    /// Requests that HTTP/2 rejects before they reach the service: their header fields are malformed or too large.
    pub rejected_requests: Rate,
    /// Frames that carry nothing: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, CONTINUATION, empty DATA and unknown ones.
    /// Each request, and each DATA frame with content in either direction, allows four more.
    pub control_frames: Rate,
    /// Bytes of metadata per request. A request of the scoring service has a few hundred.
    pub max_header_list: u32,
    /// HTTP/2 window per stream, in bytes: one whole message without a window update.
    pub stream_window: u32,
    /// HTTP/2 window per connection, in bytes.
    pub connection_window: u32,
    /// Bytes of replies that the server holds per stream for a slow reader.
    pub max_send_buffer: usize,
    /// Time that the peer has to take a part of a reply before the stream is reset.
    pub reply_timeout: Duration,
    /// Requests whose message does not come or whose reply is not taken in time, before the connection is closed.
    pub max_unfinished: u32,
    /// Time without progress after which a connection is closed whose peer takes nothing of what it is owed, and the
    /// kernel's time limit for unacknowledged data.
    pub write_timeout: Duration,
    /// Interval between keep-alive PINGs.
    pub keep_alive_interval: Duration,
    /// Time limit for the answer to a PING; a dead peer is detected within interval plus timeout.
    pub keep_alive_timeout: Duration,
    /// Age at which a connection is closed gracefully, so that load spreads over replicas that came later. Each
    /// connection adds up to 10 % of it.
    pub max_age: Duration,
    /// Time that the streams of an aged connection have to end.
    pub age_grace: Duration,
}

/// A limit on how often something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Times at once.
    pub burst: u32,
    /// Times per second in the long run.
    pub per_second: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            backlog: 1024,
            socket_mode: 0o600,
            receive_buffer: 256 << 10,
            read_quota: 16 << 10,
            turn_work: 64,
            max_connections: 1024,
            max_connections_per_peer: 256,
            connection_rate: Rate { burst: 256, per_second: 32 },
            misuse_pause: Duration::from_secs(10),
            misuse_pause_longest: Duration::from_secs(60),
            trusted_networks: Vec::new(),
            preface_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(300),
            crowded_idle_timeout: Duration::from_secs(2),
            max_concurrent_streams: 256,
            max_pending_resets: 4096,
            max_stray_frames: 4096,
            stray_frames: Rate { burst: 1024, per_second: 256 },
            resets: Rate { burst: 32_768, per_second: 8192 },
            rejected_requests: Rate { burst: 64, per_second: 16 },
            control_frames: Rate { burst: 1024, per_second: 256 },
            max_header_list: 16 << 10,
            stream_window: 1 << 20,
            connection_window: 4 << 20,
            max_send_buffer: 256 << 10,
            reply_timeout: Duration::from_secs(1),
            max_unfinished: 16,
            write_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
            max_age: Duration::from_secs(600),
            age_grace: Duration::from_secs(10),
        }
    }
}
