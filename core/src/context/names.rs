//! What a session is called, from its turns: its agent, its project, its title.
//!
//! Names are only shown: nothing is decided by them. Pure.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::{SessionWitness, ThreadId, Turn};
use crate::dialect::Purpose;
use crate::dialect::agent::Agent;

/// What a session is called, from its turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct SessionNames {
    /// The agent of its main thread, and the version that its newest turn there states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The folder that the agent works in: a keyed hash, or its name if `content.names` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<Box<str>>,
    /// The title that its client asked the model for, the newest one; only if `content.names` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Box<str>>,
    /// What decided that the newest turn of its main thread belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<SessionWitness>,
    /// Its main thread: that of its first turn, or what its client made of it by its newest compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main_thread: Option<ThreadId>,
}

impl SessionNames {
    /// The names in a session's turns, the newest of each.
    pub fn from_ledger(ledger: &Ledger) -> Self {
        let mut names = Self { main_thread: main_thread(ledger), ..Self::default() };
        for turn in ledger.turns().rev() {
            // A title comes from a call beside the conversation.
            if names.title.is_none()
                && let Some(origin) = &turn.origin
            {
                names.title.clone_from(&origin.title);
            }
            if names.main_thread.as_ref() == Some(&turn.position.thread) {
                names.complete(turn);
            }
        }
        // What the main thread does not state, another one may.
        for turn in ledger.turns().rev() {
            names.complete(turn);
        }
        names
    }

    /// What people call it: its title, or else its agent and project; `None` if neither is known.
    pub fn description(&self) -> Option<String> {
        if let Some(title) = &self.title {
            return Some(title.to_string());
        }
        let agent = self.agent.as_ref().map(ToString::to_string);
        // A hash tells people nothing.
        let project = self.project.as_deref().filter(|project| !project.starts_with('#'));
        let words: Vec<String> = agent.into_iter().chain(project.map(str::to_owned)).collect();
        if words.is_empty() { None } else { Some(words.join(" · ")) }
    }

    fn complete(&mut self, turn: &Turn) {
        let Some(origin) = &turn.origin else { return };
        if self.agent.is_none() {
            self.agent.clone_from(&origin.agent);
        }
        if self.project.is_none() {
            self.project.clone_from(&origin.project);
        }
        self.found_by = self.found_by.or(origin.found_by);
    }
}

fn main_thread(ledger: &Ledger) -> Option<ThreadId> {
    let mut turns = ledger.turns();
    let mut main = &turns.find(|turn| turn.purpose == Purpose::Turn)?.position;
    let mut is_compacted = false;
    for turn in turns {
        let position = &turn.position;
        if position.client_thread != main.client_thread {
            continue;
        }
        // After a compaction the history begins anew, which only the client can say for certain.
        let says_so = turn.hints.as_ref().is_some_and(|hints| hints.compacted.is_some());
        let has_head = position.system == main.system && position.tools == main.tools;
        match turn.purpose {
            Purpose::Compaction => is_compacted = true,
            Purpose::Turn if says_so || is_compacted && has_head => {
                main = position;
                is_compacted = false;
            }
            _ => {}
        }
    }
    Some(main.thread.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::scene::SessionFixture;
    use crate::context::{Fact, TurnOrigin};
    use crate::dialect::hints::{ClientHints, CompactionCause};
    use crate::dialect::{Dialect, PartKey};

    fn turn(exchange: &str) -> Turn {
        let body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        let scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", "m", &body);
        let reply = scene.reply(&json!([{"type": "text", "text": "Said."}]));
        Turn { exchange: exchange.into(), ..scene.turn(&reply) }
    }

    #[test]
    fn main_thread_names_session() {
        let mut ledger = Ledger::default();
        let mut add =
            |exchange: &str, thread: &str, purpose, agent: Option<&str>, title: Option<&str>| {
                let agent = agent.map(|name| Agent { name: name.into(), version: None });
                let origin =
                    TurnOrigin { agent, title: title.map(Into::into), ..TurnOrigin::default() };
                let mut turn = Turn { purpose, origin: Some(Box::new(origin)), ..turn(exchange) };
                turn.position.thread = thread.into();
                ledger.add(Fact::Turn(Box::new(turn)));
            };
        add("1", "side", Purpose::Side, Some("other"), Some("First"));
        add("2", "main", Purpose::Turn, Some("agent"), None);
        add("3", "main", Purpose::Turn, None, None);
        add("4", "side", Purpose::Side, Some("other"), Some("Second"));
        let names = SessionNames::from_ledger(&ledger);
        assert_eq!(names.agent.unwrap().to_string(), "agent");
        assert_eq!(names.title.as_deref(), Some("Second"));
        assert_eq!(names.project, None);
        assert_eq!(names.main_thread, Some("main".into()));
    }

    #[test]
    fn description_has_no_hash() {
        let agent = Agent { name: "pi".into(), version: Some("1.2".into()) };
        let mut names = SessionNames { agent: Some(agent), ..SessionNames::default() };
        names.project = Some("#0123abcd".into());
        assert_eq!(names.description().as_deref(), Some("pi 1.2"));
        names.project = Some("site".into());
        assert_eq!(names.description().as_deref(), Some("pi 1.2 · site"));
        names.title = Some("Fix the build".into());
        assert_eq!(names.description().as_deref(), Some("Fix the build"));
        assert_eq!(SessionNames::default().description(), None);
    }

    /// The main thread goes on after a compaction by the client, with its hint or with the same head; sub-agents and
    /// other conversations of the session do not take its place.
    #[test]
    fn compaction_moves_main_thread() {
        let mut ledger = Ledger::default();
        let mut add =
            |exchange: &str, thread: &str, purpose, tools: u128, client: Option<&str>, hint| {
                let hints = ClientHints { compacted: hint, ..ClientHints::default() };
                let mut turn = Turn { purpose, hints: Some(Box::new(hints)), ..turn(exchange) };
                turn.position.thread = thread.into();
                turn.position.client_thread = client.map(Into::into);
                turn.position.tools = PartKey(tools);
                ledger.add(Fact::Turn(Box::new(turn)));
                SessionNames::from_ledger(&ledger).main_thread.unwrap().to_string()
            };
        let compacted = Some(CompactionCause::Auto);
        for (exchange, thread, purpose, tools, client, hint, main) in [
            ("01", "main", Purpose::Turn, 1, None, None, "main"),
            ("02", "other", Purpose::Turn, 1, None, None, "main"),
            ("03", "summary", Purpose::Compaction, 1, Some("sub"), None, "main"),
            ("04", "sub", Purpose::Turn, 1, Some("sub"), compacted, "main"),
            ("05", "other", Purpose::Turn, 1, None, None, "main"),
            ("06", "summary", Purpose::Compaction, 1, None, None, "main"),
            ("07", "other", Purpose::Turn, 2, None, None, "main"),
            ("08", "anew", Purpose::Turn, 1, None, None, "anew"),
            ("09", "other", Purpose::Turn, 1, None, None, "anew"),
            ("10", "hinted", Purpose::Turn, 3, None, compacted, "hinted"),
        ] {
            assert_eq!(add(exchange, thread, purpose, tools, client, hint), main, "{exchange}");
        }
    }
}
