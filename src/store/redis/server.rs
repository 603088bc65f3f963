//! Where the server is, how to get in, and whether it can be used: one server, one that sentinels watch, or a cluster.
//!
//! Connections to one server are opened here, with our TLS. Those to the nodes of a cluster are the client library's:
//! it finds the node of a key, follows `MOVED` and `ASK`, and learns of failovers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisConnectionInfo,
    RedisError, RedisFuture, TlsCertificates, Value,
};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::store::StoreError;

/// How long a connection may take to be made, and a command to be answered.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// The oldest version with all commands that are used.
const OLDEST: u32 = 7;
/// The layout of keys and values that this version reads and writes.
const LAYOUT: u32 = 3;
/// How long one node of a cluster may take to be connected to: the others wait for it.
const NODE_TIMEOUT: Duration = Duration::from_millis(300);
/// How often a command to a cluster is repeated within its time: after `MOVED` or `ASK`, or when its node is gone.
const REPEATS: u32 = 4;
/// The pauses between these, ms.
const SHORTEST_REST: u64 = 10;
const LONGEST_REST: u64 = 200;

/// Where the servers are, and how to get in.
#[derive(Clone, Default)]
pub struct RedisServer {
    /// Host and port of the server, of each sentinel, or of some nodes of a cluster.
    pub hosts: Vec<(Box<str>, u16)>,
    /// The name under which sentinels know the primary; `None`: there are none.
    pub sentinel: Option<Box<str>>,
    /// Whether it is a cluster, of which each node has a part of the keys.
    pub is_cluster: bool,
    /// TLS, if it is used.
    pub tls: Option<ServerTls>,
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
    /// How many replicas must have what is written of a session, beside the primary.
    pub acks: u32,
}

/// How TLS connections to a server are made.
#[derive(Clone)]
pub struct ServerTls {
    /// For connections of ours.
    pub config: Arc<rustls::ClientConfig>,
    /// The trusted authorities, PEM, for those of the client library, to the nodes of a cluster.
    pub authorities: Arc<[u8]>,
}

/// A connection to one server, or to all nodes of a cluster. Clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(server) => server.req_packed_command(command),
            Self::Cluster(nodes) => nodes.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(server) => server.req_packed_commands(pipeline, offset, count),
            Self::Cluster(nodes) => nodes.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(server) => server.get_db(),
            Self::Cluster(nodes) => nodes.get_db(),
        }
    }
}

impl RedisServer {
    /// What it is called in messages.
    pub(super) fn name(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let hosts = hosts.join(", ");
        match &self.sentinel {
            Some(primary) => format!("Redis {primary} of the sentinels {hosts}"),
            None if self.is_cluster => format!("the Redis cluster at {hosts}"),
            None => format!("Redis at {hosts}"),
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
            Err(_) => Err(self.failed("it does not answer")),
        }
    }

    pub(super) fn failed(&self, what: &str) -> StoreError {
        StoreError::Failed(format!("{}: {what}", self.name()))
    }

    fn unusable(&self, what: &str) -> StoreError {
        StoreError::Unusable(format!("{} {what}", self.name()))
    }

