//! Which connection carries the next stream to an HTTP/2 upstream, and when another one is opened.
//!
//! Pure: no sockets, no clock, no waking. `C` is a connection as whoever opened it knows it, `W`
//! is somebody who waits. No connection gets more streams than its peer allows and than
//! [`LaneBounds`] say; the first with room is taken, so that those opened last become idle first.
//! Whoever finds no room waits in turn, and as many connections are being opened as the waiting
//! are expected to fill.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What one upstream may get.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBounds {
    /// Connections at once, those being opened included.
    pub(super) connections: usize,
    /// Streams at once on one connection, whatever its peer allows.
    pub(super) streams: usize,
    /// Connections without a stream that are kept.
    pub(super) idle: usize,
    /// How long they are kept.
    pub(super) idle_time: Duration,
}

/// Names a connection among those of one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneId(u64);

/// Names somebody who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The connections of one upstream, in the order they were opened, and who waits for room.
#[derive(Debug)]
pub(super) struct Lanes<C, W> {
    bounds: LaneBounds,
    lanes: Vec<Lane<C>>,
    /// Connections that are being opened.
    opening: usize,
    /// In the order of their tickets.
    waiting: VecDeque<(Ticket, W)>,
    /// The streams that a new connection is expected to carry: as many as the newest one does.
    expected: usize,
    /// The newest connection speaks HTTP/1.1: what finds no room here goes there.
    is_http1: bool,
    next: u64,
}

#[derive(Debug)]
struct Lane<C> {
    id: LaneId,
    /// `None`: it takes no more streams and ends with its last one.
    connection: Option<C>,
    live: usize,
    /// What the peer allows; `None` until it has said so.
    allowed: Option<usize>,
    /// When its last stream ended.
    idle_since: Instant,
}

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LanePlacement<C> {
    /// A stream of this connection, which is counted until it is released.
    Stream(LaneId, C),
    /// The upstream speaks HTTP/1.1.
    Http1,
}

/// What is to be done after a change.
#[derive(Debug)]
#[must_use = "somebody waits for it"]
pub(super) struct LaneActions<C, W> {
    /// Who waits no longer.
    pub(super) placed: Vec<(W, LanePlacement<C>)>,
    /// So many connections are to be opened; they are counted as being opened.
    pub(super) open: usize,
}

