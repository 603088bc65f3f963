//! A provider that speaks HTTP/2 frame by frame, so that a test decides what it allows and when it closes.
//!
//! It also checks that no connection carries more streams than it allowed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll::config::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::server::TlsStream;

use crate::support::{h2, server, within};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;

pub(super) const NO_ERROR: u32 = 0;
pub(super) const REFUSED_STREAM: u32 = 7;

/// What the provider observes.
#[derive(Debug)]
pub(super) enum Event {
    /// A request's head.
    Call(Call),
    /// The proxy reset a stream.
    Reset(u64, u32),
    /// The proxy acknowledged the limit of this connection.
    Acknowledged(u64),
    /// A connection carries more streams than allowed.
    TooMany(String),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Connections are numbered from 0.
    pub(super) number: u64,
    frames: Mutex<Option<UnboundedSender<Vec<u8>>>>,
    silent: AtomicBool,
    /// Lowers its limit to 0 with the answer to the next ping.
    closes_on_ping: AtomicBool,
    open: AtomicUsize,
    /// The limit on open streams that was announced last, and the one that was acknowledged.
    announced: AtomicUsize,
    allowed: AtomicUsize,
}

/// A request that has begun.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) link: Arc<Link>,
    pub(super) stream: u32,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn settings(streams: u32) -> Vec<u8> {
    let mut payload = MAX_CONCURRENT_STREAMS.to_be_bytes().to_vec();
    payload.extend(streams.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

impl Link {
    fn send(&self, frame: Vec<u8>) {
        if self.silent.load(Ordering::SeqCst) {
            return;
        }
        if let Some(frames) = &*self.frames.lock().unwrap() {
            let _ = frames.send(frame);
        }
    }

    /// Sets the limit on streams, which applies once it is acknowledged.
    pub(super) fn allow(&self, streams: u32) {
        self.announced.store(streams as usize, Ordering::SeqCst);
        self.send(settings(streams));
    }

    /// Announces the end of the connection (GOAWAY) after this stream.
    pub(super) fn go_away(&self, last: u32) {
        self.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()));
    }

    /// Sends nothing any more, not even acknowledgements.
    pub(super) fn die_silently(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    /// With the answer to the next ping, no more streams are allowed.
    pub(super) fn close_on_ping(&self) {
        self.closes_on_ping.store(true, Ordering::SeqCst);
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.frames.lock().unwrap().take();
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Call {
    /// Responds with 200 and leaves the body open.
    pub(super) fn begin(&self) {
        // In HPACK's static table, 8 is `:status: 200`.
        self.link.send(frame(HEADERS, END_HEADERS, self.stream, &[0x88]));
        self.link.send(frame(DATA, 0, self.stream, b"one"));
    }

    /// Responds with 200 and all of a body of which the length is stated, but not with its end.
    pub(super) fn begin_whole(&self) {
        // In HPACK's static table, 28 is the name `content-length`; a literal follows.
        self.link.send(frame(HEADERS, END_HEADERS, self.stream, b"\x88\x0f\x0d\x013"));
        self.link.send(frame(DATA, 0, self.stream, b"one"));
    }

    /// Sends this many interim responses (103).
    pub(super) fn interim(&self, count: usize) {
        // `:status` is name 8 of the static table; the value follows.
        let early_hints = frame(HEADERS, END_HEADERS, self.stream, b"\x08\x03103");
        self.link.send(early_hints.repeat(count));
    }

    pub(super) fn end(&self) {
        self.end_with(b"two");
    }

    pub(super) fn end_with(&self, data: &[u8]) {
        self.link.open.fetch_sub(1, Ordering::SeqCst);
        self.link.send(frame(DATA, END_STREAM, self.stream, data));
    }

    pub(super) fn reset(&self, why: u32) {
        self.link.open.fetch_sub(1, Ordering::SeqCst);
        self.link.send(frame(RST_STREAM, 0, self.stream, &why.to_be_bytes()));
    }
}

pub(super) struct Provider {
    address: SocketAddr,
    events: UnboundedReceiver<Event>,
    links: Arc<AtomicUsize>,
    refuses: Arc<AtomicUsize>,
    certificates: h2::Certificates,
}

impl Provider {
    /// A provider that allows this many streams on each connection.
    pub(super) async fn start(streams: u32) -> Self {
        let certificates = h2::certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = h2::acceptor(&certificates, &[b"h2"]);
        let (tell, events) = unbounded_channel();
        let links = Arc::new(AtomicUsize::new(0));
        let refuses = Arc::new(AtomicUsize::new(0));
        let (accepted, refusing) = (links.clone(), refuses.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let refused = refusing
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if refused.is_ok() {
                    continue;
                }
                let number = accepted.fetch_add(1, Ordering::SeqCst) as u64;
                let (tls, tell) = (tls.clone(), tell.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, number, streams, tell).await;
                    }
                });
            }
        });
        Self { address, events, links, refuses, certificates }
    }

    /// The configuration of a proxy in front of it that trusts its certificate.
    pub(super) fn config(&self) -> Config {
        let mut config = server::config(&format!("https://{}", self.address));
        config.extra_ca = Some(self.certificates.authority.clone());
        config
    }

    /// Closes every new connection from now on.
    pub(super) fn refuse_more(&self) {
        self.refuse(usize::MAX);
    }

    /// Closes this many new connections.
    pub(super) fn refuse(&self, connections: usize) {
        self.refuses.store(connections, Ordering::SeqCst);
    }

    /// Accepts connections again.
    pub(super) fn accept_again(&self) {
        self.refuse(0);
    }

    /// The number of connections accepted so far.
    pub(super) fn links(&self) -> usize {
        self.links.load(Ordering::SeqCst)
    }

    pub(super) async fn event(&mut self) -> Event {
        match within("something at the provider", self.events.recv()).await.unwrap() {
            Event::TooMany(streams) => panic!("too many streams: {streams}"),
            event => event,
        }
    }

    /// The next request; other events are skipped.
    pub(super) async fn call(&mut self) -> Call {
        loop {
            if let Event::Call(call) = self.event().await {
                return call;
            }
        }
    }
}

