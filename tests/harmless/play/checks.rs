//! What must hold after every exchange of a conversation (`docs/reviewing.md` "Rewriting").
//!
//! Each check compares what the client sent with what went out, and what the provider made of both. None asks
//! the product what it should have done.

use plimsoll::context::plan::{Decision, PlanStep};
use plimsoll::context::policy::{ReinjectPolicy, StripPolicy};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    ApiError, Dialect, DropReason, LoggedRequest, Loss, RequestVerdict, Rule,
};
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Play;
use crate::client::{self, HistoryItem, KeptReasoning, ToolResult, normalized};

/// How a provider judges a request as its client sent it.
type OriginalVerdict = Result<Vec<Loss>, Box<ApiError>>;

/// The verdicts on a client's own request.
pub(super) struct Original {
    /// By this provider, which has seen only what went out.
    pub(super) given_rewrites: OriginalVerdict,
    /// By one that has seen the client's own requests; `None` where the client itself changed what its
    /// reasoning rests on.
    pub(super) unrewritten: Option<OriginalVerdict>,
}

/// One exchange, as the checks see it.
pub(super) struct CheckedExchange<'a> {
    /// What the client sent.
    pub(super) body: &'a Value,
    /// The mode that it asked for.
    pub(super) mode: Option<&'static str>,
    /// What it was answered.
    pub(super) status: u16,
    pub(super) exchange: &'a Exchange,
    /// What went out, and what became of it.
    pub(super) log: &'a [LoggedRequest],
    pub(super) original: &'a Original,
    /// The provider was set to refuse it with an impossible overflow.
    pub(super) is_implausible: bool,
}

impl CheckedExchange<'_> {
    /// Whether the provider refused it with an impossible overflow.
    pub(super) fn was_implausible(&self) -> bool {
        let is_implausible = |verdict: &RequestVerdict| match verdict {
            RequestVerdict::Refused(refusal) => refusal.message.contains("210000"),
            RequestVerdict::Accepted(_) => false,
        };
        self.is_implausible && self.log.first().is_some_and(|first| is_implausible(&first.verdict))
    }
}

/// Part of what stands in place of a cleared result.
const CLEARED: &str = "Old tool result content cleared";

/// A kind of loss.
type LossKind = fn(&Loss) -> bool;

/// The losses that only the client itself may cause.
const LOSS_KINDS: [(&str, LossKind); 4] = [
    ("reasoning dropped", |loss| matches!(loss, Loss::ReasoningDropped { .. })),
    ("reasoning absent", |loss| matches!(loss, Loss::ReasoningAbsent { readable: true, .. })),
    ("reasoning changed", |loss| matches!(loss, Loss::ReasoningChanged { .. })),
    ("signature absent", |loss| matches!(loss, Loss::SignatureAbsent { .. })),
];

/// Whether the provider dropped reasoning because another model wrote it.
fn drops_foreign_reasoning(verdict: &RequestVerdict) -> bool {
    let is_other =
        |loss: &Loss| matches!(loss, Loss::ReasoningDropped { reason: DropReason::Model, .. });
    verdict.accepted().is_some_and(|accepted| accepted.losses.iter().any(is_other))
}

/// Whether it is reasoning that is bound to what was sent in place of the client's own.
fn drops_bound_reasoning(loss: &Loss) -> bool {
    matches!(loss, Loss::ReasoningDropped { reason: DropReason::Prefix, .. })
}

fn lost(losses: &[Loss], kind: LossKind) -> usize {
    losses.iter().filter(|loss| kind(loss)).count()
}

impl Play {
    /// Runs the checks of every exchange.
    pub(super) fn check(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        if checked.log.is_empty() {
            return Err("nothing was forwarded".to_owned());
        }
        self.check_no_new_refusal(checked)?;
        self.check_no_new_loss(checked)?;
        self.check_passive_mode(checked)?;
        self.check_kept_out(checked)?;
        self.check_protected_results(checked)?;
        self.check_implausible_overflow(checked)
    }

