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
use crate::context::{Estimate, Millis, Outcome, PromptSection, SketchPart, ThreadId, Turn};
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

    /// The next line; `None` after the last.
    ///
    /// # Errors
    /// Those of the store: the export breaks off then, so that nobody takes it for complete.
    pub(super) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let ExportCall { session, i, turn, before } = self.call()?;
        let stored = match &mut self.content {
            Some(content) => match content.line_content(&turn, before.as_deref()).await {
                Ok(stored) => Some(stored),
                Err(trouble) => return Some(Err(io::Error::other(trouble.to_string()))),
            },
            None => None,
        };
        let key = self.key;
        let write = move || {
            let mut line = ExportLine::of(session, i, &turn, before.as_deref());
            let project = turn.origin.as_deref().and_then(|origin| origin.project.as_deref());
            line.project = project.map(|project| hashed_project(&key, project));
            if let Some(stored) = stored {
                line.set_content(stored);
            }
            let mut line = serde_json::to_vec(&line)?;
            line.push(b'\n');
            Ok(Bytes::from(line))
        };
        let written = tokio::task::spawn_blocking(write).await;
        Some(written.unwrap_or_else(|panicked| Err(io::Error::other(panicked))))
    }

    fn call(&mut self) -> Option<ExportCall> {
        loop {
            if let Some(thread) = &mut self.thread
                && let Some(turn) = thread.turns.get(thread.next)
            {
                let i = thread.next;
                thread.next += 1;
                let before = i.checked_sub(1).map(|before| thread.turns[before].clone());
                let session = thread.name.clone();
                return Some(ExportCall { session, i, turn: turn.clone(), before });
            }
            let (thread, turns) = self.threads.next()?;
            let name = hashed(&self.key, &self.scope, &thread);
            self.thread = Some(ExportThread { name, turns, next: 0 });
        }
    }
}

/// A thread's name in exports: the same in every export of an installation, and nobody else can derive the
/// original names from it.
fn hashed(key: &[u8; 32], scope: &Scope, thread: &ThreadId) -> String {
    let name = [scope.tenant.as_str(), scope.session.as_str(), thread.as_str()].join("\n");
    let key = blake3::derive_key("plimsoll names of threads in exports", key);
    blake3::keyed_hash(&key, name.as_bytes()).to_hex()[..16].to_owned()
}

/// The same for the name of a project, which may be its folder's.
fn hashed_project(key: &[u8; 32], project: &str) -> String {
    let key = blake3::derive_key("plimsoll names of projects in exports", key);
    blake3::keyed_hash(&key, project.as_bytes()).to_hex()[..16].to_owned()
}

impl<'l> ExportLine<'l> {
    fn of(session: String, i: usize, turn: &'l Turn, before: Option<&Turn>) -> Self {
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
            estimate: turn.estimate.as_ref(),
            window: turn.window,
        }
    }

    /// Replaces the sizes by the content, if that was stored.
    fn set_content(&mut self, stored: Option<LineContent>) {
        let Some(stored) = stored else {
            return self.flags.push("no_content");
        };
        self.new_parts = ExportParts::Full(stored.parts);
        self.reply = stored.reply;
        self.flags.extend(stored.is_whole.then_some("whole"));
        self.flags.extend(stored.has_gap.then_some("content_gap"));
    }
}

/// Why a call is a poor measurement, in the flags of transcripts.
fn flags(turn: &Turn, before: Option<&Turn>) -> Vec<&'static str> {
    let grew = turn.position.parent.as_ref() == before.map(|before| &before.exchange);
    [
        (turn.usage.input.is_none(), "no_usage"),
        (turn.usage.lower_bound, "output_unreliable"),
        (turn.outcome != Outcome::Complete, "aborted"),
        (turn.outcome == Outcome::Interrupted, "interrupted"),
        (turn.usage.hosted_tools, "server_tool"),
        (before.is_some_and(|before| before.model != turn.model), "model_changed"),
        (!grew, "fork"),
    ]
    .into_iter()
    .filter_map(|(is, flag)| is.then_some(flag))
    .collect()
}

/// Parts that are in the sketch for the first time.
fn new_parts(turn: &Turn, before: Option<&Turn>) -> Vec<ExportPart> {
    let of_reply = |part: &SketchPart| {
        before.is_some_and(|before| before.reply.iter().any(|reply| reply.key == part.key))
    };
    let part = |part: &SketchPart| {
        let reply = of_reply(part);
        let (role, kind) = match part.place {
            PromptSection::System | PromptSection::SystemItem => ("system", "text"),
            PromptSection::Tools | PromptSection::ToolsItem => ("system", "tools"),
            PromptSection::Reasoning
            | PromptSection::SteeredReasoning
            | PromptSection::OldReasoning => ("assistant", "thinking"),
            PromptSection::History if reply => ("assistant", "other"),
            PromptSection::History => ("user", "other"),
        };
        ExportPart { role, kind, tokens: part.tokens, reply }
    };
    turn.sketch.added.iter().map(part).collect()
}
