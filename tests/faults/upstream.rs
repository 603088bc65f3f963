//! An upstream that fails as each request says, and counts the requests that it read. Over HTTP/1.1 its connections
//! break, over HTTP/2 the streams on them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::h2::{Reason, RecvStream, server::SendResponse};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::support::h2::{self, Certificates};
use super::support::{digest, wire};

/// How an upstream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// It does not fail.
    None,
    /// It responds, and closes the connection after some idle milliseconds.
    ClosesIdle,
    /// It responds, and closes the connection at once.
    AnswersOnce,
    /// It pauses in the middle of its response.
    Stalls,
    /// It reads the request, and closes some time later without a response.
    ClosesUnanswered,
    /// It reads the request, and resets the connection some time later.
    ResetsUnanswered,
    /// It breaks off in the middle of its headers.
    CutsHead,
    /// It closes in the middle of its response.
    CutsBody,
    /// It resets the connection in the middle of its response.
    ResetsBody,
    /// It refuses the request before it has read the body, and reads no more.
    RefusesUnread,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::ClosesIdle,
        Self::AnswersOnce,
        Self::Stalls,
        Self::ClosesUnanswered,
        Self::ResetsUnanswered,
        Self::CutsHead,
        Self::CutsBody,
        Self::ResetsBody,
        Self::RefusesUnread,
    ];

    /// The fault with this name, as in a request.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name).unwrap()
    }

    /// Whether its response is complete.
    pub fn is_whole(self) -> bool {
        use Fault::{AnswersOnce, ClosesIdle, None, RefusesUnread, Stalls};
        matches!(self, None | ClosesIdle | AnswersOnce | Stalls | RefusesUnread)
    }

    /// The status of its response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::RefusesUnread => StatusCode::UNAUTHORIZED,
            _ => StatusCode::OK,
        }
    }

    /// The body of its response to this request.
    pub fn body(self, id: u64) -> String {
        match self {
            Self::RefusesUnread => REFUSAL.to_owned(),
            _ => events(id).concat(),
        }
    }
}

const REFUSAL: &str = "{}";

/// How often it read each request, and what was wrong with them.
#[derive(Default)]
pub struct UpstreamLog {
    pub times: HashMap<u64, usize>,
    pub wrong: Vec<String>,
}

#[derive(Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    /// Where it speaks HTTP/2, over TLS.
    pub http2: SocketAddr,
    pub certificates: Arc<Certificates>,
    pub log: Arc<Mutex<UpstreamLog>>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http2 = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            http2: http2.local_addr().unwrap(),
            certificates: Arc::new(h2::certificates()),
            log: Arc::default(),
        };
        tokio::spawn(upstream.clone().serve_http2(http2));
        let log = upstream.log.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let connection = Connection { stream, read: Vec::new(), log: log.clone() };
                tokio::spawn(connection.serve());
            }
        });
        upstream
    }
}

impl Upstream {
    async fn serve_http2(self, listener: TcpListener) {
        let tls = h2::acceptor(&self.certificates, &[b"h2"]);
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, log) = (tls.clone(), self.log.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let Ok(mut connection) = ::h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(answer_stream(request, respond, log.clone()));
                }
            });
        }
    }
}

/// Answers one request over HTTP/2; what fails is its stream.
async fn answer_stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    log: Arc<Mutex<UpstreamLog>>,
) -> Option<()> {
    const RESETS: [Reason; 3] = [Reason::NO_ERROR, Reason::CANCEL, Reason::INTERNAL_ERROR];
    let (head, mut body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let id = header("x-id")?.parse().ok()?;
    let fault = Fault::named(header("x-fault")?);
    let mut dice = StdRng::seed_from_u64(id);
    let answer = Response::builder().status(fault.status());
    let answer = answer.header("content-type", "text/event-stream").body(()).unwrap();
    *log.lock().unwrap().times.entry(id).or_default() += 1;
    if fault == Fault::RefusesUnread {
        let mut sending = respond.send_response(answer, false).ok()?;
        sending.send_data(REFUSAL.into(), true).ok()?;
        sleep(Duration::from_millis(dice.random_range(0..500))).await;
        return None;
    }
    let mut sent = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.ok()?;
        body.flow_control().release_capacity(data.len()).ok()?;
        sent.extend_from_slice(&data);
    }
    if Some(&*digest(&sent)) != header("x-digest") {
        log.lock().unwrap().wrong.push(format!("request {id} is not what was sent"));
    }
    let why = RESETS[dice.random_range(0..RESETS.len())];
    if matches!(fault, Fault::ClosesUnanswered | Fault::ResetsUnanswered | Fault::CutsHead) {
        sleep(Duration::from_millis(dice.random_range(0..900))).await;
        respond.send_reset(why);
        return None;
    }
    let mut sending = respond.send_response(answer, false).ok()?;
    let events = events(id);
    let cut = dice.random_range(1..events.len());
    for (at, event) in events.into_iter().enumerate() {
        if at == cut {
            match fault {
                Fault::CutsBody | Fault::ResetsBody => {
                    sending.send_reset(why);
                    return None;
                }
                Fault::Stalls => sleep(Duration::from_millis(200)).await,
                _ => {}
            }
        }
        sending.send_data(event.into(), false).ok()?;
    }
    sending.send_data(Bytes::new(), true).ok()
}

