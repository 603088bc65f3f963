//! Which connection carries the next stream to an HTTP/2 upstream, and when another connection is opened.
//!
//! Pure: no sockets, no clock (a time is one since the machine started), no waking. `C` is a connection of the
//! caller, `W` a waiting request. No connection gets more streams than its peer and [`LaneBounds`] allow. The
//! first one with a free stream is used, so that those opened last become idle first. Requests without a free
//! stream wait in order, and as many connections are opened as the waiting requests should need.

use std::collections::VecDeque;
use std::time::Duration;

/// The limits for one upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBounds {
    /// Connections at once, including those being opened.
    pub(super) connections: usize,
    /// Streams at once on one connection, whatever its peer allows.
    pub(super) streams: usize,
    /// Idle connections that are kept.
    pub(super) idle: usize,
    /// How long they are kept.
    pub(super) idle_time: Duration,
    /// A request that has waited this long fails with the first connection that cannot be opened.
    pub(super) patience: Duration,
}

/// Identifies a connection of one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneId(u64);

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The connections of one upstream in the order in which they were opened, and the waiting requests.
#[derive(Debug)]
pub(super) struct Lanes<C, W> {
    bounds: LaneBounds,
    lanes: Vec<Lane<C>>,
    /// Connections that are being opened.
    opening: usize,
    /// Ordered by ticket.
    waiting: VecDeque<Waiting<W>>,
    /// The streams that a new connection should carry: the limit of the newest one.
    expected: usize,
    /// The newest connection speaks HTTP/1.1: requests without a free stream are sent that way.
    is_http1: bool,
    next: u64,
}

#[derive(Debug)]
struct Waiting<W> {
    ticket: Ticket,
    waiter: W,
    since: Duration,
    /// A connection that it waited for could not be opened.
    has_failed: bool,
}

#[derive(Debug)]
struct Lane<C> {
    id: LaneId,
    /// `None`: it takes no more streams, and ends with its last one.
    connection: Option<C>,
    live: usize,
    /// The peer's limit; `None` until it has sent one.
    allowed: Option<usize>,
    /// When its last stream ended.
    idle_since: Duration,
}

/// Where a request is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LanePlacement<C> {
    /// On a stream of this connection, which is counted until it is released.
    Stream(LaneId, C),
    /// The upstream speaks HTTP/1.1.
    Http1,
}

/// What the caller has to do after a change.
#[derive(Debug)]
#[must_use = "somebody waits for it"]
pub(super) struct LaneActions<C, W> {
    /// Requests that stop waiting, with their placement.
    pub(super) placed: Vec<(W, LanePlacement<C>)>,
    /// How many connections to open; they are already counted as being opened.
    pub(super) open: usize,
}

impl<C> Lane<C> {
    fn free_streams(&self, bounds: &LaneBounds) -> usize {
        // Until the peer has sent its limit, one stream is used.
        let limit = self.allowed.map_or(1, |allowed| allowed.min(bounds.streams));
        if self.connection.is_some() { limit.saturating_sub(self.live) } else { 0 }
    }

    fn is_idle(&self) -> bool {
        self.live == 0 && self.connection.is_some()
    }
}

impl<C: Clone, W> Lanes<C, W> {
    pub(super) fn new(bounds: LaneBounds) -> Self {
        Self {
            bounds,
            lanes: Vec::new(),
            opening: 0,
            waiting: VecDeque::new(),
            expected: bounds.streams,
            is_http1: false,
            next: 0,
        }
    }

    pub(super) fn take(&mut self) -> Option<LanePlacement<C>> {
        // Waiting requests come first.
        if self.waiting.is_empty() { self.place() } else { None }
    }

