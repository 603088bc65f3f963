//! The content of a session's calls, as lines of a transcript: what each call added.
//!
//! A call that does not continue the previous one of its thread gives all content that it sent, assembled
//! from the calls that it continues. Such repetitions are limited; past the limit a line says that content
//! before its own is missing. Content is read from the store as lines are built.

use std::collections::HashMap;
use std::sync::Arc;

use crate::context::content::{ContentLink, ExchangeContent, TranscriptPart};
use crate::context::{ExchangeId, ThreadId, Turn};
use crate::store::ledgers::Ledgers;
use crate::store::{Scope, StoreError};

/// A session's turns, by thread.
pub(in crate::admin) type ExportThreads = Vec<(ThreadId, Vec<Arc<Turn>>)>;

/// The most bytes of text that one export repeats, for calls that do not continue the previous one.
const REPEATED: usize = 64 << 20;

/// The content of a session, as far as it was stored.
pub(in crate::admin) struct SessionContent {
    ledgers: Arc<Ledgers>,
    scope: Scope,
    turns: HashMap<ExchangeId, Arc<Turn>>,
    /// The content that was exported last: the next line begins with the reply to it.
    last: Option<(ExchangeId, Arc<ExchangeContent>)>,
    /// Bytes of text that may still be repeated.
    room: usize,
}

/// The content of one line.
pub(super) struct LineContent {
    pub(super) parts: Vec<TranscriptPart>,
    pub(super) reply: Vec<TranscriptPart>,
    /// Whether the parts are all that was sent, not only what was added.
    pub(super) is_whole: bool,
    /// Whether earlier content is in no line.
    pub(super) has_gap: bool,
}

/// Everything that a turn sent.
struct SentTranscript {
    parts: Vec<TranscriptPart>,
    /// Some of it was not stored.
    has_gap: bool,
}

impl SessionContent {
    /// The content of a session's turns.
    pub(in crate::admin) fn new(
        ledgers: Arc<Ledgers>,
        scope: Scope,
        threads: &ExportThreads,
    ) -> Self {
        let turns = threads.iter().flat_map(|(_, turns)| turns);
        let turns = turns.map(|turn| (turn.exchange.clone(), turn.clone())).collect();
        Self { ledgers, scope, turns, last: None, room: REPEATED }
    }

    async fn content(
        &self,
        exchange: &ExchangeId,
    ) -> Result<Option<Arc<ExchangeContent>>, StoreError> {
        if let Some((last, content)) = &self.last
            && last == exchange
        {
            return Ok(Some(content.clone()));
        }
        Ok(self.ledgers.content(&self.scope, exchange).await?.map(Arc::new))
    }

    /// The content of a turn's line; `before` is the turn of the previous line. `None` if the turn's content
    /// was not stored.
    pub(super) async fn line_content(
        &mut self,
        turn: &Turn,
        before: Option<&Turn>,
    ) -> Result<Option<LineContent>, StoreError> {
        let Some(content) = self.content(&turn.exchange).await? else { return Ok(None) };
        let added = self.added(turn, &content, before).await?;
        let line = match added {
            Some(parts) => LineContent::added(&content, parts),
            None => {
                let SentTranscript { parts, has_gap } = self.sent_transcript(turn).await?;
                let bytes: usize = parts.iter().map(|part| part.text.len()).sum();
                match self.room.checked_sub(bytes) {
                    Some(room) => {
                        self.room = room;
                        LineContent {
                            is_whole: before.is_some(),
                            has_gap,
                            ..LineContent::added(&content, parts)
                        }
                    }
                    None => {
                        LineContent { has_gap: true, ..LineContent::added(&content, own(&content)) }
                    }
                }
            }
        };
        self.last = Some((turn.exchange.clone(), content));
        Ok(Some(line))
    }

    /// What a turn sent that is not in the previous line; `None` if everything that it sent has to be given.
    async fn added(
        &self,
        turn: &Turn,
        content: &ExchangeContent,
        before: Option<&Turn>,
    ) -> Result<Option<Vec<TranscriptPart>>, StoreError> {
        let parent = turn.position.parent.as_ref();
        if parent.is_some() && parent != before.map(|before| &before.exchange) {
            return Ok(None);
        }
        Ok(match content.follows {
            ContentLink::Request => Some(own(content)),
            ContentLink::Reply => {
                let answer = match parent {
                    Some(parent) => self.content(parent).await?,
                    None => None,
                };
                let answer = answer.as_ref().map_or(&[][..], |content| &content.reply);
                let answer =
                    answer.iter().map(|part| TranscriptPart { reply: true, ..part.clone() });
                Some(answer.chain(own(content)).collect())
            }
            ContentLink::Nothing if parent.is_none() && before.is_none() => Some(own(content)),
            ContentLink::Nothing => None,
        })
    }

    async fn sent_transcript(&self, turn: &Turn) -> Result<SentTranscript, StoreError> {
        let mut head: Vec<TranscriptPart> = Vec::new();
        let mut line: Vec<Arc<ExchangeContent>> = Vec::new();
        let mut current = Some(turn);
        let mut is_begun = false;
        let mut has_gap = false;
        // No branch is longer than the number of turns, unless the facts contradict each other.
        for _ in 0..=self.turns.len() {
            let Some(turn) = current else { break };
            let Some(content) = self.content(&turn.exchange).await? else {
                has_gap = true;
                break;
            };
            if head.is_empty() {
                head.clone_from(&content.head);
            }
            if !is_begun {
                is_begun = content.follows == ContentLink::Nothing;
                line.push(content);
            }
            if is_begun && !head.is_empty() {
                break;
            }
            let parent = turn.position.parent.as_ref();
            current = parent.and_then(|parent| self.turns.get(parent)).map(|turn| &**turn);
            has_gap |= parent.is_some() && current.is_none();
        }
        let mut parts = head;
        let mut answer: &[TranscriptPart] = &[];
        for content in line.iter().rev() {
            if content.follows == ContentLink::Reply {
                parts.extend_from_slice(answer);
            }
            parts.extend_from_slice(&content.messages);
            answer = &content.reply;
        }
        // Nothing of it comes from the reply in the line before.
        for part in &mut parts {
            part.reply = false;
        }
        Ok(SentTranscript { parts, has_gap })
    }
}

impl LineContent {
    fn added(content: &ExchangeContent, parts: Vec<TranscriptPart>) -> Self {
        Self { parts, reply: content.reply.clone(), is_whole: false, has_gap: false }
    }
}

fn own(content: &ExchangeContent) -> Vec<TranscriptPart> {
    content.head.iter().chain(&content.messages).cloned().collect()
}
