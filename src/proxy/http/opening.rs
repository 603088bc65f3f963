//! The first bytes of a client's connection: whether it speaks HTTP/2.
//!
//! The connection's memory depends on it, and has to be reserved before hyper reads. The bytes that were read
//! are passed on.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The first bytes of HTTP/2 (RFC 9113, HTTP/2 Connection Preface).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first bytes of a connection.
pub(crate) struct ConnectionOpening {
    pub(crate) bytes: Bytes,
    pub(crate) is_http2: bool,
}

/// Reads until the protocol is known.
///
/// # Errors
/// Those of the stream, or if it ends before any byte.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<ConnectionOpening> {
    let mut opening = [0; PREFACE.len()];
    let mut length = 0;
    while length < opening.len() && PREFACE.starts_with(&opening[..length]) {
        match stream.read(&mut opening[length..]).await? {
            0 if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            read => length += read,
        }
    }
    Ok(ConnectionOpening {
        bytes: Bytes::copy_from_slice(&opening[..length]),
        is_http2: opening == *PREFACE,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn preface_is_recognised_in_pieces() {
        for (sent, is_http2) in [
            (&PREFACE[..], true),
            (b"POST / HTTP/1.1\r\n\r\n", false),
            (b"PRI", false),
            (b"PRI * HTTP/1.1\r\nhost: a\r\n\r\n", false),
        ] {
            let (mut client, mut server) = tokio::io::duplex(7);
            let sending = tokio::spawn(async move { client.write_all(sent).await });
            let first = read(&mut server).await.unwrap();
            assert_eq!(first.is_http2, is_http2);
            assert!(first.bytes.len() <= PREFACE.len());
            let mut passed_on = first.bytes.to_vec();
            server.read_to_end(&mut passed_on).await.unwrap();
            assert_eq!(passed_on, sent);
            sending.await.unwrap().unwrap();
        }
        assert!(read(&mut &b""[..]).await.is_err());
    }
}
