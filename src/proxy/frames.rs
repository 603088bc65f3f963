//! Responses over WebSocket: what passes a tunnel is read, told and kept as exchanges.
//!
//! Bytes have left before they are looked at here, and nothing found out can change, delay or end
//! the tunnel. Each request on the connection is an exchange of its own, metered only: the provider
//! holds its history (`providers.md` §3.1).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request};
use tokio::sync::{Notify, oneshot};

use super::account::Account;
use super::asked::Asked;
use crate::context::Outcome;
use crate::dialect::openai_responses::Socket;
use crate::dialect::{Conversation, Reply};
use crate::wire::websocket::{Messages, negotiated};

/// Requests without a reply that are remembered; of more, the oldest is given up.
const MAX_OPEN: usize = 16;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the upstream.
    Up,
    /// To the client.
    Down,
}

/// What reads along on one connection.
pub(crate) struct Frames {
    /// `None` once the reading gave up.
    state: Mutex<Option<State>>,
    /// Told when a reply ends.
    answered: Notify,
    asked: Arc<Asked>,
    /// The path, without its query.
    path: Box<str>,
    upstream: Option<Box<str>>,
}

struct State {
    up: Messages,
    down: Messages,
    socket: Socket,
    open: BTreeMap<u64, oneshot::Sender<(Reply, Outcome)>>,
}

impl Frames {
    /// Reads a connection that was upgraded by a response with these headers.
    pub(crate) fn new(asked: Arc<Asked>, answered: &HeaderMap, account: &Account) -> Self {
        let limit = account.proxy.config.limits.body_bytes;
        let lines = answered.get_all("sec-websocket-extensions").iter();
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        let (up, down) = negotiated(&lines.join(","));
        let state = State {
            up: Messages::new(limit, up),
            down: Messages::new(limit, down),
            socket: Socket::new(limit),
            open: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(Some(state)),
            answered: Notify::new(),
            asked,
            path: account.event.path.clone(),
            upstream: account.event.upstream.clone(),
        }
    }

    /// Bytes that have passed.
    pub(crate) fn saw(&self, way: Way, bytes: &[u8], account: &Account) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reading) = state.as_mut() else { return };
        let read = catch_unwind(AssertUnwindSafe(|| match way {
            Way::Up => self.asked(reading, bytes, account),
            Way::Down => reading.answered(bytes, &self.answered),
        }));
        if read.is_err() || reading.up.fault().or(reading.down.fault()).is_some() {
            *state = None;
        }
    }

    /// Ready once no request waits for its reply. A connection that cannot be read is never known
    /// to be idle.
    pub(crate) async fn idle(&self) {
        loop {
            let answered = self.answered.notified();
            if self.is_idle() {
                return;
            }
            answered.await;
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().is_some_and(|state| state.open.is_empty())
    }

    /// The tunnel has ended: what had come of open replies is told, too.
    pub(crate) fn ended(&self, outcome: Outcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(State { socket, mut open, .. }) = state.take() else { return };
        let left = match outcome {
            Outcome::Complete | Outcome::Refused | Outcome::ClientLeft => Outcome::ClientLeft,
            Outcome::UpstreamFailed | Outcome::Turned => outcome,
        };
        let partial = catch_unwind(AssertUnwindSafe(|| socket.finish())).unwrap_or_default();
        for (number, reply) in partial {
            if let Some(waiting) = open.remove(&number) {
                let _ = waiting.send((reply, left));
            }
        }
    }

    fn asked(&self, state: &mut State, bytes: &[u8], connection: &Account) {
        let State { up, socket, open, .. } = state;
        up.push(bytes, |message| {
            let Some((number, conversation)) = socket.request(message) else { return };
            if open.len() >= MAX_OPEN {
                open.pop_first();
            }
            let (answer, answered) = oneshot::channel();
            open.insert(number, answer);
            let mut account = self.account(connection);
            account.event.request_bytes = message.len() as u64;
            let body = Bytes::copy_from_slice(message);
            tokio::spawn(kept(self.asked.clone(), conversation, body, account, answered));
        });
    }

    /// The account of one request on the connection.
    fn account(&self, connection: &Account) -> Account {
        let mut request = Request::new(());
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        let mut account = Account::open(&connection.proxy, &request, connection.phase.clone());
        account.event.upstream.clone_from(&self.upstream);
        account.event.dialect = self.asked.dialect;
        account.event.status = connection.event.status;
        account.event.streamed = true;
        account
    }
}

impl State {
    fn answered(&mut self, bytes: &[u8], told: &Notify) {
        let Self { down, socket, open, .. } = self;
        down.push(bytes, |message| {
            let Some((number, reply)) = socket.event(message) else { return };
            if let Some(waiting) = open.remove(&number) {
                let _ = waiting.send((reply, Outcome::Complete));
                told.notify_one();
            }
        });
    }
}

/// Places a request, waits for its reply, and keeps the turn.
async fn kept(
    asked: Arc<Asked>,
    conversation: Conversation,
    body: Bytes,
    mut account: Account,
    answered: oneshot::Receiver<(Reply, Outcome)>,
) {
    account.noted(conversation.notes.iter().copied());
    let placed = asked.placed(conversation, body, None, &mut account).await;
    let proxy = account.proxy.clone();
    let settle = placed.measure.map(|measure| measure.settle(proxy));
    // Given up: as if the client had left before anything came.
    let Ok((reply, outcome)) = answered.await else { return };
    account.noted(reply.notes.iter().copied());
    account.event.outcome = outcome;
    account.event.usage = reply.usage.clone();
    account.event.stop = reply.stop;
    if let Some(settle) = settle
        && let Some(why) = settle(&mut account, reply).await
    {
        account.stood_aside(why);
    }
}
