//! Where a request comes from: how its session was found, which agent sent it, and for which project.
//!
//! It is stored with the turn and shown with the session. Every value is bounded and without control characters. Pure.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::dialect::agent::Agent;

/// What decided which session a request belongs to. All of them count only within one credential's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SessionWitness {
    /// The client names the session.
    Client,
    /// Reasoning that a provider signed.
    Signature,
    /// The id of the response that it continues.
    Response,
    /// What an earlier exchange sent and received.
    Prefix,
    /// All of an earlier request, and an edited reply.
    RequestEnd,
    /// The sentences of an earlier reply that the client edited.
    Sentence,
    /// A part that only one reply has.
    Call,
    /// Where an earlier request ends and its reply starts.
    Boundary,
    /// One of these, by what was stored.
    Stored,
    /// Of equal sessions, the one that nothing has continued.
    Open,
    /// Of equal sessions, the one on this connection.
    Connection,
    /// Of equal sessions, the newest.
    Newest,
    /// The user's first words, which a call beside the conversation quotes.
    Quote,
    /// A call beside the only conversation in use.
    Time,
    /// None: a session begins.
    New,
    /// A kind that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl SessionWitness {
    /// What it means, for people: the rest of "its session was found by …".
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Client => "the name that the client gives it, in a header or in the body",
            Self::Signature => "reasoning that the provider signed in it",
            Self::Response => "the id of the response that the request continues",
            Self::Prefix => {
                "its beginning: all of an earlier request with its reply (text beside a first call may be missing), or \
                 a request that has no whole reply"
            }
            Self::RequestEnd => {
                "its beginning: all of an earlier request, followed by a reply that the client edited"
            }
            Self::Sentence => {
                "sentences of an earlier reply, which the client edited, after what was sent before it"
            }
            Self::Call => "a call with a random id, or a long text, of an earlier reply",
            Self::Boundary => "the end of an earlier request with the start of its reply",
            Self::Stored => "one of these, looked up in the store",
            Self::Open => "the same as another session; nothing had continued this one yet",
            Self::Connection => "the same as another session; this one used the same connection",
            Self::Newest => "the same as another session; this one is newer",
            Self::Quote => {
                "the user's first words, which a call beside the conversation quotes within a minute"
            }
            Self::Time => {
                "a call beside a conversation: the only one that its agent had used within a minute"
            }
            Self::New => "nothing: it begins with this request",
            Self::Unknown => "something that this version does not know",
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnOrigin {
    /// What decided which session it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<SessionWitness>,
    /// The agent that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The folder that the agent works in: a keyed hash of its path, or its name if `content.names` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<Box<str>>,
    /// The title of the conversation that its reply gives, if `content.names` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Box<str>>,
    /// The tags that its client gave it, `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Box<str>>,
}

impl TurnOrigin {
    /// Its memory, bytes.
    pub fn bytes(&self) -> usize {
        let names = [&self.project, &self.title].into_iter().flatten().map(|name| name.len());
        let agent = self.agent.as_ref().map_or(0, Agent::bytes);
        let tags = self.tags.iter().map(|tag| size_of::<Box<str>>() + tag.len());
        size_of::<Self>() + names.sum::<usize>() + tags.sum::<usize>() + agent
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;

    use serde_json::json;

    use super::*;
    use crate::context::Turn;
    use crate::context::scene::SessionFixture;
    use crate::dialect::Dialect;

    fn turn(exchange: &str) -> Turn {
        let body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        let scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", "m", &body);
        let reply = scene.reply(&json!([{"type": "text", "text": "Said."}]));
        Turn { exchange: exchange.into(), ..scene.turn(&reply) }
    }

    #[test]
    fn each_witness_has_name_and_meaning_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for witness in SessionWitness::iter() {
            assert!(seen.insert(witness.meaning()), "{witness:?}");
            let json = serde_json::to_string(&witness).unwrap();
            assert_eq!(serde_json::from_str::<SessionWitness>(&json).unwrap(), witness);
        }
    }

    /// What an earlier or a later version wrote can be read.
    #[test]
    fn old_and_later_records_are_read() {
        let old: TurnOrigin = serde_json::from_str("{}").unwrap();
        assert_eq!(old, TurnOrigin::default());
        let later = r#"{"found_by":"stars","agent":{"name":"a"},"more":1}"#;
        let later: TurnOrigin = serde_json::from_str(later).unwrap();
        assert_eq!(later.found_by, Some(SessionWitness::Unknown));
        let mut plain = serde_json::to_value(turn("a")).unwrap();
        plain.as_object_mut().unwrap().remove("origin");
        assert_eq!(serde_json::from_value::<Turn>(plain).unwrap().origin, None);
    }
}
