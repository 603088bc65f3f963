use super::*;

const BOUNDS: LaneBounds = LaneBounds {
    connections: 8,
    streams: 100,
    idle: 2,
    idle_time: Duration::from_secs(60),
    patience: Duration::from_secs(5),
};

const NOW: Duration = Duration::from_secs(1000);

type Play = Lanes<char, usize>;

/// Makes `many` requests: how many were placed at once, and how many connections are to be opened.
fn request(lanes: &mut Play, many: usize) -> (usize, usize) {
    let (mut placed, mut open) = (0, 0);
    for waiter in 0..many {
        match lanes.take() {
            Some(_) => placed += 1,
            None => {
                let (_, actions) = lanes.wait(waiter, NOW);
                placed += actions.placed.len();
                open += actions.open;
            }
        }
    }
    (placed, open)
}

/// Opens a connection whose peer allows this many streams.
fn open(lanes: &mut Play, name: char, allowed: usize) -> (LaneId, usize, usize) {
    let (id, first) = lanes.opened(name, NOW);
    let then = lanes.set_limit(id, allowed);
    (id, first.placed.len() + then.placed.len(), first.open + then.open)
}

#[test]
fn bursts_open_enough_connections() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 400), (0, 4));
    for name in ['a', 'b', 'c', 'd'] {
        let (_, placed, more) = open(&mut lanes, name, 100);
        assert_eq!(placed, 100, "{name}");
        assert_eq!(more, 0, "{name}");
    }
    assert_eq!(lanes.live(), [100; 4]);
    assert_eq!(request(&mut lanes, 1), (0, 1), "no stream is free: another connection");
}

#[test]
fn one_stream_before_limit_is_known() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 3), (0, 1));
    let (id, actions) = lanes.opened('a', NOW);
    assert_eq!(actions.placed.len(), 1);
    assert_eq!(actions.open, 0);
    let actions = lanes.set_limit(id, 2);
    assert_eq!(actions.placed.len(), 1, "two fit, one needs another connection");
    assert_eq!(actions.open, 1, "two fit, one needs another connection");
}

#[test]
fn streams_are_limited_by_peer_and_by_our_own_limit() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 20), (0, 1));
    let (id, placed, more) = open(&mut lanes, 'a', 1);
    assert_eq!(placed, 1, "up to the bound of connections");
    assert_eq!(more, 7, "up to the bound of connections");
    let actions = lanes.set_limit(id, 1000);
    assert_eq!(actions.placed.len(), 19);
    assert_eq!(request(&mut lanes, 90).0, 80, "100 in all");
}

#[test]
fn lowered_limits_bind_new_streams() {
    let mut lanes = Play::new(LaneBounds { connections: 1, ..BOUNDS });
    request(&mut lanes, 10);
    let (id, placed, _) = open(&mut lanes, 'a', 10);
    assert_eq!(placed, 10);
    assert!(lanes.set_limit(id, 4).placed.is_empty());
    assert_eq!(request(&mut lanes, 1), (0, 0));
    for left in (4..10).rev() {
        assert!(lanes.release(id, NOW).placed.is_empty(), "{left} are under way");
    }
    assert_eq!(lanes.release(id, NOW).placed.len(), 1);
    assert_eq!(lanes.live(), [4]);
}

#[test]
fn zero_streams_open_two_connections() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 1), (0, 1));
    let (first, placed, _) = open(&mut lanes, 'a', 100);
    assert_eq!(placed, 1);
    assert!(lanes.release(first, NOW).placed.is_empty());
    assert_eq!(lanes.set_limit(first, 0).open, 0);
    assert_eq!(request(&mut lanes, 1), (0, 1));
    let (second, actions) = lanes.opened('b', NOW);
    assert_eq!(actions.placed.len(), 1, "until it has sent its limit, it gets one");
    assert!(lanes.release(second, NOW).placed.is_empty());
    assert_eq!(lanes.set_limit(second, 0).open, 0);
    assert_eq!(request(&mut lanes, 5), (0, 0));
    assert_eq!(lanes.set_limit(first, 5).placed.len(), 5);
}

#[test]
fn first_free_connection_is_used() {
    let mut lanes = Play::new(LaneBounds { connections: 2, streams: 2, ..BOUNDS });
    request(&mut lanes, 4);
    let (first, ..) = open(&mut lanes, 'a', 2);
    let (second, ..) = open(&mut lanes, 'b', 2);
    let (_, actions) = lanes.wait(7, NOW);
    assert!(actions.placed.is_empty());
    assert_eq!(actions.open, 0, "the bound");
    let (ticket, actions) = lanes.wait(8, NOW);
    assert!(actions.placed.is_empty());
    assert!(lanes.take().is_none());
    lanes.leave(ticket);
    let actions = lanes.release(second, NOW);
    assert_eq!(actions.placed, [(7, LanePlacement::Stream(second, 'b'))]);
    assert!(lanes.release(second, NOW).placed.is_empty());
    assert!(lanes.release(first, NOW).placed.is_empty());
    assert_eq!(lanes.take(), Some(LanePlacement::Stream(first, 'a')));
}

