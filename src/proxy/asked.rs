//! What a client asked for: its request read, placed and measured, before it is forwarded.
//!
//! Works on a copy where the body is compressed; changes nothing. Whatever cannot be understood is
//! left out and told: the request goes on as it is.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Uri, request};

use super::account::Account;
use super::included;
use super::tap::Settle;
use crate::dialect::paths::{self, Transport};
use crate::dialect::{self, Conversation, Dialect, Note, Purpose, identity};
use crate::telemetry::FailOpen;
use crate::wire::encoding::Decoder;
use crate::wire::splice::Edit;

/// A request as the client sent it, without its body.
pub(crate) struct Asked {
    target: Uri,
    /// Kept only where a conversation is held.
    headers: HeaderMap,
    /// The protocol that the path tells.
    pub(crate) dialect: Option<Dialect>,
    /// What the path says it is for.
    pub(crate) purpose: Option<Purpose>,
    transport: Transport,
}

/// What was understood of a request.
#[derive(Default)]
pub(crate) struct Understood {
    /// Makes a turn of the reply.
    pub(crate) settle: Option<Settle>,
    /// Asks for usage where the client did not (Chat Completions).
    pub(crate) usage: Option<Edit>,
}

impl Asked {
    /// Reads method and path; the headers are kept for later.
    pub(crate) fn new(head: &request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let endpoint = paths::endpoint(&head.method, target);
        Self {
            target: head.uri.clone(),
            headers: endpoint.as_ref().map(|_| head.headers.clone()).unwrap_or_default(),
            dialect: endpoint.as_ref().map(|endpoint| endpoint.dialect),
            purpose: endpoint.as_ref().map(|endpoint| endpoint.purpose),
            transport: endpoint.map_or(Transport::Http, |endpoint| endpoint.transport),
        }
    }

    /// The dialect whose request is read, if it is one that has a body.
    pub(crate) fn read_as(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport != Transport::WebSocket)
    }

    /// The dialect whose response is read.
    pub(crate) fn answered_in(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport == Transport::Http)
    }

    /// Reads the body. `ask_usage`: whether this upstream may be asked for usage.
    pub(crate) fn understand(
        &self,
        body: &Bytes,
        ask_usage: bool,
        account: &mut Account,
    ) -> Understood {
        let Some(dialect) = self.read_as() else { return Understood::default() };
        let limit = account.proxy.config.limits.body_bytes;
        let Some(plain) = plain(&self.headers, body, limit) else {
            account.stood_aside(FailOpen::BodyUnread);
            return Understood::default();
        };
        let read = catch_unwind(AssertUnwindSafe(|| self.read(dialect, &plain, account)));
        let Ok(conversation) = read else {
            account.stood_aside(FailOpen::Panicked);
            return Understood::default();
        };
        let plainly = matches!(plain, Cow::Borrowed(_));
        let wanted = ask_usage && plainly && wants_usage(&conversation);
        let usage = wanted.then(|| included::ask(body)).flatten();
        Understood { settle: None, usage }
    }

    fn read(&self, dialect: Dialect, plain: &[u8], account: &mut Account) -> Conversation {
        let target = self.target.path_and_query().map_or("/", |target| target.as_str());
        let conversation = dialect::read(dialect, target, plain);
        if conversation.notes.contains(&Note::NotJson) {
            account.stood_aside(FailOpen::BodyUnread);
        }
        account.noted(conversation.notes.iter().copied());
        let who = identity::identify(&self.headers, &conversation);
        let event = &mut account.event;
        event.model.clone_from(&conversation.model);
        event.purpose = Some(who.purpose.unwrap_or(conversation.purpose));
        event.session = who.session;
        conversation
    }
}

/// Whether this request's usage would not be reported unless it is asked for.
fn wants_usage(conversation: &Conversation) -> bool {
    conversation.dialect == Dialect::OpenaiChat
        && conversation.stream
        && conversation.include_usage != Some(true)
}

/// The body without its content encoding: itself, or a decoded copy.
fn plain<'b>(headers: &HeaderMap, body: &'b Bytes, limit: usize) -> Option<Cow<'b, [u8]>> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Some(Cow::Borrowed(body));
    };
    let mut decoder = Decoder::new(encoding.to_str().ok()?, limit)?;
    decoder.push(body).ok()
}
