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
use super::analysis::Analysis;
use super::asked::Asked;
use super::memory::HeldMemory;
use crate::context::Outcome;
use crate::dialect::openai_responses::Socket;
use crate::dialect::{Dialect, Reply};
use crate::telemetry::{FailOpen, MemoryKind};
use crate::wire::memory::Memory as _;
use crate::wire::websocket::{Fault, Messages, negotiated};

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
    /// `Err` once the reading gave up, with the reason where it is ours.
    state: Mutex<Result<State, Option<FailOpen>>>,
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
    /// What the open replies take.
    replies: HeldMemory,
}

/// A message of more bytes asks for memory before it is looked into.
const LOOKED_INTO: usize = 64 << 10;
/// How much looking into a message takes, in its lengths.
const LOOK: usize = 5;

impl Frames {
    /// Reads a connection that was upgraded by a response with these headers.
    pub(crate) fn new(asked: Arc<Asked>, answered: &HeaderMap, account: &Account) -> Self {
        let limit = account.proxy.config.limits.body_bytes;
        let lines = answered.get_all("sec-websocket-extensions").iter();
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        let (up, down) = negotiated(&lines.join(","));
        let state = State {
            up: Messages::new(limit, up, account.memory.boxed(MemoryKind::Message)),
            down: Messages::new(limit, down, account.memory.boxed(MemoryKind::Message)),
            socket: Socket::new(limit),
            open: BTreeMap::new(),
            replies: account.memory.guard(MemoryKind::Reply),
        };
        Self {
            state: Mutex::new(Ok(state)),
            answered: Notify::new(),
            asked,
            path: account.event.path.clone(),
            upstream: account.event.upstream.clone(),
        }
    }

    /// Bytes that have passed.
    pub(crate) fn saw(&self, way: Way, bytes: &[u8], account: &Account) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(reading) = state.as_mut() else { return };
        let read = catch_unwind(AssertUnwindSafe(|| match way {
            Way::Up => self.asked(reading, bytes, account),
            Way::Down => reading.answered(bytes, account, &self.answered),
        }));
        let fault = reading.up.fault().or(reading.down.fault());
        match (read, fault) {
            (Ok(true), None) => {}
            (Ok(false), None) | (Ok(_), Some(Fault::NoMemory)) => {
                *state = Err(Some(FailOpen::MemoryBudget));
            }
            (Ok(_), Some(_)) => *state = Err(None),
            (Err(_), _) => *state = Err(Some(FailOpen::Panicked)),
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
        state.as_ref().is_ok_and(|state| state.open.is_empty())
    }

    /// The tunnel has ended: what had come of open replies is told, too. Answers why the reading gave up,
    /// where that was ours.
    pub(crate) fn ended(&self, outcome: Outcome) -> Option<FailOpen> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { socket, mut open, .. } = match std::mem::replace(&mut *state, Err(None)) {
            Ok(state) => state,
            Err(why) => return why,
        };
        let left = match outcome {
            Outcome::Complete | Outcome::Refused | Outcome::ClientLeft => Outcome::ClientLeft,
            Outcome::UpstreamFailed | Outcome::Turned | Outcome::Interrupted => outcome,
        };
        let partial = catch_unwind(AssertUnwindSafe(|| socket.finish())).unwrap_or_default();
        for (number, reply) in partial {
            if let Some(waiting) = open.remove(&number) {
                let _ = waiting.send((reply, left));
            }
        }
        None
    }

    /// Messages of the client; `false` where there is no memory to look into one.
    fn asked(&self, state: &mut State, bytes: &[u8], connection: &Account) -> bool {
        let State { up, socket, open, .. } = state;
        let mut may_look = true;
        up.push(bytes, |message| {
            let look = look_into(message, connection);
            may_look &= look.is_some();
            if !may_look {
                return;
            }
            let read = |message: &[u8]| self.read(message, connection);
            let Some((number, read)) = socket.request_by(message, read) else { return };
            if open.len() >= MAX_OPEN {
                open.pop_first();
            }
            let (answer, answered) = oneshot::channel();
            open.insert(number, answer);
            let mut account = self.account(connection);
            account.event.request_bytes = message.len() as u64;
            tokio::spawn(kept(self.asked.clone(), read, account, answered));
        });
        may_look
    }

    /// A request's message, copied and read.
    fn read(&self, message: &[u8], connection: &Account) -> Result<Analysis, FailOpen> {
        let mut held = connection.memory.guard(MemoryKind::Request);
        if !held.hold(message.len()) {
            return Err(FailOpen::MemoryBudget);
        }
        let body = held.with(Bytes::copy_from_slice(message));
        self.asked.reader(Dialect::OpenaiResponses, connection).analyse(body)
    }

    /// The account of one request on the connection.
    fn account(&self, connection: &Account) -> Account {
        let mut request = Request::new(());
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        let phase = connection.phase.clone();
        let mut account = Account::open(&connection.proxy, &request, &connection.memory, phase);
        account.event.upstream.clone_from(&self.upstream);
        account.event.dialect = self.asked.dialect;
        account.event.status = connection.event.status;
        account.event.streamed = true;
        account
    }
}

impl State {
    /// Messages of the upstream; `false` where there is no memory to look into one, or for what it says.
    fn answered(&mut self, bytes: &[u8], connection: &Account, told: &Notify) -> bool {
        let Self { down, socket, open, replies, .. } = self;
        let mut may_look = true;
        down.push(bytes, |message| {
            let look = look_into(message, connection);
            may_look &= look.is_some();
            if !may_look {
                return;
            }
            let Some((number, reply)) = socket.event(message) else { return };
            if let Some(waiting) = open.remove(&number) {
                let _ = waiting.send((reply, Outcome::Complete));
                told.notify_one();
            }
        });
        may_look && replies.hold(socket.holds())
    }
}

/// Memory to look into a message; `None` where there is none.
fn look_into(message: &[u8], connection: &Account) -> Option<HeldMemory> {
    let mut look = connection.memory.guard(MemoryKind::Message);
    let needs = if message.len() > LOOKED_INTO { LOOK * message.len() } else { 0 };
    look.hold(needs).then_some(look)
}

/// Places a request, waits for its reply, and keeps the turn.
async fn kept(
    asked: Arc<Asked>,
    read: Result<Analysis, FailOpen>,
    mut account: Account,
    answered: oneshot::Receiver<(Reply, Outcome)>,
) {
    let measure = match read {
        Ok(analysis) => {
            account.noted(analysis.conversation.notes.iter().copied());
            asked.placed(analysis, None, &mut account).await.measure
        }
        Err(why) => {
            account.stood_aside(why);
            None
        }
    };
    let proxy = account.proxy.clone();
    let settle = measure.map(|measure| measure.open(&proxy).settle(proxy));
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
