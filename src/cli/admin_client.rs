//! A client of the admin API, which all querying subcommands use.
//!
//! Connects through the Unix socket of the data folder, where this user's own process answers; otherwise
//! through TCP, to which only a configured token is ever sent. If nothing answers, the error says so, and what
//! to do.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::print::{self, CliError};
use super::socket;
use crate::admin::view::{ServerInfo, SessionPage, SessionView};
use crate::config::{self, Config, ConfigSources, LoadedConfig, Secret};
use crate::dialect::percent::encoded;

/// How long a response may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long one may take that is a sum over every session.
const SUM_TIMEOUT: Duration = Duration::from_secs(120);

/// The admin listener of a running Plimsoll.
#[derive(Clone)]
pub(super) enum AdminClient {
    /// Through the socket of a data folder.
    Socket(PathBuf),
    /// Through an address, with a token if there is one.
    Port(SocketAddr, Option<Secret>),
}

impl AdminClient {
    /// The listener that the configuration or a flag names: through its socket if it has one here. First
    /// prints a warning if nothing is stored at present.
    pub(super) async fn configured(sources: &ConfigSources) -> Result<Self, CliError> {
        let config = load_config(sources)?;
        let is_named = sources.flags.iter().any(|flag| flag.key == "admin");
        match Self::by_socket(&config.data).await {
            Ok(Some((client, about))) if !is_named || serves_at(&about, config.admin) => {
                warn_of_failure(&about);
                Ok(client)
            }
            Err(trouble) if !is_named => Err(trouble),
            _ if is_named || config.admin_token.is_some() || config.admin_read_token.is_some() => {
                let client = Self::by_port(config);
                // If this fails, the actual query reports the error.
                if let Ok(about) = client.about().await {
                    warn_of_failure(&about);
                }
                Ok(client)
            }
            _ => Err(nothing_answers(&socket::path(&config.data).display().to_string())),
        }
    }

    /// This user's process that serves from a data folder; `None` if there is none.
    ///
    /// # Errors
    /// If there is one that cannot be trusted or does not respond correctly.
    pub(super) async fn by_socket(data: &Path) -> Result<Option<(Self, ServerInfo)>, CliError> {
        match socket::connect(data).await {
            Ok(_) => {
                let client = Self::Socket(data.to_owned());
                let about = client.about().await?;
                Ok(Some((client, about)))
            }
            Err(error) if socket::is_nobody(&error) => Ok(None),
            Err(error) => {
                let socket = socket::path(data);
                Err(CliError(format!("{} is not trusted: {error}", socket.display())))
            }
        }
    }

    fn by_port(config: Config) -> Self {
        // A token that was generated for this machine's own user is never sent there, because nothing proves
        // who listens.
        let token = config.admin_token.or(config.admin_read_token);
        let address = reachable(config.admin);
        if token.is_some() && !address.ip().is_loopback() {
            print::note(&format!("the token goes to {address} without TLS"));
        }
        Self::Port(address, token)
    }

    pub(super) fn place(&self) -> String {
        match self {
            Self::Socket(data) => socket::path(data).display().to_string(),
            Self::Port(address, _) => address.to_string(),
        }
    }

    pub(super) async fn about(&self) -> Result<ServerInfo, CliError> {
        self.value("/api/v1/about").await
    }

    /// Sessions, newest first.
    pub(super) async fn sessions(&self, limit: usize) -> Result<SessionPage, CliError> {
        self.value(&format!("/api/v1/sessions?limit={limit}")).await
    }

    /// The list of a query.
    pub(super) async fn listed(&self, query: &str) -> Result<SessionPage, CliError> {
        self.value(&format!("/api/v1/sessions?{query}")).await
    }

    pub(super) async fn session(&self, id: &str) -> Result<SessionView, CliError> {
        self.value(&format!("/api/v1/sessions/{}", encoded(id))).await
    }

