//! Names and addresses of hosts: parsed strictly, and checked for whether they are only this machine's.
//!
//! Used for the host that a request names, and for configured addresses. Queries no DNS.

use std::net::{IpAddr, Ipv6Addr};

/// The name or address in `host[:port]`, without brackets; `None` if it is anything else.
pub(crate) fn host_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, port)
        }
        None => {
            let (name, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let mut bytes = name.bytes();
            let is_name = bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if name.is_empty() || !is_name {
                return None;
            }
            (name, port)
        }
    };
    let digits = if port.is_empty() { port } else { port.strip_prefix(':')? };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(name)
}

pub(crate) fn is_loopback(name: &str) -> bool {
    // No foreign DNS server can resolve these.
    if let Ok(address) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Fuzz: whatever `Host` contains, if it counts as this machine, a URL parser agrees.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for raw in text.lines().take(64) {
        let Some(name) = host_of(raw) else { continue };
        assert!(!name.contains(['@', '/', '\\', '?', '#', ' ', ',']), "{raw:?}");
        if let (true, Ok(authority)) = (is_loopback(name), raw.parse::<http::uri::Authority>()) {
            assert_eq!(authority.host().trim_matches(['[', ']']), name, "{raw:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_valid_hosts_are_parsed() {
        for (raw, name) in [
            ("127.0.0.1:8787", Some("127.0.0.1")),
            ("[::1]:1", Some("::1")),
            ("localhost", Some("localhost")),
            ("127.0.0.1:80@evil.example", None),
            ("127.0.0.1\\@evil.example", None),
            ("localhost#.evil.example", None),
            ("localhost, evil.example", None),
            ("[::1]evil.example", None),
            ("", None),
        ] {
            assert_eq!(host_of(raw), name, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn hosts_agree_with_authorities(raw in r"(\PC|127\.0\.0\.1|localhost|\[::1\]|[:@/\\#?,.%]|[0-9]){0,8}") {
            fuzz(raw.as_bytes());
        }
    }
}