    /// No refusal that the untouched request would not have had.
    fn check_no_new_refusal(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let CheckedExchange { status, exchange, log, original, .. } = *checked;
        let first = &log[0];
        if exchange.done.is_nothing() && !self.is_unchanged(checked.body, first) {
            return Err("changed without a decision".to_owned());
        }
        if checked.was_implausible() {
            return Ok(());
        }
        // One refusal is allowed to learn that a model binds its reasoning.
        let learns_binding =
            self.binds() && exchange.refused == Some(RefusalCause::Bound) && status < 400;
        // Likewise if it demands the reasoning of an open loop, which a summary made void.
        let learns_demand = exchange.refused == Some(RefusalCause::ReasoningDemanded)
            && exchange.done.new.compacted > 0;
        let is_demand_known = self.demanding_models.contains(self.head.model);
        let learns = learns_binding || learns_demand && !is_demand_known && status < 400;
        // With reasoning put back it may not fit though the original would: then the original is sent.
        let overflowed = exchange.done.overflow.is_some() && status < 400;
        // The original may fit only because reasoning is dropped from it that a rewrite keeps valid.
        let outgrew = first.verdict.broken_rule() == Some(Rule::Overflow)
            && matches!(&original.given_rewrites, Ok(losses) if losses.iter().any(drops_bound_reasoning));
        let recovered = learns || overflowed || outgrew;
        if let (RequestVerdict::Refused(refusal), Ok(_), false) =
            (&first.verdict, &original.given_rewrites, recovered)
        {
            return Err(format!(
                "refused, but not the original: {} {:?}\n{}\n{}",
                refusal.message,
                exchange.done.steps,
                checked.body,
                String::from_utf8_lossy(&first.request.bytes)
            ));
        }
        if status >= 400 && original.given_rewrites.is_ok() && !outgrew {
            return Err(format!("{status} for a request that is fine"));
        }
        // Its reasoning stands where the client got it, and is bound to what was sent in place of that.
        // What outgrew its window by itself is no matter of that.
        let is_bound =
            original.given_rewrites.as_ref().is_err_and(|it| it.rule == Rule::BoundElsewhere);
        if status < 400 || !is_bound || !original.unrewritten.as_ref().is_some_and(Result::is_ok) {
            return Ok(());
        }
        if !self.is_full(checked) {
            return Err(format!("an earlier rewrite led to a refusal:\n{}", checked.body));
        }
        self.counts.without_room += 1;
        Ok(())
    }

    /// Whether it does not fit with reasoning put back, and no room could be made in it: nothing may be cut, its
    /// summary failed, or the refusal of its summary or its cuts first showed what the model requires. Its client hears
    /// that it does not fit.
    fn is_full(&self, checked: &CheckedExchange<'_>) -> bool {
        let is_original = |entry: &LoggedRequest| self.is_unchanged(checked.body, entry);
        let breaks = |entry: &LoggedRequest, rule: Rule| entry.verdict.broken_rule() == Some(rule);
        let does_not_fit = |entry: &LoggedRequest| breaks(entry, Rule::Overflow);
        let length = client::history(self.dialect, checked.body).len();
        let is_lesson = |entry: &LoggedRequest| {
            let is_summarized = client::history(self.dialect, &entry.request.body).len() < length;
            let is_demand = breaks(entry, Rule::ThinkingMissing);
            let is_bound = breaks(entry, Rule::BoundElsewhere);
            // Cuts show it once for each model.
            is_summarized && (is_bound || is_demand)
                || is_bound && !self.binding_models.contains(self.head.model)
                || is_demand && !self.demanding_models.contains(self.head.model)
        };
        let log = checked.log;
        log.iter().any(|entry| does_not_fit(entry) && !is_original(entry))
            && log.iter().all(|it| does_not_fit(it) || is_original(it) || is_lesson(it))
    }

