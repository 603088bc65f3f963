//! The session and thread that a client names.
//!
//! Pure, from headers and the body. A name is only used if it is meant for one session. Too broad a name does
//! no harm, because threads are distinguished by lineage; a name that changes with every request would.

use http::{HeaderMap, HeaderValue};

use super::hints::{ClientHints, RequestClass};
use super::ids::{SessionId, is_name};
use super::paths::Transport;
use super::{Conversation, Purpose};
use crate::dialect::percent::decoded;
use crate::wire::json::{Document, Value, members};

/// The tenant of requests without a credential, or if credentials do not matter.
pub const ANONYMOUS: &str = "0000000000000000";

/// Where a request belongs according to its client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The session; sub-agents are in the session of the agent that they work for.
    pub session: Option<SessionId>,
    /// The thread within the session, if it is not the main one: a sub-agent's.
    pub thread: Option<Box<str>>,
    /// The request's purpose, if the headers say it.
    pub purpose: Option<Purpose>,
    /// What else the client says of the request.
    pub hints: Option<Box<ClientHints>>,
}

/// Reads the headers, and the names that `conversation` has from the body. On a WebSocket, the headers are
/// those of the connection: they identify the client, but not the purpose of each request on it.
pub fn identify(
    headers: &HeaderMap,
    conversation: &Conversation,
    transport: Transport,
) -> Identity {
    let ids = IdentityHeaders::from_headers(headers);
    let named_session = session_in_headers(&ids, headers)
        .or_else(|| conversation.session.clone().filter(|name| is_name(name.as_str())))
        .or_else(|| named(ids.trace));
    let parent: Option<SessionId> = named(ids.parent);
    let thread = named(ids.agent)
        .or_else(|| named(ids.thread))
        .or_else(|| {
            // Under a parent, the session's own name is that of a thread.
            let name = named_session.as_ref().map(|session| session.as_str().into());
            if parent.is_some() { name } else { None }
        })
        .or_else(|| named::<Box<str>>(ids.subagent).filter(|agent| **agent != *"compact"));
    // On a WebSocket, the headers are those of the connection: they identify the client, but not
    // the purpose of each request on it.
    let is_each_request = transport != Transport::WebSocket;
    let hints = if is_each_request { ClientHints::from_headers(headers) } else { None };
    let thread = thread.or_else(|| unnamed_agent(hints.as_deref()?).map(Into::into));
    let session = parent.or(named_session);
    let thread = thread.filter(|thread| session.as_ref().is_none_or(|id| *id != **thread));
    // A count is one whatever it counts, and a warm-up has no output.
    let may_be_stated = !matches!(conversation.purpose, Purpose::Count | Purpose::WarmUp);
    let purpose = if is_each_request && may_be_stated {
        purpose(&ids).or_else(|| hinted_purpose(hints.as_deref()?))
    } else {
        None
    };
    Identity { session, thread, purpose, hints }
}

fn hinted_purpose(hints: &ClientHints) -> Option<Purpose> {
    if hints.compaction.is_some() {
        return Some(Purpose::Compaction);
    }
    match hints.class? {
        RequestClass::Main | RequestClass::Subagent | RequestClass::Workflow => Some(Purpose::Turn),
        RequestClass::Compaction => Some(Purpose::Compaction),
        RequestClass::Auxiliary => Some(Purpose::Side),
        RequestClass::Other => None,
    }
}

fn unnamed_agent(hints: &ClientHints) -> Option<&'static str> {
    // An agent that is not the main one, and does not say which.
    match hints.class? {
        RequestClass::Subagent => Some("subagent"),
        RequestClass::Workflow => Some("workflow"),
        _ => None,
    }
}

/// The session id in a request body of any dialect; `root` is the body.
///
/// `user` and `safety_identifier` are not used: they name a user, not a session.
pub(super) fn session_in_body(root: &Value<'_>) -> Option<SessionId> {
    let body = SessionMembers::from_value(*root);
    let metadata = body.metadata.map(MetadataMembers::from_value).unwrap_or_default();
    name(body.litellm_session_id)
        .or_else(|| name(metadata.session_id))
        .or_else(|| name(body.session_id))
        .or_else(|| session_in_user_id(&metadata.user_id?.text()?))
        .or_else(|| name(body.client_metadata?.get("session_id")))
        .or_else(|| name(body.request?.get("session_id")))
        .or_else(|| name(body.prompt_cache_key))
}

members! {
    /// The members in which a body may name its session.
    SessionMembers { litellm_session_id, metadata, session_id, client_metadata, request, prompt_cache_key }
}

