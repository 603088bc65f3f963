//! Names of hosts become addresses: asked of the system, a few at a time.
//!
//! The system's answer can take half a minute, and a thread waits for it. Only so many may: a name server that is
//! down must not hold up what those threads do otherwise. A question goes on holding its place where
//! nobody waits for the answer any more, as its thread does.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::Semaphore;
use tower_service::Service;

/// Most questions at a time: half of the threads that there are for what takes long.
const AT_ONCE: usize = 8;

static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// The system's name service, as one connection asks it.
#[derive(Clone, Default)]
pub(super) struct DnsResolver {
    answered: Arc<OnceLock<Instant>>,
}

impl DnsResolver {
    /// When it first answered; `None` where nobody asked, or it has not.
    pub(super) fn answered(&self) -> Option<Instant> {
        self.answered.get().copied()
    }
}

type Addresses = std::vec::IntoIter<SocketAddr>;

impl Service<Name> for DnsResolver {
    type Response = Addresses;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Addresses>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let answered = self.answered.clone();
        Box::pin(async move {
            let place = PLACES.acquire().await.map_err(io::Error::other)?;
            let asking = tokio::task::spawn_blocking(move || {
                let _place = place;
                (name.as_str(), 0).to_socket_addrs()
            });
            let addresses = asking.await.map_err(io::Error::other)?;
            answered.get_or_init(Instant::now);
            addresses
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_become_addresses_and_places_come_back() {
        for _ in 0..3 * AT_ONCE {
            let mut found =
                DnsResolver::default().call("localhost".parse().unwrap()).await.unwrap();
            assert!(found.any(|address| address.ip().is_loopback()));
        }
    }

    /// Past the bound a question waits, and is answered when a place is free.
    #[tokio::test]
    async fn past_the_bound_a_question_waits() {
        let places = PLACES.acquire_many(AT_ONCE as u32).await.unwrap();
        let mut asking = DnsResolver::default().call("localhost".parse().unwrap());
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut asking).await.is_err());
        drop(places);
        assert!(asking.await.is_ok());
    }
}
