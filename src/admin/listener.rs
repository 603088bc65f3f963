//! Where admin requests come in: a port, with or without TLS, and a Unix socket.
//!
//! Determines who is at the other end of a connection, as far as the system knows: for the socket, the user
//! id. The socket admits only this user and root.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use super::guard::AdminPeer;
use crate::tls::TlsTerminator;

/// Where admin requests come in.
pub enum AdminListener {
    /// A port, and its certificate if it uses TLS.
    Port(TcpListener, Option<TlsTerminator>),
    /// A Unix socket in the data folder.
    Socket(UnixListener),
}

impl From<TcpListener> for AdminListener {
    fn from(listener: TcpListener) -> Self {
        Self::Port(listener, None)
    }
}

/// An accepted connection, before any data was exchanged.
pub(super) enum AdminConnection {
    Plain(TcpStream, AdminPeer),
    Tls(TcpStream, AdminPeer, TlsAcceptor),
    Socket(UnixStream),
}

/// A stream that can be read and written.
pub(super) trait AdminStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AdminStream for T {}

impl AdminListener {
    pub(super) async fn accept(&self) -> io::Result<AdminConnection> {
        match self {
            Self::Port(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                let loopback =
                    listener.local_addr().is_ok_and(|at: SocketAddr| at.ip().is_loopback());
                let peer = AdminPeer::Address { address, loopback };
                Ok(match tls {
                    None => AdminConnection::Plain(stream, peer),
                    Some(tls) => AdminConnection::Tls(stream, peer, tls.acceptor()),
                })
            }
            Self::Socket(listener) => Ok(AdminConnection::Socket(listener.accept().await?.0)),
        }
    }
}

impl AdminConnection {
    /// Prepares the connection for requests; `None` if the other end does not complete a handshake within
    /// `timeout`.
    ///
    /// # Errors
    /// The user id at the other end of a socket, if it is not admitted.
    pub(super) async fn open(
        self,
        timeout: Duration,
    ) -> Result<Option<(Box<dyn AdminStream>, AdminPeer)>, u32> {
        match self {
            Self::Plain(stream, peer) => Ok(Some((Box::new(stream), peer))),
            Self::Tls(stream, peer, tls) => {
                match tokio::time::timeout(timeout, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Ok(Some((Box::new(stream), peer))),
                    Ok(Err(_)) | Err(_) => Ok(None),
                }
            }
            Self::Socket(stream) => {
                let Ok(credentials) = stream.peer_cred() else { return Ok(None) };
                let user = credentials.uid();
                // Only root and this user.
                match user == 0 || user == rustix::process::geteuid().as_raw() {
                    true => Ok(Some((Box::new(stream), AdminPeer::User(user)))),
                    false => Err(user),
                }
            }
        }
    }
}
