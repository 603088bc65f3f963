//! Upgraded connections: bytes both ways, unchanged, until one side ends.
//!
//! Any protocol is carried as it is. The bytes can be observed, but not changed, and observing can neither
//! delay nor end a tunnel. A tunnel keeps its permit until it ends, and is closed if nothing passes.

use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::frames::{Direction, FrameObserver};
use crate::clock::since_boot;
use crate::context::Outcome;
use crate::proxy::http::tunnel_timeouts::TunnelTimeouts;
use crate::proxy::state::ServingPhase;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;

/// Bytes copied at once, each way. WebSocket messages of agents have a few KB.
const BUFFER: usize = 8 * 1024;

/// Carries bytes between client and upstream until both have ended, one fails, or a drain reaches its
/// deadline.
pub(crate) async fn carry(
    client: OnUpgrade,
    upstream: OnUpgrade,
    mut recorder: Box<ExchangeRecorder>,
    frames: Option<FrameObserver>,
) {
    let mut phase = recorder.phase.clone();
    // The outcome stays that the client left.
    let Ok(client) = client.await else { return };
    let Ok(upstream) = upstream.await else {
        recorder.event.outcome = Outcome::UpstreamFailed;
        return;
    };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_upstream, to_upstream) = tokio::io::split(TokioIo::new(upstream));
    let timeouts = recorder.proxy.tunnel_timeouts;
    let mut up = 0;
    let mut down = 0;
    let last_activity = AtomicU64::new(boot_ms());
    let observe = |direction, bytes: &[u8]| {
        last_activity.store(boot_ms(), Ordering::Relaxed);
        if let Some(frames) = &frames {
            frames.observe(direction, bytes);
        }
        bytes.len() as u64
    };
    // Who ended first decides the outcome of a request that is still open, and which timeout applies.
    let first_end = OnceLock::new();
    let outcome = {
        let up = pump(
            from_client,
            Outcome::ClientLeft,
            to_upstream,
            Outcome::UpstreamFailed,
            |bytes| up += observe(Direction::Up, bytes),
            || _ = first_end.set(Direction::Up),
        );
        let down = pump(
            from_upstream,
            Outcome::UpstreamFailed,
            to_client,
            Outcome::ClientLeft,
            |bytes| down += observe(Direction::Down, bytes),
            || _ = first_end.set(Direction::Down),
        );
        let mut pumps = pin!(async { tokio::try_join!(up, down) });
        let mut drained = pin!(drained(&mut phase, frames.as_ref()));
        tokio::select! {
            ended = &mut pumps => ended.err().unwrap_or(Outcome::Complete),
            () = &mut drained => Outcome::EndedByProxy,
            () = idle(timeouts, &last_activity, &first_end) => Outcome::EndedByProxy,
        }
    };
    if let Some(frames) = &frames
        && let Some(why) = frames.end(outcome, first_end.get().copied())
    {
        recorder.event.add_fail_open(why);
    }
    recorder.event.timing.request_bytes = up;
    recorder.event.timing.response_bytes = down;
    recorder.event.outcome = outcome;
}

async fn drained(phase: &mut watch::Receiver<ServingPhase>, frames: Option<&FrameObserver>) {
    // A drain ends a tunnel at its deadline; one whose messages are read, as soon as no request waits for its
    // reply.
    let _ = phase.wait_for(|phase| *phase >= ServingPhase::Draining).await;
    let breaking = async { drop(phase.wait_for(|phase| *phase == ServingPhase::Breaking).await) };
    match frames {
        None => breaking.await,
        Some(frames) => tokio::select! {
            () = breaking => {}
            () = frames.idle() => {}
        },
    }
}

async fn idle(
    timeouts: TunnelTimeouts,
    last_activity: &AtomicU64,
    first_end: &OnceLock<Direction>,
) {
    loop {
        let idle = boot_ms().saturating_sub(last_activity.load(Ordering::Relaxed));
        // A tunnel that is half closed has nothing more to wait for than the other end.
        if Duration::from_millis(idle) >= timeouts.timeout(first_end.get().is_some()) {
            return;
        }
        tokio::time::sleep(timeouts.check).await;
    }
}

fn boot_ms() -> u64 {
    since_boot().as_millis() as u64
}

/// Each side has the outcome that applies if it fails.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    from_failed: Outcome,
    mut to: impl AsyncWrite + Unpin,
    to_failed: Outcome,
    mut observe: impl FnMut(&[u8]),
    ended: impl FnOnce(),
) -> Result<(), Outcome> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.map_err(|_| from_failed)?;
        if read == 0 {
            ended();
            // The other side may be gone already, which is no failure of a direction that has ended.
            let _ = to.shutdown().await;
            return Ok(());
        }
        to.write_all(&buffer[..read]).await.map_err(|_| to_failed)?;
        // TLS keeps what its socket did not take; only a flush waits for that.
        to.flush().await.map_err(|_| to_failed)?;
        observe(&buffer[..read]);
    }
}
