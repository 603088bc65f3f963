//! Floor 5, looking in: the admin listener.
//!
//! Reads what the lower floors keep; never touches traffic, and does not know the proxy. Whoever
//! asks is judged first (`guard.rs`); what may be asked is one table (`routes.rs`); what is answered
//! is `view.rs`.

mod answers;
mod compactions;
pub mod explain;
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

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{Semaphore, watch};

use crate::config::Secret;
use crate::store::ledgers::Ledgers;
use crate::telemetry::{AdminRefusal, Telemetry};
use gate::Gate;
use guard::Peer;
pub use listener::Listener;
use listener::{Connection, Stream};
use prices::Prices;
use view::About;

/// Connections at once; past it they wait to be accepted, and traffic is not touched.
const CONNECTIONS: usize = 128;
/// How long a client may take to send its request's headers.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long answers may take to finish at the end.
const ENDING: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who may ask for what.
#[derive(Clone, Debug)]
pub struct Access {
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
    about: About,
    prices: Arc<Prices>,
    access: Access,
    gate: Gate,
    /// Becomes true when the proxy stops accepting.
    draining: watch::Receiver<bool>,
}

impl Admin {
    /// Looks into `ledgers` and `telemetry` of the house that `about` describes, where tokens cost
    /// `prices`; lets in whom `access` says.
    pub fn new(
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        about: About,
        prices: Prices,
        access: Access,
        draining: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let prices = Arc::new(prices);
        let gate = Gate::default();
        Arc::new(Self { ledgers, telemetry, about, prices, access, gate, draining })
    }
}

/// Answers whoever comes through `listener` until `shutdown` is ready, then lets answers finish.
pub async fn serve(
    admin: Arc<Admin>,
    listener: impl Into<Listener>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let listener = listener.into();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let (ending, ended) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    loop {
        let accepting = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            () = &mut shutdown => break,
            (permit, accepted) = accepting => match accepted {
                Ok(arrival) => {
                    let (admin, ended) = (admin.clone(), ended.clone());
                    tokio::spawn(async move {
                        handle(admin, arrival, ended).await;
                        drop(permit);
                    });
                }
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

async fn handle(admin: Arc<Admin>, arrival: Connection, ended: watch::Receiver<bool>) {
    match arrival.open(PATIENCE).await {
        Ok(None) => {}
        Ok(Some((wire, peer))) => connection(admin, wire, peer, ended).await,
        Err(user) => routes::record_refusal(&admin, AdminRefusal::ForeignUser, Peer::User(user)),
    }
}

async fn connection(
    admin: Arc<Admin>,
    wire: Box<dyn Stream>,
    peer: Peer,
    mut ended: watch::Receiver<bool>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let ending = ended.clone();
    let service = service_fn(move |mut request| {
        let (admin, ending) = (admin.clone(), ending.clone());
        async move { Ok::<_, io::Error>(routes::answer(&admin, &mut request, peer, ending).await) }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let still_serving = tokio::select! {
        _ = serving.as_mut() => false,
        () = becomes_true(&mut ended) => true,
    };
    if still_serving {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// Ready when `flag` is true, or nobody can make it so any more.
async fn becomes_true(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
