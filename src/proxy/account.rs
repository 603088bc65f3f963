//! One exchange's account: what will be told of it, when it ends.
//!
//! Guards invariant 6: an account tells when it is dropped, and only then, so whoever holds it last
//! (the exchange, the tap, a tunnel) cannot end without telling, nor tell twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::Method;

use super::{Proxy, now, route};
use crate::context::Outcome;
use crate::dialect::Usage;
use crate::telemetry::{Exchange, FailOpen};

/// What is known so far of an exchange; told on drop.
pub(crate) struct Account {
    pub(crate) proxy: Arc<Proxy>,
    /// When the request arrived.
    pub(crate) began: Instant,
    /// As it will be told. Until something else is known, the client left.
    pub(crate) event: Box<Exchange>,
}

impl Account {
    /// An exchange begins.
    pub(crate) fn open(proxy: &Arc<Proxy>, method: &Method, path: &str) -> Self {
        proxy.exchanges.fetch_add(1, Ordering::Relaxed);
        let event = Box::new(Exchange {
            id: proxy.next_id(),
            at: now(),
            upstream: None,
            dialect: None,
            purpose: None,
            method: method.as_str().into(),
            path: route::bare(path).into(),
            model: None,
            family: None,
            tenant: None,
            session: None,
            thread: None,
            status: None,
            outcome: Outcome::ClientLeft,
            stop: None,
            estimate: None,
            usage: Usage::default(),
            window: None,
            streamed: false,
            request_bytes: 0,
            response_bytes: 0,
            frames: 0,
            request_side_us: 0,
            response_side_us: 0,
            headers_us: None,
            first_byte_us: None,
            duration_us: 0,
            fail_open: Vec::new(),
            notes: Vec::new(),
        });
        Self { proxy: proxy.clone(), began: Instant::now(), event }
    }

    /// µs since the request arrived.
    pub(crate) fn elapsed_us(&self) -> u64 {
        micros(self.began)
    }

    /// We stood aside; each reason once.
    pub(crate) fn stood_aside(&mut self, why: FailOpen) {
        if !self.event.fail_open.contains(&why) {
            self.event.fail_open.push(why);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.event.duration_us = self.elapsed_us();
        self.proxy.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// µs since `began`.
pub(crate) fn micros(began: Instant) -> u64 {
    began.elapsed().as_micros() as u64
}
