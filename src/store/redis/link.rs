//! The connection to a Redis or Valkey server: made when it is needed, dropped when it fails, and not asked for while
//! the server is known not to answer.
//!
//! One connection carries all commands at once. A failure of the connection or of the server as a whole opens the
//! breaker: calls then fail at once, and after a pause that doubles one of them tries again. Knows nothing of records.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::store::StoreError;

/// How long a connection may take to be made, and a command to be answered.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after the first failure; it doubles with each further one, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The oldest version with all commands that are used.
const OLDEST: u32 = 7;
/// The layout of keys and values that this version reads and writes.
const LAYOUT: u32 = 1;

/// Where the servers are, and how to get in.
#[derive(Clone)]
pub struct RedisServer {
    /// Host and port of the server, or of each sentinel.
    pub hosts: Vec<(Box<str>, u16)>,
    /// The name under which sentinels know the primary; `None`: the first host is the server.
    pub sentinel: Option<Box<str>>,
    /// TLS, if it is used.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The ACL user.
    pub user: Option<Box<str>>,
    /// The password.
    pub password: Option<Box<str>>,
    /// The number of the database.
    pub database: i64,
    /// What all keys begin with.
    pub prefix: Box<str>,
    /// A fingerprint of the secret that hashes are keyed with; all processes on the server have the same.
    pub fingerprint: Box<str>,
}

/// A connection, as far as there is one.
pub(super) struct Link {
    server: RedisServer,
    state: Mutex<LinkState>,
    /// Held while a connection is made.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<MultiplexedConnection>,
    /// How many connections were made.
    made: u64,
    /// How often in a row it has failed.
    failures: u32,
    /// Why, and until when it is left alone.
    trouble: Option<(StoreError, Instant)>,
    warned: Option<String>,
}

/// A connection to use for one call.
pub(super) struct Lease {
    pub(super) connection: MultiplexedConnection,
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

