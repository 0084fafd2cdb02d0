//! The limits of sockets and connections.

use std::time::Duration;

use crate::Network;

/// The limits of sockets and connections. The server uses the defaults unless its configuration sets a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of connections that the kernel queues between two accepts.
    pub backlog: i32,
    /// Mode of the Unix socket's file. By default only its owner may connect.
    pub socket_mode: u32,
    /// Size of the kernel's receive buffer of a connection in bytes, after which its window closes. By default the
    /// kernel increases it up to 6 MiB, in which tens of thousands of requests could wait unread; 256 KiB is work for a
    /// few milliseconds.
    pub receive_buffer: usize,
    /// Number of bytes that a connection reads in one poll: some hundred small requests, or a part of a large one.
    pub read_quota: usize,
    /// Limit on the work of a connection in one poll, in frames; a request counts as four. The bytes of
    /// [`Settings::read_quota`] can hold 1,800 of the smallest frames, each of which may take microseconds.
    pub turn_work: u32,
    /// Greatest number of open connections per listener. Further connections are closed at accept.
    pub max_connections: usize,
    /// Greatest number of open connections of one peer.
    pub max_connections_per_peer: usize,
    /// Rate at which a peer may open connections. By default it may open all [`Settings::max_connections_per_peer`] at
    /// once, as the processes of one host do after a restart.
    pub connection_rate: Rate,
    /// Time for which a peer may open no connections after one of them was closed because it broke a rule.
    pub misuse_pause: Duration,
    /// Limit of this time after several such connections.
    pub misuse_pause_longest: Duration,
    /// Networks whose addresses represent many clients, such as those of load balancers. They may open connections at
    /// any rate. The first 64 bits of an IPv6 address are compared.
    pub trusted_networks: Vec<Network>,
    /// Time limit for the HTTP/2 preface of a new connection.
    pub preface_timeout: Duration,
    /// Time without a request after which a connection is closed gracefully.
    pub idle_timeout: Duration,
    /// As `idle_timeout`, while more than three quarters of [`Settings::max_connections`] are open.
    pub crowded_idle_timeout: Duration,
    /// Advertised concurrent streams per connection. A client opens another connection or waits; more streams are
    /// rejected with REFUSED_STREAM.
    pub max_concurrent_streams: u32,
    /// Streams that a peer may reset before the server has processed them; beyond this the connection is closed. h2's
    /// default of 20 is exceeded by a client whose requests time out together. One [`Settings::read_quota`] holds fewer
    /// than 4,096 resets, so only a defect of this crate would reach the limit.
    pub max_pending_resets: usize,
    /// Greatest number of frames for streams that have ended, over the life of a connection, which is closed beyond it.
    /// Each costs the server one reset frame. Clients that cancel calls send some of them, so at half of the limit the
    /// server sends GOAWAY, with which no call is lost.
    pub max_stray_frames: usize,
    /// Rate of DATA frames of less than 1 KiB for streams that have ended or were never opened. Each request allows one
    /// more.
    pub stray_frames: Rate,
    /// Rate of requests that the peer cancels. Each reply allows one more. An overloaded client may send thousands per
    /// second, because it sends requests that timed out in its own queue and cancels them at once.
    pub resets: Rate,
    /// Rate of requests that HTTP/2 rejects before they reach the service, because their header fields are malformed or
    /// too large.
    pub rejected_requests: Rate,
    /// Rate of frames without content: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, CONTINUATION, empty DATA and unknown
    /// frames. Each request, and each DATA frame with content in either direction, allows four more.
    pub control_frames: Rate,
    /// Limit on the metadata of a request in bytes. A request of the scoring service has a few hundred.
    pub max_header_list: u32,
    /// HTTP/2 window per stream, in bytes. It allows one whole message without a window update.
    pub stream_window: u32,
    /// HTTP/2 window per connection, in bytes.
    pub connection_window: u32,
    /// Number of bytes of replies that the server buffers per stream for a slow reader.
    pub max_send_buffer: usize,
    /// Time limit for the peer to read a part of a reply before the stream is reset.
    pub reply_timeout: Duration,
    /// Number of requests whose message does not arrive or whose reply is not read in time, at which the connection is
    /// closed.
    pub max_unfinished: u32,
    /// Time after which a connection is closed if its peer does not read, and the kernel's time limit for
    /// unacknowledged data.
    pub write_timeout: Duration,
    /// Interval between keep-alive PINGs.
    pub keep_alive_interval: Duration,
    /// Time limit for the answer to a PING. A dead peer is detected within interval plus timeout.
    pub keep_alive_timeout: Duration,
    /// Age at which a connection is closed gracefully, so that load is distributed to new replicas. Each connection
    /// adds up to 10 %.
    pub max_age: Duration,
    /// Time limit for the streams of an aged connection to end.
    pub age_grace: Duration,
}

/// A limit on the rate of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of events that may occur at once.
    pub burst: u32,
    /// Number of events per second in the long run.
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
