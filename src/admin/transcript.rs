//! The words of a thread, page by page: what each call added and what was replied, as far as it was stored
//! (`content.keep`).
//!
//! Secrets are masked as in an export, and what rewriting did to a part stands beside it. A page is bounded, however
//! long the calls are. Decides nothing: marks come from recorded decisions and from the parts that turns sent.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;

use super::context::named_thread;
use super::responses::{self, AdminError, AdminResponse, json, number, text_parameter};
use super::secrets::masked;
use super::state::Admin;
use crate::context::content::{
    ContentLink, ExchangeContent, TranscriptKind, TranscriptPart, TranscriptSpeaker,
};
use crate::context::ledger::Ledger;
use crate::context::plan::DecisionReason;
use crate::context::policy::DecisionMode;
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, ExchangeId, MainLine, Millis, PromptSection, Turn,
};
use crate::dialect::PartKey;
use crate::store::{Scope, StoreError};

/// Calls on a page, unless the query names a number.
pub(super) const DEFAULT_CALLS: usize = 20;
/// The most calls on a page.
pub(super) const MOST_CALLS: usize = 50;
/// The most bytes of a page's parts. Of a part that does not fit only the size is given.
const PAGE_BYTES: usize = 1 << 20;
/// What a part counts beside its text, so that many small ones are bounded as well.
const PART_BYTES: usize = 128;

/// Some calls of a thread, oldest first.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub(super) struct TranscriptPage {
    /// How many calls of the thread come before the first one here.
    pub skip: usize,
    /// How many calls the thread has.
    pub total: usize,
    pub calls: Vec<TranscriptCall>,
}

/// What one call said.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub(super) struct TranscriptCall {
    pub request: ExchangeId,
    /// When the request arrived, ms since 1970.
    pub at: Millis,
    /// Whether its text was stored.
    pub stored: bool,
    /// Whether `parts` are its whole history, because it does not continue that of an earlier call.
    pub whole: bool,
    /// The summary that replaces the beginning of its history for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compacted: Option<ShownSummary>,
    /// What it added. A reply that was sent back is left out if it stands at the call that it replies to.
    pub parts: Vec<ShownPart>,
    pub reply: Vec<ShownPart>,
    /// Parts that did not fit the page, not even as a size.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

/// A summary in place of the beginning of a history.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub(super) struct ShownSummary {
    /// Tokens of what it replaces, estimated.
    pub tokens_before: u64,
    /// Its own tokens, estimated.
    pub tokens_after: u64,
    /// The messages that are sent in that place, as JSON; empty if they did not fit the page.
    pub text: String,
}

/// One part of a request or reply.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub(super) struct ShownPart {
    /// `system`, `user` or `assistant`.
    #[schemars(with = "String")]
    pub role: TranscriptSpeaker,
    /// `text`, `thinking`, `tool_use`, `tool_result`, `tools` (the definition of one), `image` or `other`.
    #[schemars(with = "String")]
    pub kind: TranscriptKind,
    /// The name of the called tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text, or the arguments of a call; empty if none was stored, or if it did not fit the page.
    pub text: String,
    /// The length of the text, bytes; of a picture's data, or of encrypted reasoning.
    pub bytes: u64,
    /// Whether it is another block of the tool result before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// That it is sent shortened, since this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<ShownCut>,
    /// Whether the client dropped it, and the next request was sent with it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub put_back: bool,
}

/// How a tool result was shortened.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub(super) struct ShownCut {
    /// The exchange that decided it.
    pub request: ExchangeId,
    pub why: DecisionReason,
    /// Tokens before, estimated.
    pub tokens_before: u64,
    /// Tokens after, estimated.
    pub tokens_after: u64,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The turns of a page, and what was decided about their parts.
struct TranscriptTurns {
    skip: usize,
    total: usize,
    turns: Vec<MarkedTurn>,
    /// The turn after them: it tells whether the last reply came back whole.
    next: Option<Arc<Turn>>,
}

struct MarkedTurn {
    turn: Arc<Turn>,
    /// For each part of its history, in order: how it is shortened now.
    cuts: Vec<Option<ShownCut>>,
    compacted: Option<Arc<CompactionRecord>>,
}

/// Which calls of a thread are asked for.
struct TranscriptQuery {
    thread: String,
    /// The first call; else `skip` counts.
    request: Option<ExchangeId>,
    /// Without either, the newest calls are meant.
    skip: Option<usize>,
    limit: usize,
}

impl TranscriptQuery {
    fn parse(thread: &str, query: Option<&str>) -> Result<Self, AdminError> {
        Ok(Self {
            thread: thread.to_owned(),
            request: text_parameter(query, "request").map(ExchangeId::from),
            skip: number(query, "skip")?,
            limit: number(query, "limit")?.unwrap_or(DEFAULT_CALLS).clamp(1, MOST_CALLS),
        })
    }