/// The events of the response to this request.
pub fn events(id: u64) -> Vec<String> {
    let id = format!("msg_{id}");
    wire::anthropic().events.iter().map(|event| event.replace("msg_1", &id)).collect()
}

struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    log: Arc<Mutex<UpstreamLog>>,
}

impl Connection {
    /// Responds until it fails, or until no more requests come.
    async fn serve(mut self) {
        while let Some((id, fault)) = self.request().await {
            let dice = StdRng::seed_from_u64(id);
            if self.answer(id, fault, dice).await.is_none() {
                return;
            }
        }
    }

    /// The next request, once it is read completely.
    async fn request(&mut self) -> Option<(u64, Fault)> {
        let end = loop {
            match memchr::memmem::find(&self.read, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more().await?,
            }
        };
        let head: Vec<u8> = self.read.drain(..end).collect();
        let head = String::from_utf8(head).unwrap();
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|it| it.1)
        };
        let id = header("x-id")?.parse().unwrap();
        let fault = Fault::named(header("x-fault")?);
        if fault == Fault::RefusesUnread {
            *self.log.lock().unwrap().times.entry(id).or_default() += 1;
            return Some((id, fault));
        }
        let length: usize = header("content-length")?.parse().unwrap();
        while self.read.len() < length {
            self.more().await?;
        }
        let body: Vec<u8> = self.read.drain(..length).collect();
        let mut log = self.log.lock().unwrap();
        *log.times.entry(id).or_default() += 1;
        if Some(&*digest(&body)) != header("x-digest") {
            log.wrong.push(format!("request {id} is not what was sent"));
        }
        Some((id, fault))
    }

    async fn more(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.read).await.ok()?;
        (read > 0).then_some(())
    }

    async fn send(&mut self, bytes: &str) -> Option<()> {
        self.stream.write_all(bytes.as_bytes()).await.ok()
    }

    /// Responds; `None` if the connection is to be closed.
    async fn answer(&mut self, id: u64, fault: Fault, mut dice: StdRng) -> Option<()> {
        const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        // Late enough that the close cannot have crossed the request.
        let later = Duration::from_millis(dice.random_range(300..900));
        match fault {
            Fault::ClosesUnanswered | Fault::ResetsUnanswered => {
                sleep(later).await;
                if fault == Fault::ResetsUnanswered {
                    self.stream.set_zero_linger().unwrap();
                }
                return None;
            }
            Fault::RefusesUnread => {
                let length = REFUSAL.len();
                let head = format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\n\r\n");
                self.send(&format!("{head}{REFUSAL}")).await?;
                sleep(Duration::from_millis(dice.random_range(0..500))).await;
                return None;
            }
            Fault::CutsHead => {
                self.send(&HEAD[..dice.random_range(1..HEAD.len())]).await?;
                return None;
            }
            _ => self.send(HEAD).await?,
        }
        let events = events(id);
        let cut = dice.random_range(1..events.len());
        for (at, event) in events.iter().enumerate() {
            match fault {
                Fault::CutsBody if at == cut => return None,
                Fault::ResetsBody if at == cut => {
                    self.stream.set_zero_linger().unwrap();
                    return None;
                }
                Fault::Stalls if at == cut => sleep(later / 3).await,
                _ => {}
            }
            self.send(&format!("{:x}\r\n{event}\r\n", event.len())).await?;
        }
        self.send("0\r\n\r\n").await?;
        match fault {
            Fault::AnswersOnce => None,
            Fault::ClosesIdle => {
                let idle = Duration::from_millis(dice.random_range(0..20));
                timeout(idle, self.stream.readable()).await.ok().map(|_| ())
            }
            _ => Some(()),
        }
    }
}
