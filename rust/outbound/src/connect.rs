//! Opens a gRPC connection, with TLS if it is configured.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use scorer_identity::tls::{ClientTls, ClientTlsConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// Connects to `address` (`host:port`) within the time limit. The connection is checked every `heartbeat`.
///
/// # Errors
/// Returns the reason why there is no connection.
pub async fn connect(
    address: &str,
    tls: Option<&ClientTlsConfig>,
    within: Duration,
    heartbeat: Duration,
) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    let endpoint = endpoint
        .connect_timeout(within)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(heartbeat)
        .keep_alive_timeout(within)
        .user_agent(concat!("scorer/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| error.to_string())?;
    let connecting = async {
        match tls {
            None => endpoint.connect().await,
            Some(tls) => {
                // The files are read for each connection, so that the next connection uses replaced certificates.
                let (address, tls) = (address.to_owned(), tls.clone());
                let connector = tower::service_fn(move |_| encrypted(address.clone(), tls.clone()));
                endpoint.connect_with_connector(connector).await
            }
        }
    };
    match timeout(within, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(with_causes(&error)),
        Err(_) => Err(format!("no connection within {} ms", within.as_millis())),
    }
}

/// Opens a connection and performs its TLS handshake.
async fn encrypted(
    address: String,
    tls: ClientTlsConfig,
) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let ClientTls { config, server_name } = tls.connect(&address).map_err(io::Error::other)?;
    let stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(config).connect(server_name, stream).await.map(TokioIo::new)
}

/// Formats an error with its causes, because the message of a transport error alone does not state the reason.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
