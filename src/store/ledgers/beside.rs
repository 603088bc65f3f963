//! Calls beside a conversation without a name, such as one for its title: which session they belong to.
//!
//! They have nothing of the conversation but the user's first words, and may come before it. So what was said first is
//! kept in memory for a minute, of each conversation in use and of each such call. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::fingerprints::RequestSource;
use crate::context::compact::user_texts;
use crate::context::{SessionId, SessionWitness, TenantId};
use crate::dialect::{Chain, Conversation, Purpose};
use crate::store::Scope;

/// How long after a conversation was last used a call beside it may come.
const BESIDE: Duration = Duration::from_secs(60);
/// Most sessions in use that are remembered.
const IN_USE: usize = 256;
/// Bytes of the user's first words that are compared: a call for a title may have no more of them.
const WORDS: usize = 200;
/// Fewer bytes (`hi`) are in any text.
const FEWEST_WORDS: usize = 12;
/// Most bytes of the text of a call beside a conversation.
const TEXT: usize = 4096;
/// Most calls of a session that are remembered.
const CALLS: usize = 8;

/// A request that begins a conversation, or a call beside one.
#[derive(Clone, Copy)]
pub(super) struct OpeningRequest<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) source: RequestSource,
    pub(super) at: Instant,
    pub(super) opening: &'a Opening,
}

/// What is compared of such a request.
pub(super) struct Opening {
    /// What the user says in it, of a conversation only the first words.
    text: String,
    /// All of it.
    content: Chain,
}

/// A call beside a conversation.
struct SideCall {
    content: Chain,
    connection: u64,
}

/// An unnamed session in use.
struct SessionInUse {
    scope: Scope,
    source: RequestSource,
    at: Instant,
    text: Box<str>,
    /// It consists of a call beside a conversation that has not come yet.
    awaits_conversation: bool,
    /// The calls beside it, oldest first.
    calls: VecDeque<SideCall>,
}

impl SessionInUse {
    fn is_of(&self, scope: &Scope) -> bool {
        // Most sessions have the same tenant.
        self.scope.session == scope.session && self.scope.tenant == scope.tenant
    }

    /// Whether it was in use shortly before a request with the same credential.
    fn is_near(&self, request: &OpeningRequest<'_>) -> bool {
        self.scope.tenant == *request.tenant && request.at.duration_since(self.at) < BESIDE
    }

    fn has_agent(&self, request: &OpeningRequest<'_>) -> bool {
        self.source.agent == request.source.agent
    }

    /// Whether it has an equal call from another connection: then the call is of another run of its agent.
    fn has_equal_call(&self, call: &OpeningRequest<'_>) -> bool {
        self.calls.iter().any(|known| {
            known.content == call.opening.content && known.connection != call.source.connection
        })
    }

    fn add_call(&mut self, content: Chain, connection: u64) {
        if self.calls.len() == CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(SideCall { content, connection });
    }
}

/// The unnamed sessions in use.
#[derive(Default)]
pub(super) struct SessionsInUse {
    /// Least recently used first.
    sessions: VecDeque<SessionInUse>,
}

impl SessionsInUse {
    /// A request of a session was opened. `is_new`: no other was before. `opening`: what it says, if it is the session's
    /// first.
    pub(super) fn set(
        &mut self,
        scope: &Scope,
        is_new: bool,
        source: RequestSource,
        at: Instant,
        opening: Option<&Opening>,
        purpose: Purpose,
    ) {
        // The list is in order of use, so what is too old stands in front.
        while self.sessions.front().is_some_and(|oldest| at.duration_since(oldest.at) >= BESIDE) {
            self.sessions.pop_front();
        }
        let known = match is_new {
            true => None,
            false => self.sessions.iter().rposition(|session| session.is_of(scope)),
        };
        let known = known.and_then(|index| self.sessions.remove(index));
        let awaits_conversation = purpose != Purpose::Turn;
        let mut session = SessionInUse {
            scope: scope.clone(),
            source,
            at,
            text: opening.map(|opening| opening.text.as_str()).unwrap_or_default().into(),
            awaits_conversation,
            calls: VecDeque::new(),
        };
        if let Some(known) = known {
            session.calls = known.calls;
            // A conversation keeps the text that it began with, which later calls quote.
            if !known.awaits_conversation {
                session.text = known.text;
            }
        }
        if let Some(opening) = opening
            && awaits_conversation
        {
            session.add_call(opening.content, source.connection);
        }
        // The one that was used longest ago.
        if self.sessions.len() == IN_USE {
            self.sessions.pop_front();
        }
        self.sessions.push_back(session);
    }

