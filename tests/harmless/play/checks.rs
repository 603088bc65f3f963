//! What must hold after every exchange of a conversation (`docs/rewriting.md` "How it is tested").
//!
//! Each check compares what the client sent with what went out, and what the provider made of both. None asks
//! the product what it should have done.

use plimsoll::context::plan::{Decision, DecisionReason, PlanStep};
use plimsoll::context::policy::{ReinjectPolicy, StripPolicy};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{Dialect, Judged, Loss, Refusal, Rule, Verdict, Why};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::Play;
use crate::speak::{self, Answered, Memory, Said};

/// What would become of a request as its client sent it.
type Fate = Result<Vec<Loss>, Box<Refusal>>;

/// What would have become of a client's own request.
pub(super) struct Original {
    /// By this provider, which has seen only what went out.
    pub(super) here: Fate,
    /// By one that has seen the client's own requests; `None` where the client itself changed what its
    /// reasoning rests on.
    pub(super) alone: Option<Fate>,
}

/// One exchange, as the checks see it.
pub(super) struct Seen<'a> {
    /// What the client sent.
    pub(super) body: &'a Value,
    /// The mode that it asked for.
    pub(super) mode: Option<&'static str>,
    /// What it was answered.
    pub(super) status: u16,
    pub(super) told: &'a Exchange,
    /// What went out, and what became of it.
    pub(super) log: &'a [Judged],
    pub(super) original: &'a Original,
    /// The provider was to refuse it out of its mind.
    pub(super) is_wild: bool,
}

impl Seen<'_> {
    /// Whether the provider refused it out of its mind.
    pub(super) fn was_wild(&self) -> bool {
        let is_wild = |verdict: &Verdict| match verdict {
            Verdict::Refused(refusal) => refusal.message.contains("210000"),
            Verdict::Accepted(_) => false,
        };
        self.is_wild && self.log.first().is_some_and(|first| is_wild(&first.verdict))
    }
}

/// Part of what stands in place of a cleared result.
const CLEARED: &str = "Old tool result content cleared";

/// A kind of loss.
type Kind = fn(&Loss) -> bool;

/// The losses that no request may have which its client did not bring about.
const KINDS: [(&str, Kind); 4] = [
    ("reasoning dropped", |loss| matches!(loss, Loss::ReasoningDropped { .. })),
    ("reasoning absent", |loss| matches!(loss, Loss::ReasoningAbsent { readable: true, .. })),
    ("reasoning changed", |loss| matches!(loss, Loss::ReasoningChanged { .. })),
    ("signature absent", |loss| matches!(loss, Loss::SignatureAbsent { .. })),
];

/// Whether the provider took no notice of reasoning because another model had thought it.
fn drops_another_models(verdict: &Verdict) -> bool {
    let is_other = |loss: &Loss| matches!(loss, Loss::ReasoningDropped { why: Why::Model, .. });
    verdict.accepted().is_some_and(|accepted| accepted.losses.iter().any(is_other))
}

fn lost(losses: &[Loss], kind: Kind) -> usize {
    losses.iter().filter(|loss| kind(loss)).count()
}

impl Play {
    /// What must hold after every exchange.
    pub(super) fn holds(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        if seen.log.is_empty() {
            return Err("nothing was forwarded".to_owned());
        }
        self.is_refused_as_it_came(seen)?;
        self.loses_nothing(seen)?;
        self.obeys_the_mode(seen)?;
        self.spares(seen)?;
        self.keeps_its_head(seen)
    }

