//! What a session is called, from its turns: its agent, its project, its title.
//!
//! Names are only shown: nothing is decided by them. Pure.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::{Position, SessionWitness, ThreadId, Turn};
use crate::dialect::Purpose;
use crate::dialect::agent::{Agent, display_name};
use crate::dialect::hints::{ClientHints, RequestClass};

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
    /// Its main thread: that of the newest turn of its [`MainLine`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main_thread: Option<ThreadId>,
}

impl SessionNames {
    /// The names in a session's turns, the newest of each.
    pub fn from_ledger(ledger: &Ledger) -> Self {
        let mut names = Self {
            main_thread: MainLine::from_ledger(ledger).map(|line| line.thread().clone()),
            ..Self::default()
        };
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
        let agent = self.agent.as_ref().map(|agent| agent.name.to_string());
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

/// What a thread beside the main one is called: its kind of sub-agent, else as its client calls it; what other calls are for.
pub fn thread_label(
    purpose: Purpose,
    hints: Option<&ClientHints>,
    client_thread: Option<&str>,
    id: &ThreadId,
) -> String {
    let kind = hints.and_then(|hints| hints.agent_type);
    match (purpose, kind, client_thread.and_then(display_name)) {
        (Purpose::Turn, Some(kind), _) => format!("{} agent", kind.as_ref().replace('_', " ")),
        (Purpose::Turn, None, Some(name)) => name.into(),
        (Purpose::Turn, None, None) => format!("branch {:.8}", id.as_str()),
        (purpose, ..) => purpose.as_ref().replace('_', " "),
    }
}

/// What a session's user follows: the thread of its first turn, and those that go on from it after a compaction or from
/// an earlier message. Sub-agents, side calls and other conversations of the session are beside it.
pub struct MainLine<'l> {
    ledger: &'l Ledger,
    threads: Vec<&'l ThreadId>,
    newest: &'l Position,
    is_compacted: bool,
}

impl<'l> MainLine<'l> {
    /// `None` if the session has no turn.
    pub fn from_ledger(ledger: &'l Ledger) -> Option<Self> {
        let mut turns = ledger.turns().filter(|turn| turn.purpose == Purpose::Turn);
        let earliest = turns.next()?;
        let mut conversations = std::iter::once(earliest).chain(turns);
        let main = conversations.find(|turn| !is_sub_agent(turn.hints.as_deref()));
        let newest = &main.unwrap_or(earliest).position;
        let threads = vec![&newest.thread];
        let mut line = Self { ledger, threads, newest, is_compacted: false };
        for turn in ledger.turns() {
            line.add(turn);
        }
        Some(line)
    }

    /// The thread of its newest turn.
    pub fn thread(&self) -> &ThreadId {
        &self.newest.thread
    }

    /// Whether a turn at this place belongs to it.
    pub fn goes_on_at(&self, position: &Position, hints: Option<&ClientHints>) -> bool {
        if self.threads.contains(&&position.thread) {
            return true;
        }
        if position.client_thread != self.newest.client_thread || is_sub_agent(hints) {
            return false;
        }
        // After a compaction the history begins anew, which only the client can say for certain.
        if hints.is_some_and(|hints| hints.compacted.is_some()) {
            return true;
        }
        let parent = self.ledger.parent(position);
        let is_fork = parent.is_some_and(|turn| self.threads.contains(&&turn.position.thread));
        let has_head = position.system == self.newest.system && position.tools == self.newest.tools;
        has_head && (self.is_compacted || is_fork)
    }

    fn add(&mut self, turn: &'l Turn) {
        let position = &turn.position;
        match turn.purpose {
            Purpose::Compaction if position.client_thread == self.newest.client_thread => {
                self.is_compacted = true;
            }
            Purpose::Turn if self.goes_on_at(position, turn.hints.as_deref()) => {
                if !self.threads.contains(&&position.thread) {
                    self.threads.push(&position.thread);
                }
                self.newest = position;
                self.is_compacted = false;
            }
            _ => {}
        }
    }
}

fn is_sub_agent(hints: Option<&ClientHints>) -> bool {
    hints.is_some_and(|hints| {
        hints.agent_type.is_some()
            || hints.agent.is_some()
            || matches!(hints.class, Some(RequestClass::Subagent | RequestClass::Workflow))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::scene::SessionFixture;
    use crate::context::{Fact, TurnOrigin};
    use crate::dialect::hints::CompactionCause;
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
                ledger.add(Fact::Turn(turn.into()));
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
        assert_eq!(names.description().as_deref(), Some("pi"));
        names.project = Some("site".into());
        assert_eq!(names.description().as_deref(), Some("pi · site"));
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
                ledger.add(Fact::Turn(turn.into()));
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

    /// Who goes back to an earlier message goes on from there; sub-agents that begin from it do not take its place.
    #[test]
    fn forks_move_main_thread() {
        let mut ledger = Ledger::default();
        for (exchange, thread, parent, class, main) in [
            ("1", "sub", None, RequestClass::Subagent, "sub"),
            ("2", "main", None, RequestClass::Main, "main"),
            ("3", "sub", Some("1"), RequestClass::Subagent, "main"),
            ("4", "sub two", Some("2"), RequestClass::Subagent, "main"),
            ("5", "again", Some("2"), RequestClass::Main, "again"),
            ("6", "foreign", Some("3"), RequestClass::Main, "again"),
            ("7", "main", Some("2"), RequestClass::Main, "main"),
        ] {
            let hints = ClientHints { class: Some(class), ..ClientHints::default() };
            let mut turn = Turn { hints: Some(Box::new(hints)), ..turn(exchange) };
            turn.position.thread = thread.into();
            turn.position.parent = parent.map(Into::into);
            ledger.add(Fact::Turn(turn.into()));
            let line = MainLine::from_ledger(&ledger).unwrap();
            assert_eq!(line.thread().as_str(), main, "{exchange}");
        }
    }
}
