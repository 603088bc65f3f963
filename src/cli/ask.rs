//! A client of the admin API: what every looking sub-command asks through.
//!
//! Plain HTTP to one address. Where nobody answers, it says so, and what to do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use super::print::{self, Trouble};
use crate::admin::routes::encoded;
use crate::admin::view::{Session, Sessions};
use crate::config::{self, Loaded, Secret, Sources};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running Plimsoll's admin listener.
#[derive(Clone)]
pub(super) struct Asked {
    client: Client<HttpConnector, Full<Bytes>>,
    /// Where it stands.
    pub(super) address: SocketAddr,
    token: Option<Secret>,
}

impl Asked {
    /// The listener that the configuration names.
    pub(super) fn configured(sources: &Sources) -> Result<Self, Trouble> {
        let Loaded { config, warnings, .. } = config::load(sources)?;
        warnings.iter().for_each(|warning| print::note(warning));
        Ok(Self::at(config.admin, config.admin_token))
    }

    /// The listener at an address.
    pub(super) fn at(address: SocketAddr, token: Option<Secret>) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address: reachable(address), token }
    }

    /// Whether somebody answers there.
    pub(super) async fn answers(&self) -> bool {
        self.ask(&Method::GET, "/healthz").await.is_ok()
    }

    /// Sessions, newest first.
    pub(super) async fn sessions(&self, limit: usize) -> Result<Sessions, Trouble> {
        self.value(&format!("/api/v1/sessions?limit={limit}")).await
    }

    /// One session.
    pub(super) async fn session(&self, id: &str) -> Result<Session, Trouble> {
        self.value(&format!("/api/v1/sessions/{}", encoded(id))).await
    }

    /// What stands at `path`.
    pub(super) async fn value<T: DeserializeOwned>(&self, path: &str) -> Result<T, Trouble> {
        self.read(&self.text(path).await?)
    }

    fn read<T: DeserializeOwned>(&self, text: &str) -> Result<T, Trouble> {
        serde_json::from_str(text).map_err(|error| {
            Trouble(format!(
                "{} answered something else than this version knows: {error}",
                self.address
            ))
        })
    }

    /// The text at `path`.
    pub(super) async fn text(&self, path: &str) -> Result<String, Trouble> {
        self.does(&Method::GET, path).await
    }

    /// What is answered when `method` is done at `path`.
    pub(super) async fn does(&self, method: &Method, path: &str) -> Result<String, Trouble> {
        self.whole(self.ask(method, path).await?).await
    }

    /// What is answered to a question with a body.
    pub(super) async fn told<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: &str,
    ) -> Result<T, Trouble> {
        let answer = self.send(method, path, Bytes::from(body.to_owned())).await?;
        self.read(&self.whole(answer).await?)
    }

    /// All of a body.
    async fn whole(&self, body: Incoming) -> Result<String, Trouble> {
        let collecting = tokio::time::timeout(PATIENCE, body.collect());
        let bytes = collecting.await.map_err(|_| self.silent())??.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The body at `path`, as it comes.
    pub(super) async fn ask(&self, method: &Method, path: &str) -> Result<Incoming, Trouble> {
        self.send(method, path, Bytes::new()).await
    }

    async fn send(&self, method: &Method, path: &str, body: Bytes) -> Result<Incoming, Trouble> {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri).body(Full::new(body))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&self.address.to_string())?);
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", token.0))?);
        }
        let asking = tokio::time::timeout(PATIENCE, self.client.request(request));
        let response = asking.await.map_err(|_| self.silent())?.map_err(|_| self.absent())?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let said = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let said = said.and_then(|said| Some(said["error"]["message"].as_str()?.to_owned()));
        Err(Trouble(said.unwrap_or_else(|| {
            format!("{} answered {status}: is this Plimsoll's admin listener?", self.address)
        })))
    }

    fn absent(&self) -> Trouble {
        Trouble(format!(
            "nobody answers at {}. Start `plimsoll serve`, or name its admin listener with --admin",
            self.address
        ))
    }

    fn silent(&self) -> Trouble {
        Trouble(format!("{} did not answer in {} s", self.address, PATIENCE.as_secs()))
    }
}

/// An address that one can connect to: a listener on all addresses is on loopback too.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
