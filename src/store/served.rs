//! The store of a serving process: the file in its data folder, or a server that it shares with others.
//!
//! Traffic and the admin API get it as a [`Store`]; this is what else the process does with it.

use std::sync::Arc;
use std::time::Duration;

use super::deferred_store::DeferredStore;
use super::keyed::KeyedStore;
use super::redis::{RedisServer, RedisStore};
use super::sqlite::StoreLoad;
use super::{Store, StoreError};

/// Where facts are stored.
pub(crate) enum ServedStore {
    /// In the file of the data folder.
    File(DeferredStore),
    /// On a server.
    Server(Arc<KeyedStore<RedisStore>>),
}

impl ServedStore {
    /// On a server, not connected yet. Sessions that nobody used for `life` are deleted by the server itself.
    pub(crate) fn on_server(server: RedisServer, secret: &str, life: Duration) -> Self {
        Self::Server(Arc::new(KeyedStore::on_server(server, secret, life)))
    }

    /// The store for traffic, and the same for the admin API.
    pub(crate) fn stores(&self) -> [Arc<dyn Store>; 2] {
        match self {
            Self::File(file) => [Arc::new(file.clone()), Arc::new(file.for_admin())],
            Self::Server(server) => [server.clone(), Arc::new(server.for_admin())],
        }
    }

    /// Why data is not saved or not read, although the store is open.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match self {
            Self::File(file) => file.failure(),
            Self::Server(server) => server.redis().failure(),
        }
    }

    /// Its load; `None` if it is not open.
    pub(crate) fn load(&self) -> Option<StoreLoad> {
        match self {
            Self::File(file) => file.load(),
            Self::Server(server) => {
                Some(StoreLoad { bytes: server.redis().bytes(), ..StoreLoad::default() })
            }
        }
    }

    /// Leaves one complete file, if there is one.
    ///
    /// # Errors
    /// The file's [`StoreError`].
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::File(file) => file.close().await,
            Self::Server(_) => Ok(()),
        }
    }
}