    async fn dial(&self, host: &str, port: u16) -> std::io::Result<Box<dyn Stream>> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        Ok(Box::new(TlsConnector::from(tls.config.clone()).connect(name, tcp).await?))
    }

    async fn connection(
        &self,
        host: &str,
        port: u16,
        login: &RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, StoreError> {
        let stream =
            self.dial(host, port).await.map_err(|error| self.failed(&error.to_string()))?;
        // The time limits are ours.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = opened.map_err(|error| explain(self, &error))?;
        tokio::spawn(driver);
        Ok(connection)
    }

    /// A connection to the server, to the primary that sentinels name, or to a node of the cluster.
    async fn first_connection(
        &self,
        login: &RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, StoreError> {
        let hosts = match &self.sentinel {
            Some(primary) => vec![self.primary(primary).await?],
            None => self.hosts.clone(),
        };
        if hosts.is_empty() {
            return Err(self.unusable("has no host. Set store.url"));
        }
        // All at once: one that hangs delays none of the others.
        let dials = hosts.iter().map(|(host, port)| Box::pin(self.connection(host, *port, login)));
        Ok(select_ok(dials).await?.0)
    }

    /// Where the primary is: what the first sentinel says that knows it.
    async fn primary(&self, name: &str) -> Result<(Box<str>, u16), StoreError> {
        let asks = self.hosts.iter().map(|(host, port)| {
            Box::pin(async move {
                // Sentinels have passwords of their own, or none.
                let mut sentinel = self.connection(host, *port, &Default::default()).await?;
                let mut ask = redis::cmd("SENTINEL");
                ask.arg("get-master-addr-by-name").arg(name);
                let address: Option<(String, u16)> =
                    ask.query_async(&mut sentinel).await.map_err(|error| explain(self, &error))?;
                let (host, port) =
                    address.ok_or_else(|| self.unusable("is not known to its sentinels"))?;
                Ok((host.into(), port))
            })
        });
        Ok(select_ok(asks).await?.0)
    }

    /// Connections to all nodes of a cluster, as one.
    async fn cluster_connection(&self) -> Result<ClusterConnection, StoreError> {
        let is_tls = self.tls.is_some();
        let nodes = self.hosts.iter().map(|(host, port)| match is_tls {
            true => ConnectionAddr::TcpTls {
                host: host.to_string(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
            false => ConnectionAddr::Tcp(host.to_string(), *port),
        });
        let mut client = ClusterClient::builder(nodes)
            .connection_timeout(NODE_TIMEOUT)
            .response_timeout(TIMEOUT)
            .retries(REPEATS)
            .min_retry_wait(SHORTEST_REST)
            .max_retry_wait(LONGEST_REST);
        if let Some(tls) = &self.tls {
            let root_cert = Some(tls.authorities.to_vec());
            client = client.certs(TlsCertificates { client_tls: None, root_cert });
        }
        if let Some(user) = &self.user {
            client = client.username(user);
        }
        if let Some(password) = &self.password {
            client = client.password(password);
        }
        let client = client.build().map_err(|error| explain(self, &error))?;
        client.get_async_connection().await.map_err(|error| explain(self, &error))
    }
}

/// Why a server is connected to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenPurpose {
    ToUse,
    /// Nothing is written.
    ToLook,
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for S {}

/// Connects, and looks whether the server can be used. Also returns what is odd about it.
pub(super) async fn open(
    server: &RedisServer,
    purpose: OpenPurpose,
) -> Result<(Connection, Option<String>), StoreError> {
    let mut login = RedisConnectionInfo::default()
        .set_db(server.database)
        .set_lib_name("plimsoll", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &server.user {
        login = login.set_username(user);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password);
    }
    let mut first = server.first_connection(&login).await?;
    let info = redis::cmd("INFO").query_async::<String>(&mut first).await;
    let warning = judge(server, &info.map_err(|error| explain(server, &error))?)?;
    let mut connection = match server.is_cluster {
        true => {
            let info = redis::cmd("CLUSTER").arg("INFO").query_async::<String>(&mut first).await;
            judge_cluster(server, &info.map_err(|error| explain(server, &error))?)?;
            Connection::Cluster(server.cluster_connection().await?)
        }
        false => Connection::Single(first),
    };
    let layout = format!("{}{{index}}:layout", server.prefix);
    let secret = format!("{}{{index}}:secret", server.prefix);
    let mut pipeline = redis::pipe();
    // The first process decides layout and secret for all; a look changes nothing on the server.
    if purpose == OpenPurpose::ToUse {
        pipeline.cmd("SET").arg(&layout).arg(LAYOUT).arg("NX").ignore();
        pipeline.cmd("SET").arg(&secret).arg(&*server.fingerprint).arg("NX").ignore();
    }
    pipeline.cmd("GET").arg(&layout).cmd("GET").arg(&secret);
    let answer = pipeline.query_async(&mut connection).await;
    let (layout, secret): (Option<u32>, Option<String>) =
        answer.map_err(|error| explain(server, &error))?;
    // What another version wrote, this one cannot read.
    if layout.is_some_and(|layout| layout != LAYOUT) {
        return Err(server.unusable(
            "has data of another version of Plimsoll. Use that version, or another store.prefix",
        ));
    }
    if secret.is_some_and(|secret| *secret != *server.fingerprint) {
        return Err(server.unusable(
            "has data that was written with another store.secret. Set that one, or another store.prefix",
        ));
    }
    Ok((connection, warning))
}

/// Whether a cluster that says this about itself serves all keys.
fn judge_cluster(server: &RedisServer, info: &str) -> Result<(), StoreError> {
    let state = fact(info, "cluster_state");
    if state == "ok" {
        return Ok(());
    }
    let served = fact(info, "cluster_slots_ok");
    Err(server.failed(&format!(
        "its state is {state}: {served} of 16384 slots are served. CLUSTER NODES there says which nodes are missing"
    )))
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
    match (fact(info, "cluster_enabled") == "1", server.is_cluster) {
        (true, false) => {
            return Err(server.unusable("is a cluster. Write redis+cluster:// in store.url"));
        }
        (false, true) => {
            return Err(server.unusable("is no cluster. Write redis:// in store.url"));
        }
        _ => {}
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
pub(super) fn is_of_server(error: &RedisError) -> bool {
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
pub(super) fn explain(server: &RedisServer, error: &RedisError) -> StoreError {
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
