//! The progress of a reply: what is known while it arrives, without its text.
//!
//! Small, whatever the reply's size, so that it can be read often. It equals the result of reading if the
//! reply broke off here.

use super::{Reply, Usage};

/// Usual number of bytes of text per token; a smaller number would overestimate the output.
const TOKEN_BYTES: u64 = 4;

/// A reply so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyProgress {
    /// The response's id, once the stream has named it.
    pub id: Option<Box<str>>,
    /// The usage reported so far.
    pub usage: Usage,
    /// Bytes of text, reasoning and arguments.
    pub content_bytes: usize,
}

impl ReplyProgress {
    /// The usage of a turn that ends here: if the output was not reported yet, an estimate from the received
    /// bytes, which is a lower bound.
    pub fn usage_so_far(&self) -> Usage {
        let mut usage = self.usage.clone();
        let about = self.content_bytes as u64 / TOKEN_BYTES;
        let is_open = usage.lower_bound || usage.output.is_none();
        if is_open && about > 0 {
            usage.output = usage.output.max(Some(about));
            usage.lower_bound = true;
        }
        usage
    }
}

impl Reply {
    /// Counts what came of a reply that broke off after its first numbers, as its progress did. Returns whether it did.
    pub fn count_what_came(&mut self) -> bool {
        if !self.usage.lower_bound {
            return false;
        }
        let content_bytes = self.parts.iter().map(|part| part.text.len()).sum();
        let progress = ReplyProgress { id: None, usage: self.usage.clone(), content_bytes };
        self.usage = progress.usage_so_far();
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
    use crate::dialect::{Dialect, ReplyProgress};

    /// The progress after this beginning of a stream, and the reply if the stream ends there.
    fn cut(dialect: Dialect, stream: &str) -> (ReplyProgress, crate::dialect::Reply) {
        let mut reading = ResponseReader::new(dialect, 200, Framing::Events, 1 << 20);
        reading.push(stream.as_bytes());
        (reading.progress(), reading.finish(BodyEnd::Cut))
    }

    #[test]
    fn progress_of_stream_agrees_with_its_cut_reply() {
        let chat = r#"{"id":"c1","choices":[{"index":0,"delta":{"reasoning_content":"Hm, hm.","content":"One, two, three."}}]}"#;
        let gemini = r#"{"responseId":"g1","candidates":[{"content":{"parts":[{"text":"One, two, three, four."}]}}],"usageMetadata":{"promptTokenCount":50,"candidatesTokenCount":2}}"#;
        let cases = [
            (
                Dialect::Anthropic,
                concat!(
                    r#"{"type":"message_start","message":{"id":"m1","content":[],"usage":{"input_tokens":40,"cache_read_input_tokens":8,"output_tokens":1}}}"#,
                    "\n\ndata: ",
                    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                    "\n\ndata: ",
                    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"One, two, three, four."}}"#,
                )
                .to_owned(),
                Some(48),
                5,
            ),
            (Dialect::OpenaiChat, chat.to_owned(), None, 5),
            (
                Dialect::OpenaiResponses,
                concat!(
                    r#"{"type":"response.created","response":{"id":"r1"}}"#,
                    "\n\ndata: ",
                    r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"One, two, three, four."}"#,
                )
                .to_owned(),
                None,
                5,
            ),
            (Dialect::Gemini, gemini.to_owned(), Some(50), 5),
        ];
        for (dialect, events, input, output) in cases {
            let (progress, reply) = cut(dialect, &format!("data: {events}\n\n"));
            assert!(progress.id.is_some(), "{dialect:?}");
            assert!(progress.id == reply.id, "{dialect:?}");
            assert_eq!(progress.usage, reply.usage, "{dialect:?}");
            assert_eq!(progress.usage.input, input, "{dialect:?}");
            let usage = progress.usage_so_far();
            assert_eq!(usage.input, input, "{dialect:?}");
            assert_eq!(usage.output, Some(output), "{dialect:?}");
            let mut broken = reply;
            assert_eq!(broken.count_what_came(), input.is_some(), "{dialect:?}");
            assert_eq!(
                broken.usage.output,
                usage.output.filter(|_| input.is_some()),
                "{dialect:?}"
            );
            assert!(usage.lower_bound, "no anchor: {dialect:?}");
            assert!(usage.context().is_none(), "no anchor: {dialect:?}");
        }
    }

    #[test]
    fn final_usage_stays_in_progress() {
        let stream = concat!(
            r#"data: {"id":"c1","choices":[{"index":0,"delta":{"content":"One, two, three."},"finish_reason":"stop"}]}"#,
            "\n\n",
            r#"data: {"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}"#,
            "\n\n",
        );
        let usage = cut(Dialect::OpenaiChat, stream).0.usage_so_far();
        assert_eq!(usage.input, Some(9));
        assert_eq!(usage.output, Some(3));
        assert!(!usage.lower_bound);
    }
}
