//! The peer of a connection, by which the server's limits count.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The other end of a connection. Limits per peer count by this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A network address without its port. An IPv6 address is reduced to its first 64 bits, because one host usually
    /// has all addresses of such a network.
    Address(IpAddr),
    /// A user of this machine, on a Unix socket.
    User(u32),
    /// A user of this machine whose id the operating system does not provide.
    UnknownUser,
}

// === impl Peer ===

impl Peer {
    /// Returns the peer of a network address. An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Peer {
        Peer::Address(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address,
        })
    }

    /// Whether the peer is a user of this machine, authenticated by the operating system.
    #[must_use]
    pub fn is_local_user(self) -> bool {
        match self {
            Peer::User(_) | Peer::UnknownUser => true,
            Peer::Address(_) => false,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::User(user) => write!(f, "uid {user}"),
            Peer::UnknownUser => f.write_str("unix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_peer() {
        let peer = |text: &str| Peer::of_address(text.parse().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_eq!(peer("2001:db8:1:2::3"), peer("2001:db8:1:2:ffff::4"));
        assert_ne!(peer("2001:db8:1:2::3"), peer("2001:db8:1:3::3"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_eq!(peer("::1").to_string(), "::1");
        assert!(!peer("127.0.0.1").is_local_user() && Peer::User(0).is_local_user());
    }
}
