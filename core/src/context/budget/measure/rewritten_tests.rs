//! The cost of a request that is not sent as it came: with a summary, injected messages, or reasoning put back.

use serde_json::{Value, json};

use super::*;
use crate::context::scene::{SessionFixture, messages, thinking};
use crate::context::{CompactionRecord, Fact, QueuedMessage, inject, reasoning};
use crate::dialect::Usage;

/// The cost of the current request as it is sent, measured from its parent turn.
fn measured(scene: &SessionFixture) -> MeasuredEstimate {
    let (plan, placed) = (scene.plan(), scene.placed());
    let sketch = placed.parent.as_ref().and_then(|parent| scene.ledger.sketch(parent));
    let anchor = placed.parent.as_deref().zip(sketch.as_deref());
    measure(
        &scene.conversation,
        &scene.body,
        &plan.sent,
        &scene.model,
        anchor.map(|(turn, sketch)| Anchor { turn, sketch }),
        Tokenizer::whole(scene.model.family),
        &EstimatorState::new(scene.model.family),
    )
}

/// A second request, after one reply.
fn followed(name: &'static str) -> SessionFixture {
    let mut scene = SessionFixture::new(name, &messages("u"));
    scene.answered(&json!([{"type": "text", "text": "Said 1."}]));
    scene.send(&messages("uau"));
    scene
}

#[test]
fn injected_messages_add_their_counted_tokens_to_estimate() {
    let mut scene = followed("claude-opus-4-6");
    let before = measured(&scene);
    scene.ledger.add(Fact::Queued(Box::new(QueuedMessage {
        id: "q".into(),
        number: 1,
        at: 1,
        text: "Mind the weather, and come back before the tide is out.".into(),
        repeats: None,
    })));
    let injected = inject::propose(&scene.request(), &scene.known());
    let Some(Fact::InjectedMessage(one)) = injected.first() else { panic!("{injected:?}") };
    let (key, tokens) = (one.key(), u64::from(one.place().unwrap().tokens));
    injected.iter().for_each(|fact| scene.ledger.add(fact.clone()));
    let after = measured(&scene);
    assert_eq!(after.contents.user - before.contents.user, tokens);
    assert_eq!(after.estimate.tokens - before.estimate.tokens, tokens);
    assert_eq!(after.estimate.new - before.estimate.new, tokens);
    let texts = |of: &MeasuredEstimate| of.seen.as_ref().unwrap().new_content.texts;
    assert_eq!(texts(&after) - texts(&before), 1);
    assert!(after.parts.iter().any(|part| part.key == key && u64::from(part.tokens) == tokens));
    // In the next request they are known: they cost the same, and are not new.
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    let later = measured(&scene);
    assert!(later.parts.iter().any(|part| part.key == key));
    assert_eq!(texts(&later), 1);
    assert_eq!(later.estimate.method, EstimateMethod::Anchored);
    assert!(later.estimate.new < before.estimate.new + tokens, "{:?}", later.estimate);
}

#[test]
fn summary_adds_its_counted_tokens() {
    let mut scene = followed("claude-opus-4-6");
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    let one = CompactionRecord { tokens: 70, ..scene.summary(2) };
    let key = one.key();
    let before = measured(&scene);
    scene.ledger.add(Fact::Compact(Box::new(one)));
    let after = measured(&scene);
    assert_eq!(before.estimate.method, EstimateMethod::Anchored);
    assert_eq!(after.estimate.method, EstimateMethod::Compacted);
    assert_eq!(before.contents.summaries, 0);
    assert_eq!(after.contents.summaries, 70);
    assert_eq!(after.estimate.new, before.estimate.new + 70);
    assert!(after.estimate.gone > 0, "an error of this estimate teaches nothing");
    assert!(after.seen.is_none(), "an error of this estimate teaches nothing");
    assert_eq!(after.parts.iter().position(|part| part.key == key), Some(0));
    assert_eq!(after.parts[0].tokens, 70);
    // In the next request it is a part like any other.
    scene.answered(&json!([{"type": "text", "text": "Said 5."}]));
    scene.send(&messages("uauauau"));
    let later = measured(&scene);
    assert_eq!(later.estimate.method, EstimateMethod::Anchored);
    assert_eq!(later.contents.summaries, 70);
}