    /// No refusal that the untouched request would not have had.
    fn is_refused_as_it_came(&self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen { status, told, log, original, .. } = *seen;
        let first = &log[0];
        if told.done.is_nothing() && !self.is_same(seen.body, first) {
            return Err("changed without a decision".to_owned());
        }
        if seen.was_wild() {
            return Ok(());
        }
        // Where a model binds reasoning that is not known to, one refusal teaches it.
        let teaches = self.binds() && told.refused == Some(RefusalCause::Bound) && status < 400;
        // So does one where it demands the reasoning of an open loop, which a summary made void.
        let demands =
            told.refused == Some(RefusalCause::ReasoningDemanded) && told.done.new.compacted > 0;
        let teaches = teaches || demands && !self.demands && status < 400;
        // With reasoning put back it may not fit where it would as it came: then it is sent so.
        let overflowed = told.done.overflow.is_some() && status < 400;
        let mended = teaches || overflowed;
        if let (Verdict::Refused(refusal), Ok(_), false) = (&first.verdict, &original.here, mended)
        {
            return Err(format!(
                "refused, but not the original: {} {:?}\n{}\n{}",
                refusal.message,
                told.done.steps,
                seen.body,
                String::from_utf8_lossy(&first.call.bytes)
            ));
        }
        if status >= 400 && original.here.is_ok() {
            return Err(format!("{status} for a request that is fine"));
        }
        // Its reasoning stands where the client got it, and is bound to what was sent in place of that.
        // What outgrew its window by itself is no matter of that.
        let is_bound = original.here.as_ref().is_err_and(|it| it.rule == Rule::BoundElsewhere);
        if status >= 400 && is_bound && original.alone.as_ref().is_some_and(Result::is_ok) {
            return Err(format!("an earlier rewrite led to a refusal:\n{}", seen.body));
        }
        Ok(())
    }

    /// No silent loss that policy did not accept.
    fn loses_nothing(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen { told, log, original, .. } = *seen;
        if let Some(accepted) = log.last().and_then(|last| last.verdict.accepted())
            && told.done.overflow.is_some_and(|overflow| overflow.saved)
        {
            self.forced = KINDS.map(|(_, kind)| lost(&accepted.losses, kind));
        }
        let first = &log[0];
        let Some(accepted) = first.verdict.accepted() else { return Ok(()) };
        // Where the client changed nothing, what its reasoning rests on was changed by us.
        let alone = original.alone.as_ref().filter(|_| self.is_rewritten);
        let theirs = alone.unwrap_or(&original.here);
        let Ok(theirs) = theirs else { return Ok(()) };
        let strips = self.policy.reasoning.strip() != StripPolicy::None;
        // Nor with what a summary stands for: the reasoning that rests on it goes with it.
        let compacted = told.done.made.compacted > 0;
        let accepts =
            compacted || self.accepted || self.policy.prune.accept_reasoning_loss || strips;
        for ((name, kind), forced) in KINDS.into_iter().zip(self.forced) {
            // What the original would lose for another reason is lost either way.
            let absent: Kind = |loss| matches!(loss, Loss::ReasoningAbsent { .. });
            let any = if name == "reasoning absent" { absent } else { kind };
            let (ours, theirs) = (lost(&accepted.losses, kind), lost(theirs, any));
            if ours > theirs.max(forced) && !accepts {
                return Err(format!(
                    "{name}: {ours} against {theirs}: {:?}\n{}\n{}",
                    accepted.losses,
                    seen.body,
                    String::from_utf8_lossy(&first.call.bytes)
                ));
            }
        }
        Ok(())
    }

    /// Where a client asks for a mode that changes nothing, its bytes go out; in a conversation that was
    /// rewritten, what went out before goes out again, and nothing else is changed.
    fn obeys_the_mode(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let is_changed = seen.log.iter().find(|judged| !self.is_same(seen.body, judged));
        let Some(mode) = seen.mode else {
            self.is_rewritten |= is_changed.is_some();
            return Ok(());
        };
        let Some(changed) = is_changed else { return Ok(()) };
        let came = speak::history(self.dialect, seen.body);
        let before = match (&self.forwarded, self.is_rewritten) {
            (Some(before), true) => before,
            // What the client sent before is not known.
            (None, true) => return Ok(()),
            (_, false) => &Vec::new(),
        };
        let placed = self.placed(seen.body, changed);
        // After a rewind the model may say the same again, and what was put back then is put back again.
        let went_out = |ends: &u64, said: &Value| {
            let same = |went_out: &Vec<Value>| went_out.contains(&self.nameless(said));
            self.went_out.get(ends).is_some_and(same)
        };
        // Not by their places: a client of Responses that drops reasoning drops items.
        let mut others = placed.iter().filter(|(ends, said)| {
            !before.contains(said) && !came.contains(said) && !went_out(ends, said)
        });
        match others.next().map(|(_, said)| said) {
            None if self.is_rewritten => Ok(()),
            other => Err(format!(
                "{mode} changed {other:?}: {:?}\n{}\n{}",
                seen.told.done.made,
                seen.body,
                String::from_utf8_lossy(&changed.call.bytes)
            )),
        }
    }