    pub(super) async fn value<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.read(&self.text(path).await?)
    }

    pub(super) fn read<T: DeserializeOwned>(&self, text: &str) -> Result<T, CliError> {
        serde_json::from_str(text).map_err(|error| {
            CliError(format!(
                "{} sent an answer that this version does not know: {error}",
                self.place()
            ))
        })
    }

    pub(super) async fn text(&self, path: &str) -> Result<String, CliError> {
        self.request_text(&Method::GET, path).await
    }

    /// The text of the response to `method` at `path`.
    pub(super) async fn request_text(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<String, CliError> {
        self.whole(self.ask(method, path).await?).await
    }

    /// The value of the response to a request with a body.
    pub(super) async fn request_value<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: &str,
    ) -> Result<T, CliError> {
        let answer = self.send(method, path, Bytes::from(body.to_owned())).await?;
        self.read(&self.whole(answer).await?)
    }

    async fn whole(&self, body: Incoming) -> Result<String, CliError> {
        let collecting = tokio::time::timeout(TIMEOUT, body.collect());
        let bytes = collecting.await.map_err(|_| self.timed_out(TIMEOUT))??.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) async fn ask(&self, method: &Method, path: &str) -> Result<Incoming, CliError> {
        self.send(method, path, Bytes::new()).await
    }

    async fn send(&self, method: &Method, path: &str, body: Bytes) -> Result<Incoming, CliError> {
        let mut request = Request::builder().method(method).uri(path).body(Full::new(body))?;
        let headers = request.headers_mut();
        let host = match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Port(address, _) => address.to_string(),
        };
        headers.insert(HOST, HeaderValue::from_str(&host)?);
        // The socket needs none: the kernel says who we are.
        if let Self::Port(_, Some(token)) = self {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", token.0))?);
        }
        let asking = async {
            let mut connection =
                self.connect().await.map_err(|_| nothing_answers(&self.place()))?;
            connection.send_request(request).await.map_err(|_| nothing_answers(&self.place()))
        };
        let limit = if path.starts_with("/api/v1/spend") { SUM_TIMEOUT } else { TIMEOUT };
        let response =
            tokio::time::timeout(limit, asking).await.map_err(|_| self.timed_out(limit))??;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let message = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let message =
            message.and_then(|message| Some(message["error"]["message"].as_str()?.to_owned()));
        Err(CliError(message.unwrap_or_else(|| {
            format!("{} answered {status}: is this Plimsoll's admin listener?", self.place())
        })))
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        match self {
            Self::Socket(data) => speak_http(socket::connect(data).await?).await,
            Self::Port(address, _) => speak_http(TcpStream::connect(address).await?).await,
        }
    }

    fn timed_out(&self, limit: Duration) -> CliError {
        CliError(format!("{} did not answer in {} s", self.place(), limit.as_secs()))
    }
}

/// The warning that is printed first if nothing is stored at present.
pub(super) fn banner(about: &ServerInfo) -> Option<String> {
    let failure = about.store_failure.as_ref()?;
    Some(format!("NOTHING IS STORED FOR NOW, traffic continues: {failure}"))
}

fn warn_of_failure(about: &ServerInfo) {
    if let Some(banner) = banner(about) {
        print::note(&banner);
    }
}

/// The configuration of a querying command; prints its warnings.
pub(super) fn load_config(sources: &ConfigSources) -> Result<Config, CliError> {
    let LoadedConfig { config, warnings, .. } = config::load_for_query(sources)?;
    for warning in &warnings {
        print::note(warning);
    }
    Ok(config)
}

async fn speak_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

fn nothing_answers(place: &str) -> CliError {
    CliError(format!(
        "nothing answers at {place}. Start `plimsoll serve`, or name its data folder with --data, or its \
         admin listener with --admin"
    ))
}

pub(super) fn serves_at(about: &ServerInfo, address: SocketAddr) -> bool {
    let uri = about.admin.parse::<http::Uri>().ok();
    let listener = uri.and_then(|uri| uri.authority()?.as_str().parse().ok());
    listener.is_some_and(|listener| reachable(listener) == reachable(address))
}

fn reachable(address: SocketAddr) -> SocketAddr {
    // A listener on all addresses is also on loopback.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
