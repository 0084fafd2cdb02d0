//! Binds the listening sockets, before anything else starts.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::ServerError;

/// Connections the kernel holds for us between two accepts.
const BACKLOG: i32 = 1024;
/// What the kernel holds of one connection before its window closes. It grows to 6 MiB by itself, in which
/// tens of thousands of requests would grow old unseen; this much is a few milliseconds of work.
const RECEIVE_BUFFER: usize = 256 << 10;
/// Only the owner may connect: the socket's permissions stand in for TLS in a sidecar.
const SOCKET_MODE: u32 = 0o600;

/// Binds a TCP listener; `what` names the setting in errors.
pub(crate) fn tcp(what: &'static str, address: &str) -> Result<TcpListener, ServerError> {
    let fail = |source: io::Error| ServerError::Bind { what, address: address.to_owned(), source };
    let resolved: SocketAddr = address
        .to_socket_addrs()
        .map_err(fail)?
        .next()
        .ok_or_else(|| fail(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let bound = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(resolved), Type::STREAM, None)?;
        // A restart must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit it; set before listening, so that the window is agreed on with it.
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.bind(&resolved.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bound().map_err(fail)
}

/// Binds a Unix socket of mode 0600. A socket file that nobody listens on is replaced; one in use,
/// and anything that is not a socket, is left alone and refused.
pub(crate) fn unix(path: &Path) -> Result<UnixSocket, ServerError> {
    let fail =
        |source: io::Error| ServerError::Bind { what: "uds", address: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ServerError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(fail)?;
            }
            // A full backlog (EAGAIN) or a refused permission is a live owner as well.
            Ok(_) | Err(_) => return Err(ServerError::SocketInUse { path: path.to_owned() }),
        },
    }
    let bound = || -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // On Linux the file takes the mode of the unbound socket, so it is never open to others, not
        // even for the moment between bind and chmod.
        let file = fs::File::from(OwnedFd::from(socket));
        let early = file.set_permissions(fs::Permissions::from_mode(SOCKET_MODE));
        let socket = Socket::from(OwnedFd::from(file));
        socket.bind(&SockAddr::unix(path)?)?;
        if early.is_err() {
            fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        }
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    Ok(UnixSocket { listener: bound().map_err(fail)?, file: SocketFile(path.to_owned()) })
}

/// A listening Unix socket and its file.
pub(crate) struct UnixSocket {
    pub(crate) listener: UnixListener,
    pub(crate) file: SocketFile,
}

/// Removes the socket's file when dropped.
pub(crate) struct SocketFile(pub(crate) PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; a stale file is replaced at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_names_address_and_remedy() {
        let first = tcp("listen", "127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap().to_string();
        let error = tcp("listen", &address).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("in use") && error.contains("port 0"), "{error}");
    }

    #[test]
    fn a_socket_file_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scorer.sock");
        let socket = unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = unix(&path).err().unwrap().to_string();
        assert!(error.contains("in use"), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

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
