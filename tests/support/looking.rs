//! Starts an admin listener and queries it.

use std::net::SocketAddr;

use plimsoll::admin::view::ServerInfo;
use plimsoll::admin::{self, Admin, AdminAccess};
use plimsoll::config::PriceList;
use plimsoll::config::{Config, Secret};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::http1::{Message, Wire};
use super::server::TestServer;

/// The full token of listeners in tests, and the read token.
pub const TOKEN: &str = "token-of-the-tests-for-everything";
pub const READER: &str = "token-of-the-tests-for-reading";

pub fn access() -> AdminAccess {
    let [admin, reader] = [TOKEN, READER].map(|token| Secret(token.to_owned()));
    AdminAccess { admin, reader, metrics_open: false }
}

/// An admin listener over a server.
pub struct Looking(SocketAddr);

impl Looking {
    pub async fn at(server: &TestServer, config: &Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ledgers, telemetry) = (server.ledgers.clone(), server.telemetry.clone());
        let (about, prices) =
            (ServerInfo::new(config, address, address, 0), PriceList::new(config));
        let draining = watch::channel(false).1;
        let admin = Admin::new(None, ledgers, telemetry, about, prices, access(), draining);
        tokio::spawn(admin::serve(admin, listener, std::future::pending()));
        Self(address)
    }

    pub async fn get(&self, path: &str) -> Message {
        let mut wire = Wire::connect(self.0).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.0);
        wire.send(format!("{head}authorization: Bearer {TOKEN}\r\n\r\n")).await;
        wire.response().await
    }

    pub async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}
