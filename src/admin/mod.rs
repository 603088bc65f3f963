//! Floor 5, looking in: the admin listener.
//!
//! Reads what the lower floors keep; never touches traffic, and does not know the proxy. Whoever
//! asks is judged first (`guard.rs`); what may be asked is one table (`routes.rs`); what is answered
//! is `view.rs`.

mod answers;
mod compactions;
pub mod count;
mod explain;
mod export;
mod gate;
mod guard;
pub mod lessons;
mod listener;
mod outlook;
pub mod prices;
pub mod routes;
pub mod savings;
pub mod say;
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
use crate::config::Secret;
use crate::store::ledgers::Ledgers;
use crate::telemetry::{AdminRefusal, Telemetry};
use gate::AdminGate;
use guard::AdminPeer;
pub use listener::AdminListener;
use listener::{AdminConnection, AdminStream};
use prices::PriceList;
use view::ServerInfo;

/// Connections at once that may stay open.
const CONNECTIONS: usize = 128;
/// Connections past those: they may ask one thing, and the oldest gives way to the newest. So whoever hangs
/// here, however many of them, a probe that asks at once is answered.
const BRIEF_CONNECTIONS: usize = 64;
/// How long these may take to ask and be answered.
const BRIEF: Duration = Duration::from_secs(2);
/// Sessions that are exported at once: each holds the turns of one, and its longest line.
const EXPORTS: usize = 4;
/// How long a client may take to send its request's headers, or to ask for the next thing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers may take to finish at the end.
const ENDING: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who may ask for what.
#[derive(Clone, Debug)]
pub struct AdminAccess {
    /// The token that may do everything.
    pub admin: Secret,
    /// The token that may only read.
    pub reader: Secret,
    /// Whether `/metrics` needs none.
    pub metrics_open: bool,
}

/// What the admin listener looks into.
pub struct Admin {
    ledgers: Arc<Ledgers>,
    telemetry: Arc<Telemetry>,
    about: ServerInfo,
    prices: Arc<PriceList>,
    access: AdminAccess,
    gate: AdminGate,
    exports: Arc<Semaphore>,
    /// Becomes true when the proxy stops accepting.
    draining: watch::Receiver<bool>,
}

impl Admin {
    /// Looks into `ledgers` and `telemetry` of the server that `about` describes, where tokens cost
    /// `prices`; lets in whom `access` says.
    pub fn new(
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        about: ServerInfo,
        prices: PriceList,
        access: AdminAccess,
        draining: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let prices = Arc::new(prices);
        let (gate, exports) = (AdminGate::default(), Arc::new(Semaphore::new(EXPORTS)));
        Arc::new(Self { ledgers, telemetry, about, prices, access, gate, exports, draining })
    }
}

/// Answers whoever comes through `listener` until `shutdown` is ready, then lets answers finish.
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
                        let (admin, ended) = (admin.clone(), ended.clone());
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
                    tracing::warn!("the admin listener could not accept: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(ended);
    ending.send_replace(true);
    let _ = tokio::time::timeout(ENDING, ending.closed()).await;
}

/// Takes out what has ended, and ends the oldest where there are enough.
fn make_room(brief: &mut VecDeque<AbortHandle>) {
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
    /// For one answer.
    Brief,
}

async fn handle(
    admin: Arc<Admin>,
    arrival: AdminConnection,
    stay: ConnectionLifetime,
    ended: watch::Receiver<bool>,
) {
    match arrival.open(TIMEOUT).await {
        Ok(None) => {}
        Ok(Some((wire, peer))) => connection(admin, wire, peer, stay, ended).await,
        Err(user) => {
            routes::record_refusal(&admin, AdminRefusal::ForeignUser, AdminPeer::User(user));
        }
    }
}

async fn connection(
    admin: Arc<Admin>,
    wire: Box<dyn AdminStream>,
    peer: AdminPeer,
    stay: ConnectionLifetime,
    mut ended: watch::Receiver<bool>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let http1 = &mut builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .keep_alive(stay == ConnectionLifetime::Open);
    let ending = ended.clone();
    let activity = Activity::default();
    let asked = activity.clone();
    let service = service_fn(move |mut request| {
        let (admin, ending, under_way) = (admin.clone(), ending.clone(), asked.begin());
        async move {
            let answer = routes::answer(&admin, &mut request, peer, ending).await;
            Ok::<_, io::Error>(answer.map(|body| under_way.answer(body)))
        }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let is_ending = tokio::select! {
        _ = serving.as_mut() => return,
        () = becomes_true(&mut ended) => true,
        // Before its first bytes hyper has no clock, and HTTP/2 has none at all.
        () = activity.idle(TIMEOUT) => false,
    };
    if activity.is_silent() {
        return;
    }
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = serving.as_mut() => {}
        () = activity.idle(ENDING), if !is_ending => {}
    }
}

/// Ready when `flag` is true, or nobody can make it so any more.
async fn becomes_true(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