    /// No silent loss that policy did not accept.
    fn check_no_new_loss(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let CheckedExchange { exchange, log, original, .. } = *checked;
        if let Some(accepted) = log.last().and_then(|last| last.verdict.accepted())
            && exchange.done.overflow.is_some_and(|overflow| overflow.saved)
        {
            self.overflow_losses = LOSS_KINDS.map(|(_, kind)| lost(&accepted.losses, kind));
        }
        let first = &log[0];
        let Some(accepted) = first.verdict.accepted() else { return Ok(()) };
        // Where the client changed nothing, what its reasoning rests on was changed by us.
        let unrewritten = original.unrewritten.as_ref().filter(|_| self.is_rewritten);
        let original_losses = unrewritten.unwrap_or(&original.given_rewrites);
        let Ok(original_losses) = original_losses else { return Ok(()) };
        let strips = self.policy.reasoning.strip() != StripPolicy::None;
        // Nor with what a summary stands for: the reasoning that rests on it goes with it.
        let compacted = exchange.done.made.compacted > 0;
        let accepts =
            compacted || self.loss_accepted || self.policy.prune.accept_reasoning_loss || strips;
        for ((name, kind), from_overflow) in LOSS_KINDS.into_iter().zip(self.overflow_losses) {
            // What the original would lose for another reason is lost either way.
            let absent: LossKind = |loss| matches!(loss, Loss::ReasoningAbsent { .. });
            let any = if name == "reasoning absent" { absent } else { kind };
            let (sent_count, original_count) =
                (lost(&accepted.losses, kind), lost(original_losses, any));
            if sent_count > original_count.max(from_overflow) && !accepts {
                return Err(format!(
                    "{name}: {sent_count} against {original_count}: {:?}\n{}\n{}",
                    accepted.losses,
                    checked.body,
                    String::from_utf8_lossy(&first.request.bytes)
                ));
            }
        }
        Ok(())
    }

    /// In a passive mode (shadow, observe) the client's bytes are sent unchanged. In a conversation that was rewritten
    /// before, only the earlier changes are repeated.
    fn check_passive_mode(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let is_changed = checked.log.iter().find(|entry| !self.is_unchanged(checked.body, entry));
        let Some(mode) = checked.mode else {
            self.is_rewritten |= is_changed.is_some();
            return Ok(());
        };
        let Some(changed) = is_changed else { return Ok(()) };
        let received = client::history(self.dialect, checked.body);
        let before = match (&self.last_sent, self.is_rewritten) {
            (Some(before), true) => before,
            // What the client sent before is not known.
            (None, true) => return Ok(()),
            (_, false) => &Vec::new(),
        };
        let by_prefix = self.sent_with_prefixes(checked.body, changed);
        // After a rewind the model may say the same again, and what was put back then is put back again.
        let went_out = |prefix: &u64, message: &Value| {
            let same = |went_out: &Vec<Value>| went_out.contains(&self.without_call_ids(message));
            self.sent_by_prefix.get(prefix).is_some_and(same)
        };
        // A rewind to an older branch repeats what went out there.
        let repeated = self.repeated_prefix(changed);
        // Not by their places: a client of Responses that drops reasoning drops items.
        let mut others = by_prefix.iter().skip(repeated).filter(|(prefix, message)| {
            !before.contains(message) && !received.contains(message) && !went_out(prefix, message)
        });
        match others.next().map(|(_, message)| message) {
            None if self.is_rewritten => Ok(()),
            other => Err(format!(
                "{mode} changed {other:?}: {:?}\n{}\n{}",
                checked.exchange.done.made,
                checked.body,
                String::from_utf8_lossy(&changed.request.bytes)
            )),
        }
    }

    /// What went out, each with the hash of the client's history to the message that it stands for; 0 where a
    /// summary stands for many.
    fn sent_with_prefixes(&self, body: &Value, sent: &LoggedRequest) -> Vec<(u64, Value)> {
        let is_reasoning = |message: &Value| message["type"] == "reasoning";
        let mut received = client::history(self.dialect, body);
        received.retain(|message| !is_reasoning(message));
        let sent = client::history(self.dialect, &sent.request.body);
        let is_of = |message: &Value| usize::from(!is_reasoning(message));
        if sent.iter().map(is_of).sum::<usize>() != received.len() {
            return sent.into_iter().map(|message| (0, message)).collect();
        }
        let received: Vec<Value> =
            received.iter().map(|message| self.without_call_ids(message)).collect();
        let prefixes = self.prefix_hashes(&received);
        let mut at = 0;
        let place = |message: Value| {
            let prefix = prefixes[received.len().min(at + 1)];
            at += is_of(&message);
            (prefix, message)
        };
        sent.into_iter().map(place).collect()
    }