    /// The session of a call beside a conversation: the conversation that it quotes, or the only one in use.
    pub(super) fn find_conversation(
        &mut self,
        call: &OpeningRequest<'_>,
    ) -> Option<(SessionId, SessionWitness)> {
        let mut conversations: Vec<&mut SessionInUse> = self
            .sessions
            .iter_mut()
            .filter(|session| session.is_near(call) && !session.awaits_conversation)
            .collect();
        let mut quoted: Vec<&mut &mut SessionInUse> = conversations
            .iter_mut()
            .filter(|session| quotes(&call.opening.text, &session.text))
            .collect();
        if !quoted.is_empty() {
            quoted.retain(|session| !session.has_equal_call(call));
            // CrewAI asks for summaries with another library than for turns. Of equal ones the last is used, which is
            // the newest. If there is none, the call comes before its conversation.
            let session = quoted.into_iter().max_by_key(|session| {
                (session.has_agent(call), session.source.connection == call.source.connection)
            })?;
            session.add_call(call.opening.content, call.source.connection);
            return Some((session.scope.session.clone(), SessionWitness::Quote));
        }
        // Without a quote it could belong to any of several.
        let mut same_agent = conversations.iter().filter(|session| session.has_agent(call));
        match (same_agent.next(), same_agent.next()) {
            (Some(session), None) => Some((session.scope.session.clone(), SessionWitness::Time)),
            _ => None,
        }
    }

    /// The session of a conversation that begins, if a call beside it came first: it quotes what the user says.
    pub(super) fn find_call(&self, begins: &OpeningRequest<'_>) -> Option<SessionId> {
        let waiting = self.sessions.iter().filter(|session| session.awaits_conversation);
        let mut calls =
            waiting.filter(|session| session.is_near(begins) && session.has_agent(begins));
        // Of equal calls the first is used, which is the oldest: their conversations are equal, too.
        let call = calls.find(|session| quotes(&session.text, &begins.opening.text))?;
        Some(call.scope.session.clone())
    }

    pub(super) fn forget(&mut self, forgotten: &[Scope]) {
        self.sessions.retain(|session| !forgotten.contains(&session.scope));
    }
}

/// Whether the text of a call has the user's first words.
fn quotes(call_text: &str, text: &str) -> bool {
    text.len() >= FEWEST_WORDS && call_text.contains(text)
}

