//! Random settings before and during a conversation: provider, client, policy.

use plimsoll::context::policy::{
    CompactPolicy, Policy, PruneGate, PrunePolicy, ReasoningPolicy, ReinjectPolicy, StripPolicy,
    ThinkingDisplay,
};
use scripted_provider::strict::{Dialect, Rules};

use crate::client::{ClientStyle, Head, KeptReasoning, ReplyEdit, Retrieval};
use crate::dice::Dice;

pub fn rules(dice: &mut Dice) -> Rules {
    Rules {
        binding: dice.once_in(3).then_some(true),
        thinking_mandatory: dice.once_in(4).then_some(true),
        cache_min: Some(1),
        ..Rules::default()
    }
}

pub fn kept_reasoning(dice: &mut Dice) -> KeptReasoning {
    dice.of(&[
        KeptReasoning::All,
        KeptReasoning::All,
        KeptReasoning::None,
        KeptReasoning::Newest,
        KeptReasoning::Half,
        KeptReasoning::OpenLoop,
        KeptReasoning::WithCalls,
    ])
}

pub fn reply_edit(dice: &mut Dice) -> ReplyEdit {
    dice.of(&[
        ReplyEdit::Footers,
        ReplyEdit::LastFooter,
        ReplyEdit::LineEnds,
        ReplyEdit::Decomposed,
    ])
}

/// The mode that a client asks for in a header, now and then, or in all of a conversation.
pub fn mode(dice: &mut Dice, times: usize) -> Option<&'static str> {
    dice.once_in(times).then(|| dice.of(&["shadow", "observe"]))
}

pub fn style(dice: &mut Dice) -> ClientStyle {
    let kept_reasoning = kept_reasoning(dice);
    let drops_later = drops_later(kept_reasoning);
    ClientStyle {
        kept_reasoning,
        cache_markers: dice.once_in(2),
        reformats_arguments: dice.once_in(3),
        trims_text: dice.once_in(4),
        edits_replies: dice.once_in(6).then(|| reply_edit(dice)).filter(|_| !drops_later),
        retrieves: None,
        drops_call_ids: false,
        url_safe_signatures: dice.once_in(3),
        programs: dice.once_in(3),
        defers: dice.once_in(3),
        replies: 1,
    }
}

/// Habits that make a conversation hard to recognise.
pub fn add_habits(style: &mut ClientStyle, dice: &mut Dice, dialect: Dialect) {
    style.drops_call_ids = dialect == Dialect::Gemini && dice.once_in(3);
    style.retrieves = dice.once_in(6).then(|| dice.of(&[Retrieval::Before, Retrieval::After]));
    if dice.once_in(6) && !drops_later(style.kept_reasoning) {
        style.edits_replies = Some(ReplyEdit::DropBesideCalls);
    }
}

/// Whether a client sends reasoning once and drops it later. It is not put back beside a text that the client edited: its
/// cache breaks.
pub fn drops_later(kept: KeptReasoning) -> bool {
    matches!(kept, KeptReasoning::Newest | KeptReasoning::OpenLoop)
}

/// How many replies a client asks for at once.
pub fn replies(dice: &mut Dice, dialect: Dialect) -> usize {
    let may = matches!(dialect, Dialect::Chat | Dialect::Gemini);
    if may && dice.once_in(6) { 3 } else { 1 }
}

pub fn models(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Anthropic => {
            &["claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5-5", "claude-haiku-5-5"]
        }
        Dialect::Chat => &["gpt-4.1", "deepseek-v4", "kimi-k3", "glm-5.2", "some-model"],
        Dialect::Responses => &["gpt-5.4", "gpt-5.6-sol", "gpt-6.1-sol"],
        Dialect::Gemini => &["gemini-3-pro", "gemini-2.5-flash"],
    }
}

pub fn head(dice: &mut Dice, dialect: Dialect) -> Head {
    Head {
        model: dice.of(models(dialect)),
        system: dice.words(30),
        tools: vec!["Read", "Grep", "Bash"],
        // Some models cannot switch thinking off.
        thinks: !dice.once_in(5) || dialect == Dialect::Anthropic,
        stream: dice.once_in(2),
    }
}

pub fn policy(dice: &mut Dice) -> Policy {
    let gates: [&[PruneGate]; 5] = [
        &[PruneGate::Always],
        &[PruneGate::Always],
        &[PruneGate::ColdCache],
        &[PruneGate::PaysBack],
        &[PruneGate::Pressure, PruneGate::ColdCache],
    ];
    let prune = PrunePolicy {
        gate: dice.of(&gates).to_vec(),
        pressure: dice.of(&[0.01, 0.8]),
        protect_tokens: dice.of(&[0, 300, 3000]),
        protect_messages: dice.of(&[0, 2, 8]),
        min_saving_tokens: dice.of(&[1, 300]),
        min_messages: dice.of(&[0, 6]),
        tools: if dice.once_in(4) { vec!["Re*".to_owned()] } else { Vec::new() },
        except_tools: if dice.once_in(4) { vec!["Gr*".to_owned()] } else { Vec::new() },
        keep_errors: dice.once_in(2),
        keep_media: dice.once_in(2),
        media: dice.once_in(2),
        max_result_tokens: dice.once_in(3).then_some(400),
        accept_reasoning_loss: dice.once_in(8),
        ..PrunePolicy::default()
    };
    let reasoning = ReasoningPolicy {
        reinject: if dice.once_in(6) { ReinjectPolicy::Off } else { ReinjectPolicy::Auto },
        include_in_context: true,
        strip_from_context: dice.of(&[
            StripPolicy::None,
            StripPolicy::None,
            StripPolicy::None,
            StripPolicy::All,
            StripPolicy::AllButLast,
        ]),
        display: dice.of(&[ThinkingDisplay::AsRequested, ThinkingDisplay::Summarized]),
    };
    let compact = CompactPolicy {
        threshold: dice.of(&[0.6, 0.95]),
        prepare: dice.of(&[0.7, 0.9, 1.0]),
        keep_messages: dice.of(&[2, 8]),
        wait_s: 5,
        timeout_s: 5,
        ..CompactPolicy::default()
    };
    Policy { prune, reasoning, compact, ..Policy::default() }
}
