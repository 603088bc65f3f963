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
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (!name.is_empty() && name.bytes().all(plain)).then_some((name, port))?
        }
    };
    let digits = if port.is_empty() { port } else { port.strip_prefix(':')? };
    digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
}

/// Whether a name or address belongs only to this machine: no foreign DNS server can resolve it.
pub(crate) fn is_loopback(name: &str) -> bool {
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
    fn only_a_valid_host_with_or_without_a_port_is_parsed() {
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
        fn a_host_parsed_from_any_text_agrees_with_its_authority(raw in r"(\PC|127\.0\.0\.1|localhost|\[::1\]|[:@/\\#?,.%]|[0-9]){0,8}") {
            fuzz(raw.as_bytes());
        }
    }
}