impl<C> Lane<C> {
    /// Until the peer has said what it allows, one stream shows that it is there.
    fn room(&self, bounds: &LaneBounds) -> usize {
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

    /// The place for a request, where there is room now. Nobody overtakes those who wait.
    pub(super) fn take(&mut self) -> Option<LanePlacement<C>> {
        if self.waiting.is_empty() { self.place() } else { None }
    }

    /// Somebody waits: for a connection to be opened, or for a stream to end.
    pub(super) fn wait(&mut self, who: W) -> (Ticket, LaneActions<C, W>) {
        let ticket = Ticket(self.number());
        self.waiting.push_back((ticket, who));
        (ticket, self.moves(true))
    }

    /// Somebody waits no longer; nothing where they were given a place already.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        if let Ok(at) = self.waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            self.waiting.remove(at);
        }
    }

    /// A connection was opened.
    pub(super) fn opened(&mut self, connection: C, now: Instant) -> (LaneId, LaneActions<C, W>) {
        self.opening -= 1;
        self.is_http1 = false;
        let id = LaneId(self.number());
        let connection = Some(connection);
        self.lanes.push(Lane { id, connection, live: 0, allowed: None, idle_since: now });
        (id, self.moves(true))
    }

    /// A connection was opened, and it speaks HTTP/1.1.
    pub(super) fn opened_http1(&mut self) -> LaneActions<C, W> {
        self.opening -= 1;
        self.is_http1 = true;
        self.moves(false)
    }

    /// The upstream could not be reached over HTTP/1.1 any more: what it speaks is asked anew.
    pub(super) fn forget_http1(&mut self) {
        self.is_http1 = false;
    }

    /// A connection could not be opened: those for whom there is no other fail with it. Where
    /// streams are under way, they wait for one to end.
    pub(super) fn failed(&mut self) -> Vec<W> {
        self.opening -= 1;
        if self.lanes.iter().any(|lane| lane.connection.is_some() && lane.allowed != Some(0)) {
            return Vec::new();
        }
        let surplus = self.waiting.len().saturating_sub(self.opening * self.expected);
        self.waiting.drain(..surplus).map(|(_, who)| who).collect()
    }

    /// The peer says how many streams it allows, at first or anew.
    pub(super) fn allows(&mut self, id: LaneId, streams: usize) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.allowed = Some(streams);
            self.expected = streams.clamp(1, self.bounds.streams);
        }
        self.moves(true)
    }

    /// A stream ended. The last one of a retired connection makes room for another connection.
    pub(super) fn release(&mut self, id: LaneId, now: Instant) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.live -= 1;
            lane.idle_since = now;
        }
        let has_ended = self.drop_ended();
        let moves = self.moves(has_ended);
        if self.idle() > self.bounds.idle
            && let Some(newest) = self.lanes.iter_mut().rfind(|lane| lane.is_idle())
        {
            newest.connection = None;
            self.drop_ended();
        }
        moves
    }

    /// A connection takes no more streams: it closed, its peer sent GOAWAY or refused a stream.
    pub(super) fn retire(&mut self, id: LaneId) -> LaneActions<C, W> {
        if let Some(lane) = self.lane(id) {
            lane.connection = None;
        }
        self.drop_ended();
        self.moves(true)
    }

    /// Retires a connection that was idle for long. Else: when to ask again; `None` where it is
    /// retired.
    pub(super) fn expire(&mut self, id: LaneId, now: Instant) -> Option<Duration> {
        let idle_time = self.bounds.idle_time;
        let lane = self.lane(id).filter(|lane| lane.connection.is_some())?;
        if lane.live > 0 {
            return Some(idle_time);
        }
        let idle = now.saturating_duration_since(lane.idle_since);
        if idle < idle_time {
            return Some(idle_time - idle);
        }
        self.lanes.retain(|lane| lane.id != id);
        None
    }

    /// Connections without a stream that are kept.
    pub(super) fn idle(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_idle()).count()
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane<C>> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    /// Whether there was any to drop.
    fn drop_ended(&mut self) -> bool {
        let before = self.lanes.len();
        self.lanes.retain(|lane| lane.live > 0 || lane.connection.is_some());
        self.lanes.len() < before
    }

    fn place(&mut self) -> Option<LanePlacement<C>> {
        let found = self.lanes.iter_mut().find(|lane| lane.room(&self.bounds) > 0);
        match found {
            Some(lane) => {
                lane.live += 1;
                lane.connection.clone().map(|connection| LanePlacement::Stream(lane.id, connection))
            }
            None => self.is_http1.then_some(LanePlacement::Http1),
        }
    }

    /// Gives room to those who wait. `may_open`: and has more opened where that is not enough.
    /// A failure to open opens nothing by itself, so that nobody dials in a circle.
    fn moves(&mut self, may_open: bool) -> LaneActions<C, W> {
        let mut moves = LaneActions { placed: Vec::new(), open: 0 };
        while !self.waiting.is_empty()
            && let Some(place) = self.place()
            && let Some((_, who)) = self.waiting.pop_front()
        {
            moves.placed.push((who, place));
        }
        while may_open
            && !self.is_closed_to_all()
            && self.waiting.len() > self.coming()
            && self.lanes.len() + self.opening < self.bounds.connections
        {
            self.opening += 1;
            moves.open += 1;
        }
        moves
    }

    /// One connection may be about to go away; two that allow nothing say that the upstream wants
    /// nothing now, and would say so on any other.
    fn is_closed_to_all(&self) -> bool {
        let closed = |lane: &&Lane<C>| lane.connection.is_some() && lane.allowed == Some(0);
        self.lanes.iter().filter(closed).count() > 1
    }

    /// The streams that connections will carry which are being opened, or whose peers have not
    /// said what they allow.
    fn coming(&self) -> usize {
        let unsaid = |lane: &&Lane<C>| lane.connection.is_some() && lane.allowed.is_none();
        let unsaid = self.lanes.iter().filter(unsaid);
        let room = unsaid.map(|lane| self.expected.saturating_sub(lane.live)).sum::<usize>();
        room + self.opening * self.expected
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
impl<C, W> Lanes<C, W> {
    /// Streams under way by connection, in the order of opening.
    pub(super) fn live(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.live).collect()
    }

    /// Connections that are being opened, and who waits.
    pub(super) fn pending(&self) -> (usize, usize) {
        (self.opening, self.waiting.len())
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
