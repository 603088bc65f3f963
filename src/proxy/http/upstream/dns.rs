//! Resolves host names with the system's resolver, a few at a time.
//!
//! The system may take half a minute, and a thread waits for it. The number of such threads is limited,
//! because a broken name server must not block the other work of those threads. A query keeps its permit even
//! if nobody waits for it any more, as it keeps its thread.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::Semaphore;
use tower_service::Service;

/// Queries at a time, at most: half of the blocking threads.
const AT_ONCE: usize = 8;

static PERMITS: Semaphore = Semaphore::const_new(AT_ONCE);

/// The system's resolver.
#[derive(Clone)]
pub(super) struct DnsResolver;

type Addresses = std::vec::IntoIter<SocketAddr>;

impl Service<Name> for DnsResolver {
    type Response = Addresses;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Addresses>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            // The permit moves into the thread: a query that nobody waits for any more still keeps its thread.
            let permit = PERMITS.acquire().await.map_err(io::Error::other)?;
            let lookup = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                (name.as_str(), 0).to_socket_addrs()
            });
            lookup.await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_resolve_and_permits_return() {
        for _ in 0..3 * AT_ONCE {
            let mut found = DnsResolver.call("localhost".parse().unwrap()).await.unwrap();
            assert!(found.any(|address| address.ip().is_loopback()));
        }
    }

    /// Past the limit a query waits, and is answered once a permit is free.
    #[tokio::test]
    async fn past_limit_query_waits_for_permit() {
        let permits = PERMITS.acquire_many(AT_ONCE as u32).await.unwrap();
        let mut lookup = DnsResolver.call("localhost".parse().unwrap());
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut lookup).await.is_err());
        drop(permits);
        assert!(lookup.await.is_ok());
    }
}
