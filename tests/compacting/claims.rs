//! Every order in which processes can meet at a claim, step by step of the store: only one at a time has it, one of
//! them always gets it, and the claim of a process that died expires.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use plimsoll::store::claims::Claims;

use crate::support::held::Held;
use crate::support::orders::{Choices, in_every_order};

const WORK: &str = "a summary";
const NOW: u64 = 5;
const UNTIL: u64 = 100;

/// Lets another process run.
async fn step() {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// Claims, works if it got the claim, and releases it.
async fn works(claims: Claims, holder: u64, at_work: &Cell<Option<u64>>) -> bool {
    if !claims.claim(WORK, holder, NOW, UNTIL).await.unwrap() {
        return false;
    }
    assert_eq!(at_work.replace(Some(holder)), None, "two at once");
    step().await;
    at_work.set(None);
    claims.release(WORK, holder, NOW).await.unwrap();
    true
}

type Process<'p> = Pin<&'p mut (dyn Future<Output = bool> + 'p)>;

/// Runs the processes in one order, step by step, until all have ended; returns which ones got the claim. The first
/// dies after `dies_after` steps, if it takes that many.
fn meet(processes: &mut [Process<'_>], dies_after: usize, choices: &mut Choices) -> Vec<bool> {
    let mut context = Context::from_waker(Waker::noop());
    let mut steps = 0;
    let mut open: Vec<usize> = (0..processes.len()).collect();
    let mut got = vec![false; processes.len()];
    while !open.is_empty() {
        let chosen = choices.next(open.len());
        let process = open[chosen];
        if process == 0 && steps == dies_after {
            open.remove(chosen);
            continue;
        }
        steps += usize::from(process == 0);
        if let Poll::Ready(has) = processes[process].as_mut().poll(&mut context) {
            got[process] = has;
            open.remove(chosen);
        }
    }
    got
}

/// Whether a process that comes later gets the claim.
fn is_free(store: &Arc<Held>, at: u64) -> bool {
    let claims = Claims::new(store.clone());
    let mut later = pin!(claims.claim(WORK, 9, at, at + UNTIL));
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(free) = later.as_mut().poll(&mut context) {
            return free.unwrap();
        }
    }
}

#[test]
fn claim_is_held_by_one_process_at_time_in_any_order_of_steps() {
    let runs = in_every_order(|choices| {
        let (store, at_work) = (Held::by_steps(), Cell::new(None));
        let works = |holder| works(Claims::new(store.clone()), holder, &at_work);
        let (mut one, mut other) = (pin!(works(1)), pin!(works(2)));
        let got = meet(&mut [one.as_mut(), other.as_mut()], usize::MAX, choices);
        assert!(got.contains(&true), "nobody got it");
        assert!(is_free(&store, NOW), "both have released it");
    });
    assert!(runs > 100, "{runs} orders");
}

#[test]
fn claim_of_dead_process_holds_until_its_expiry() {
    for dies_after in 0..8 {
        in_every_order(|choices| {
            let (store, at_work) = (Held::by_steps(), Cell::new(None));
            let works = |holder| works(Claims::new(store.clone()), holder, &at_work);
            let (mut dies, mut lives) = (pin!(works(1)), pin!(works(2)));
            meet(&mut [dies.as_mut(), lives.as_mut()], dies_after, choices);
            if at_work.get().is_some() {
                assert!(!is_free(&store, NOW), "its work is not done");
            }
            assert!(is_free(&store, UNTIL), "the claim has expired");
        });
    }
}