    /// `None` if there is no such thread, or no such call in it.
    fn turns(&self, ledger: &Ledger) -> Option<TranscriptTurns> {
        let threads = ledger.threads();
        let line = MainLine::from_ledger(ledger);
        let mut turns = named_thread(&threads, line.as_ref(), &self.thread).0?.1.clone();
        turns.sort_by_key(|turn| turn.at);
        let total = turns.len();
        let skip = match (&self.request, self.skip) {
            (Some(request), _) => turns.iter().position(|turn| turn.exchange == *request)?,
            (None, Some(skip)) => skip.min(total),
            (None, None) => total.saturating_sub(self.limit),
        };
        let epoch = turns.last()?.position.suspended.map(DecisionEpoch::of_suspension);
        let cuts = cuts_by_part(ledger, epoch);
        let mut rest = turns.into_iter().skip(skip);
        let shown: Vec<Arc<Turn>> = rest.by_ref().take(self.limit).collect();
        let turns = shown.into_iter().map(|turn| MarkedTurn::new(turn, ledger, &cuts));
        Some(TranscriptTurns { skip, total, turns: turns.collect(), next: rest.next() })
    }
}

/// The newest cut of each part, by the keys that the part has in sketches of requests that sent it before.
fn cuts_by_part(ledger: &Ledger, epoch: Option<DecisionEpoch>) -> HashMap<PartKey, &Cut> {
    let mut cuts: Vec<&Cut> = ledger.cuts_holding(epoch).map(AsRef::as_ref).collect();
    cuts.sort_by_key(|cut| cut.at);
    let mut by_part = HashMap::new();
    for cut in cuts {
        // What was too large was cut when it was sent first.
        by_part.insert(cut.sent_key(), cut);
        by_part.insert(cut.part.unwrap_or(cut.about), cut);
    }
    by_part
}

impl MarkedTurn {
    fn new(turn: Arc<Turn>, ledger: &Ledger, cuts: &HashMap<PartKey, &Cut>) -> Self {
        let mut compactions = ledger.compacts(DecisionMode::Active);
        let compacted = compactions.find(|one| one.exchange == turn.exchange).cloned();
        let mut marks = Vec::new();
        // A message of the operator stands where the client has none.
        if turn.done.new.injected == 0 {
            let sketch = ledger.sketch(&turn).unwrap_or_default();
            let history = sketch.iter().filter(|part| part.place == PromptSection::History);
            marks = history.map(|part| cuts.get(&part.key).copied().map(ShownCut::new)).collect();
        }
        Self { cuts: marks, compacted, turn }
    }
}

impl ShownCut {
    fn new(cut: &Cut) -> Self {
        Self {
            request: cut.exchange.clone(),
            why: cut.why,
            tokens_before: cut.was.into(),
            tokens_after: cut.tokens.into(),
        }
    }
}

pub(super) async fn answer(
    admin: &Admin,
    id: &str,
    thread: &str,
    query: Option<&str>,
) -> AdminResponse {
    let asked = TranscriptQuery::parse(thread, query)?;
    let scope = responses::scope(admin, id).await?;
    let looking = admin.ledgers.look_at_one_of_many(&scope, move |ledger| asked.turns(ledger));
    let turns = looking.await?.ok_or_else(|| {
        AdminError::unknown(format!("Session {id:?} has no such call in a thread {thread:?}."))
    })?;
    let page = page(admin, &scope, turns).await?;
    // Searching a megabyte for secrets takes a while.
    let masking = tokio::task::spawn_blocking(move || json(&page.masked()));
    masking.await.map_err(|_| {
        let what = "The text could not be searched for secrets.";
        AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", what)
    })
}

async fn page(
    admin: &Admin,
    scope: &Scope,
    TranscriptTurns { skip, total, turns, next }: TranscriptTurns,
) -> Result<TranscriptPage, StoreError> {
    let mut room = PageRoom(PAGE_BYTES);
    let mut calls: Vec<TranscriptCall> = Vec::new();
    for MarkedTurn { turn, cuts, compacted } in turns {
        let content = admin.ledgers.content(scope, &turn.exchange).await?;
        mark_put_back(calls.last_mut(), &turn, content.as_ref());
        let parent = turn.position.parent.as_ref();
        let has_parents_reply = match (parent, calls.last()) {
            (None, _) => false,
            (Some(parent), Some(last)) if last.request == *parent => last.stored,
            (Some(parent), _) => admin.ledgers.content(scope, parent).await?.is_some(),
        };
        let mut call = TranscriptCall {
            request: turn.exchange.clone(),
            at: turn.at,
            stored: content.is_some(),
            whole: false,
            compacted: compacted.map(|summary| room.summary(&summary)),
            parts: Vec::new(),
            reply: Vec::new(),
            left_out: 0,
        };
        if let Some(content) = content {
            call.whole = parent.is_some() && content.follows == ContentLink::Nothing;
            call.add(content, has_parents_reply, cuts, &mut room);
        }
        calls.push(call);
    }
    if let Some(next) = next.filter(|next| next.done.new.put_back > 0) {
        let content = admin.ledgers.content(scope, &next.exchange).await?;
        mark_put_back(calls.last_mut(), &next, content.as_ref());
    }
    Ok(TranscriptPage { skip, total, calls })
}

