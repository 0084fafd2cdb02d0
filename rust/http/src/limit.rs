//! The limits that protect clients from one another, by name: each counts how often it acted.

/// A limit that acted on a connection or a request. The name is that of its setting where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A connection above the total was closed at accept.
    Connections,
    /// A connection above its peer's share was closed at accept.
    ConnectionsPerPeer,
    /// A connection above its peer's rate was closed at accept.
    ConnectionRate,
    /// A connection was closed at accept because its peer had lately broken a rule.
    MisusePause,
    /// A connection did not begin HTTP/2 in time.
    Preface,
    /// A connection without requests was closed to make room.
    Idle,
    /// A request's body did not come in time.
    Body,
    /// A reply was not taken in time and its stream was reset.
    Reply,
    /// A connection was closed because too many of its messages did not come or replies were not taken.
    Unfinished,
    /// A connection was closed because its peer took nothing of what it was owed.
    Write,
    /// A connection was closed because of its rate of frames that carry nothing.
    ControlFrames,
    /// A connection was closed because of its rate of cancelled requests.
    Resets,
    /// A connection was closed because of its rate of requests that HTTP/2 rejected before they reached the service.
    RejectedRequests,
    /// A connection was closed, or replaced, because of frames for streams that had ended.
    StrayFrames,
    /// HTTP/2 itself ended a connection: floods of header, data or reset frames.
    Protocol,
    /// A request was rejected because as many as allowed were in flight in all.
    Inflight,
    /// The same for those of its peer.
    InflightPerPeer,
    /// The same for those of its connection.
    InflightPerConnection,
    /// A message was rejected because those in flight had as many bytes as allowed.
    InflightBytes,
    /// The same for those of its peer.
    InflightBytesPerPeer,
    /// A message was rejected because of its length.
    MessageBytes,
    /// A message was rejected because of the memory that it would take decoded.
    DecodedBytes,
    /// A connection to the metrics listener was closed for a newer one.
    MetricsConnections,
}

// === impl Limit ===

impl Limit {
    /// How many there are.
    pub const COUNT: usize = 23;

    /// All of them.
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

    /// Whether it closes connections that are not served.
    #[must_use]
    pub fn is_at_accept(self) -> bool {
        matches!(
            self,
            Limit::Connections | Limit::ConnectionsPerPeer | Limit::ConnectionRate | Limit::MisusePause
        )
    }

    /// Whether a connection that ends by it shows that its peer breaks rules: no working client comes near these limits.
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
