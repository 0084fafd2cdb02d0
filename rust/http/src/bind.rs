//! Binds listening sockets.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::Settings;

/// The mode that a umask usually does not change.
const OWNER: u32 = 0o600;

/// The reason why a socket was not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refused the address.
    #[error("{what} {address}: {source}{}", remedy(source))]
    Address {
        /// The setting that holds the address.
        what: &'static str,
        /// The address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process serves on the Unix socket.
    #[error("uds {}: in use by another process; stop it or choose another path", path.display())]
    SocketInUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// A file that is not a socket exists at the path of the Unix socket.
    #[error("uds {}: exists and is not a socket; remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
}

/// A listening Unix socket and its file.
#[derive(Debug)]
pub struct UnixSocket {
    /// The socket.
    pub listener: UnixListener,
    /// The file of the socket, which is removed when this is dropped.
    pub file: SocketFile,
}

/// Removes the file of a Unix socket when dropped.
#[derive(Debug)]
pub struct SocketFile(
    /// The file's path.
    pub PathBuf,
);

/// Binds a non-blocking TCP listener.
///
/// # Arguments
/// `what` names the setting in errors; `address` is `host:port`, where port 0 lets the system choose.
///
/// # Errors
/// Fails if the name has no address, or if the system refuses the address.
pub fn tcp(what: &'static str, address: &str, settings: &Settings) -> Result<TcpListener, BindError> {
    let fail = |source: io::Error| BindError::Address { what, address: address.to_owned(), source };
    let resolved: SocketAddr = address
        .to_socket_addrs()
        .map_err(fail)?
        .next()
        .ok_or_else(|| fail(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let bound = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(resolved), Type::STREAM, None)?;
        // Without it, a restart would have to wait until the old connections leave TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit the size. It is set before listening, because the window scale is negotiated with
        // it.
        socket.set_recv_buffer_size(settings.receive_buffer)?;
        socket.bind(&resolved.into())?;
        socket.listen(settings.backlog)?;
        Ok(socket.into())
    };
    bound().map_err(fail)
}

/// Binds a non-blocking Unix socket. In a sidecar, the mode of its file protects it in place of TLS. A socket file
/// without a listener is replaced.
///
/// # Errors
/// Fails if the socket is in use, another file exists at the path, or the system refuses the path.
pub fn unix(path: &Path, settings: &Settings) -> Result<UnixSocket, BindError> {
    let fail =
        |source: io::Error| BindError::Address { what: "uds", address: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(fail)?;
            }
            // A full backlog (EAGAIN) or a refused permission means that the socket has a listener too.
            Ok(_) | Err(_) => return Err(BindError::SocketInUse { path: path.to_owned() }),
        },
    }
    let bound = || -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // On Linux the file gets the mode of the unbound socket, so it is never accessible to other users, also not
        // between bind and chmod.
        let file = fs::File::from(OwnedFd::from(socket));
        let early = file.set_permissions(fs::Permissions::from_mode(settings.socket_mode));
        let socket = Socket::from(OwnedFd::from(file));
        socket.bind(&SockAddr::unix(path)?)?;
        // The umask of the process removes bits of a wider mode.
        if early.is_err() || settings.socket_mode != OWNER {
            fs::set_permissions(path, fs::Permissions::from_mode(settings.socket_mode))?;
        }
        socket.listen(settings.backlog)?;
        Ok(socket.into())
    };
    Ok(UnixSocket { listener: bound().map_err(fail)?, file: SocketFile(path.to_owned()) })
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may have been removed already; a stale file is replaced at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "; stop the process that holds it or use another address (port 0 lets the system choose)"
        }
        io::ErrorKind::PermissionDenied => "; use a port above 1023 or a directory that you may write to",
        io::ErrorKind::AddrNotAvailable => "; use an address of this machine, such as 127.0.0.1",
        io::ErrorKind::NotFound => "; create the directory first",
        _ => "; correct the address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(what: &'static str, address: &str) -> Result<TcpListener, BindError> {
        super::tcp(what, address, &Settings::default())
    }

    fn unix(path: &Path) -> Result<UnixSocket, BindError> {
        super::unix(path, &Settings::default())
    }

    #[test]
    fn a_taken_port_names_address_and_remedy() {
        let first = tcp("listen", "127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap().to_string();
        let error = tcp("listen", &address).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("in use") && error.contains("port 0"), "{error}");
    }

    /// Fault case 51.
    #[test]
    fn a_socket_file_is_private_and_is_removed_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scorer.sock");
        let socket = unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = unix(&path).err().unwrap().to_string();
        assert!(error.contains("in use"), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

    /// Fault case 51.
    #[test]
    fn a_dead_socket_is_replaced_and_a_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scorer.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file behind");
        drop(unix(&path).unwrap());

        fs::write(&path, b"precious").unwrap();
        let error = unix(&path).err().unwrap().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
