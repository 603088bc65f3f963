//! New messages with pictures or documents, which the provider counts where an agent's rules decide.
//!
//! As Gemini CLI does it: a message with media is counted by the endpoint, everything else by the rules, and so is
//! the message if the endpoint does not answer. Pure. Must not know how the endpoint is asked.

use serde_json::json;

use super::anchor::Anchor;
use super::classic::counted_from;
use super::decided::{messages_member, whole};
use crate::dialect::{Chain, Conversation, Dialect, Span};
use crate::tokens::classic::ClassicRules;

/// The messages whose count the provider is asked for.
#[derive(Clone, Debug)]
pub struct UncountedMedia {
    dialect: Dialect,
    model: Box<str>,
    /// Their indexes and ranges in the body.
    messages: Vec<(usize, Span)>,
}

impl UncountedMedia {
    /// The messages with media that `rules` count in this request: not those that an earlier call reported.
    /// `None` if there are none.
    pub fn new(
        rules: &ClassicRules,
        conversation: &Conversation,
        anchor: Option<Anchor<'_>>,
    ) -> Option<Self> {
        let from = counted_from(rules, conversation, anchor);
        let mut messages = Vec::new();
        for (index, message) in conversation.messages.iter().enumerate().skip(from) {
            if message.has_media() && message.counted.is_none() {
                messages.push((index, message.span));
            }
        }
        if messages.is_empty() {
            return None;
        }
        let model = conversation.model.as_deref().unwrap_or_default().into();
        Some(Self { dialect: conversation.dialect, model, messages })
    }

    /// The body of a request that contains only these messages of `body`.
    pub fn body(&self, body: &[u8]) -> String {
        let messages =
            self.messages.iter().map(|(_, span)| String::from_utf8_lossy(span.slice(body)));
        let messages = messages.collect::<Vec<_>>().join(",");
        let member = messages_member(self.dialect);
        format!(r#"{{"model":{},"{member}":[{messages}]}}"#, json!(self.model))
    }

    /// Sets the provider's count of these messages together: each has its share of it by the rules.
    pub fn set_counted(
        &self,
        rules: &ClassicRules,
        conversation: &mut Conversation,
        body: &[u8],
        tokens: u64,
    ) {
        let messages = &mut conversation.messages;
        let weights: Vec<f64> = self
            .messages
            .iter()
            .map(|(index, _)| rules.weigh(body, &messages[*index..=*index], &whole).max(1.0))
            .collect();
        let mut rest = tokens;
        let mut rest_weight: f64 = weights.iter().sum();
        for ((index, _), weight) in self.messages.iter().zip(weights) {
            let share = (rest as f64 * weight / rest_weight).round() as u64;
            messages[*index].counted = Some(share.min(rest));
            rest = rest.saturating_sub(share);
            rest_weight -= weight;
        }
    }
}

/// The messages with media, each with the chain of its parts: the same content has the same.
pub fn media_chains(conversation: &Conversation) -> impl Iterator<Item = (usize, Chain)> + '_ {
    let messages = conversation.messages.iter().enumerate();
    messages.filter(|(_, message)| message.has_media()).map(|(index, message)| {
        let keys = message.parts.iter().filter_map(|part| part.key);
        (index, keys.fold(Chain::START, Chain::then))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    const TARGET: &str = "/v1beta/models/gemini-2.5-pro:generateContent";

    fn request(messages: &str) -> (Conversation, Vec<u8>) {
        let body = format!(r#"{{"contents":[{messages}]}}"#).into_bytes();
        (dialect::read(Dialect::Gemini, TARGET, &body), body)
    }

    fn picture(text: &str) -> String {
        let data = r#"{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgo="}}"#;
        format!(r#"{{"role":"user","parts":[{{"text":"{text}"}},{data}]}}"#)
    }

    fn rules() -> ClassicRules {
        ClassicRules { image_tokens: 3000, ..ClassicRules::default() }
    }

    fn counts(conversation: &Conversation) -> Vec<Option<u64>> {
        conversation.messages.iter().map(|message| message.counted).collect()
    }

    #[test]
    fn only_messages_with_media_are_asked_for() {
        let (one, two) = (picture("One."), picture("Two."));
        let text = r#"{"role":"model","parts":[{"text":"A ship."}]}"#;
        let (mut conversation, body) = request(&format!("{one},{text},{two}"));
        let asked = |conversation: &Conversation| {
            Some(UncountedMedia::new(&rules(), conversation, None)?.body(&body))
        };
        let both = format!(r#"{{"model":"gemini-2.5-pro","contents":[{one},{two}]}}"#);
        assert_eq!(asked(&conversation), Some(both));
        conversation.messages[0].counted = Some(260);
        let second = format!(r#"{{"model":"gemini-2.5-pro","contents":[{two}]}}"#);
        assert_eq!(asked(&conversation), Some(second));
        conversation.messages[2].counted = Some(260);
        assert_eq!(asked(&conversation), None);
    }

    #[test]
    fn count_is_shared_by_weight() {
        let long = picture(&"word ".repeat(2_400));
        let (mut conversation, body) = request(&format!("{},{long}", picture("One.")));
        let media = UncountedMedia::new(&rules(), &conversation, None).unwrap();
        media.set_counted(&rules(), &mut conversation, &body, 1_001);
        assert_eq!(counts(&conversation), [Some(334), Some(667)]);
        let counted = rules().messages(&body, &conversation.messages, whole);
        assert_eq!(counted, 1_001, "the sum is the provider's");
    }

    #[test]
    fn message_is_found_by_its_content() {
        let one = picture("One.");
        let (first, _) = request(&one);
        let (later, _) = request(&format!("{},{one}", picture("Two.")));
        let chains = |conversation: &Conversation| media_chains(conversation).collect::<Vec<_>>();
        assert_eq!(chains(&first)[0].1, chains(&later)[1].1);
        assert_ne!(chains(&later)[0].1, chains(&later)[1].1);
    }
}