    /// What went out, each with the hash of the client's history to the message that it stands for; 0 where a
    /// summary stands for many.
    fn placed(&self, body: &Value, sent: &Judged) -> Vec<(u64, Value)> {
        let is_reasoning = |said: &Value| said["type"] == "reasoning";
        let mut came = speak::history(self.dialect, body);
        came.retain(|said| !is_reasoning(said));
        let sent = speak::history(self.dialect, &sent.call.body);
        let is_of = |said: &Value| usize::from(!is_reasoning(said));
        if sent.iter().map(is_of).sum::<usize>() != came.len() {
            return sent.into_iter().map(|said| (0, said)).collect();
        }
        let mut at = 0;
        let place = |said: Value| {
            let ends: Vec<Value> =
                came.iter().take(at + 1).map(|said| self.nameless(said)).collect();
            let ends = self.prefix(&ends);
            at += is_of(&said);
            (ends, said)
        };
        sent.into_iter().map(place).collect()
    }

    /// A message as it is told from others: Gemini's calls need no ids, and are the same with another.
    fn nameless(&self, said: &Value) -> Value {
        match said {
            said if self.dialect != Dialect::Gemini => said.clone(),
            Value::Array(items) => items.iter().map(|item| self.nameless(item)).collect(),
            Value::Object(members) => {
                let others = members.iter().filter(|(name, _)| *name != "id");
                others.map(|(name, value)| (name.clone(), self.nameless(value))).collect()
            }
            said => said.clone(),
        }
    }

    /// Keeps what went out and was accepted, by the history that it stood for.
    pub(super) fn remembers(&mut self, seen: &Seen<'_>) {
        let accepted = |judged: &&Judged| matches!(judged.verdict, Verdict::Accepted(_));
        let Some(sent) = seen.log.last().filter(accepted) else { return };
        let placed = self.placed(seen.body, sent);
        // Of a compacted history any part may be repeated: by a side call, an older summary than the last.
        let is_whole = |ends: &&(u64, Value)| ends.0 != 0;
        placed.iter().filter(is_whole).for_each(|(ends, _)| _ = self.went_out.remove(ends));
        for (ends, said) in placed {
            let said = self.nameless(&said);
            self.went_out.entry(ends).or_default().push(said);
        }
    }

    /// What policy keeps is never newly cut, and what the model has not read yet is never cleared.
    fn spares(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let answered: Vec<&Answered> = self.history.iter().flat_map(Said::results).collect();
        let unread = self.history.last().map_or(0, |last| last.results().len());
        let came = speak::history(self.dialect, seen.body);
        let came = speak::results(self.dialect, &came);
        let prune = &self.policy.prune;
        let matches = |names: &[String], tool: &str| {
            names.iter().any(|name| match name.strip_suffix('*') {
                Some(begins) => tool.starts_with(begins),
                None => tool == name,
            })
        };
        // These say in a request that a result is an error.
        let tells_errors = matches!(self.dialect, Dialect::Anthropic | Dialect::Gemini);
        for judged in seen.log {
            let sent = speak::history(self.dialect, &judged.call.body);
            let sent = speak::results(self.dialect, &sent);
            // From the end: a summary stands in place of the first ones.
            let all = came.iter().rev().zip(sent.iter().rev()).zip(answered.iter().rev());
            for (from_end, ((came, sent), result)) in all.enumerate() {
                if came == sent {
                    continue;
                }
                let words = sent.to_string();
                if from_end < unread && words.contains(CLEARED) {
                    return Err(format!("cleared before it was read: {came}\n{}", seen.body));
                }
                let [text, words] = [&result.text, &words].map(|it| xxh3_64(it.as_bytes()));
                let is_new = self.cut.insert((text, words));
                let named = matches(&prune.except_tools, &result.name)
                    || !prune.tools.is_empty() && !matches(&prune.tools, &result.name);
                let is_kept = named || prune.keep_errors && result.is_error && tells_errors;
                if is_new && is_kept {
                    return Err(format!(
                        "cut though policy keeps it: {came}, now {sent}: {:?} {:?}",
                        prune, seen.told.done.steps
                    ));
                }
            }
        }
        Ok(())
    }