    pub(super) fn wait(&mut self, waiter: W, now: Duration) -> (Ticket, LaneActions<C, W>) {
        let ticket = Ticket(self.number());
        self.waiting.push_back(Waiting { ticket, waiter, since: now, has_failed: false });
        (ticket, self.place_or_open())
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        // One that has been placed is not in the queue any more.
        if let Ok(at) = self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket) {
            self.waiting.remove(at);
        }
    }

    pub(super) fn opened(&mut self, connection: C, now: Duration) -> (LaneId, LaneActions<C, W>) {
        self.opening -= 1;
        self.is_http1 = false;
        let id = LaneId(self.number());
        let connection = Some(connection);
        self.lanes.push(Lane { id, connection, live: 0, allowed: None, idle_since: now });
        (id, self.place_or_open())
    }

    pub(super) fn opened_http1(&mut self) -> LaneActions<C, W> {
        self.opening -= 1;
        self.is_http1 = true;
        self.place_waiting()
    }

    pub(super) fn forget_http1(&mut self) {
        self.is_http1 = false;
    }

    /// A connection could not be opened: the requests that fail, and what is tried for the others.
    pub(super) fn failed(&mut self, now: Duration) -> (Vec<W>, LaneActions<C, W>) {
        self.opening -= 1;
        // If there are streams, requests wait for one to end, and the caller calls `open_again`. Without any other
        // connection they fail, all but those whom the connections still being opened can take.
        if self.lanes.iter().any(|lane| lane.connection.is_some() && lane.allowed != Some(0)) {
            return (Vec::new(), LaneActions { placed: Vec::new(), open: 0 });
        }
        let surplus = self.waiting.len().saturating_sub(self.opening * self.expected);
        let mut failed = Vec::new();
        for (place, mut waiting) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            let waited = now.saturating_sub(waiting.since);
            // One failure may be an accident, so each has a second try, unless the first took long.
            if place < surplus && (waiting.has_failed || waited >= self.bounds.patience) {
                failed.push(waiting.waiter);
            } else {
                waiting.has_failed |= place < surplus;
                self.waiting.push_back(waiting);
            }
        }
        (failed, self.place_or_open())
    }

    pub(super) fn set_limit(&mut self, id: LaneId, streams: usize) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.allowed = Some(streams);
            self.expected = streams.clamp(1, self.bounds.streams);
        }
        self.place_or_open()
    }

    pub(super) fn release(&mut self, id: LaneId, now: Duration) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.live -= 1;
            lane.idle_since = now;
        }
        // When it was the last stream of a retired connection, another may be opened.
        let has_ended = self.drop_ended();
        let actions = if has_ended { self.place_or_open() } else { self.place_waiting() };
        // The newest one goes: the first ones are used first, so it would stay idle.
        if self.idle() > self.bounds.idle
            && let Some(newest) = self.lanes.iter_mut().rfind(|lane| lane.is_idle())
        {
            newest.connection = None;
            self.drop_ended();
        }
        actions
    }

    pub(super) fn retire(&mut self, id: LaneId) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.connection = None;
        }
        self.drop_ended();
        self.place_or_open()
    }

    /// Retires a connection that gives no sign of life, and all idle ones that `is_silent` as well.
    pub(super) fn retire_silent(
        &mut self,
        id: LaneId,
        is_silent: impl Fn(&C) -> bool,
    ) -> LaneActions<C, W> {
        for lane in &mut self.lanes {
            // One with live streams may be about to answer: its own requests will tell.
            let is_too = lane.live == 0 && lane.connection.as_ref().is_some_and(&is_silent);
            if lane.id == id || is_too {
                lane.connection = None;
            }
        }
        self.drop_ended();
        self.place_or_open()
    }

    pub(super) fn open_again(&mut self) -> LaneActions<C, W> {
        self.place_or_open()
    }

    /// Retires a connection that was idle for too long, and returns `None`; else returns when to ask again.
    pub(super) fn expire(&mut self, id: LaneId, now: Duration) -> Option<Duration> {
        let idle_time = self.bounds.idle_time;
        let lane = self.lane(id).filter(|lane| lane.connection.is_some())?;
        if lane.live > 0 {
            return Some(idle_time);
        }
        let idle = now.saturating_sub(lane.idle_since);
        if idle < idle_time {
            return Some(idle_time - idle);
        }
        self.lanes.retain(|lane| lane.id != id);
        None
    }

    pub(super) fn idle(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_idle()).count()
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane<C>> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    fn drop_ended(&mut self) -> bool {
        let count = self.lanes.len();
        self.lanes.retain(|lane| lane.live > 0 || lane.connection.is_some());
        self.lanes.len() < count
    }

    fn place(&mut self) -> Option<LanePlacement<C>> {
        for lane in &mut self.lanes {
            if lane.free_streams(&self.bounds) > 0
                && let Some(connection) = lane.connection.clone()
            {
                lane.live += 1;
                return Some(LanePlacement::Stream(lane.id, connection));
            }
        }
        if self.is_http1 { Some(LanePlacement::Http1) } else { None }
    }

    fn place_or_open(&mut self) -> LaneActions<C, W> {
        let mut actions = self.place_waiting();
        while !self.is_closed_to_all()
            && self.waiting.len() > self.expected_streams()
            && self.lanes.len() + self.opening < self.bounds.connections
        {
            self.opening += 1;
            actions.open += 1;
        }
        actions
    }

    fn place_waiting(&mut self) -> LaneActions<C, W> {
        // Opens nothing: after a failure to open, a failing upstream would otherwise be dialled in a loop.
        let mut actions = LaneActions { placed: Vec::new(), open: 0 };
        while !self.waiting.is_empty()
            && let Some(place) = self.place()
            && let Some(Waiting { waiter, .. }) = self.waiting.pop_front()
        {
            actions.placed.push((waiter, place));
        }
        actions
    }

    fn is_closed_to_all(&self) -> bool {
        // A single connection with limit 0 may be about to close; two show that the upstream would refuse on
        // any other, too.
        let open_lanes = self.lanes.iter().filter(|lane| lane.connection.is_some());
        open_lanes.filter(|lane| lane.allowed == Some(0)).count() > 1
    }

    fn expected_streams(&self) -> usize {
        // Counted are connections that are being opened, or whose peers have not sent a limit.
        let mut streams = self.opening * self.expected;
        for lane in &self.lanes {
            if lane.connection.is_some() && lane.allowed.is_none() {
                streams += self.expected.saturating_sub(lane.live);
            }
        }
        streams
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
impl<C, W> Lanes<C, W> {
    /// Open streams by connection, in the order of opening.
    fn live(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.live).collect()
    }

    /// How many connections are being opened, and how many requests wait.
    fn pending(&self) -> (usize, usize) {
        (self.opening, self.waiting.len())
    }
}

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;