    /// A message without call ids for Gemini, where ids are optional; unchanged elsewhere.
    fn without_call_ids(&self, message: &Value) -> Value {
        match message {
            message if self.dialect != Dialect::Gemini => message.clone(),
            Value::Array(items) => items.iter().map(|item| self.without_call_ids(item)).collect(),
            Value::Object(members) => {
                let others = members.iter().filter(|(name, _)| *name != "id");
                others.map(|(name, value)| (name.clone(), self.without_call_ids(value))).collect()
            }
            message => message.clone(),
        }
    }

    /// Keeps what went out and was accepted, by the history that it stood for.
    pub(super) fn remember_sent(&mut self, checked: &CheckedExchange<'_>) {
        let accepted =
            |entry: &&LoggedRequest| matches!(entry.verdict, RequestVerdict::Accepted(_));
        let Some(sent) = checked.log.last().filter(accepted) else { return };
        let by_prefix = self.sent_with_prefixes(checked.body, sent);
        // Of a compacted history any part may be repeated: by a side call, an older summary than the last.
        let is_whole = |prefix: &&(u64, Value)| prefix.0 != 0;
        by_prefix
            .iter()
            .filter(is_whole)
            .for_each(|(prefix, _)| _ = self.sent_by_prefix.remove(prefix));
        for (prefix, message) in by_prefix {
            let message = self.without_call_ids(&message);
            self.sent_by_prefix.entry(prefix).or_default().push(message);
        }
        let history = client::history(self.dialect, &sent.request.body);
        self.sent_prefixes.extend(self.prefix_hashes(&history).into_iter().skip(1));
    }

    /// The longest beginning of a request, in messages or items, that went out before and was accepted.
    fn repeated_prefix(&self, sent: &LoggedRequest) -> usize {
        let hashes = self.prefix_hashes(&client::history(self.dialect, &sent.request.body));
        hashes.iter().skip(1).take_while(|hash| self.sent_prefixes.contains(hash)).count()
    }

    /// A result that policy keeps is not cut, and one that the model has not read yet is not cleared.
    fn check_protected_results(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        // What loads tools is checked above; a summary may repeat it.
        let answered = self.history.iter().flat_map(HistoryItem::results);
        let answered: Vec<&ToolResult> = answered.filter(|result| !result.loads).collect();
        let newest = self.history.last().map_or(&[][..], HistoryItem::results);
        let unread = newest.iter().filter(|result| !result.loads).count();
        let received = client::history(self.dialect, checked.body);
        let mut received = client::results(self.dialect, &received);
        received.retain(|result| !result.to_string().contains("tool_reference"));
        let prune = &self.policy.prune;
        let matches = |names: &[String], tool: &str| {
            names.iter().any(|name| match name.strip_suffix('*') {
                Some(begins) => tool.starts_with(begins),
                None => tool == name,
            })
        };
        // These say in a request that a result is an error.
        let marks_errors = matches!(self.dialect, Dialect::Anthropic | Dialect::Gemini);
        for entry in checked.log {
            let sent = client::history(self.dialect, &entry.request.body);
            let mut sent = client::results(self.dialect, &sent);
            sent.retain(|result| !result.to_string().contains("tool_reference"));
            // From the end: a summary stands in place of the first ones.
            let all = received.iter().rev().zip(sent.iter().rev()).zip(answered.iter().rev());
            for (from_end, ((received, sent), result)) in all.enumerate() {
                if received == sent {
                    continue;
                }
                let sent_text = sent.to_string();
                if from_end < unread && sent_text.contains(CLEARED) {
                    return Err(format!(
                        "cleared before it was read: {received}\n{}",
                        checked.body
                    ));
                }
                let [result_hash, sent_hash] =
                    [&result.text, &sent_text].map(|it| xxh3_64(it.as_bytes()));
                let is_new = self.known_cuts.insert((result_hash, sent_hash));
                let named = matches(&prune.except_tools, &result.name)
                    || !prune.tools.is_empty() && !matches(&prune.tools, &result.name);
                let is_kept = named || prune.keep_errors && result.is_error && marks_errors;
                if is_new && is_kept {
                    return Err(format!(
                        "cut though policy keeps it: {received}, now {sent}: {:?} {:?}",
                        prune, checked.exchange.done.steps
                    ));
                }
            }
        }
        Ok(())
    }