    /// A connection: the one that there is, or a new one.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
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
        match opened.unwrap_or_else(|_| Err(self.failed("it does not answer"))) {
            Ok((connection, warning)) => {
                let mut state = self.state();
                state.made += 1;
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

    /// Runs commands on a leased connection, and watches over it.
    ///
    /// # Errors
    /// What the server or the connection said.
    pub(super) async fn run<T>(
        &self,
        lease: Lease,
        commands: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, StoreError> {
        let Ok(answer) = timeout(TIMEOUT, commands).await else {
            return Err(self.drop_connection(lease.number, self.failed("it does not answer")));
        };
        match answer {
            Ok(value) => {
                let mut state = self.state();
                // An answer over an older connection says nothing of this one.
                if state.failures > 0 && state.made == lease.number {
                    state.failures = 0;
                    state.trouble = None;
                }
                Ok(value)
            }
            Err(error) if is_of_server(&error) => {
                Err(self.drop_connection(lease.number, self.explain(&error)))
            }
            // Only this command failed: the connection is good.
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Why it is left alone now.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        self.state().trouble.as_ref().map(|(trouble, _)| trouble.clone())
    }

    fn drop_connection(&self, number: u64, trouble: StoreError) -> StoreError {
        let mut state = self.state();
        // Another call may have dropped it, and there may be a new one.
        if state.made != number || state.connection.take().is_none() {
            return trouble;
        }
        self.trip(&mut state, trouble)
    }

    fn trip(&self, state: &mut LinkState, trouble: StoreError) -> StoreError {
        let pause = PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.trouble = Some((trouble.clone(), Instant::now() + pause));
        trouble
    }

    fn explain(&self, error: &RedisError) -> StoreError {
        explain(&self.server, error)
    }

    fn failed(&self, what: &str) -> StoreError {
        StoreError::Failed(format!("{}: {what}", self.server.name()))
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisServer {
    /// What it is called in messages.
    fn name(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        match &self.sentinel {
            Some(primary) => format!("Redis {primary} of the sentinels {}", hosts.join(", ")),
            None => format!("Redis at {}", hosts.join(", ")),
        }
    }

    /// Looks whether it can be used; returns what is odd about it.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do.
    pub async fn examine(&self) -> Result<Option<String>, StoreError> {
        let opened = timeout(TIMEOUT, open(self, OpenPurpose::ToLook)).await;
        match opened {
            Ok(answer) => answer.map(|(_, warning)| warning),
            Err(_) => Err(StoreError::Failed(format!("{}: it does not answer", self.name()))),
        }
    }

    fn unusable(&self, what: &str) -> StoreError {
        StoreError::Unusable(format!("{} {what}", self.name()))
    }

    async fn dial(&self, host: &str, port: u16) -> std::io::Result<Box<dyn Stream>> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        Ok(Box::new(TlsConnector::from(tls.clone()).connect(name, tcp).await?))
    }

    async fn connection(
        &self,
        host: &str,
        port: u16,
        login: &RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, StoreError> {
        let stream = self
            .dial(host, port)
            .await
            .map_err(|error| StoreError::Failed(format!("{}: {error}", self.name())))?;
        // The time limits are ours.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = opened.map_err(|error| explain(self, &error))?;
        tokio::spawn(driver);
        Ok(connection)
    }

    /// Where the server is: what the first sentinel says that answers.
    async fn address(&self) -> Result<(Box<str>, u16), StoreError> {
        let mut trouble = self.unusable("has no host. Set store.url");
        let Some(primary) = &self.sentinel else {
            return self.hosts.first().cloned().ok_or(trouble);
        };
        for (host, port) in &self.hosts {
            // Sentinels have passwords of their own, or none.
            let address = match self.connection(host, *port, &Default::default()).await {
                Ok(mut sentinel) => {
                    let mut ask = redis::cmd("SENTINEL");
                    ask.arg("get-master-addr-by-name").arg(&**primary);
                    let answer = ask.query_async::<Option<(String, u16)>>(&mut sentinel).await;
                    answer.map_err(|error| explain(self, &error))
                }
                Err(error) => Err(error),
            };
            match address {
                Ok(Some((host, port))) => return Ok((host.into(), port)),
                Ok(None) => trouble = self.unusable("is not known to its sentinels"),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }
}

/// Why a server is connected to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenPurpose {
    ToUse,
    /// Nothing is written.
    ToLook,
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for S {}

/// Connects, and looks whether the server can be used. Also returns what is odd about it.
async fn open(
    server: &RedisServer,
    purpose: OpenPurpose,
) -> Result<(MultiplexedConnection, Option<String>), StoreError> {
    let (host, port) = server.address().await?;
    let mut login = RedisConnectionInfo::default()
        .set_db(server.database)
        .set_lib_name("plimsoll", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &server.user {
        login = login.set_username(user);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password);
    }
    let mut connection = server.connection(&host, port, &login).await?;
    let layout = format!("{}{{index}}:layout", server.prefix);
    let secret = format!("{}{{index}}:secret", server.prefix);
    let mut pipeline = redis::pipe();
    // The first process decides layout and secret for all; a look changes nothing on the server.
    if purpose == OpenPurpose::ToUse {
        pipeline.cmd("SET").arg(&layout).arg(LAYOUT).arg("NX").ignore();
        pipeline.cmd("SET").arg(&secret).arg(&*server.fingerprint).arg("NX").ignore();
    }
    pipeline.cmd("INFO").cmd("GET").arg(&layout).cmd("GET").arg(&secret);
    let answer = pipeline.query_async(&mut connection).await;
    let (info, layout, secret): (String, Option<u32>, Option<String>) =
        answer.map_err(|error| explain(server, &error))?;
    let warning = judge(server, &info)?;
    // Nothing can be said about a layout of the future.
    if layout.is_some_and(|layout| layout > LAYOUT) {
        return Err(server.unusable(
            "has data of a newer version of Plimsoll. Use that version, or another store.prefix",
        ));
    }
    if secret.is_some_and(|secret| *secret != *server.fingerprint) {
        return Err(server.unusable(
            "has data that was written with another store.secret. Set that one, or another store.prefix",
        ));
    }
    Ok((connection, warning))
}

/// Whether a server that says this about itself can be used; returns what is odd about it.
fn judge(server: &RedisServer, info: &str) -> Result<Option<String>, StoreError> {
    let version = fact(info, "redis_version");
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST) {
        return Err(server.unusable(&format!(
            "has version {version}. Plimsoll needs Redis {OLDEST} or later, or Valkey"
        )));
    }
    if fact(info, "cluster_enabled") == "1" {
        return Err(server.unusable("is a cluster, which is not supported: use one primary"));
    }
    let evicts = fact(info, "maxmemory") != "0" && fact(info, "maxmemory_policy") != "noeviction";
    let warning = evicts.then(|| {
        format!(
            "{} may delete any key when its memory is full (maxmemory-policy {}): sessions would lose a part of their \
             decisions. Set noeviction there",
            server.name(),
            fact(info, "maxmemory_policy")
        )
    });
    Ok(warning)
}

fn fact<'i>(info: &'i str, name: &str) -> &'i str {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim).unwrap_or_default()
}

/// Whether an error says that the connection or the server as a whole is of no use now.
fn is_of_server(error: &RedisError) -> bool {
    const CODES: [&str; 7] =
        ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOAUTH", "WRONGPASS"];
    CODES.contains(&&*code(error))
        || error.kind() == ErrorKind::AuthenticationFailed
        || error.is_io_error()
        || error.is_unrecoverable_error()
}

/// The server's word for an error; of several in a pipeline, for the first.
fn code(error: &RedisError) -> Box<str> {
    let errors = error.clone().into_server_errors();
    errors.and_then(|errors| Some(errors.first()?.1.code().into())).unwrap_or_default()
}

/// What to say about an error.
fn explain(server: &RedisServer, error: &RedisError) -> StoreError {
    // No message of ours contains a password, and servers do not quote it.
    let name = server.name();
    let code = code(error);
    if error.kind() == ErrorKind::AuthenticationFailed || matches!(&*code, "NOAUTH" | "WRONGPASS") {
        return server.unusable(
            "does not accept user and password. Set store.password, and the user in store.url",
        );
    }
    match &*code {
        "NOPERM" => {
            server.unusable(&format!("does not let this user run what Plimsoll needs: {error}"))
        }
        "OOM" => StoreError::Full(format!("{name} has no memory left (maxmemory). Give it more")),
        "READONLY" => StoreError::Failed(format!(
            "{name} is a replica, and takes no writes. Set store.url to its primary"
        )),
        _ => StoreError::Failed(format!("{name}: {error}")),
    }
}