async fn serve(
    stream: TlsStream<TcpStream>,
    number: u64,
    streams: u32,
    tell: UnboundedSender<Event>,
) {
    let (read, write) = tokio::io::split(stream);
    let (frames, sending) = unbounded_channel();
    let link = Arc::new(Link {
        number,
        frames: Mutex::new(Some(frames)),
        silent: AtomicBool::new(false),
        closes_on_ping: AtomicBool::new(false),
        open: AtomicUsize::new(0),
        announced: AtomicUsize::new(streams as usize),
        allowed: AtomicUsize::new(streams as usize),
    });
    link.allow(streams);
    tokio::spawn(write_all(write, sending));
    // An error ends the connection.
    let _ = read_all(read, &link, &tell).await;
}

async fn write_all(
    mut to: WriteHalf<TlsStream<TcpStream>>,
    mut frames: UnboundedReceiver<Vec<u8>>,
) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(&frame).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn read_all(
    mut from: ReadHalf<TlsStream<TcpStream>>,
    link: &Arc<Link>,
    tell: &UnboundedSender<Event>,
) -> std::io::Result<()> {
    let mut preface = [0; 24];
    from.read_exact(&mut preface).await?;
    loop {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match kind {
            HEADERS => {
                let open = link.open.fetch_add(1, Ordering::SeqCst) + 1;
                let allowed = link.allowed.load(Ordering::SeqCst);
                if open > allowed {
                    let _ = tell
                        .send(Event::TooMany(format!("{open} of {allowed} at {}", link.number)));
                }
                let _ = tell.send(Event::Call(Call { link: link.clone(), stream }));
            }
            RST_STREAM => {
                link.open.fetch_sub(1, Ordering::SeqCst);
                let _ = tell.send(Event::Reset(link.number, stream));
            }
            SETTINGS if flags & ACK == 0 => link.send(frame(SETTINGS, ACK, 0, &[])),
            SETTINGS => {
                link.allowed.store(link.announced.load(Ordering::SeqCst), Ordering::SeqCst);
                let _ = tell.send(Event::Acknowledged(link.number));
            }
            PING if flags & ACK == 0 => {
                if link.closes_on_ping.swap(false, Ordering::SeqCst) {
                    link.allow(0);
                }
                link.send(frame(PING, ACK, 0, &payload));
            }
            _ => {}
        }
    }
}
