//! The words of a session's calls, as lines of a transcript tell them: what each call added.
//!
//! A call that did not grow from the one before it on its thread tells all that it sent, put together
//! from the calls that it grew from. Such repetitions are bounded; past that a line says that words
//! are missing before its own.

use std::collections::HashMap;
use std::sync::Arc;

use super::Threads;
use crate::context::Turn;
use crate::context::words::{Follows, Said, Words};

/// Most bytes of text that one export tells again, for calls that did not grow from the one before.
const REPEATED: usize = 64 << 20;

/// What was said in a session, as far as it was kept.
pub(in crate::admin) struct Content {
    turns: HashMap<Box<str>, Arc<Turn>>,
    words: HashMap<Box<str>, Words>,
    /// Bytes of text that may still be told again.
    room: usize,
}

/// What a line tells.
pub(super) struct Told {
    pub(super) parts: Vec<Said>,
    pub(super) reply: Vec<Said>,
    /// The parts are all that was sent, not what was added.
    pub(super) is_whole: bool,
    /// Something was said before that is told nowhere.
    pub(super) has_gap: bool,
}

impl Content {
    /// Of a session's turns, with the words of those whose words were kept, by request.
    pub(in crate::admin) fn new(threads: &Threads, words: HashMap<Box<str>, Words>) -> Self {
        let turns = threads.iter().flat_map(|(_, turns)| turns);
        let turns = turns.map(|turn| (turn.request.clone(), turn.clone())).collect();
        Self { turns, words, room: REPEATED }
    }

    /// What a turn's line tells; `before`: the turn of the line before. `None` where its words were not
    /// kept.
    pub(super) fn told(&mut self, turn: &Turn, before: Option<&Turn>) -> Option<Told> {
        let words = self.words.get(&turn.request)?;
        let reply = words.reply.clone();
        let adds = |parts: Vec<Said>| Told {
            parts,
            reply: reply.clone(),
            is_whole: false,
            has_gap: false,
        };
        let parent = turn.standing.parent.as_deref();
        if parent.is_none() || parent == before.map(|before| &*before.request) {
            match words.follows {
                Follows::Request => return Some(adds(own(words))),
                Follows::Reply => {
                    let answer = parent.and_then(|parent| self.words.get(parent));
                    let answer = answer.map_or(&[][..], |words| &words.reply);
                    let answer = answer.iter().map(|said| Said { reply: true, ..said.clone() });
                    return Some(adds(answer.chain(own(words)).collect()));
                }
                Follows::Nothing if parent.is_none() && before.is_none() => {
                    return Some(adds(own(words)));
                }
                Follows::Nothing => {}
            }
        }
        let (parts, has_gap) = self.whole(turn);
        let bytes: usize = parts.iter().map(|said| said.text.len()).sum();
        if bytes > self.room {
            return Some(Told { has_gap: true, ..adds(own(words)) });
        }
        self.room -= bytes;
        Some(Told { is_whole: before.is_some(), has_gap, ..adds(parts) })
    }

    /// All that a turn sent, and whether some of it was not kept.
    fn whole(&self, turn: &Turn) -> (Vec<Said>, bool) {
        let (mut head, mut line): (&[Said], Vec<&Words>) = (&[], Vec::new());
        let (mut at, mut is_begun, mut has_gap) = (Some(turn), false, false);
        // No line of parents is longer than there are turns, unless the facts contradict each other.
        for _ in 0..=self.turns.len() {
            let Some(turn) = at else { break };
            let Some(words) = self.words.get(&turn.request) else {
                has_gap = true;
                break;
            };
            if head.is_empty() {
                head = &words.head;
            }
            if !is_begun {
                line.push(words);
                is_begun = words.follows == Follows::Nothing;
            }
            if is_begun && !head.is_empty() {
                break;
            }
            let parent = turn.standing.parent.as_deref();
            at = parent.and_then(|parent| self.turns.get(parent)).map(|turn| &**turn);
            has_gap |= parent.is_some() && at.is_none();
        }
        let mut parts = head.to_vec();
        let mut answer: &[Said] = &[];
        for words in line.into_iter().rev() {
            if words.follows == Follows::Reply {
                parts.extend_from_slice(answer);
            }
            parts.extend_from_slice(&words.said);
            answer = &words.reply;
        }
        parts.iter_mut().for_each(|said| said.reply = false);
        (parts, has_gap)
    }
}

/// What one turn said itself.
fn own(words: &Words) -> Vec<Said> {
    words.head.iter().chain(&words.said).cloned().collect()
}
