//! An admin listener, and what it answers.

use std::net::SocketAddr;

use plimsoll::admin::prices::Prices;
use plimsoll::admin::view::About;
use plimsoll::admin::{self, Admin};
use plimsoll::config::Config;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::house::House;
use super::http1::{Message, Wire};

/// An admin listener over a house.
pub struct Looking(SocketAddr);

impl Looking {
    pub async fn at(house: &House, config: &Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ledgers, telemetry) = (house.ledgers.clone(), house.telemetry.clone());
        let (about, prices) = (About::of(config, address, 0), Prices::of(config));
        let draining = watch::channel(false).1;
        let admin = Admin::new(ledgers, telemetry, about, prices, None, draining);
        tokio::spawn(admin::serve(admin, listener, std::future::pending()));
        Self(address)
    }

    pub async fn get(&self, path: &str) -> Message {
        let mut wire = Wire::connect(self.0).await;
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.0)).await;
        wire.response().await
    }

    pub async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}