/// Reasoning that is put back costs what it cost in the reply, block by block, at its place.
#[test]
fn reasoning_put_back_costs_as_much_as_in_its_reply() {
    let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let content = json!([thinking(1), thinking(2), messages("uc")[1]["content"][0]]);
    scene.answered(&content);
    scene.send(&messages("ucr"));
    let before = measured(&scene);
    let facts = reasoning::propose(&scene.request(), &scene.known()).facts;
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    let after = measured(&scene);
    let turn = scene.placed().parent.unwrap();
    let thoughts: Vec<&SketchPart> =
        after.parts.iter().filter(|part| part.place == PromptSection::Reasoning).collect();
    let all: u64 = thoughts.iter().map(|part| u64::from(part.tokens)).sum();
    assert_eq!(thoughts.len(), 2);
    assert_eq!(all, reasoning_of(&turn));
    assert!(all > 0, "{thoughts:?}");
    assert!(thoughts[0].tokens.abs_diff(thoughts[1].tokens) <= 1, "{thoughts:?}");
    assert_eq!(after.estimate.tokens - before.estimate.tokens, all);
    assert_eq!(after.estimate.breakdown.reasoning, all);
    // After the user's next message, it is reasoning of an earlier turn.
    let place = |letters: &str, sends: bool| -> Vec<PromptSection> {
        let mut all: Value = messages(letters);
        if sends {
            all[1]["content"] = json!([thinking(1), all[1]["content"][0]]);
        }
        let measured = measured(&SessionFixture::new("claude-opus-4-6", &all));
        let parts = measured.parts.iter().map(|part| part.place);
        parts.filter(|place| *place != PromptSection::History).collect()
    };
    assert_eq!(place("ucr", false), []);
    assert_eq!(place("ucr", true), [PromptSection::Reasoning]);
    assert_eq!(place("ucra", true), [PromptSection::Reasoning]);
    assert_eq!(place("ucrau", true), [PromptSection::OldReasoning]);
    assert_eq!(place("ucru", true), [PromptSection::SteeredReasoning]);
}

/// Two of the sizes that Gemini reported while it kept reasoning, and two of those while it did not.
#[test]
fn what_gemini_read_from_its_cache_are_whole_blocks_or_not() {
    use crate::dialect::models::Family;
    use crate::tokens::retention::CacheBlocks::{Split, Whole};
    let scene = followed("claude-opus-4-6");
    let turn = scene.placed().parent.unwrap();
    let after = |base: Option<&str>, family, cache_read| {
        let sketch = Sketch { base: base.map(Into::into), ..Sketch::default() };
        let usage = Usage { cache_read, ..Usage::default() };
        cache_blocks(&Turn { family, sketch, usage, ..Turn::clone(&turn) })
    };
    let of = |family, cache_read| after(None, family, cache_read);
    let gemini = |read| of(Family::Gemini, Some(read));
    for (read, blocks) in [(0, Whole), (4_096, Whole), (8_121, Whole), (16_235, Whole)] {
        assert_eq!(gemini(read), Some(blocks), "{read}");
    }
    assert_eq!(gemini(4_839), Some(Split));
    assert_eq!(gemini(24_287), Some(Split));
    assert_eq!(of(Family::Gemini, None), Some(Whole));
    assert_eq!(of(Family::Claude, Some(4_839)), None);
    assert_eq!(gemini(u64::MAX), Some(Whole));
    assert_eq!(after(Some("r0"), Family::Gemini, Some(8_121)), None, "it is not the first");
}
