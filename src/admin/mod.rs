//! Floor 5: the admin listener.
//!
//! Reads what the lower floors store; never touches traffic, and does not know the proxy. Clients are checked
//! first (`guard.rs`); all routes are one table (`routes.rs`); responses are the types of `view.rs`.

mod assets;
mod calls;
pub(super) mod caps;
mod compactions;
mod compare;
mod context;
pub(super) mod count;
mod dispatch;
mod events;
mod explain;
mod export;
pub(crate) mod failures;
mod guard;
mod history;
mod index;
pub(super) mod lessons;
mod limits;
pub(crate) mod line;
mod listener;
mod listing;
pub(super) mod messages;
mod openapi;
mod preview;
mod prices;
mod rate_limit;
mod responses;
pub mod routes;
mod savings;
mod scrape;
pub(super) mod secrets;
mod session_cost;
pub mod spend;
mod state;
mod transcript;
mod turns;
pub mod view;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use crate::activity::Activity;
use crate::telemetry::AdminRefusal;
pub(crate) use events::tell_others;
use guard::AdminPeer;
pub(crate) use listener::AdminListener;
use listener::{AdminConnection, AdminStream};
use state::becomes_true;
pub use state::{Admin, AdminAccess};

/// The most connections that may stay open at once.
const CONNECTIONS: usize = 128;
/// The most connections past those: each may send one request, and the newest replaces the oldest. So a
/// health probe is answered even if any number of clients keep connections open.
const BRIEF_CONNECTIONS: usize = 64;
/// How long these may take to send a request and receive the response.
const BRIEF: Duration = Duration::from_secs(2);
/// How long a client may take to send the headers of its request, or to send the next request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long responses may take to finish at shutdown.
const ENDING: Duration = Duration::from_secs(1);
/// The pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves clients of `listener` until `shutdown` is ready, then lets responses finish.
pub async fn serve(
    admin: Arc<Admin>,
    listener: impl Into<AdminListener>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let listener = listener.into();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let (ending, ended) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    let mut brief = VecDeque::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(arrival) => match permits.clone().try_acquire_owned() {
                    Ok(permit) => {
                        let admin = admin.clone();
                        let ended = ended.clone();
                        tokio::spawn(async move {
                            handle(admin, arrival, ConnectionLifetime::Open, ended).await;
                            drop(permit);
                        });
                    }
                    Err(_) => {
                        let handling = handle(admin.clone(), arrival, ConnectionLifetime::Brief, ended.clone());
                        let handling = tokio::spawn(tokio::time::timeout(BRIEF, handling));
                        make_room(&mut brief);
                        brief.push_back(handling.abort_handle());
                    }
                },
                Err(error) => {
                    tracing::warn!(
                        "a connection to the admin listener could not be accepted: {error}. If too many files are \
                         open, raise the limit (ulimit -n)"
                    );
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(ended);
    ending.send_replace(true);
    let _ = tokio::time::timeout(ENDING, ending.closed()).await;
}

fn make_room(brief: &mut VecDeque<AbortHandle>) {
    // The newest replaces the oldest, so that a health probe is always answered.
    brief.retain(|handling| !handling.is_finished());
    if brief.len() >= BRIEF_CONNECTIONS
        && let Some(oldest) = brief.pop_front()
    {
        oldest.abort();
    }
}

/// How long a connection may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionLifetime {
    /// Until it is idle.
    Open,
    /// For one response.
    Brief,
}

async fn handle(
    admin: Arc<Admin>,
    arrival: AdminConnection,
    lifetime: ConnectionLifetime,
    ended: watch::Receiver<bool>,
) {
    match arrival.open(TIMEOUT).await {
        Ok(None) => {}
        Ok(Some((stream, peer))) => connection(admin, stream, peer, lifetime, ended).await,
        Err(user) => {
            dispatch::record_refusal(&admin, AdminRefusal::ForeignUser, AdminPeer::User(user));
        }
    }
}

async fn connection(
    admin: Arc<Admin>,
    stream: Box<dyn AdminStream>,
    peer: AdminPeer,
    lifetime: ConnectionLifetime,
    mut ended: watch::Receiver<bool>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let http1 = &mut builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .keep_alive(lifetime == ConnectionLifetime::Open);
    let ending = ended.clone();
    let activity = Activity::default();
    let requests = activity.clone();
    let service = service_fn(move |mut request| {
        let admin = admin.clone();
        let ending = ending.clone();
        let under_way = requests.begin();
        async move {
            let answer = dispatch::answer(&admin, &mut request, peer, ending).await;
            Ok::<_, io::Error>(answer.map(|body| under_way.answer(body)))
        }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let is_ending = tokio::select! {
        _ = serving.as_mut() => return,
        () = becomes_true(&mut ended) => true,
        // Before the first bytes hyper has no timeout, and for HTTP/2 it has none at all.
        () = activity.idle(TIMEOUT) => false,
    };
    if activity.is_silent() {
        return;
    }
    // A request that has just arrived is still answered.
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = serving.as_mut() => {}
        () = activity.idle(ENDING), if !is_ending => {}
    }
}
