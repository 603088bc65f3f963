//! The newest request of a session, kept for a while, so that somebody can look at what compacting it would
//! do, and have it done at once where a summariser has a credential of its own.
//!
//! No credential of a client's is kept, and nothing is written down.

use std::sync::{Arc, Weak};

use http::header::COOKIE;
use http::request;

use super::Proxy;
use super::compacting::Compacting;
use super::planned::{Planned, Subject};
use super::summarize::Writer;
use crate::config::Mode;
use crate::context::compact::{self, Choice, Due, Outlook};
use crate::context::plan::Known;
use crate::context::policy::Wrote;
use crate::context::{Sketched, ThreadId};
use crate::store::Scope;
use crate::store::ledgers::{AtHand, Opened};
use crate::wire::splice::Edit;

/// What a summary of it takes.
struct Kept {
    proxy: Weak<Proxy>,
    subject: Arc<Subject>,
    scope: Scope,
    thread: ThreadId,
    known: Arc<Known>,
    parts: Vec<Sketched>,
    tokens: u64,
    edits: Vec<Edit>,
    /// Without its credentials; where a summary can be begun with it.
    head: Option<request::Parts>,
}

/// Keeps a turn of a session's main conversation.
pub(crate) fn keep(
    proxy: &Arc<Proxy>,
    (subject, planned): (&Arc<Subject>, &Planned),
    opened: &Opened,
    head: &request::Parts,
) {
    let Some(measured) = &planned.measured else { return };
    if !compact::can(&subject.request()) || !opened.is_main_line() {
        return;
    }
    let may_begin = has_summariser(proxy, subject) && subject.mode == Mode::Active;
    let head = may_begin.then(|| {
        let mut head = head.clone();
        let headers = std::mem::take(&mut head.headers);
        head.headers = super::headers::without(headers, |name| {
            *name == COOKIE || proxy.credentials.is_header(name)
        });
        head
    });
    let kept = Arc::new(Kept {
        proxy: Arc::downgrade(proxy),
        subject: subject.clone(),
        scope: opened.scope.clone(),
        thread: opened.placed.standing.thread.clone(),
        known: planned.known.clone(),
        parts: measured.parts.clone(),
        tokens: measured.estimate.tokens,
        edits: planned.edits.clone(),
        head,
    });
    let begin = may_begin.then(|| {
        let kept = kept.clone();
        Box::new(move |focus| kept.begin(focus)) as _
    });
    let sketched = size_of_val(&*measured.parts);
    let edits: usize = planned.edits.iter().map(|edit| edit.with.len()).sum();
    let bytes = subject.bytes() + sketched + edits;
    let one = AtHand { bytes, look: Box::new(move || kept.outlook()), begin };
    proxy.ledgers.keep_at_hand(opened, one);
}

/// Whether another upstream writes summaries, with its own credential.
fn has_summariser(proxy: &Proxy, subject: &Subject) -> bool {
    let named = subject.policy.compact.upstream.as_deref();
    let upstream = proxy.upstream(named);
    upstream.is_some_and(|it| {
        it.credential.is_some() && it.dialects.contains(&subject.conversation.dialect)
    })
}

impl Kept {
    /// Who would write it, and where it would be cut.
    fn choice(&self, writers: &[Wrote]) -> Option<(Wrote, Choice)> {
        let request = self.subject.request();
        writers
            .iter()
            .find_map(|by| Some((*by, compact::choose(&request, &self.known, &self.parts, *by)?)))
    }

    fn outlook(&self) -> Option<Outlook> {
        let request = self.subject.request();
        let (by, choice) = self.choice(compact::writers(&request, false, false))?;
        Some(compact::outlook(&request, (by, &choice), self.tokens))
    }

    /// Begins a summary by the summariser; `false` where one is being written, or nothing can be cut.
    fn begin(&self, focus: Option<Box<str>>) -> bool {
        let (Some(proxy), Some(head)) = (self.proxy.upgrade(), &self.head) else { return false };
        let Some(choice) = self.choice(&[Wrote::Summary]) else { return false };
        let key = (self.scope.clone(), self.thread.clone());
        let Some(writing) = Compacting::begin(&proxy, &key) else { return false };
        let room = proxy.ledgers.room(&self.scope);
        let writer = Writer {
            wish: Some(proxy.ledgers.wish_now(room.clone(), focus)),
            subject: self.subject.clone(),
            room,
            known: self.known.clone(),
            parts: self.parts.clone(),
            tokens: self.tokens,
            edits: self.edits.clone(),
            head: head.clone(),
            choices: vec![choice],
            due: Due::Prepare,
            writing,
            proxy,
        };
        writer.begin();
        true
    }
}