impl Opening {
    /// Of a request that begins a conversation, or a call beside one.
    pub(super) fn new(conversation: &Conversation, body: &[u8]) -> Self {
        let is_call = conversation.purpose != Purpose::Turn;
        let limit = if is_call { TEXT } else { WORDS };
        let mut text = String::new();
        for said in user_texts(conversation, body) {
            text.push_str(said.trim());
            // Of a conversation only its first message.
            if !is_call || text.len() > limit {
                break;
            }
            text.push('\n');
        }
        let text = text[..text.floor_char_boundary(limit)].trim_end().to_owned();
        Self { text, content: conversation.chains().last().copied().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_128;

    use super::*;
    use crate::dialect::{self, Dialect};
    use crate::store::conformance::scope;

    const PROMPT: &str = "Mend the tide table.";

    /// Sessions in use, and the time.
    struct Fixture {
        sessions: SessionsInUse,
        now: Instant,
    }

    fn source(connection: u64) -> RequestSource {
        RequestSource { connection, agent: 1 }
    }

    impl Fixture {
        fn new() -> Self {
            Self { sessions: SessionsInUse::default(), now: Instant::now() }
        }

        fn set(&mut self, session: &str, connection: u64, text: Option<&str>, purpose: Purpose) {
            let (scope, source) = (scope("t", session), source(connection));
            let opening = text.map(opening);
            self.sessions.set(&scope, false, source, self.now, opening.as_ref(), purpose);
        }

        fn conversation(
            &mut self,
            text: &str,
            source: RequestSource,
        ) -> Option<(String, SessionWitness)> {
            let tenant = &"t".into();
            let call = OpeningRequest { tenant, source, at: self.now, opening: &opening(text) };
            let (session, witness) = self.sessions.find_conversation(&call)?;
            Some((session.to_string(), witness))
        }

        fn call(&self, text: &str, source: RequestSource) -> Option<String> {
            let tenant = &"t".into();
            let begins = OpeningRequest { tenant, source, at: self.now, opening: &opening(text) };
            Some(self.sessions.find_call(&begins)?.to_string())
        }
    }

    fn opening(text: &str) -> Opening {
        Opening { text: text.to_owned(), content: Chain(xxh3_128(text.as_bytes())) }
    }

    fn found(session: &str, witness: SessionWitness) -> Option<(String, SessionWitness)> {
        Some((session.to_owned(), witness))
    }

    #[test]
    fn call_beside_conversation_quotes_it() {
        let mut fixture = Fixture::new();
        let quote = format!("Title of: {PROMPT}");
        fixture.set("a", 1, Some(PROMPT), Purpose::Turn);
        fixture.set("b", 2, Some("Quite another task."), Purpose::Turn);
        assert_eq!(fixture.conversation(&quote, source(2)), found("a", SessionWitness::Quote));
        assert_eq!(fixture.conversation("Something else", source(1)), None, "either");
        fixture.set("a", 1, None, Purpose::Turn);
        let [second, third, fourth] = [2, 3, 4].map(|number| format!("{quote} {number}"));
        assert_eq!(fixture.conversation(&second, source(9)), found("a", SessionWitness::Quote));
        fixture.set("c", 3, Some(PROMPT), Purpose::Turn);
        assert_eq!(fixture.conversation(&second, source(9)), found("c", SessionWitness::Quote));
        assert_eq!(fixture.conversation(&third, source(1)), found("a", SessionWitness::Quote));
        let other = RequestSource { connection: 1, agent: 2 };
        assert_eq!(fixture.conversation(&fourth, other), found("a", SessionWitness::Quote));
        fixture.set("e", 1, None, Purpose::Turn);
        assert_eq!(fixture.conversation("Something else", other), None, "another agent");
        fixture.sessions.forget(&[scope("t", "e")]);
        fixture.sessions.forget(&[scope("t", "a"), scope("t", "c")]);
        assert_eq!(fixture.conversation(&quote, source(1)), found("b", SessionWitness::Time));
        fixture.now += BESIDE;
        assert_eq!(fixture.conversation(&quote, source(1)), None, "too late");
    }

    #[test]
    fn conversation_has_session_of_call_before_it() {
        let mut fixture = Fixture::new();
        let quote = format!("Title of: {PROMPT}");
        fixture.set("a", 1, Some(&quote), Purpose::Side);
        fixture.set("b", 1, Some(&quote), Purpose::Side);
        assert_eq!(fixture.conversation(&quote, source(1)), None, "calls are no conversations");
        assert_eq!(fixture.call("Quite another task.", source(1)), None);
        assert_eq!(fixture.call("Title", source(1)), None, "too short to prove anything");
        assert_eq!(fixture.call(PROMPT, source(2)).as_deref(), Some("a"));
        fixture.set("a", 2, Some(PROMPT), Purpose::Turn);
        assert_eq!(fixture.call(PROMPT, source(2)).as_deref(), Some("b"), "each has one");
        fixture.set("b", 2, Some(PROMPT), Purpose::Turn);
        assert_eq!(fixture.call(PROMPT, source(2)), None);
        for more in 0..2 * IN_USE {
            fixture.set(&more.to_string(), 1, None, Purpose::Turn);
        }
        assert_eq!(fixture.sessions.sessions.len(), IN_USE);
    }

    /// Two runs with the same prompt, one after the other. The second asks for its title before it begins.
    #[test]
    fn equal_call_from_another_connection_is_of_another_run() {
        let mut fixture = Fixture::new();
        let title = format!("Title of: {PROMPT}");
        fixture.set("first", 1, Some(&title), Purpose::Side);
        fixture.set("first", 1, Some(PROMPT), Purpose::Turn);
        let first = found("first", SessionWitness::Quote);
        assert_eq!(fixture.conversation(&title, source(1)), first, "it asks again");
        let summary = format!("Summary of: {PROMPT}");
        assert_eq!(fixture.conversation(&summary, source(2)), first, "it has no such call yet");
        assert_eq!(fixture.conversation(&title, source(2)), None);
        fixture.set("second", 2, Some(&title), Purpose::Side);
        assert_eq!(fixture.call(PROMPT, source(2)).as_deref(), Some("second"));
        fixture.set("second", 2, Some(PROMPT), Purpose::Turn);
        assert_eq!(fixture.conversation(&title, source(3)), None, "both have it");
        for other in 0..CALLS {
            fixture.conversation(&format!("{title} {other}"), source(1)).unwrap();
        }
        assert_eq!(fixture.sessions.sessions[0].calls.len(), CALLS);
    }

    #[test]
    fn call_says_all_and_conversation_its_first_words() {
        let opening = |first: &str, purpose| {
            let body = serde_json::json!({"model": "m", "max_tokens": 9, "messages": [
                {"role": "user", "content": "<system-reminder>Be calm.</system-reminder>"},
                {"role": "user", "content": first},
                {"role": "user", "content": [{"type": "text", "text": PROMPT}]}]});
            let body = body.to_string().into_bytes();
            let mut conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &body);
            conversation.purpose = purpose;
            Opening::new(&conversation, &body).text
        };
        assert_eq!(opening(" Name it. ", Purpose::Turn), "Name it.");
        assert_eq!(opening(" Name it. ", Purpose::Side), format!("Name it.\n{PROMPT}"));
        assert_eq!(opening(&"é".repeat(9_999), Purpose::Turn), "é".repeat(WORDS / 2));
        assert_eq!(opening(&"é".repeat(9_999), Purpose::Side), "é".repeat(TEXT / 2));
    }
}
