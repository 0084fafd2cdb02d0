//! The bytes of a connection, from the HTTP/2 preface on, sent to the real server.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::serving;

/// The first bytes that a client sends: the preface and an empty SETTINGS frame.
pub const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// Time limit for the server's end of a connection. All time limits of the server are shorter.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends bytes and closes the client's side. Checks that the server closes its side. If the first byte is even, the
/// opening is sent before the rest.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let serving = serving::server();
    let mut stream = UnixStream::connect(&serving.socket).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let opening = if first % 2 == 0 { OPENING } else { &[] };
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(&[opening, rest].concat());
    let _ = stream.shutdown(Shutdown::Write);
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!late, "the server did not end the connection");
                break;
            }
        }
    }
    drop(serving.server.events());
}
