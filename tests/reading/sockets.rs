//! Codex over WebSocket, from recordings framed again: requests form a chain, replies and usage are read.

use flate2::{Compress, FlushCompress};
use plimsoll::dialect::reading::SocketReader;
use plimsoll::dialect::{Conversation, Dialect, HeldHistory, Purpose, Reply, StopReason, read};
use plimsoll::wire::websocket::{MessageDecoder, negotiated};

use crate::corpus::corpus;

const LIMIT: usize = 16 << 20;

fn unlimited() -> Box<dyn plimsoll::wire::memory::Memory> {
    Box::new(plimsoll::wire::memory::MemoryLimit(usize::MAX))
}

/// A text frame with a compressed payload; a client's is masked.
fn frame(deflate: &mut Compress, text: &str, masked: bool) -> Vec<u8> {
    let mut payload = Vec::with_capacity(text.len() + 1024);
    deflate.compress_vec(text.as_bytes(), &mut payload, FlushCompress::Sync).unwrap();
    payload.truncate(payload.len() - 4);
    let bit = if masked { 0x80 } else { 0 };
    let mut out = vec![0xc1, bit | 127];
    out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    let mask = if masked { [9, 8, 7, 6] } else { [0; 4] };
    out.extend_from_slice(&mask[..if masked { 4 } else { 0 }]);
    out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    out
}

/// The messages in these bytes, which are pushed in pieces of 11.
fn messages(reader: &mut MessageDecoder, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    bytes.chunks(11).for_each(|piece| reader.push(piece, |text| all.push(text.to_vec())));
    assert_eq!(reader.fault(), None);
    all
}

/// One recorded connection.
struct Connection {
    client: (Compress, MessageDecoder),
    server: (Compress, MessageDecoder),
    socket: SocketReader,
}

impl Connection {
    fn open() -> Self {
        let (client, server) = negotiated("permessage-deflate; server_max_window_bits=15");
        let deflate = || Compress::new(flate2::Compression::fast(), false);
        Self {
            client: (deflate(), MessageDecoder::new(LIMIT, client, unlimited())),
            server: (deflate(), MessageDecoder::new(LIMIT, server, unlimited())),
            socket: SocketReader::new(LIMIT),
        }
    }

    /// Reads a request and the events of its reply.
    fn turn(&mut self, request: &str, events: &[serde_json::Value]) -> (Conversation, Reply) {
        let bytes = frame(&mut self.client.0, request, true);
        let [request] = messages(&mut self.client.1, &bytes).try_into().unwrap();
        let (requested, conversation) =
            self.socket.request(&request, |body| read(Dialect::OpenaiResponses, "", body)).unwrap();
        let mut replies = Vec::new();
        for event in events {
            let bytes = frame(&mut self.server.0, &event.to_string(), false);
            for message in messages(&mut self.server.1, &bytes) {
                replies.extend(self.socket.event(&message));
            }
        }
        let [(answered, reply)] = replies.try_into().unwrap();
        assert_eq!(requested, answered);
        (conversation, reply)
    }
}

#[test]
fn codex_over_websocket_is_read_from_its_frames() {
    let Some(corpus) = corpus() else { return };
    let file = corpus.join("../agents/recordings/codex-ws.jsonl");
    let text = std::fs::read_to_string(file).unwrap();
    let mut connection = Connection::open();
    let mut last: Option<Reply> = None;
    let (mut turns, mut calls) = (0, 0);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let (Some(events), Some(body)) =
            (line["response_events"].as_array(), line["body"].as_str())
        else {
            connection = Connection::open();
            last = None;
            continue;
        };
        let (request, reply) = connection.turn(body, events);
        assert!(request.notes.is_empty());
        assert!(reply.notes.is_empty());
        match &last {
            None => assert_eq!((request.purpose, &request.held), (Purpose::WarmUp, &None)),
            Some(last) => {
                assert_eq!(request.purpose, Purpose::Turn);
                assert_eq!(request.held, last.id.clone().map(HeldHistory::After));
            }
        }
        let usage = &events[events.len() - 1]["response"]["usage"];
        assert_eq!(reply.usage.input, usage["input_tokens"].as_u64());
        assert_eq!(reply.usage.output, usage["output_tokens"].as_u64());
        calls += usize::from(reply.stop == Some(StopReason::ToolUse));
        last = Some(reply);
        turns += 1;
    }
    assert_eq!(turns, 10);
    assert_eq!(calls, 6);
}
