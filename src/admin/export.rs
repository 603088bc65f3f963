//! A session for sharing: what each call was and what it cost, as lines of JSON, without any content unless
//! that is requested.
//!
//! The format is that of recorded transcripts (`replay::transcript`), with one session per thread. Each part
//! has its estimated tokens instead of its text, and the session's names are hashed. Content is available
//! only if it was stored (`content.keep`).

mod content;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use self::content::ExportThreads;
use self::content::LineContent;
use crate::context::content::TranscriptPart;
use crate::context::{Estimate, Millis, Outcome, PromptSection, ThreadId, Turn};
use crate::dialect::agent::Agent;
use crate::dialect::{Dialect, Purpose, StopReason, Usage};
use crate::store::Scope;
pub(super) use content::SessionContent;

/// One call of a thread.
#[derive(Debug, Serialize)]
struct ExportLine<'l> {
    /// The thread, as a hash of its names.
    session: String,
    source: &'static str,
    /// The index of the call in its thread.
    i: usize,
    model: &'l str,
    /// The agent that sent it, and its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'l Agent>,
    /// A hash of the folder that the agent works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    /// `anthropic`, `openai` or `gemini`: the provider whose protocol it is.
    provider: &'static str,
    dialect: Dialect,
    purpose: Purpose,
    ts: Millis,
    stop: Option<StopReason>,
    flags: Vec<&'static str>,
    /// What was sent and was not in the call before.
    new_parts: ExportParts,
    /// The reply as it was read; the next line has it as it was sent back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reply: Vec<TranscriptPart>,
    usage: ExportUsage<'l>,
    /// What it cost, US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    dollars: Option<f64>,
    estimate: Option<&'l Estimate>,
    window: u64,
}

/// Parts with their content, or only with their sizes.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ExportParts {
    Full(Vec<TranscriptPart>),
    Sized(Vec<ExportPart>),
}

#[derive(Debug, Serialize)]
struct ExportPart {
    role: &'static str,
    kind: &'static str,
    /// As estimated, with its share of structure.
    tokens: u32,
    /// Whether it comes from the reply before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reply: bool,
}

/// The usage in the transcripts' form, with everything that was reported.
#[derive(Debug, Serialize)]
struct ExportUsage<'l> {
    input_total: u64,
    #[serde(flatten)]
    usage: &'l Usage,
}

/// A session's turns, thread by thread, one line each. A line is built only when there is room to send it, so
/// that an export takes no more memory than its longest line.
pub(super) struct ExportLines {
    /// The secret key of this installation.
    key: [u8; 32],
    scope: Scope,
    threads: std::vec::IntoIter<(ThreadId, Vec<Arc<Turn>>)>,
    thread: Option<ExportThread>,
    /// Present if content is requested.
    content: Option<SessionContent>,
}

/// The thread whose lines are being built.
struct ExportThread {
    /// The hash of its names.
    name: String,
    turns: Vec<Arc<Turn>>,
    next: usize,
}

/// A call, and the previous one of its thread.
struct ExportCall {
    /// The hash of its thread's names.
    session: String,
    /// The index of the call in its thread.
    i: usize,
    turn: Arc<Turn>,
    before: Option<Arc<Turn>>,
}

impl ExportLines {
    /// `content` is present if content is requested. `key` is the secret key of this installation.
    pub(super) fn new(
        key: [u8; 32],
        scope: Scope,
        threads: ExportThreads,
        content: Option<SessionContent>,
    ) -> Self {
        Self { key, scope, threads: threads.into_iter(), thread: None, content }
    }

    pub(super) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        // If the store fails, the export breaks off, so that nobody takes it for complete.
        let ExportCall { session, i, turn, before } = self.call()?;
        let stored = match &mut self.content {
            Some(content) => match content.line_content(&turn, before.as_deref()).await {
                Ok(stored) => Some(stored),
                Err(trouble) => return Some(Err(io::Error::other(trouble.to_string()))),
            },
            None => None,
        };
        let key = self.key;
        // A line with content may be long.
        let writing = tokio::task::spawn_blocking(move || {
            let mut line = ExportLine::new(session, i, &turn, before.as_deref());
            let project = turn.origin.as_deref().and_then(|origin| origin.project.as_deref());
            line.project = project.map(|project| hashed_project(&key, project));
            if let Some(stored) = stored {
                line.set_content(stored);
            }
            let mut line = serde_json::to_vec(&line)?;
            line.push(b'\n');
            Ok(Bytes::from(line))
        });
        Some(writing.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked))))
    }

    fn call(&mut self) -> Option<ExportCall> {
        loop {
            if let Some(thread) = &mut self.thread
                && let Some(turn) = thread.turns.get(thread.next)
            {
                let i = thread.next;
                thread.next += 1;
                let previous = i.checked_sub(1).map(|previous| thread.turns[previous].clone());
                let session = thread.name.clone();
                return Some(ExportCall { session, i, turn: turn.clone(), before: previous });
            }
            let (thread, turns) = self.threads.next()?;
            let name = hashed(&self.key, &self.scope, &thread);
            self.thread = Some(ExportThread { name, turns, next: 0 });
        }
    }
}