/// Marks the reasoning of a reply that the next request had only because it was put back.
fn mark_put_back(
    before: Option<&mut TranscriptCall>,
    turn: &Turn,
    content: Option<&ExchangeContent>,
) {
    let (Some(before), Some(content)) = (before, content) else { return };
    let is_next = turn.position.parent.as_ref() == Some(&before.request);
    let is_put_back = turn.done.is_sent() && turn.done.new.put_back > 0;
    let was_sent_back = content.messages.iter().any(|part| part.reply && is_thinking(part.kind));
    if !is_next || !is_put_back || was_sent_back || content.follows != ContentLink::Request {
        return;
    }
    for part in before.reply.iter_mut().filter(|part| is_thinking(part.kind)) {
        part.put_back = true;
    }
}

fn is_thinking(kind: TranscriptKind) -> bool {
    kind == TranscriptKind::Thinking
}

impl TranscriptCall {
    fn add(
        &mut self,
        content: ExchangeContent,
        has_parents_reply: bool,
        mut cuts: Vec<Option<ShownCut>>,
        room: &mut PageRoom,
    ) {
        let ExchangeContent { head, messages, reply, .. } = content;
        // The sketch ends as the request does, and has one entry for each part, reasoning aside. Where parts were left
        // out of what is stored, it is not known which is which.
        let is_left_out = |part: &TranscriptPart| {
            part.kind == TranscriptKind::Other && part.redacted > 0 && part.name.is_none()
        };
        if messages.iter().any(is_left_out) {
            cuts.clear();
        }
        let mut marked = Vec::with_capacity(messages.len());
        for part in messages.into_iter().rev() {
            let has_entry = !is_thinking(part.kind) && !part.continues;
            let cut = if has_entry { cuts.pop().flatten() } else { None };
            let is_result = part.kind == TranscriptKind::ToolResult;
            marked.push((part, if is_result { cut } else { None }));
        }
        let head = head.into_iter().map(|part| (part, None));
        for (part, cut) in head.chain(marked.into_iter().rev()) {
            if part.reply && has_parents_reply {
                continue;
            }
            match room.part(part) {
                Some(shown) => self.parts.push(ShownPart { cut, ..shown }),
                None => self.left_out += 1,
            }
        }
        for part in reply {
            match room.part(part) {
                Some(shown) => self.reply.push(shown),
                None => self.left_out += 1,
            }
        }
    }

    fn mask(&mut self) {
        if let Some(summary) = &mut self.compacted {
            summary.text = masked(&summary.text).0;
        }
        for part in self.parts.iter_mut().chain(&mut self.reply) {
            part.text = masked(&part.text).0;
            part.name = part.name.take().map(|name| masked(&name).0);
        }
    }
}

impl TranscriptPage {
    fn masked(mut self) -> Self {
        for call in &mut self.calls {
            call.mask();
        }
        self
    }
}

/// The bytes that a page may still take.
struct PageRoom(usize);

impl PageRoom {
    /// `None` if there is no room even for its size.
    fn part(&mut self, part: TranscriptPart) -> Option<ShownPart> {
        self.0 = self.0.checked_sub(PART_BYTES)?;
        let TranscriptPart { role, kind, chars, signature_len, name, continues, .. } = part;
        Some(ShownPart {
            role,
            kind,
            name: name.map(|name| self.text(name.into())),
            text: self.text(part.text),
            bytes: if chars > 0 { chars } else { signature_len },
            continues,
            cut: None,
            put_back: false,
        })
    }

    fn summary(&mut self, summary: &CompactionRecord) -> ShownSummary {
        ShownSummary {
            tokens_before: summary.was,
            tokens_after: summary.tokens.into(),
            text: self.text(summary.raw.to_string()),
        }
    }

    fn text(&mut self, text: String) -> String {
        match self.0.checked_sub(text.len()) {
            Some(room) => {
                self.0 = room;
                text
            }
            None => String::new(),
        }
    }
}
