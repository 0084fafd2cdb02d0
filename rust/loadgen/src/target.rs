//! Where the server is.

use std::fmt;
use std::path::PathBuf;

use scorer_identity::tls::{ClientTls, ClientTlsConfig};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An address to connect to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// `host:port`.
    Tcp(String),
    /// `host:port`, encrypted.
    Tls(String, ClientTlsConfig),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Target {
    /// Reads `host:port`, `dns:///host:port`, `unix:/path` or `unix:///path`; `tls` encrypts what is not a
    /// Unix socket.
    pub(crate) fn parse(text: &str, tls: Option<&ClientTlsConfig>) -> Target {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
            return Target::Unix(PathBuf::from(path));
        }
        let address = text.strip_prefix("dns:///").unwrap_or(text).to_owned();
        match tls {
            Some(tls) => Target::Tls(address, tls.clone()),
            None => Target::Tcp(address),
        }
    }

    /// What requests name as their authority.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Target::Tcp(address) | Target::Tls(address, _) => address,
            Target::Unix(_) => "localhost",
        }
    }

    /// Opens a stream.
    pub(crate) async fn connect(&self) -> std::io::Result<Stream> {
        match self {
            Target::Tcp(address) => Ok(Stream::Tcp(tcp(address).await?)),
            Target::Tls(address, tls) => {
                let ClientTls { config, server_name } =
                    tls.connect(address).map_err(std::io::Error::other)?;
                let stream = tcp(address).await?;
                let stream = TlsConnector::from(config).connect(server_name, stream).await?;
                Ok(Stream::Tls(Box::new(stream)))
            }
            Target::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) | Target::Tls(address, _) => f.write_str(address),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

async fn tcp(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // Nagle's algorithm would hold a small request back for the previous one's ACK.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connected stream of any kind.
pub(crate) enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over TCP, encrypted.
    Tls(Box<TlsStream<TcpStream>>),
    /// Over a Unix socket.
    Unix(UnixStream),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        let unix = Target::Unix(PathBuf::from("/run/s.sock"));
        assert_eq!(Target::parse("unix:/run/s.sock", None), unix);
        assert_eq!(Target::parse("unix:///run/s.sock", None), unix);
        assert_eq!(Target::parse("127.0.0.1:7000", None), Target::Tcp("127.0.0.1:7000".into()));
        assert_eq!(Target::parse("dns:///scorer:7000", None), Target::Tcp("scorer:7000".into()));
    }
}
