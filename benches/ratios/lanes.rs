//! The first byte of many streams at once over an HTTP/2 provider that allows a hundred a connection, beside
//! the same streams from a provider without Plimsoll before it.
//!
//! Streams last 3 s and begin one after another, so that their number is steady: a new one that had to wait
//! for another to end would wait for seconds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::load::{Latencies, Load};
use super::process::{Part, Plimsoll};
use super::{floor, provider};

/// Streams that the provider allows on one connection.
const ALLOWED: u32 = 100;
/// Events of one stream, and the time between two.
const EVENTS: usize = 10;
const PACE: Duration = Duration::from_millis(300);
/// Streams one after another, for each of those at once.
const ROUNDS: usize = 3;

/// The provider over HTTP/2 and TLS, with the certificate in this folder, until killed.
pub(crate) fn serve(folder: &str) {
    let folder = Path::new(folder);
    let chain = CertificateDer::pem_file_iter(folder.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    floor::accept(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(ALLOWED);
            builder.serve_connection(TokioIo::new(stream), service_fn(provider::answer)).await
        }
    });
}

/// Measures each number of streams, with memory for the connections of a thousand clients, and prints how long
/// the first byte took.
pub(crate) async fn print() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let direct = Part::start("provider", &[]);
    let part = Part::start("lanes", &[&folder.path().to_string_lossy()]);
    let config = format!(
        "mode = \"observe\"\nextra_ca = {:?}\n[upstream.anthropic]\nbase_url = \"https://{}\"\n",
        folder.path().join("cert.pem"),
        part.address
    );
    let plimsoll = Plimsoll::configured(&config);
    println!("first byte, ms       provider alone         through Plimsoll      added");
    println!("streams at once         p50     p99            p50     p99          p99");
    for streams in [50, 200, 400, 1000] {
        let mut measured = Vec::new();
        for address in [&direct.address, &plimsoll.address] {
            let load = Load::new(address);
            measured.push(load.first_bytes(streams, ROUNDS, EVENTS, PACE).await);
        }
        let [alone, through] = [measured[0], measured[1]];
        let ms = |seconds: f64| seconds * 1e3;
        let Latencies { p50, p99 } = alone;
        println!(
            "{streams:>15}{:>12.1}{:>8.1}{:>15.1}{:>8.1}{:>13.1}   (bar: 50)",
            ms(p50),
            ms(p99),
            ms(through.p50),
            ms(through.p99),
            ms(through.p99 - p99)
        );
    }
    println!();
}