#[test]
fn retired_connections_count_to_end() {
    let mut lanes = Play::new(LaneBounds { connections: 1, ..BOUNDS });
    request(&mut lanes, 1);
    let (id, ..) = open(&mut lanes, 'a', 100);
    assert_eq!(lanes.retire(id).open, 0);
    assert_eq!(request(&mut lanes, 1), (0, 0), "as many connections as may be");
    let actions = lanes.release(id, NOW);
    assert_eq!(actions.open, 1, "now there is room for another one");
    assert!(lanes.live().is_empty());
}

#[test]
fn failed_dials_fail_their_requests() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 150), (0, 2));
    let late = NOW + BOUNDS.patience;
    assert_eq!(lanes.failed(late).0, (0..50).collect::<Vec<_>>());
    assert_eq!(lanes.failed(late).0.len(), 100);
    assert_eq!(lanes.pending(), (0, 0));
    assert_eq!(request(&mut lanes, 1), (0, 1), "the next one tries again");
    open(&mut lanes, 'a', 1);
    assert_eq!(request(&mut lanes, 1), (0, 1));
    assert!(lanes.failed(late).0.is_empty(), "one stream is under way: it waits for its end");
}

#[test]
fn each_request_has_second_try() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 2), (0, 1));
    let (failed, actions) = lanes.failed(NOW);
    assert!(failed.is_empty(), "one failure");
    assert_eq!(actions.open, 1);
    let _ = lanes.wait(2, NOW);
    let (failed, actions) = lanes.failed(NOW);
    assert_eq!(failed, [0, 1], "two failures");
    assert_eq!(actions.open, 1, "for the one that came later");
    let (_, actions) = lanes.opened('a', NOW);
    assert_eq!(actions.placed, [(2, LanePlacement::Stream(LaneId(4), 'a'))]);
}

#[test]
fn http1_is_kept_until_failure() {
    let mut lanes = Play::new(BOUNDS);
    assert_eq!(request(&mut lanes, 2), (0, 1));
    assert_eq!(lanes.opened_http1().placed, [(0, LanePlacement::Http1), (1, LanePlacement::Http1)]);
    assert_eq!(lanes.take(), Some(LanePlacement::Http1));
    lanes.forget_http1();
    assert_eq!(request(&mut lanes, 1), (0, 1));
}

#[test]
fn idle_connections_are_limited_in_number_and_time() {
    let mut lanes = Play::new(LaneBounds { streams: 1, ..BOUNDS });
    assert_eq!(request(&mut lanes, 4), (0, 4));
    let ids = ['a', 'b', 'c', 'd'].map(|name| open(&mut lanes, name, 100).0);
    let now = NOW;
    for id in ids {
        assert_eq!(lanes.release(id, now).open, 0);
    }
    assert_eq!(lanes.live(), [0, 0], "the first two");
    assert_eq!(lanes.expire(ids[2], now), None, "it is retired");
    let idle_time = BOUNDS.idle_time;
    assert_eq!(lanes.expire(ids[0], now + idle_time / 2), Some(idle_time / 2));
    assert_eq!(lanes.expire(ids[0], now + idle_time), None);
    assert_eq!(lanes.live(), [0]);
}

#[test]
fn failed_dials_are_repeated() {
    let mut lanes = Play::new(LaneBounds { streams: 1, ..BOUNDS });
    request(&mut lanes, 1);
    let (first, ..) = open(&mut lanes, 'a', 1);
    assert_eq!(request(&mut lanes, 1), (0, 1));
    assert!(lanes.failed(NOW).0.is_empty(), "it waits for the stream");
    assert_eq!(lanes.open_again().open, 1, "or for another connection");
    assert_eq!(lanes.open_again().open, 0, "which is being opened");
    let (_, actions) = lanes.opened('b', NOW);
    assert_eq!(actions.placed.len(), 1);
    assert_eq!(lanes.release(first, NOW).open, 0);
    assert_eq!(lanes.open_again().open, 0, "nobody waits");
}

#[test]
fn silent_idle_connections_retire() {
    let mut lanes = Play::new(BOUNDS);
    request(&mut lanes, 201);
    let ids = ['a', 'b', 'c'].map(|name| open(&mut lanes, name, 100).0);
    assert_eq!(lanes.live(), [100, 100, 1]);
    for id in [ids[1]; 100] {
        let _ = lanes.release(id, NOW);
    }
    let actions = lanes.retire_silent(ids[2], |name| *name != 'a');
    assert_eq!(lanes.live(), vec![100, 1], "the idle one is gone");
    assert_eq!(actions.open, 0, "the idle one is gone");
    assert_eq!(request(&mut lanes, 1), (0, 1), "the silent one takes no more");
}
