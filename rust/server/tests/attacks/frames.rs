//! HTTP/2 frames and attackers' connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::support::Setup;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The source address of attackers, so that they are another peer than the honest clients.
pub const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Number of attackers with separate addresses so far.
static ATTACKERS: AtomicU16 = AtomicU16::new(0);
/// Far above the time of any limit in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Appends a frame.
pub fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Returns a header block of a gRPC request, as literals that do not use the dynamic table.
pub fn request(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let usual =
        [(":path", path), (":authority", "scorer"), ("content-type", "application/grpc"), ("te", "trailers")];
    for (name, value) in usual.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

pub const NOOP: &str = "/scorer.v1.ScoringService/Noop";

/// The connection of an attacker.
pub struct Attack {
    pub stream: TcpStream,
}

impl Attack {
    /// Connects and sends the preface with these settings (identifier, value), by default from a separate
    /// address.
    pub fn connect(setup: &Setup, from: Option<IpAddr>, settings: &[(u16, u32)]) -> Attack {
        let from = from.unwrap_or_else(another);
        let mut attack = Attack { stream: tcp(&setup.server.addresses().grpc[0], Some(from)) };
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        frame(&mut hello, SETTINGS, 0, 0, &payload);
        frame(&mut hello, SETTINGS, 1, 0, &[]);
        attack.stream.write_all(&hello).unwrap();
        attack
    }

    /// Sends bytes. Returns false if the server has closed the connection or accepts no more bytes for a
    /// second.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        self.stream.write_all(bytes).is_ok()
    }

    /// Reads until the server closes the connection; returns the bytes. Fails the test if the server does not
    /// close it.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        self.read_until(|_| false)
    }

    /// Reads until the received bytes suffice or the server closes the connection; returns the bytes.
    pub fn read_until(&mut self, suffices: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        self.stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut all = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(read) => {
                    all.extend_from_slice(&buffer[..read]);
                    if suffices(&all) {
                        return all;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // The server closed the connection with unread bytes.
                Err(_) => return all,
            }
            assert!(Instant::now() < end, "the server does not close the connection");
        }
    }

    /// Waits until the server has closed the connection, without reading: a write fails then.
    pub fn wait_until_ended(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut ping = Vec::new();
        frame(&mut ping, PING, 1, 0, &[0; 8]);
        self.stream.set_nonblocking(true).unwrap();
        loop {
            match self.stream.write(&ping) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            assert!(Instant::now() < end, "the server does not close the connection");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns an address that no attacker has used before.
pub fn another() -> IpAddr {
    let [high, low] = ATTACKERS.fetch_add(1, Relaxed).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 1, high, low))
}

/// Opens a TCP connection from a given address. The server may have reset it already.
pub fn tcp(address: &str, from: Option<IpAddr>) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    }
    let address: SocketAddr = address.parse().unwrap();
    if let Err(error) = socket.connect(&address.into()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    socket.set_tcp_nodelay(true).unwrap();
    socket.into()
}

/// Returns the frames of received bytes: kind, flags, stream and payload.
pub fn parse(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if rest.len() < length {
            break;
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        frames.push((head[3], head[4], stream, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    frames
}
