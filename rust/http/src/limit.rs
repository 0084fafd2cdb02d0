//! The names of the limits that protect clients from one another. A counter shows how often each was applied.

/// A limit that was applied to a connection or a request. It has the name of its setting, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A connection above the total was closed at accept.
    Connections,
    /// A connection above its peer's share was closed at accept.
    ConnectionsPerPeer,
    /// A connection above its peer's rate was closed at accept.
    ConnectionRate,
    /// A connection was closed at accept because its peer had recently broken a rule.
    MisusePause,
    /// A connection did not send the HTTP/2 preface in time.
    Preface,
    /// A connection without requests was closed to make room.
    Idle,
    /// A request's body did not arrive in time.
    Body,
    /// A reply was not read in time and its stream was reset.
    Reply,
    /// A connection was closed because too many of its messages did not arrive or too many replies were not read.
    Unfinished,
    /// A connection was closed because its peer did not read.
    Write,
    /// A connection was closed because of its rate of frames without content.
    ControlFrames,
    /// A connection was closed because of its rate of cancelled requests.
    Resets,
    /// A connection was closed because of its rate of requests that HTTP/2 rejected before they reached the service.
    RejectedRequests,
    /// A connection was closed, or replaced, because of frames for streams that had ended.
    StrayFrames,
    /// h2 ended a connection because of a flood of header, data or reset frames.
    Protocol,
    /// A request was rejected because of the total number of requests in flight.
    Inflight,
    /// A request was rejected because of the number of its peer's requests in flight.
    InflightPerPeer,
    /// A request was rejected because of the number of its connection's requests in flight.
    InflightPerConnection,
    /// A message was rejected because of the total size of the messages in flight.
    InflightBytes,
    /// A message was rejected because of the size of its peer's messages in flight.
    InflightBytesPerPeer,
    /// A message was rejected because of its length.
    MessageBytes,
    /// A message was rejected because of the memory that its decoded form would take.
    DecodedBytes,
    /// A connection to the metrics listener was closed for a newer one.
    MetricsConnections,
}

// === impl Limit ===

impl Limit {
    /// Number of limits.
    pub const COUNT: usize = 23;

    /// All limits.
    pub const ALL: [Limit; Limit::COUNT] = [
        Limit::Connections,
        Limit::ConnectionsPerPeer,
        Limit::ConnectionRate,
        Limit::MisusePause,
        Limit::Preface,
        Limit::Idle,
        Limit::Body,
        Limit::Reply,
        Limit::Unfinished,
        Limit::Write,
        Limit::ControlFrames,
        Limit::Resets,
        Limit::RejectedRequests,
        Limit::StrayFrames,
        Limit::Protocol,
        Limit::Inflight,
        Limit::InflightPerPeer,
        Limit::InflightPerConnection,
        Limit::InflightBytes,
        Limit::InflightBytesPerPeer,
        Limit::MessageBytes,
        Limit::DecodedBytes,
        Limit::MetricsConnections,
    ];

    /// Whether the limit closes connections at accept, before they are served.
    #[must_use]
    pub fn is_at_accept(self) -> bool {
        matches!(
            self,
            Limit::Connections | Limit::ConnectionsPerPeer | Limit::ConnectionRate | Limit::MisusePause
        )
    }

    /// Whether a connection that this limit ends shows that its peer breaks rules. Correct clients stay far below these
    /// limits.
    pub(crate) fn is_misuse(self) -> bool {
        matches!(
            self,
            Limit::Unfinished
                | Limit::ControlFrames
                | Limit::Resets
                | Limit::RejectedRequests
                | Limit::StrayFrames
                | Limit::Protocol
        )
    }

    /// The label in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Limit::Connections => "max_connections",
            Limit::ConnectionsPerPeer => "max_connections_per_peer",
            Limit::ConnectionRate => "connections_per_second",
            Limit::MisusePause => "misuse_pause",
            Limit::Preface => "preface_timeout",
            Limit::Idle => "idle_timeout",
            Limit::Body => "body_timeout",
            Limit::Reply => "reply_timeout",
            Limit::Unfinished => "unfinished_requests",
            Limit::Write => "write_timeout",
            Limit::ControlFrames => "control_frames",
            Limit::Resets => "resets",
            Limit::RejectedRequests => "rejected_requests",
            Limit::StrayFrames => "stray_frames",
            Limit::Protocol => "http2",
            Limit::Inflight => "max_inflight",
            Limit::InflightPerPeer => "max_inflight_per_peer",
            Limit::InflightPerConnection => "inflight_per_connection",
            Limit::InflightBytes => "max_inflight_bytes",
            Limit::InflightBytesPerPeer => "max_inflight_bytes_per_peer",
            Limit::MessageBytes => "message_bytes",
            Limit::DecodedBytes => "decoded_bytes",
            Limit::MetricsConnections => "metrics_connections",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_its_own_place_and_name() {
        for (index, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, index);
            assert_eq!(Limit::ALL.iter().filter(|other| other.as_str() == limit.as_str()).count(), 1);
        }
    }
}