members! {
    /// The members of metadata that may name the session.
    MetadataMembers { session_id, user_id }
}

fn name(value: Option<Value<'_>>) -> Option<SessionId> {
    let text = value?.text()?;
    if is_name(&text) { Some(text.into()) } else { None }
}

fn session_in_user_id(text: &str) -> Option<SessionId> {
    // A JSON string with a `session_id` (Claude Code), `user_…_account_…_session_{uuid}` (older
    // versions), or `session_…` (Kimi Code). Any other text names a user.
    let name = if text.trim_start().starts_with('{') {
        let document = Document::read(text.as_bytes()).ok()?;
        document.root(text.as_bytes())?.get_text("session_id")?.into_owned()
    } else if text.starts_with("session_") {
        text.to_owned()
    } else {
        text.rsplit_once("_session_")?.1.to_owned()
    };
    is_name(&name).then(|| name.into())
}

/// Headers that name a session, the most certain first; after them, any `x-<vendor>-session-id`. `session-id` is Codex',
/// `x-session-id`, `x-session-affinity` and `x-opencode-session` are opencode's.
const SESSION_HEADERS: [&str; 13] = [
    "x-plimsoll-session",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-opencode-session",
    "x-litellm-session-id",
    "x-session-id",
    "x-session-affinity",
    "helicone-session-id",
    "langfuse_session_id",
    "x-affinity",
    "x-grok-conv-id",
];

/// The values of these headers, the first of each name. Found in one pass, because a request has only a few.
#[derive(Default)]
struct IdentityHeaders<'h> {
    /// In the order of [`SESSION_HEADERS`].
    sessions: [Option<&'h HeaderValue>; SESSION_HEADERS.len()],
    trace: Option<&'h HeaderValue>,
    parent: Option<&'h HeaderValue>,
    agent: Option<&'h HeaderValue>,
    thread: Option<&'h HeaderValue>,
    subagent: Option<&'h HeaderValue>,
    codex_turn: Option<&'h HeaderValue>,
    baggage: Option<&'h HeaderValue>,
}

impl<'h> IdentityHeaders<'h> {
    fn from_headers(headers: &'h HeaderMap) -> Self {
        let mut ids = Self::default();
        for (name, value) in headers {
            let slot = match name.as_str() {
                "x-litellm-trace-id" => &mut ids.trace,
                "x-parent-session-id" => &mut ids.parent,
                "x-claude-code-agent-id" => &mut ids.agent,
                "thread-id" => &mut ids.thread,
                "x-openai-subagent" => &mut ids.subagent,
                "x-codex-turn-metadata" => &mut ids.codex_turn,
                "baggage" => &mut ids.baggage,
                name => match SESSION_HEADERS.iter().position(|session| *session == name) {
                    Some(at) => &mut ids.sessions[at],
                    None => continue,
                },
            };
            slot.get_or_insert(value);
        }
        ids
    }
}

fn session_in_headers(ids: &IdentityHeaders<'_>, headers: &HeaderMap) -> Option<SessionId> {
    ids.sessions
        .into_iter()
        .find_map(named)
        .or_else(|| vendor_session(headers))
        .or_else(|| ids.baggage.and_then(|_| baggage_session(headers)))
        .or_else(|| named(ids.thread))
}

/// Of a vendor's session id, characters, as LiteLLM accepts it: this excludes counters.
const SHORTEST_SESSION: usize = 8;

/// The value of `x-<vendor>-session-id`.
fn vendor_session(headers: &HeaderMap) -> Option<SessionId> {
    for (name, value) in headers {
        let name = name.as_str();
        let is_session = name.ends_with("-session-id") && name.starts_with("x-");
        if !is_session || name == "x-parent-session-id" {
            continue;
        }
        let Ok(value) = value.to_str() else { continue };
        let has_only_words =
            value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if value.len() >= SHORTEST_SESSION && has_only_words && is_name(value) {
            return Some(value.into());
        }
    }
    None
}

fn baggage_session(headers: &HeaderMap) -> Option<SessionId> {
    // `session.id=…` in W3C baggage.
    let values = headers.get_all("baggage").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',')).find_map(|member| {
        let (name, rest) = member.split_once('=')?;
        let value = decoded(rest.split(';').next()?.trim()).into_owned();
        if name.trim() == "session.id" && is_name(&value) { Some(value.into()) } else { None }
    })
}