    /// An overflow that nobody can believe cuts nothing.
    fn keeps_its_head(&self, seen: &Seen<'_>) -> Result<(), String> {
        let cuts = seen
            .told
            .done
            .steps
            .iter()
            .any(|step| step.decision == Decision::New && step.why == DecisionReason::Overflow);
        let is_saved = seen.told.done.overflow.is_some_and(|overflow| overflow.saved);
        match seen.was_wild() && (cuts || is_saved) {
            true => Err(format!("a wild overflow was believed: {:?}", seen.told.done)),
            false => Ok(()),
        }
    }

    /// Whether what went out is what the client sent. Where it did not ask for usage, we do; that is no rewrite.
    fn is_same(&self, body: &Value, judged: &Judged) -> bool {
        if self.dialect != Dialect::Chat || !self.head.stream {
            return judged.call.bytes == body.to_string();
        }
        let mut sent = (*judged.call.body).clone();
        sent.as_object_mut().map(|members| members.remove("stream_options"));
        sent == *body
    }

    /// Whether what a client sends is held to repeat what went out before.
    pub(super) fn is_steady(&self, mode: Option<&str>) -> bool {
        let reasoning = &self.policy.reasoning;
        let puts_back = mode.is_none()
            && !self.is_aside
            && reasoning.reinject == ReinjectPolicy::Auto
            && reasoning.strip() == StripPolicy::None;
        match self.habits.memory {
            Memory::Whole | Memory::None => true,
            // What it drops when its loop closes stays, where policy puts reasoning back.
            Memory::Loop => puts_back,
            // These change what they sent before by themselves.
            Memory::Newest | Memory::Half | Memory::Calls => false,
        }
    }

    /// Whether all reasoning in a request stands after what the client itself had sent when it got it: a
    /// provider that had seen the client's own requests would find it bound to just that.
    pub(super) fn is_untouched(&self, body: &Value) -> bool {
        let history = speak::history(self.dialect, body);
        let prefixes: Vec<u64> =
            (0..=history.len()).map(|to| self.prefix(&history[..to])).collect();
        let mut stands = true;
        for (index, said) in history.iter().enumerate() {
            seals(said, &mut |seal| {
                let made = self.sealed.get(seal);
                stands &= made.is_none_or(|made| prefixes[..=index].contains(made));
            });
        }
        stands
    }

    /// What a history and its head are told by.
    pub(super) fn prefix(&self, history: &[Value]) -> u64 {
        let head = (&self.head.system, &self.head.tools);
        xxh3_64(format!("{head:?}{history:?}").as_bytes())
    }

    /// What went out before goes out again, but where something new was decided (`docs/architecture.md`
    /// "Promises").
    pub(super) fn is_stable(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen { told, log, .. } = *seen;
        let before = self.forwarded.take();
        let history = |judged: &Judged| speak::history(self.dialect, &judged.call.body);
        // What was refused before, or refused now and sent again otherwise, is not what stays.
        let accepted = |judged: &&Judged| matches!(judged.verdict, Verdict::Accepted(_));
        let as_before = told.done.revoked.is_some();
        if told.refused.is_none() || as_before {
            // A client that drops reasoning when its loop closes need not repeat what was another model's.
            let is_kept = |judged: &&Judged| {
                self.habits.memory != Memory::Loop || !drops_another_models(&judged.verdict)
            };
            self.forwarded = log.last().filter(accepted).filter(is_kept).map(history);
        }
        let is_new = |step: &PlanStep| step.decision == Decision::New;
        let decided = seen.mode.is_none() && told.done.steps.iter().any(is_new);
        // Where what was new was taken back, what went out before went out in the end.
        let sent = if as_before { log.last() } else { log.first() }.map(history);
        let (Some(before), Some(sent), false) = (before, sent, decided) else { return Ok(()) };
        let same = before.iter().zip(&sent).take_while(|(before, sent)| before == sent).count();
        if same < before.len() {
            return Err(format!(
                "the prefix changed at {same} and nothing was decided: {:?}\n{}\n{}",
                told.done.steps,
                before[same],
                sent.get(same).unwrap_or(&Value::Null)
            ));
        }
        self.counts.stable += 1;
        Ok(())
    }
}

/// The seals of reasoning anywhere in a value.
pub(super) fn seals(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| seals(item, found)),
        Value::Object(members) => {
            let sealing = ["signature", "data", "encrypted_content"];
            for (name, value) in members {
                match value {
                    Value::String(seal) if sealing.contains(&&**name) => found(seal),
                    value => seals(value, found),
                }
            }
        }
        _ => {}
    }
}
