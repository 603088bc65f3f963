//! An upstream that fails as each request says, and counts the requests that it read.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

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
}

impl Fault {
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::ClosesIdle,
        Self::AnswersOnce,
        Self::Stalls,
        Self::ClosesUnanswered,
        Self::ResetsUnanswered,
        Self::CutsHead,
        Self::CutsBody,
        Self::ResetsBody,
    ];

    /// The fault with this name, as in a request.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name).unwrap()
    }

    /// Whether its response is complete.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::None | Self::ClosesIdle | Self::AnswersOnce | Self::Stalls)
    }
}

/// How often it read each request, and what was wrong with them.
#[derive(Default)]
pub struct UpstreamLog {
    pub times: HashMap<u64, usize>,
    pub wrong: Vec<String>,
}

#[derive(Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    pub log: Arc<Mutex<UpstreamLog>>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), log: Arc::default() };
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
        let length: usize = header("content-length")?.parse().unwrap();
        while self.read.len() < length {
            self.more().await?;
        }
        let body: Vec<u8> = self.read.drain(..length).collect();
        let id = header("x-id")?.parse().unwrap();
        let fault = Fault::named(header("x-fault")?);
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
