//! The TLS handshake of an accepted connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// The protocol that a client must offer.
const ALPN: &[u8] = b"h2";

/// Provides the certificates and rules for handshakes. They may change at any time; established connections keep
/// theirs.
pub trait TlsSource: Send + Sync + 'static {
    /// Returns the configuration for the next handshake.
    fn current(&self) -> Arc<ServerConfig>;
}

/// TLS of a listener.
#[derive(Clone)]
pub struct Tls {
    /// Certificates and rules.
    pub source: Arc<dyn TlsSource>,
    /// Time limit for a handshake.
    pub handshake_timeout: Duration,
}

/// The reason why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// It was not completed in time.
    Timeout,
    /// The peer closed the connection, or the socket failed.
    Closed,
    /// The peer does not speak TLS.
    NotTls,
    /// The peer and the server have no version, cipher suite or application protocol in common. The application
    /// protocol must be `h2`.
    Incompatible,
    /// The peer's certificate is missing, invalid, expired or revoked.
    Certificate,
    /// The peer rejected the server's certificate, or ended the handshake with another alert.
    Alert,
    /// The peer broke another rule of TLS.
    Protocol,
}

// === impl Tls ===

impl Tls {
    /// Performs the handshake.
    ///
    /// # Returns
    /// The encrypted stream and the peer's certificates, the peer's own first; none if the peer sent none.
    pub(crate) async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: IO,
    ) -> Result<(TlsStream<IO>, Vec<CertificateDer<'static>>), HandshakeFailure> {
        let acceptor = TlsAcceptor::from(self.source.current());
        let stream = timeout(self.handshake_timeout, acceptor.accept(io))
            .await
            .map_err(|_| HandshakeFailure::Timeout)?
            .map_err(|error| HandshakeFailure::of(&error))?;
        let (_, session) = stream.get_ref();
        // rustls completes the handshake of a client that offers no protocol, so the protocol is checked here.
        if session.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeFailure::Incompatible);
        }
        let certificates = session
            .peer_certificates()
            .map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
        Ok((stream, certificates.unwrap_or_default()))
    }
}

// === impl HandshakeFailure ===

impl HandshakeFailure {
    /// Number of reasons.
    pub const COUNT: usize = 7;
    /// All reasons, in the order of their declaration.
    pub const ALL: [HandshakeFailure; HandshakeFailure::COUNT] = [
        HandshakeFailure::Timeout,
        HandshakeFailure::Closed,
        HandshakeFailure::NotTls,
        HandshakeFailure::Incompatible,
        HandshakeFailure::Certificate,
        HandshakeFailure::Alert,
        HandshakeFailure::Protocol,
    ];

    /// The name in metrics and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            HandshakeFailure::Timeout => "timeout",
            HandshakeFailure::Closed => "closed",
            HandshakeFailure::NotTls => "not_tls",
            HandshakeFailure::Incompatible => "incompatible",
            HandshakeFailure::Certificate => "certificate",
            HandshakeFailure::Alert => "alert",
            HandshakeFailure::Protocol => "protocol",
        }
    }

    fn of(error: &std::io::Error) -> HandshakeFailure {
        use rustls::{Error, InvalidMessage};

        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            None => HandshakeFailure::Closed,
            Some(
                Error::InvalidCertificate(_)
                | Error::NoCertificatesPresented
                | Error::InvalidCertRevocationList(_),
            ) => HandshakeFailure::Certificate,
            Some(Error::NoApplicationProtocol | Error::PeerIncompatible(_)) => HandshakeFailure::Incompatible,
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => HandshakeFailure::NotTls,
            Some(Error::AlertReceived(_)) => HandshakeFailure::Alert,
            Some(_) => HandshakeFailure::Protocol,
        }
    }
}