fn purpose(ids: &IdentityHeaders<'_>) -> Option<Purpose> {
    let metadata = ids.codex_turn.map(HeaderValue::as_bytes);
    let kind = metadata.and_then(|bytes| {
        let document = Document::read(bytes).ok()?;
        Some(document.root(bytes)?.get_text("request_kind")?.into_owned())
    });
    let agent = ids.subagent.map(HeaderValue::as_bytes);
    if kind.as_deref() == Some("compaction") || agent == Some(b"compact") {
        return Some(Purpose::Compaction);
    }
    matches!(kind.as_deref(), Some("prewarm" | "warmup")).then_some(Purpose::WarmUp)
}

/// A header's value, if it can be a name.
fn named<N: for<'h> From<&'h str>>(value: Option<&HeaderValue>) -> Option<N> {
    let value = value?.to_str().ok()?.trim();
    is_name(value).then(|| value.into())
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::Dialect;
    use crate::dialect::ids::MAX_NAME;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn who(pairs: &[(&str, &str)], body: Option<&str>) -> (Option<String>, Option<String>) {
        let mut conversation = Conversation::empty(Dialect::OpenaiResponses);
        conversation.session = body.map(Into::into);
        let found = identify(&headers(pairs), &conversation, Transport::Http);
        (found.session.map(|it| it.to_string()), found.thread.map(String::from))
    }

    #[test]
    fn most_certain_session_is_read() {
        let uuid = "01a1fbfb-85a1-7150-869d-ae886c933a94";
        for (pairs, body, session) in [
            (
                &[("x-plimsoll-session", "mine"), ("x-claude-code-session-id", "c")][..],
                Some("b"),
                Some("mine"),
            ),
            (&[("x-claude-code-session-id", uuid), ("x-session-id", "other")], None, Some(uuid)),
            (&[("session-id", uuid), ("thread-id", uuid)], Some("key"), Some(uuid)),
            (&[("session_id", "pi-1")], Some("key"), Some("pi-1")),
            (&[("conversation_id", "old-codex")], None, Some("old-codex")),
            (&[("thread-id", "t-1")], None, Some("t-1")),
            (&[("x-session-affinity", "ses_1")], Some("key"), Some("ses_1")),
            (&[("x-opencode-session", "ses_2")], None, Some("ses_2")),
            (&[("x-deepseek-harness-session-id", "abcdefgh")], None, Some("abcdefgh")),
            (&[("x-deepseek-harness-session-id", "7")], None, None),
            (&[("baggage", "a=b, session.id=s%2D1;p=q ,c=d")], None, Some("s-1")),
            (&[("baggage", "xsession.id=no")], None, None),
            (&[("x-litellm-trace-id", "trace")], Some("key"), Some("key")),
            (&[("x-litellm-trace-id", "trace")], None, Some("trace")),
            (&[], Some("key"), Some("key")),
            (&[("x-session-id", "undefined")], Some("key"), Some("key")),
            (&[("x-session-id", "a b")], None, None),
            (&[("x-session-id", "../etc")], None, None),
            (&[("x-session-id", "")], None, None),
            (&[("x-client-request-id", "r"), ("x-request-id", "r")], None, None),
        ] {
            let (found, thread) = who(pairs, body);
            assert_eq!(found.as_deref(), session, "{pairs:?} {body:?}");
            assert_eq!(thread, None, "{pairs:?} {body:?}");
        }
    }

    #[test]
    fn long_session_names_are_ignored() {
        let fits = "a".repeat(MAX_NAME);
        assert_eq!(who(&[("x-session-id", &fits)], None).0, Some(fits.clone()));
        let long = fits + "a";
        assert_eq!(who(&[("x-session-id", &long)], Some(&long)), (None, None));
    }

    #[test]
    fn sub_agents_share_session_and_have_threads_of_their_own() {
        for (pairs, session, thread) in [
            (&[("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "a1")][..], "s", "a1"),
            (
                &[("session-id", "s"), ("thread-id", "t"), ("x-codex-parent-thread-id", "s")],
                "s",
                "t",
            ),
            (
                &[("x-session-id", "ses_child"), ("x-parent-session-id", "ses_root")],
                "ses_root",
                "ses_child",
            ),
            (&[("session-id", "s"), ("x-openai-subagent", "review")], "s", "review"),
        ] {
            let found = who(pairs, None);
            assert_eq!(found.0.as_deref(), Some(session));
            assert_eq!(found.1.as_deref(), Some(thread));
        }
    }

    #[test]
    fn codex_says_when_it_compacts() {
        let none = Conversation::empty(Dialect::OpenaiResponses);
        for (name, value, purpose) in [
            ("x-codex-turn-metadata", r#"{"request_kind":"turn"}"#, None),
            (
                "x-codex-turn-metadata",
                r#"{"request_kind":"compaction"}"#,
                Some(Purpose::Compaction),
            ),
            ("x-codex-turn-metadata", "not json", None),
            ("x-openai-subagent", "compact", Some(Purpose::Compaction)),
            ("x-openai-subagent", "review", None),
        ] {
            let found = identify(&headers(&[(name, value)]), &none, Transport::Http);
            assert_eq!(found.purpose, purpose, "{value}");
            let opened = identify(&headers(&[(name, value)]), &none, Transport::WebSocket);
            assert_eq!(opened.purpose, None, "it says what the connection was opened for");
        }
        let pairs = [("session-id", "s"), ("x-openai-subagent", "compact")];
        let compact = identify(&headers(&pairs), &none, Transport::Http);
        assert_eq!(compact.thread, None, "the client's compaction is of its own thread");
    }

    /// Claude Code says what a request is for: its compactions and side calls look like turns. A count stays one.
    #[test]
    fn claude_code_names_the_purpose() {
        let mut conversation = Conversation::empty(Dialect::Anthropic);
        for (class, purpose, thread) in [
            ("main", Some(Purpose::Turn), None),
            ("subagent", Some(Purpose::Turn), Some("subagent")),
            ("workflow", Some(Purpose::Turn), Some("workflow")),
            ("compaction", Some(Purpose::Compaction), None),
            ("auxiliary", Some(Purpose::Side), None),
            ("unheard-of", None, None),
        ] {
            let headers = headers(&[("x-claude-code-request-class", class)]);
            let found = identify(&headers, &conversation, Transport::Http);
            assert_eq!(found.purpose, purpose, "{class}");
            assert_eq!(found.thread.as_deref(), thread, "{class}");
            let opened = identify(&headers, &conversation, Transport::WebSocket);
            assert_eq!(opened.purpose, None);
            assert_eq!(opened.hints, None);
        }
        let pairs = [("x-claude-code-compaction", "auto"), ("x-claude-code-agent-id", "a1")];
        let compacts = identify(&headers(&pairs), &conversation, Transport::Http);
        assert_eq!(compacts.purpose, Some(Purpose::Compaction));
        assert_eq!(compacts.thread.as_deref(), Some("a1"), "a sub-agent's");
        conversation.purpose = Purpose::Count;
        let count = identify(&headers(&pairs), &conversation, Transport::Http);
        assert_eq!(count.purpose, None);
    }

    #[test]
    fn bodies_name_sessions_in_many_ways() {
        for (body, session) in [
            (
                r#"{"metadata":{"user_id":"{\"device_id\":\"d\",\"account_uuid\":\"\",\"session_id\":\"s-1\"}"}}"#,
                Some("s-1"),
            ),
            (
                r#"{"metadata":{"user_id":"user_ab_account_cd_session_01a1-7150"}}"#,
                Some("01a1-7150"),
            ),
            (r#"{"metadata":{"user_id":"session_kimi"}}"#, Some("session_kimi")),
            (r#"{"metadata":{"user_id":"jane"}}"#, None),
            (r#"{"metadata":{"user_id":"{broken"}}"#, None),
            (r#"{"metadata":{"user_id":7}}"#, None),
            (r#"{"litellm_session_id":"l","prompt_cache_key":"p"}"#, Some("l")),
            (r#"{"metadata":{"session_id":"m"},"prompt_cache_key":"p"}"#, Some("m")),
            (r#"{"session_id":"or"}"#, Some("or")),
            (r#"{"client_metadata":{"session_id":"c"},"prompt_cache_key":"p"}"#, Some("c")),
            (r#"{"request":{"session_id":"g"}}"#, Some("g")),
            (r#"{"prompt_cache_key":"p"}"#, Some("p")),
            (r#"{"user":"jane","safety_identifier":"jane"}"#, None),
            ("[]", None),
        ] {
            let document = Document::read(body.as_bytes()).unwrap();
            let found = session_in_body(&document.root(body.as_bytes()).unwrap());
            assert_eq!(found.as_ref().map(SessionId::as_str), session, "{body}");
        }
    }

    proptest! {
        #[test]
        fn invariant_8_never_panics(target in ".{0,40}", text in ".{0,60}", value in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (session_in_user_id(&text), super::super::paths::endpoint(&http::Method::POST, &target));
            if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                let map: HeaderMap = ["authorization", "baggage", "x-codex-turn-metadata", "x-a-session-id"]
                    .into_iter().map(|name| (HeaderName::from_static(name), value.clone())).collect();
                let found = identify(&map, &Conversation::empty(Dialect::Gemini), Transport::Http);
                prop_assert!(found.session.is_none_or(|name| is_name(name.as_str())));
            }
        }
    }
}
