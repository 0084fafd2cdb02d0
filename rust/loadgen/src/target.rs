//! Where the server is.

use std::fmt;
use std::path::PathBuf;

use tokio::net::{TcpStream, UnixStream};

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `host:port`.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Target {
    /// Reads `host:port`, `dns:///host:port`, `unix:/path` or `unix:///path`.
    pub(crate) fn parse(text: &str) -> Target {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
            return Target::Unix(PathBuf::from(path));
        }
        Target::Tcp(text.strip_prefix("dns:///").unwrap_or(text).to_owned())
    }

    /// What requests name as their authority.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Target::Tcp(address) => address,
            Target::Unix(_) => "localhost",
        }
    }

    /// Opens a stream.
    pub(crate) async fn connect(&self) -> std::io::Result<Stream> {
        match self {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                // Nagle's algorithm would hold a small request back for the previous one's ACK.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Target::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => f.write_str(address),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connected stream of either kind.
pub(crate) enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        let unix = Target::Unix(PathBuf::from("/run/s.sock"));
        assert_eq!(Target::parse("unix:/run/s.sock"), unix);
        assert_eq!(Target::parse("unix:///run/s.sock"), unix);
        assert_eq!(Target::parse("127.0.0.1:7000"), Target::Tcp("127.0.0.1:7000".into()));
        assert_eq!(Target::parse("dns:///scorer:7000"), Target::Tcp("scorer:7000".into()));
    }
}
