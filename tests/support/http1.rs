//! Both ends of HTTP/1.1, byte for byte: what was really on the wire, not what a library made of it.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::within;

/// A provider: the test accepts its connections and writes its responses.
pub struct Provider {
    listener: TcpListener,
}

impl Provider {
    pub async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// The next new connection.
    pub async fn accept(&self) -> Wire {
        let (stream, _) =
            within("a connection to the provider", self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire::new(stream)
    }

    /// The next request on a new connection, complete.
    pub async fn call(&self) -> Call {
        self.accept().await.request().await
    }
}

/// A request as it arrived, and the connection for the response.
pub struct Call {
    pub message: Message,
    pub wire: Wire,
}

impl Call {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.send(bytes).await;
    }

    /// Sends a response with a status and a JSON body.
    pub async fn answer(&mut self, status: &str, body: &str) {
        let length = body.len();
        self.send(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    }

    /// Begins a chunked event stream.
    pub async fn begin_events(&mut self) {
        self.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
    }

    /// One chunk.
    pub async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        self.send(framed).await;
    }

    /// The end of a chunked body.
    pub async fn end(&mut self) {
        self.send("0\r\n\r\n").await;
    }
}

/// One HTTP/1.1 message as it was on the wire.
#[derive(Debug, Clone)]
pub struct Message {
    /// First line and header lines, without the blank line.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Sizes of the chunks, if it was chunked.
    pub chunks: Option<Vec<usize>>,
    /// Trailer lines.
    pub trailers: Vec<String>,
}

impl Message {
    pub fn first_line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    pub fn status(&self) -> u16 {
        self.first_line().split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Header lines, in order and with their case.
    pub fn lines(&self) -> Vec<&str> {
        self.head.lines().skip(1).collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.lines().into_iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// One end of a connection, with bytes that were read and not used yet.
pub struct Wire {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// Connects as a client.
    pub async fn connect(to: std::net::SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::new(stream)
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("bytes to be taken", self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Closes so that the other side sees a reset, not an end.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Reads more bytes into the buffer; `false` at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        let read = within("bytes to come", self.stream.read_buf(&mut self.read)).await?;
        Ok(read > 0)
    }

    /// Whether anything arrives before the other side closes: a killed process may have opened the connection and sent
    /// nothing.
    pub async fn begins(&mut self) -> bool {
        !self.read.is_empty() || self.fill().await.unwrap_or(false)
    }

    async fn must_fill(&mut self, wanted: &str) {
        assert!(
            self.fill().await.unwrap_or(false),
            "the connection ended before {wanted}: {:?}",
            String::from_utf8_lossy(&self.read)
        );
    }

    /// Reads exactly these bytes.
    pub async fn expect(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        while self.read.len() < bytes.len() {
            self.must_fill(&format!("{:?}", String::from_utf8_lossy(bytes))).await;
        }
        let got: Vec<u8> = self.read.drain(..bytes.len()).collect();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(bytes));
    }

    /// Reads up to and including `mark`.
    pub async fn until(&mut self, mark: &str) -> Vec<u8> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.read, mark.as_bytes()) {
                return self.read.drain(..at + mark.len()).collect();
            }
            self.must_fill(mark).await;
        }
    }

    /// Reads first line and headers.
    pub async fn head(&mut self) -> String {
        let bytes = self.until("\r\n\r\n").await;
        String::from_utf8(bytes).unwrap().trim_end().to_owned()
    }

    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            self.must_fill("the announced length").await;
        }
        self.read.drain(..count).collect()
    }

    /// Reads one chunk of a chunked body; empty at its end.
    pub async fn chunk(&mut self) -> Vec<u8> {
        let line = String::from_utf8(self.until("\r\n").await).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        if size == 0 {
            return Vec::new();
        }
        let bytes = self.exactly(size).await;
        self.expect("\r\n").await;
        bytes
    }

    /// Everything until the connection ends; `Err` if it was reset.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill().await? {}
        Ok(std::mem::take(&mut self.read))
    }

    /// Waits until the other side has closed.
    pub async fn gone(&mut self) {
        while self.fill().await.unwrap_or(false) {}
    }

    /// A complete message; it has a body only if its headers announce one.
    pub async fn message(&mut self, has_body: bool) -> Message {
        let head = self.head().await;
        let mut message = Message { head, body: Vec::new(), chunks: None, trailers: Vec::new() };
        if !has_body {
            return message;
        }
        if message.header("transfer-encoding").is_some() {
            let mut sizes = Vec::new();
            loop {
                let chunk = self.chunk().await;
                if chunk.is_empty() {
                    break;
                }
                sizes.push(chunk.len());
                message.body.extend(chunk);
            }
            loop {
                let line = String::from_utf8(self.until("\r\n").await).unwrap();
                if line == "\r\n" {
                    break;
                }
                message.trailers.push(line.trim_end().to_owned());
            }
            message.chunks = Some(sizes);
        } else if let Some(length) = message.header("content-length") {
            let length = length.parse().unwrap();
            message.body = self.exactly(length).await;
        }
        message
    }

    /// The next response.
    pub async fn response(&mut self) -> Message {
        self.message(true).await
    }

    /// The next request.
    pub async fn request(mut self) -> Call {
        let message = self.message(true).await;
        Call { message, wire: self }
    }
}
