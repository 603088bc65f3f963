//! Floods of clients over TLS: a connection takes no more than is counted for it, and thousands share one budget.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use super::{MANY, PROMISED, TIMEOUT, resident_of, settled, status_of};
use crate::support::h2;

/// What a connection with TLS and no request may take.
const COUNTED: u64 = 56 << 10;
/// This many clients are always accepted.
const SOME: usize = 800;
const AT_ONCE: usize = 50;

/// What a client sends after the handshake.
#[derive(Clone, Copy, Debug)]
enum AfterHandshake {
    Nothing,
    /// The beginning of a request.
    Beginning,
    /// A TLS record without its end.
    Record,
}

/// Opens this many connections as far as they are accepted, sends this on each, and leaves them open.
async fn open(
    serving: &super::Serving,
    certificates: &h2::Certificates,
    many: usize,
    says: AfterHandshake,
) -> Vec<TlsStream<TcpStream>> {
    let beginning = format!("POST /v1/messages HTTP/1.1\r\nx: {}", "a".repeat(7_000));
    let record = [&[0x17, 3, 3, 0x40, 0x10][..], &[0; 0x4000]].concat();
    let connector = h2::connector(&certificates.authority, &[b"http/1.1"]);
    let open = async |_| {
        let stream = TcpStream::connect(serving.clients).await.ok()?;
        let name = ServerName::try_from("localhost").unwrap();
        let shaking = timeout(TIMEOUT, connector.connect(name, stream));
        let mut stream = shaking.await.unwrap().ok()?;
        let saying = async {
            match says {
                AfterHandshake::Nothing => Ok(()),
                AfterHandshake::Beginning => stream.write_all(beginning.as_bytes()).await,
                AfterHandshake::Record => stream.get_mut().0.write_all(&record).await,
            }
        };
        let _ = timeout(Duration::from_secs(1), saying).await;
        let _ = timeout(Duration::from_secs(1), stream.flush()).await;
        Some(stream)
    };
    let opened: Vec<_> = stream::iter(0..many).map(open).buffer_unordered(AT_ONCE).collect().await;
    opened.into_iter().flatten().collect()
}

/// The resident memory is nearly that of the start again.
async fn is_freed(serving: &super::Serving, start: u64) {
    let most = start + start / 10;
    let resident = settled(serving, most).await;
    assert!(resident <= most, "{} MiB after {} at the start", resident >> 20, start >> 20);
}

async fn over_tls(certificates: &h2::Certificates) -> super::Serving {
    let config = format!(
        "[tls]\ncertificate = {:?}\nkey = {:?}\n",
        certificates.certificate.display().to_string(),
        certificates.key.display().to_string()
    );
    super::serving_in_256_mib(&super::Upstream::start().await, &config).await
}

#[tokio::test]
async fn idle_connection_over_tls_takes_no_more_than_is_counted_of_it() {
    let certificates = h2::certificates();
    let serving = over_tls(&certificates).await;
    // What is allocated only once is allocated before the measurement.
    drop(open(&serving, &certificates, 50, AfterHandshake::Nothing).await);
    let start = resident_of(&serving);
    for says in [AfterHandshake::Nothing, AfterHandshake::Beginning, AfterHandshake::Record] {
        is_freed(&serving, start).await;
        let before = resident_of(&serving);
        let held = open(&serving, &certificates, SOME, says).await;
        assert_eq!(held.len(), SOME, "all are accepted");
        sleep(Duration::from_secs(1)).await;
        let each = resident_of(&serving).saturating_sub(before) / SOME as u64;
        println!("{says:?} over TLS: {} KiB a connection", each >> 10);
        assert!(each <= COUNTED, "{} KiB a connection, {} are counted", each >> 10, COUNTED >> 10);
        drop(held);
    }
}

#[tokio::test]
async fn thousands_of_idle_clients_over_tls_share_one_budget() {
    let certificates = h2::certificates();
    let serving = over_tls(&certificates).await;
    drop(open(&serving, &certificates, 50, AfterHandshake::Nothing).await);
    let start = resident_of(&serving);
    let held = open(&serving, &certificates, MANY, AfterHandshake::Nothing).await;
    let peak = status_of(&serving, "VmHWM:");
    println!("{} of {MANY} were let in: {} MiB at most", held.len(), peak >> 20);
    assert!(peak <= PROMISED, "{} MiB were resident", peak >> 20);
    drop(held);
    is_freed(&serving, start).await;
    println!("{} MiB after it, {} before", resident_of(&serving) >> 20, start >> 20);
}
