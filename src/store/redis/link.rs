//! The connection to a Redis or Valkey server: made when it is needed, dropped when it fails, and not asked for while
//! the server is known not to answer.
//!
//! One connection carries all commands at once. A failure of the connection or of the server as a whole opens the
//! breaker: calls then fail at once, and after a pause that doubles one of them tries again. Of a cluster it opens only
//! once no node answers. Knows nothing of records.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisError;
use tokio::time::{Instant, timeout};

use super::scripts::Acks;
use super::server::{Connection, OpenPurpose, RedisServer, TIMEOUT, explain, is_of_server, open};
use crate::store::StoreError;

/// The pause after the first failure; it doubles with each further one, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A cluster of which no node has answered for so long is left alone: one node that is away is not all.
const SILENCE: Duration = Duration::from_secs(2);

/// A connection, as far as there is one.
pub(super) struct Link {
    server: RedisServer,
    state: Mutex<LinkState>,
    /// Held while a connection is made.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Connection>,
    /// How many connections were made.
    made: u64,
    /// When it answered last.
    answered: Option<Instant>,
    /// How often in a row it has failed.
    failures: u32,
    /// Why, and until when it is left alone.
    trouble: Option<(StoreError, Instant)>,
    warned: Option<String>,
}

/// A connection to use for one call.
struct Lease {
    connection: Connection,
    number: u64,
}

impl Link {
    pub(super) fn new(server: RedisServer) -> Arc<Self> {
        Arc::new(Self { server, state: Mutex::default(), connecting: Default::default() })
    }

    /// Another connection to the same server.
    pub(super) fn another(&self) -> Arc<Self> {
        Self::new(self.server.clone())
    }

    /// How many replicas must have what is written.
    pub(super) fn replicas(&self) -> u32 {
        self.server.acks
    }

    /// What to say if fewer of them have it.
    pub(super) fn too_few(&self, replicas: u32, acks: &Acks) -> StoreError {
        let Acks { replicas: wanted, within } = acks;
        self.server.failed(&format!(
            "{replicas} of the {wanted} replicas that store.ack asks for have a write after {within:?}"
        ))
    }

    /// Runs commands on the connection, and watches over it.
    ///
    /// # Errors
    /// Why there is no connection, or what it or the server said.
    pub(super) async fn run<T, F>(
        self: &Arc<Self>,
        commands: impl FnOnce(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let lease = self.lease().await?;
        let running = commands(lease.connection.clone());
        self.watch(&lease, running).await
    }

    /// A connection: the one that there is, or a new one.
    async fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
        if let Some(lease) = self.held()? {
            return Ok(lease);
        }
        // Whoever tries again delays nobody else.
        if let (Some((trouble, _)), Err(_)) = (&self.state().trouble, self.connecting.try_lock()) {
            return Err(trouble.clone());
        }
        let link = self.clone();
        // A task of its own: a request that does not wait so long leaves a connection to the next one.
        let connecting = tokio::spawn(async move { link.connect().await });
        connecting.await.unwrap_or(Err(StoreError::Closed))
    }

    /// The connection that there is, if any.
    fn held(&self) -> Result<Option<Lease>, StoreError> {
        let state = self.state();
        if let Some(connection) = &state.connection {
            return Ok(Some(Lease { connection: connection.clone(), number: state.made }));
        }
        match &state.trouble {
            Some((trouble, until)) if *until > Instant::now() => Err(trouble.clone()),
            _ => Ok(None),
        }
    }

    async fn connect(&self) -> Result<Lease, StoreError> {
        let _alone = self.connecting.lock().await;
        if let Some(lease) = self.held()? {
            return Ok(lease);
        }
        let opened = timeout(TIMEOUT, open(&self.server, OpenPurpose::ToUse)).await;
        match opened.unwrap_or_else(|_| Err(self.server.failed("it does not answer"))) {
            Ok((connection, warning)) => {
                let mut state = self.state();
                state.made += 1;
                state.answered = Some(Instant::now());
                state.connection = Some(connection.clone());
                if let Some(warning) = warning
                    && state.warned.as_ref() != Some(&warning)
                {
                    tracing::warn!("{warning}");
                    state.warned = Some(warning);
                }
                Ok(Lease { connection, number: state.made })
            }
            Err(trouble) => Err(self.trip(&mut self.state(), trouble)),
        }
    }

    async fn watch<T>(
        &self,
        lease: &Lease,
        commands: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, StoreError> {
        let Ok(answer) = timeout(TIMEOUT, commands).await else {
            return Err(
                self.drop_connection(lease.number, self.server.failed("it does not answer"))
            );
        };
        match answer {
            Ok(value) => {
                let mut state = self.state();
                // An answer over an older connection says nothing of this one.
                if state.made == lease.number {
                    state.answered = Some(Instant::now());
                    state.failures = 0;
                    state.trouble = None;
                }
                Ok(value)
            }
            Err(error) if is_of_server(&error) => {
                Err(self.drop_connection(lease.number, explain(&self.server, &error)))
            }
            // Only this command failed: the connection is good.
            Err(error) => Err(explain(&self.server, &error)),
        }
    }

    /// Why it is left alone now.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        self.state().trouble.as_ref().map(|(trouble, _)| trouble.clone())
    }

    fn drop_connection(&self, number: u64, trouble: StoreError) -> StoreError {
        let mut state = self.state();
        // Another call may have dropped it, and there may be a new one.
        if state.made != number || state.connection.is_none() {
            return trouble;
        }
        let is_silent = state.answered.is_none_or(|answered| answered.elapsed() > SILENCE);
        if self.server.is_cluster && !is_silent {
            return trouble;
        }
        state.connection = None;
        self.trip(&mut state, trouble)
    }

    fn trip(&self, state: &mut LinkState, trouble: StoreError) -> StoreError {
        let pause = PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.trouble = Some((trouble.clone(), Instant::now() + pause));
        trouble
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
