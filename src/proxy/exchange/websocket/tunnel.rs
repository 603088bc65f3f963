//! Upgraded connections: bytes both ways, untouched, until one side ends.
//!
//! Whatever leaves HTTP is carried as it is. What passes can be looked at, never changed, and
//! looking can neither delay nor end a tunnel. It keeps its place among the connections until it ends, and
//! ends where nothing passes.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::frames::{Direction, FrameObserver};
use crate::context::Outcome;
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::memory::MemoryShare;
use crate::proxy::http::tunnel_timeouts::TunnelTimeouts;
use crate::proxy::state::ServingPhase;

/// Bytes moved at once, each way. WebSocket messages of agents are a few KB.
const BUFFER: usize = 8 * 1024;

/// Carries bytes between client and upstream until both have ended, one fails, or the deadline of
/// a drain comes.
pub(crate) async fn carry(
    client: OnUpgrade,
    upstream: OnUpgrade,
    mut recorder: ExchangeRecorder,
    frames: Option<FrameObserver>,
) {
    let mut phase = recorder.phase.clone();
    let Ok((client, upstream)) = tokio::try_join!(client, upstream) else { return };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_upstream, to_upstream) = tokio::io::split(TokioIo::new(upstream));
    let timeouts = recorder.proxy.tunnel_timeouts;
    let (mut up, mut down) = (0, 0);
    let looked = |way, bytes: &[u8]| {
        if let Some(frames) = &frames {
            frames.saw(way, bytes);
        }
        bytes.len() as u64
    };
    let half_closed = AtomicBool::new(false);
    let outcome = {
        let up = pump(
            from_client,
            Outcome::ClientLeft,
            to_upstream,
            Outcome::UpstreamFailed,
            |bytes| up += looked(Direction::Up, bytes),
            &half_closed,
        );
        let down = pump(
            from_upstream,
            Outcome::UpstreamFailed,
            to_client,
            Outcome::ClientLeft,
            |bytes| down += looked(Direction::Down, bytes),
            &half_closed,
        );
        let mut both = pin!(async { tokio::try_join!(up, down) });
        let mut drained = pin!(drained(&mut phase, frames.as_ref()));
        tokio::select! {
            ended = &mut both => ended.err().unwrap_or(Outcome::Complete),
            () = &mut drained => Outcome::Turned,
            () = quiet(timeouts, &recorder.memory, &half_closed) => Outcome::Turned,
        }
    };
    let gave_up = frames.as_ref().and_then(|frames| frames.ended(outcome));
    gave_up.into_iter().for_each(|why| recorder.stood_aside(why));
    recorder.event.request_bytes = up;
    recorder.event.response_bytes = down;
    recorder.event.outcome = outcome;
}

/// Ready when a drain may end this tunnel: at its deadline, or, where the tunnel is read, as soon
/// as no request waits for its reply.
async fn drained(phase: &mut watch::Receiver<ServingPhase>, frames: Option<&FrameObserver>) {
    let _ = phase.wait_for(|phase| *phase != ServingPhase::Serving).await;
    let breaking = async { drop(phase.wait_for(|phase| *phase == ServingPhase::Breaking).await) };
    match frames {
        None => breaking.await,
        Some(frames) => tokio::select! {
            () = breaking => {}
            () = frames.idle() => {}
        },
    }
}

/// Ready where nothing has passed for as long as a tunnel may be quiet.
async fn quiet(timeouts: TunnelTimeouts, memory: &MemoryShare, half_closed: &AtomicBool) {
    loop {
        let is_short = memory.budget().is_short_of_connections();
        let timeout = timeouts.timeout(half_closed.load(Ordering::Relaxed), is_short);
        if memory.progress().still() >= timeout {
            return;
        }
        tokio::time::sleep(timeouts.check).await;
    }
}

/// Moves bytes one way until their end, which is passed on; each side comes with what it means if
/// it fails.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    from_failed: Outcome,
    mut to: impl AsyncWrite + Unpin,
    to_failed: Outcome,
    mut saw: impl FnMut(&[u8]),
    half_closed: &AtomicBool,
) -> Result<(), Outcome> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await.map_err(|_| from_failed)?;
        if read == 0 {
            // The other side may be gone already, which is no failure of an ended direction.
            let _ = to.shutdown().await;
            half_closed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        to.write_all(&buffer[..read]).await.map_err(|_| to_failed)?;
        saw(&buffer[..read]);
    }
}
