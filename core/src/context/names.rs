//! What a session is called, from its turns: its agent, its project, its title.
//!
//! Names are only shown: nothing is decided by them. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::{SessionWitness, ThreadId, Turn};
use crate::dialect::Purpose;
use crate::dialect::agent::Agent;

/// What a session is called, from its turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Its main thread: that of its first turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main_thread: Option<ThreadId>,
}

impl SessionNames {
    /// The names in a session's turns. What the main thread does not state, another one may.
    pub fn of(ledger: &Ledger) -> Self {
        let main = ledger.turns().find(|turn| turn.purpose == Purpose::Turn);
        let main_thread = main.map(|turn| turn.position.thread.clone());
        let is_main = |turn: &&Arc<Turn>| Some(&turn.position.thread) == main_thread.as_ref();
        let newest_first = || ledger.turns().rev();
        let ordered = || newest_first().filter(is_main).chain(newest_first());
        let origins = || ordered().filter_map(|turn| turn.origin.as_deref());
        Self {
            agent: origins().find_map(|origin| origin.agent.clone()),
            project: origins().find_map(|origin| origin.project.clone()),
            title: newest_first().find_map(|turn| turn.origin.as_deref()?.title.clone()),
            found_by: origins().find_map(|origin| origin.found_by),
            main_thread,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::scene::SessionFixture;
    use crate::context::{Fact, TurnOrigin};
    use crate::dialect::Dialect;

    fn turn(exchange: &str) -> Turn {
        let body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        let scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", "m", &body);
        let reply = scene.reply(&json!([{"type": "text", "text": "Said."}]));
        Turn { exchange: exchange.into(), ..scene.turn(&reply) }
    }

    #[test]
    fn the_main_thread_names_the_session() {
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
        let names = SessionNames::of(&ledger);
        assert_eq!(names.agent.unwrap().to_string(), "agent");
        assert_eq!((names.title.as_deref(), names.project), (Some("Second"), None));
        assert_eq!(names.main_thread, Some("main".into()));
    }
}