fn hashed(key: &[u8; 32], scope: &Scope, thread: &ThreadId) -> String {
    // The same in every export of an installation, and nobody else can derive the original names from it.
    let name = [scope.tenant.as_str(), scope.session.as_str(), thread.as_str()].join("\n");
    let key = blake3::derive_key("plimsoll names of threads in exports", key);
    blake3::keyed_hash(&key, name.as_bytes()).to_hex()[..16].to_owned()
}

fn hashed_project(key: &[u8; 32], project: &str) -> String {
    // It may be the name of its folder.
    let key = blake3::derive_key("plimsoll names of projects in exports", key);
    blake3::keyed_hash(&key, project.as_bytes()).to_hex()[..16].to_owned()
}

impl<'l> ExportLine<'l> {
    fn new(session: String, i: usize, turn: &'l Turn, before: Option<&Turn>) -> Self {
        Self {
            session,
            source: "plimsoll",
            i,
            model: &turn.model,
            agent: turn.origin.as_deref().and_then(|origin| origin.agent.as_ref()),
            project: None,
            provider: match turn.dialect {
                Dialect::Anthropic => "anthropic",
                Dialect::OpenaiChat | Dialect::OpenaiResponses => "openai",
                Dialect::Gemini => "gemini",
            },
            dialect: turn.dialect,
            purpose: turn.purpose,
            ts: turn.at,
            stop: turn.stop,
            flags: flags(turn, before),
            new_parts: ExportParts::Sized(new_parts(turn, before)),
            reply: Vec::new(),
            usage: ExportUsage { input_total: turn.usage.input.unwrap_or(0), usage: &turn.usage },
            dollars: turn.dollars,
            estimate: turn.estimate.as_ref(),
            window: turn.window,
        }
    }

    fn set_content(&mut self, stored: Option<LineContent>) {
        let Some(stored) = stored else {
            return self.flags.push("no_content");
        };
        self.new_parts = ExportParts::Full(stored.parts);
        self.reply = stored.reply;
        if stored.is_whole {
            self.flags.push("whole");
        }
        if stored.has_gap {
            self.flags.push("content_gap");
        }
    }
}

/// Why a call is a poor measurement, in the flags of transcripts.
fn flags(turn: &Turn, before: Option<&Turn>) -> Vec<&'static str> {
    let grew = turn.position.parent.as_ref() == before.map(|before| &before.exchange);
    let mut flags = Vec::new();
    for (applies, flag) in [
        (turn.usage.input.is_none(), "no_usage"),
        // The provider counted only part of the output.
        (turn.usage.lower_bound, "output_unreliable"),
        (turn.outcome != Outcome::Complete, "aborted"),
        (turn.outcome == Outcome::Interrupted, "interrupted"),
        (turn.usage.hosted_tools, "server_tool"),
        (before.is_some_and(|before| before.model != turn.model), "model_changed"),
        // Its parent is not the call before: what was added cannot be compared.
        (!grew, "fork"),
    ] {
        if applies {
            flags.push(flag);
        }
    }
    flags
}

/// Parts that are in the sketch for the first time.
fn new_parts(turn: &Turn, before: Option<&Turn>) -> Vec<ExportPart> {
    let mut parts = Vec::new();
    for part in &turn.sketch.added {
        let reply =
            before.is_some_and(|before| before.reply.iter().any(|reply| reply.key == part.key));
        let (role, kind) = match part.place {
            PromptSection::System | PromptSection::SystemItem => ("system", "text"),
            PromptSection::Tools | PromptSection::ToolsItem => ("system", "tools"),
            PromptSection::Reasoning
            | PromptSection::SteeredReasoning
            | PromptSection::OldReasoning => ("assistant", "thinking"),
            PromptSection::History if reply => ("assistant", "other"),
            PromptSection::History => ("user", "other"),
        };
        parts.push(ExportPart { role, kind, tokens: part.tokens, reply });
    }
    parts
}
