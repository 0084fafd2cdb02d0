//! The form of a service's address.

/// Whether `address` is a `host:port` that a URI can contain without escapes.
#[must_use]
pub fn is_target(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let plain = |host: &str| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = bracketed.map_or_else(|| plain(host), |host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    host_fits && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for good in ["127.0.0.1:7700", "[::1]:1", "scorer-shadow.pay.svc.cluster.local:7700", "a:65535"] {
            assert!(is_target(good), "{good}");
        }
        for bad in
            ["", "a", "a:", ":1", "a:0", "a:65536", "a:+1", "::1:7700", "[::1:7700", "http://a:1", "a b:1"]
        {
            assert!(!is_target(bad), "{bad}");
        }
    }
}