    /// What is no context goes out as it came: results for programs, and results that load tools.
    fn check_kept_out(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let data = client::kept_out(self.dialect, checked.body);
        for entry in checked.log {
            for (id, sent) in client::results_by_id(self.dialect, &entry.request.body) {
                let Some((_, own)) = data.iter().find(|(own, _)| *own == id) else { continue };
                if normalized(own) != normalized(sent) {
                    return Err(format!("no context, but cut: {own}, now {sent}"));
                }
                self.counts.kept_out += 1;
            }
        }
        Ok(())
    }

    /// An impossible overflow leads to no cuts.
    fn check_implausible_overflow(&self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        // A cut that the refused request had itself was decided before, maybe for an overflow of another branch.
        let is_sent_again = checked.log.len() > 1;
        let is_saved = checked.exchange.done.overflow.is_some_and(|overflow| overflow.saved);
        match checked.was_implausible() && (is_sent_again || is_saved) {
            true => Err(format!("a wild overflow was believed: {:?}", checked.exchange.done)),
            false => Ok(()),
        }
    }

    /// Whether what went out is what the client sent. Where it did not ask for usage, we do; that is no rewrite.
    fn is_unchanged(&self, body: &Value, entry: &LoggedRequest) -> bool {
        if self.dialect != Dialect::Chat || !self.head.stream {
            return entry.request.bytes == body.to_string();
        }
        let mut sent = (*entry.request.body).clone();
        sent.as_object_mut().map(|members| members.remove("stream_options"));
        sent == *body
    }

    /// The previous prefix is repeated where it has to be.
    pub(super) fn check_prefix(
        &mut self,
        checked: &CheckedExchange<'_>,
        is_main_thread: bool,
    ) -> Result<(), String> {
        let mut steps = checked.exchange.done.steps.iter();
        let has_new_decision = steps.any(|step| step.decision == Decision::New);
        match (is_main_thread, self.must_repeat_prefix(checked.mode)) {
            (true, true) => self.check_prefix_repeats(checked)?,
            // What is decided on a side call holds for the same words here.
            (false, _) if !has_new_decision => {}
            _ => self.last_sent = None,
        }
        Ok(())
    }

    /// Whether what a client sends must repeat the previous prefix.
    fn must_repeat_prefix(&self, mode: Option<&str>) -> bool {
        let reasoning = &self.policy.reasoning;
        let restores_reasoning = mode.is_none()
            && !self.is_suspended
            && reasoning.reinject == ReinjectPolicy::Auto
            && reasoning.strip() == StripPolicy::None;
        match self.style.kept_reasoning {
            KeptReasoning::All | KeptReasoning::None => true,
            // What it drops when its loop closes stays, where policy puts reasoning back.
            KeptReasoning::OpenLoop => restores_reasoning,
            // These change what they sent before by themselves.
            KeptReasoning::Newest | KeptReasoning::Half | KeptReasoning::WithCalls => false,
        }
    }

    /// Whether all reasoning in a request stands after what the client itself had sent when it got it: a
    /// provider that had seen the client's own requests would find it bound to just that.
    pub(super) fn reasoning_is_in_place(&self, body: &Value) -> bool {
        let history = client::history(self.dialect, body);
        let prefixes = self.prefix_hashes(&history);
        let mut in_place = true;
        for (index, message) in history.iter().enumerate() {
            for_each_signature(message, &mut |signature| {
                let made_at = self.signature_prefixes.get(signature);
                in_place &= made_at.is_none_or(|made_at| prefixes[..=index].contains(made_at));
            });
        }
        in_place
    }

