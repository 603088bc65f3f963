//! The floor: a bare hyper reverse proxy. It forwards and parses nothing; what Plimsoll costs above
//! it is what reading costs.

use std::convert::Infallible;
use std::future::Future;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

/// Forwards everything to `upstream` until killed.
pub(crate) fn serve(upstream: &str) {
    let upstream = upstream.to_owned();
    let mut connector = hyper_util::client::legacy::connect::HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Incoming>(connector);
    accept(move |stream| {
        let (client, upstream) = (client.clone(), upstream.clone());
        hyper::server::conn::http1::Builder::new().serve_connection(
            TokioIo::new(stream),
            service_fn(move |mut request: Request<Incoming>| {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("http://{upstream}{path}").parse().unwrap();
                let answer = client.request(request);
                async move { Ok::<_, Infallible>(answer.await.unwrap()) }
            }),
        )
    });
}

/// Listens on a free loopback port, prints it, and serves each connection on a task of its own.
pub(crate) fn accept<F, C, E>(mut serve: F)
where
    F: FnMut(TcpStream) -> C,
    C: Future<Output = Result<(), E>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let connection = serve(stream);
            tokio::spawn(async move { drop(connection.await) });
        }
    });
}
