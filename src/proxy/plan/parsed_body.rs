//! Reads a request's body within its memory budget: decompresses it, finds its values, and makes its parts.
//!
//! Memory is reserved before each step, based on the result of the previous step. Large bodies are read off
//! the async threads, at most as many at once as half of the cores. A body without memory passes unread. What the tenant's
//! earlier requests had, too, is not read again.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use crate::context::TenantId;
use crate::context::repeats::repeated_calls;
use crate::dialect::size::{MOST_PARTS, RequestSize};
use crate::dialect::{self, BodyElements, Conversation, Dialect};
use crate::proxy::http::headers;
use crate::proxy::http::memory::{HeldMemory, MemoryBudget};
use crate::proxy::offload::{OFF_THREAD, long_work_soon_or_panic};
use crate::proxy::state::Proxy;
use crate::telemetry::{FailOpen, MemoryKind};
use crate::wire::encoding::{DecodeError, Decoder, UnsupportedEncoding};
use crate::wire::json::{self, Document, most_values};
use crate::wire::memory::Memory as _;

/// Parsing any body may use this many bytes; that of a large one, [`TIMES`] its length.
const SMALL: usize = 16 << 20;
/// See [`SMALL`].
const TIMES: usize = 6;

/// A request whose body was read.
pub(crate) struct ParsedBody {
    /// The body, decompressed.
    pub(crate) plain: Bytes,
    pub(crate) conversation: Conversation,
    /// See [`repeated_calls`].
    pub(crate) repeated_calls: Option<u32>,
    /// The memory of the conversation and what is derived from it.
    pub(crate) memory: HeldMemory,
}

impl ParsedBody {
    /// Reads a body that came with these headers, for this path and query, in its tenant's turn. A panic while reading is
    /// passed on.
    ///
    /// # Errors
    /// The reason why it is forwarded unread.
    pub(crate) async fn read(
        proxy: &Arc<Proxy>,
        dialect: Dialect,
        target: &str,
        tenant: Option<TenantId>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Self, FailOpen> {
        let codings = headers::codings(headers);
        let limit = proxy.config.limits.body_bytes;
        let decoder = Decoder::new(codings, limit, || proxy.memory.boxed(MemoryKind::Request));
        let decoder = decoder.map_err(|unreadable| match unreadable {
            UnsupportedEncoding::TooMany => FailOpen::TooManyCodings,
            UnsupportedEncoding::Unknown => FailOpen::BodyUnread,
        })?;
        if decoder.is_identity() && body.len() <= OFF_THREAD {
            return Self::parse(proxy, dialect, target, tenant.as_ref(), body.clone());
        }
        let body = body.clone();
        let proxy = proxy.clone();
        let target: Box<str> = target.into();
        let owner = tenant.clone();
        let reading = long_work_soon_or_panic(tenant.as_ref(), move || {
            let decoded = decode(decoder, body, &proxy.memory)?;
            Self::parse(&proxy, dialect, &target, owner.as_ref(), decoded)
        });
        reading.await?
    }

    pub(crate) fn parse(
        proxy: &Proxy,
        dialect: Dialect,
        target: &str,
        tenant: Option<&TenantId>,
        plain: Bytes,
    ) -> Result<Self, FailOpen> {
        let mut memory = proxy.memory.guard(MemoryKind::Analysis);
        let mut elements = match tenant {
            Some(tenant) => {
                let owner = tenant.as_str().as_bytes();
                BodyElements::for_body(&proxy.elements, dialect, owner, plain.len())
            }
            None => BodyElements::none(),
        };
        let document = values(&plain, &mut memory, &mut elements)?;
        let size = RequestSize::from_document(&document, &plain, elements.items());
        let allowance = SMALL.max(plain.len().saturating_mul(TIMES));
        let bytes = document.bytes().saturating_add(size.bytes);
        if size.parts > MOST_PARTS || bytes > allowance || !memory.hold(bytes) {
            return Err(FailOpen::AnalysisBudget);
        }
        let conversation = dialect::read_in(&document, dialect, target, &plain, &mut elements);
        elements.remember();
        // From here on only the conversation is held.
        drop(document);
        memory.hold(size.bytes);
        let repeated_calls = repeated_calls(&conversation, &plain);
        Ok(Self { plain, conversation, repeated_calls, memory })
    }
}

fn decode(
    mut decoder: Decoder,
    body: Bytes,
    memory: &Arc<MemoryBudget>,
) -> Result<Bytes, FailOpen> {
    if decoder.is_identity() {
        return Ok(body);
    }
    let decoded = match decoder.push(&body) {
        Ok(decoded) => decoded.into_owned(),
        Err(DecodeError::NoMemory) => return Err(FailOpen::MemoryBudget),
        Err(DecodeError::Broken | DecodeError::TooLong) => return Err(FailOpen::BodyUnread),
    };
    // The decoder's memory is given back before that of its result is reserved.
    drop(decoder);
    let mut memory = memory.guard(MemoryKind::Request);
    match memory.hold(decoded.len()) {
        true => Ok(memory.with(Bytes::from(decoded))),
        false => Err(FailOpen::MemoryBudget),
    }
}

fn values(
    plain: &Bytes,
    memory: &mut HeldMemory,
    elements: &mut BodyElements,
) -> Result<Document, FailOpen> {
    // Most bodies have at most one value per sixteen bytes, so memory for more is only reserved if that is not
    // enough. A body that is not JSON has none.
    let upper_bound = most_values(plain.len());
    for most in [upper_bound.min((plain.len() / 16).max(4096)), upper_bound] {
        if !memory.hold(Document::bytes_of(most)) {
            return Err(FailOpen::AnalysisBudget);
        }
        match elements.document(plain, most) {
            Err(json::JsonError::TooMany(_)) => {}
            read => return Ok(read.unwrap_or_default()),
        }
    }
    Err(FailOpen::AnalysisBudget)
}
