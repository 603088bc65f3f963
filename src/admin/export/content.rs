//! The words of a session's calls, as lines of a transcript tell them: what each call added.
//!
//! A call that did not grow from the one before it on its thread tells all that it sent, put together
//! from the calls that it grew from. Such repetitions are bounded; past that a line says that words
//! are missing before its own. Words are read from the store as they are told.

use std::collections::HashMap;
use std::sync::Arc;

use crate::context::content::{ContentLink, ExchangeContent, TranscriptPart};
use crate::context::{ExchangeId, ThreadId, Turn};
use crate::store::ledgers::Ledgers;
use crate::store::{Scope, StoreError};

/// A session's turns, by thread.
pub(in crate::admin) type ExportThreads = Vec<(ThreadId, Vec<Arc<Turn>>)>;

/// Most bytes of text that one export tells again, for calls that did not grow from the one before.
const REPEATED: usize = 64 << 20;

/// What was said in a session, as far as it was kept.
pub(in crate::admin) struct SessionContent {
    ledgers: Arc<Ledgers>,
    scope: Scope,
    turns: HashMap<ExchangeId, Arc<Turn>>,
    /// The words that were told last: the next line begins with the reply to them.
    last: Option<(ExchangeId, Arc<ExchangeContent>)>,
    /// Bytes of text that may still be told again.
    room: usize,
}

/// What a line tells.
pub(super) struct LineContent {
    pub(super) parts: Vec<TranscriptPart>,
    pub(super) reply: Vec<TranscriptPart>,
    /// The parts are all that was sent, not what was added.
    pub(super) is_whole: bool,
    /// Something was said before that is told nowhere.
    pub(super) has_gap: bool,
}

impl SessionContent {
    /// Of a session's turns.
    pub(in crate::admin) fn new(
        ledgers: Arc<Ledgers>,
        scope: Scope,
        threads: &ExportThreads,
    ) -> Self {
        let turns = threads.iter().flat_map(|(_, turns)| turns);
        let turns = turns.map(|turn| (turn.exchange.clone(), turn.clone())).collect();
        Self { ledgers, scope, turns, last: None, room: REPEATED }
    }

    /// The words of a call; `None` where they were not kept.
    async fn words(
        &self,
        exchange: &ExchangeId,
    ) -> Result<Option<Arc<ExchangeContent>>, StoreError> {
        if let Some((_, words)) = self.last.as_ref().filter(|(last, _)| last == exchange) {
            return Ok(Some(words.clone()));
        }
        Ok(self.ledgers.words(&self.scope, exchange).await?.map(Arc::new))
    }

    /// What a turn's line tells; `before`: the turn of the line before. `None` where its words were not
    /// kept.
    pub(super) async fn told(
        &mut self,
        turn: &Turn,
        before: Option<&Turn>,
    ) -> Result<Option<LineContent>, StoreError> {
        let Some(words) = self.words(&turn.exchange).await? else { return Ok(None) };
        let added = self.added(turn, &words, before).await?;
        let told = match added {
            Some(parts) => LineContent::added(&words, parts),
            None => {
                let (parts, has_gap) = self.whole(turn).await?;
                let bytes: usize = parts.iter().map(|said| said.text.len()).sum();
                match self.room.checked_sub(bytes) {
                    Some(room) => {
                        self.room = room;
                        LineContent {
                            is_whole: before.is_some(),
                            has_gap,
                            ..LineContent::added(&words, parts)
                        }
                    }
                    None => {
                        LineContent { has_gap: true, ..LineContent::added(&words, own(&words)) }
                    }
                }
            }
        };
        self.last = Some((turn.exchange.clone(), words));
        Ok(Some(told))
    }

    /// What a turn sent that the line before it does not tell; `None` where all that it sent has to be told.
    async fn added(
        &self,
        turn: &Turn,
        words: &ExchangeContent,
        before: Option<&Turn>,
    ) -> Result<Option<Vec<TranscriptPart>>, StoreError> {
        let parent = turn.position.parent.as_ref();
        if parent.is_some() && parent != before.map(|before| &before.exchange) {
            return Ok(None);
        }
        Ok(match words.follows {
            ContentLink::Request => Some(own(words)),
            ContentLink::Reply => {
                let answer = match parent {
                    Some(parent) => self.words(parent).await?,
                    None => None,
                };
                let answer = answer.as_ref().map_or(&[][..], |words| &words.reply);
                let answer =
                    answer.iter().map(|said| TranscriptPart { reply: true, ..said.clone() });
                Some(answer.chain(own(words)).collect())
            }
            ContentLink::Nothing if parent.is_none() && before.is_none() => Some(own(words)),
            ContentLink::Nothing => None,
        })
    }

    /// All that a turn sent, and whether some of it was not kept.
    async fn whole(&self, turn: &Turn) -> Result<(Vec<TranscriptPart>, bool), StoreError> {
        let (mut head, mut line): (Vec<TranscriptPart>, Vec<Arc<ExchangeContent>>) =
            (Vec::new(), Vec::new());
        let (mut at, mut is_begun, mut has_gap) = (Some(turn), false, false);
        // No line of parents is longer than there are turns, unless the facts contradict each other.
        for _ in 0..=self.turns.len() {
            let Some(turn) = at else { break };
            let Some(words) = self.words(&turn.exchange).await? else {
                has_gap = true;
                break;
            };
            if head.is_empty() {
                head.clone_from(&words.head);
            }
            if !is_begun {
                is_begun = words.follows == ContentLink::Nothing;
                line.push(words);
            }
            if is_begun && !head.is_empty() {
                break;
            }
            let parent = turn.position.parent.as_ref();
            at = parent.and_then(|parent| self.turns.get(parent)).map(|turn| &**turn);
            has_gap |= parent.is_some() && at.is_none();
        }
        let mut parts = head;
        let mut answer: &[TranscriptPart] = &[];
        for words in line.iter().rev() {
            if words.follows == ContentLink::Reply {
                parts.extend_from_slice(answer);
            }
            parts.extend_from_slice(&words.said);
            answer = &words.reply;
        }
        parts.iter_mut().for_each(|said| said.reply = false);
        Ok((parts, has_gap))
    }
}

impl LineContent {
    /// These parts, and the reply to them.
    fn added(words: &ExchangeContent, parts: Vec<TranscriptPart>) -> Self {
        Self { parts, reply: words.reply.clone(), is_whole: false, has_gap: false }
    }
}

/// What one turn said itself.
fn own(words: &ExchangeContent) -> Vec<TranscriptPart> {
    words.head.iter().chain(&words.said).cloned().collect()
}