    /// Whether a request has reasoning that another model wrote, which not every provider drops, or that policy
    /// had us keep no record of.
    fn has_foreign_reasoning(&self, body: &Value) -> bool {
        let mut is_foreign = false;
        for_each_string(body, REASONING, &mut |reasoning| {
            let model = self.reasoning_models.get(reasoning);
            is_foreign |= model.is_some_and(|model| *model != Some(self.head.model));
        });
        is_foreign
    }

    /// The hash of each beginning of a history, with its head: that of the empty one is first, that of all of it last.
    pub(super) fn prefix_hashes(&self, history: &[Value]) -> Vec<u64> {
        let head = (&self.head.system, &self.head.tools);
        let mut hash = xxh3_64(format!("{head:?}").as_bytes());
        let mut hashes = vec![hash];
        for message in history {
            hash = xxh3_64_with_seed(message.to_string().as_bytes(), hash);
            hashes.push(hash);
        }
        hashes
    }

    /// The previous prefix is repeated unless something new was decided (`docs/architecture.md`
    /// "Promises").
    fn check_prefix_repeats(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let CheckedExchange { exchange, log, .. } = *checked;
        let before = self.last_sent.take();
        let history = |entry: &LoggedRequest| client::history(self.dialect, &entry.request.body);
        // What was refused before, or refused now and sent again otherwise, is not what stays.
        let accepted =
            |entry: &&LoggedRequest| matches!(entry.verdict, RequestVerdict::Accepted(_));
        let was_revoked = exchange.done.revoked.is_some();
        if exchange.refused.is_none() || was_revoked {
            // A client that drops reasoning when its loop closes need not repeat what was another model's, or stood
            // behind other messages than those it was written for.
            let is_in_place = checked.original.unrewritten.is_some();
            let is_kept = |entry: &&LoggedRequest| {
                self.style.kept_reasoning != KeptReasoning::OpenLoop
                    || is_in_place
                        && !drops_foreign_reasoning(&entry.verdict)
                        && !self.has_foreign_reasoning(&entry.request.body)
            };
            self.last_sent = log.last().filter(accepted).filter(is_kept).map(history);
            // What was retrieved for a question is gone in the next request.
            if self.style.retrieves.is_some()
                && let Some(HistoryItem::User(_)) = self.history.last()
                && let Some(sent) = &mut self.last_sent
            {
                sent.pop();
            }
        }
        let is_new = |step: &PlanStep| step.decision == Decision::New;
        let has_new_decision = checked.mode.is_none() && exchange.done.steps.iter().any(is_new);
        // Where what was new was taken back, what went out before went out in the end.
        let sent = if was_revoked { log.last() } else { log.first() };
        // A client may ask the same as on a branch that it left, and be told the same: then the same goes out.
        let repeated = sent.map_or(0, |sent| self.repeated_prefix(sent));
        let sent = sent.map(history);
        let answered = sent.as_deref().map_or(0, client::answered);
        let (Some(before), Some(sent), false) = (before, sent, has_new_decision) else {
            return Ok(());
        };
        let same = before.iter().zip(&sent).take_while(|(before, sent)| before == sent).count();
        if same < before.len() && repeated < answered {
            return Err(format!(
                "the prefix changed at {same} and nothing was decided: {:?}\n{}\n{}",
                exchange.done.steps,
                before[same],
                sent.get(same).unwrap_or(&Value::Null)
            ));
        }
        self.counts.repeated_prefixes += 1;
        Ok(())
    }
}

/// Members that hold signatures of reasoning.
const SIGNATURES: &[&str] = &["signature", "data", "encrypted_content"];
/// Members that hold reasoning, or its signature.
pub(super) const REASONING: &[&str] =
    &["signature", "data", "encrypted_content", "reasoning_content", "reasoning"];

/// Calls `found` with each reasoning signature anywhere in a value.
pub(super) fn for_each_signature(value: &Value, found: &mut impl FnMut(&str)) {
    for_each_string(value, SIGNATURES, found);
}

/// Calls `found` with each string in a member of these names, anywhere in a value.
pub(super) fn for_each_string(value: &Value, names: &[&str], found: &mut impl FnMut(&str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| for_each_string(item, names, found)),
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) if names.contains(&&**name) => found(text),
                    value => for_each_string(value, names, found),
                }
            }
        }
        _ => {}
    }
}
