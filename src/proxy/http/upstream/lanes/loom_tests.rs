//! Every order in which requests, connections and peers can meet at [`Lanes`], checked by loom.
//!
//! As with sockets, decisions are made under a lock, and placements are delivered outside of it, to requests that may
//! have left. No connection exceeds its limit, no waiting request is forgotten, and all counts return to zero.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

const NOW: Duration = Duration::from_secs(1000);

/// Where a request waits for its place.
#[derive(Default)]
struct WaiterSeat {
    answer: Mutex<SeatAnswer>,
    bell: Condvar,
}

#[derive(Default)]
enum SeatAnswer {
    #[default]
    Nothing,
    Place(LaneId),
    /// The request has left.
    Left,
}

struct LaneTable {
    lanes: Mutex<Lanes<(), Arc<WaiterSeat>>>,
    /// Streams that the peer of every connection allows.
    allowed: usize,
}

impl LaneTable {
    fn new(connections: usize, allowed: usize) -> Arc<Self> {
        let idle_time = Duration::from_secs(60);
        let bounds =
            LaneBounds { connections, streams: 2, idle: 1, idle_time, patience: idle_time };
        Arc::new(Self { lanes: Mutex::new(Lanes::new(bounds)), allowed })
    }

    /// Decides, and checks that no connection has more streams than it may.
    fn decide<T>(&self, decide: impl FnOnce(&mut Lanes<(), Arc<WaiterSeat>>) -> T) -> T {
        let mut lanes = self.lanes.lock().unwrap();
        let decided = decide(&mut lanes);
        assert!(lanes.live().iter().all(|live| *live <= self.allowed), "{:?}", lanes.live());
        decided
    }

    fn perform(self: &Arc<Self>, actions: LaneActions<(), Arc<WaiterSeat>>) {
        for (seat, place) in actions.placed {
            let LanePlacement::Stream(id, ()) = place else { panic!("nobody speaks HTTP/1.1") };
            let mut answer = seat.answer.lock().unwrap();
            if matches!(*answer, SeatAnswer::Left) {
                drop(answer);
                self.release(id);
            } else {
                *answer = SeatAnswer::Place(id);
                seat.bell.notify_one();
            }
        }
        for _ in 0..actions.open {
            self.open();
        }
    }

    /// Opens a connection at once.
    fn open(self: &Arc<Self>) {
        // The model varies which other steps come in between.
        let (id, actions) = self.decide(|lanes| lanes.opened((), NOW));
        self.perform(actions);
        let actions = self.decide(|lanes| lanes.set_limit(id, self.allowed));
        self.perform(actions);
    }

    fn release(self: &Arc<Self>, id: LaneId) {
        let actions = self.decide(|lanes| lanes.release(id, NOW));
        self.perform(actions);
    }

    /// A place, or a seat to wait in.
    fn request(self: &Arc<Self>) -> Result<LaneId, (Ticket, Arc<WaiterSeat>)> {
        let seat = Arc::new(WaiterSeat::default());
        let requested = self.decide(|lanes| match lanes.take() {
            Some(LanePlacement::Stream(id, ())) => Ok(id),
            Some(LanePlacement::Http1) => panic!("nobody speaks HTTP/1.1"),
            None => Err(lanes.wait(seat.clone(), NOW)),
        });
        requested.map_err(|(ticket, actions)| {
            self.perform(actions);
            (ticket, seat)
        })
    }

    /// A request that waits for its place as long as it takes.
    fn place(self: &Arc<Self>) -> LaneId {
        let (_, seat) = match self.request() {
            Ok(id) => return id,
            Err(waiting) => waiting,
        };
        let mut answer = seat.answer.lock().unwrap();
        loop {
            match *answer {
                SeatAnswer::Place(id) => return id,
                _ => answer = seat.bell.wait(answer).unwrap(),
            }
        }
    }

    /// A request whose client leaves at any time.
    fn place_or_leave(self: &Arc<Self>) {
        let given = match self.request() {
            Ok(id) => Some(id),
            Err((ticket, seat)) => {
                self.decide(|lanes| lanes.leave(ticket));
                match std::mem::replace(&mut *seat.answer.lock().unwrap(), SeatAnswer::Left) {
                    SeatAnswer::Place(id) => Some(id),
                    _ => None,
                }
            }
        };
        if let Some(id) = given {
            self.release(id);
        }
    }

    fn is_at_rest(&self) {
        let lanes = self.lanes.lock().unwrap();
        assert!(lanes.live().iter().all(|live| *live == 0), "{:?}", lanes.live());
        assert_eq!(lanes.pending(), (0, 0));
    }
}

fn run(table: &Arc<LaneTable>, others: Vec<fn(&Arc<LaneTable>)>) {
    let others = others.into_iter().map(|other| {
        let table = table.clone();
        thread::spawn(move || other(&table))
    });
    let others: Vec<_> = others.collect();
    table.release(table.place());
    for other in others {
        other.join().unwrap();
    }
    table.is_at_rest();
}

/// Tries every order with at most two preemptions, which is enough to show such faults.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn waiting_requests_are_woken() {
    explore(|| {
        let request: fn(&Arc<LaneTable>) = |table| table.release(table.place());
        run(&LaneTable::new(1, 1), vec![request, request]);
    });
}

#[test]
fn leavers_keep_no_stream() {
    explore(|| {
        run(
            &LaneTable::new(1, 1),
            vec![|table| table.place_or_leave(), |table| table.place_or_leave()],
        );
    });
}

#[test]
fn retired_connections_are_replaced() {
    explore(|| {
        let goes_away: fn(&Arc<LaneTable>) = |table| {
            let id = table.place();
            let actions = table.decide(|lanes| lanes.retire(id));
            table.perform(actions);
            table.release(id);
        };
        run(&LaneTable::new(1, 1), vec![goes_away]);
        run(&LaneTable::new(2, 1), vec![goes_away]);
    });
}

#[test]
fn only_idle_connection_expires() {
    explore(|| {
        run(
            &LaneTable::new(1, 2),
            vec![|table| {
                let id = table.place();
                table.release(id);
                let late = NOW + Duration::from_secs(3600);
                table.decide(|lanes| lanes.expire(id, late));
            }],
        );
    });
}
