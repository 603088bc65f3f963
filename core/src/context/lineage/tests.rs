use super::search::prefer;
use super::*;
use crate::context::edited::reply_keys;
use crate::context::plan::ForwardedPrefix;
use crate::context::reasoning;
use crate::context::{Fact, PromptSection, Sketch, SketchPart};
use crate::dialect::models::Family;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{self, Dialect, Usage};

/// A session played turn by turn, as the proxy would.
#[derive(Default)]
struct Play {
    ledger: Ledger,
    count: usize,
    /// How far the clock of the next request's replica is behind.
    behind: u64,
}

impl Play {
    /// Sends messages (JSON, without the brackets) and is answered with content blocks.
    fn say(&mut self, messages: &str, answer: &str) -> Placement {
        self.send(&body(messages, "You are calm.", ""), answer, Outcome::Complete, None)
    }

    fn send(
        &mut self,
        body: &str,
        answer: &str,
        outcome: Outcome,
        client_thread: Option<&str>,
    ) -> Placement {
        let id = format!("msg_{}", self.count + 1);
        let reply = format!(
            r#"{{"id":"{id}","content":[{answer}],"stop_reason":"end_turn","usage":{{"input_tokens":9,"output_tokens":1}}}}"#
        );
        let api = (Dialect::Anthropic, "/v1/messages");
        self.exchange(api, body, &reply, outcome, client_thread)
    }

    fn exchange(
        &mut self,
        (dialect, path): (Dialect, &str),
        body: &str,
        reply: &str,
        outcome: Outcome,
        client_thread: Option<&str>,
    ) -> Placement {
        self.count += 1;
        let exchange: ExchangeId = format!("req-{}", self.count).into();
        let conversation = dialect::read(dialect, path, body.as_bytes());
        let placed = place(&self.ledger, &conversation, &exchange, client_thread);
        let sent = conversation.parts().filter_map(|part| part.key);
        let mut reading = ResponseReader::new(dialect, 200, Framing::Json, 1 << 20);
        reading.push(reply.as_bytes());
        let reply = reading.finish(BodyEnd::Whole);
        let after = reply.chain_after(placed.position.chain);
        let at = 10 * self.count as u64 - self.behind;
        let sketched =
            |key| SketchPart { key, tokens: 1, place: PromptSection::History, by_length: false };
        let turn = Turn {
            exchange,
            after,
            position: placed.position.clone(),
            response: reply.id.clone(),
            at,
            ended: at + 5,
            upstream: "a".into(),
            model: "m".into(),
            purpose: conversation.purpose,
            usage: Usage { input: Some(9), ..Usage::default() },
            stop: reply.stop,
            outcome,
            sketch: Sketch { added: sent.map(sketched).collect(), ..Sketch::default() },
            reply: reply.parts.iter().filter_map(|part| part.key).map(sketched).collect(),
            anchor_keys: reply_keys(&placed.position, &reply),
            ..Turn::empty(dialect, Family::Claude)
        };
        let prefix = ForwardedPrefix { chain: placed.position.chain, thought: None };
        if let Some(thought) = reasoning::record(&reply.parts, after, &turn, prefix) {
            self.ledger.add(Fact::Reasoning(Box::new(thought)));
        }
        self.ledger.add(Fact::Turn(Arc::new(turn)));
        placed
    }
}

fn body(messages: &str, system: &str, more: &str) -> String {
    format!(r#"{{"model":"m","max_tokens":9,"system":"{system}","messages":[{messages}]{more}}}"#)
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn model(text: &str) -> String {
    format!(r#"{{"role":"assistant","content":[{}]}}"#, words(text))
}

fn words(text: &str) -> String {
    format!(r#"{{"type":"text","text":"{text}"}}"#)
}

fn call(id: &str) -> String {
    format!(r#"{{"type":"tool_use","id":"{id}","name":"Read","input":{{"path":"a"}}}}"#)
}

fn result(id: &str) -> String {
    format!(
        r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"x"}}]}}"#
    )
}

fn parent(placed: &Placement) -> Option<&str> {
    placed.position.parent.as_ref().map(ExchangeId::as_str)
}

#[test]
fn conversation_stays_on_its_thread() {
    let mut play = Play::default();
    let first = play.say(&user("one"), &words("1"));
    let second = play.say(&[user("one"), model("1"), user("two")].join(","), &words("2"));
    let third = [user("one"), model("1"), user("two"), model("2"), user("three")].join(",");
    let third = play.say(&third, &words("3"));
    assert_eq!(first.growth, Growth::Begins);
    assert_eq!(second.growth, Growth::Grows);
    assert_eq!(third.growth, Growth::Grows);
    assert_eq!(second.position.thread, first.position.thread);
    assert_eq!(third.position.thread, first.position.thread);
    assert_eq!(parent(&third), Some("req-2"));
}

#[test]
fn alike_conversations_do_not_mix() {
    let mut play = Play::default();
    let a = play.say(&user("hi"), &words("A"));
    let b = play.say(&user("hi"), &words("B"));
    assert_ne!(a.position.thread, b.position.thread);
    let a2 = play.say(&[user("hi"), model("A"), user("go")].join(","), &words("A2"));
    let b2 = play.say(&[user("hi"), model("B"), user("go")].join(","), &words("B2"));
    assert_eq!(a2.position.thread, a.position.thread);
    assert_eq!(b2.position.thread, b.position.thread);
}

#[test]
fn title_request_has_its_own_thread_and_is_no_parent() {
    let mut play = Play::default();
    let title = body(&user("hi"), "Make a title.", "");
    let title = play.send(&title, &words("Greeting"), Outcome::Complete, None);
    let main = play.say(&user("hi"), &words("A"));
    assert_eq!(main.growth, Growth::Begins);
    assert_ne!(main.position.thread, title.position.thread);
}

#[test]
fn side_call_on_top_of_history_forks() {
    let mut play = Play::default();
    let main = play.say(&user("hi"), &words("A"));
    let messages = [user("hi"), model("A"), user("suggest")].join(",");
    let other = body(&messages, "You suggest.", r#","tools":[{"name":"s"}]"#);
    let side = play.send(&other, &words("x"), Outcome::Complete, None);
    assert_eq!(side.growth, Growth::Forks);
    assert_eq!(parent(&side), Some("req-1"));
    let client_thread =
        play.send(&body(&messages, "You are calm.", ""), "", Outcome::Complete, Some("sub"));
    assert_ne!(client_thread.position.thread, main.position.thread);
}

#[test]
fn changed_system_prompt_alone_stays_on_its_thread() {
    let mut play = Play::default();
    let main = play.say(&user("hi"), &words("A"));
    let messages = [user("hi"), model("A"), user("go")].join(",");
    let system =
        play.send(&body(&messages, "You are brisk.", ""), &words("B"), Outcome::Complete, None);
    assert_eq!(system.position.thread, main.position.thread);
}

#[test]
fn rewinds_and_forks_find_their_turn() {
    let mut play = Play::default();
    let first = play.say(&user("one"), &words("1"));
    play.say(&[user("one"), model("1"), user("two")].join(","), &words("2"));
    let rewound = play.say(&[user("one"), model("1"), user("other")].join(","), &words("3"));
    assert_eq!(rewound.growth, Growth::Forks);
    assert_eq!(parent(&rewound), Some("req-1"));
    assert_ne!(rewound.position.thread, first.position.thread);
    let on = [user("one"), model("1"), user("other"), model("3"), user("more")].join(",");
    let on = play.say(&on, &words("4"));
    assert_eq!(on.position.thread, rewound.position.thread);
}

#[test]
fn repeat_after_failure_keeps_thread() {
    let mut play = Play::default();
    let request = body(&user("hi"), "You are calm.", "");
    let first = play.send(&request, "", Outcome::UpstreamFailed, None);
    let again = play.send(&request, &words("A"), Outcome::Complete, None);
    assert_eq!(again.growth, Growth::Repeats);
    assert_eq!(again.position.thread, first.position.thread);
}

#[test]
fn client_that_resumes_partial_reply_stays_on_its_thread() {
    let mut play = Play::default();
    let request = body(&user("hi"), "You are calm.", "");
    let first = play.send(&request, &words("Half an ans"), Outcome::UpstreamFailed, None);
    let resumed = [user("hi"), model("Half an ans"), user("Resume directly")].join(",");
    let resumed = play.say(&resumed, &words("wer"));
    assert_eq!(resumed.growth, Growth::Grows);
    assert_eq!(resumed.position.thread, first.position.thread);
    let mut play = Play::default();
    let first = play.send(&request, &words("Half an ans"), Outcome::UpstreamFailed, None);
    let resumed = play.say(&[user("hi"), model("Half"), user("Resume")].join(","), &words("wer"));
    assert_eq!(resumed.position.thread, first.position.thread);
}

/// Twice the model thought and broke off, and twice its client had it go on in the same words: whose thought is in a
/// request tells which of the two it continues.
#[test]
fn reasoning_in_request_tells_which_turn_is_its_parent() {
    let mut play = Play::default();
    let thought =
        |sign: &str| format!(r#"{{"type":"thinking","thinking":"Hm.","signature":"{sign}"}}"#);
    let goes_on = |sign: &str| {
        let partial = format!(r#"{{"role":"assistant","content":[{}]}}"#, thought(sign));
        [user("hi"), partial, user("Resume directly")].join(",")
    };
    let asks = body(&user("hi"), "You are calm.", "");
    play.send(&asks, &thought("A"), Outcome::UpstreamFailed, None);
    assert_eq!(parent(&play.say(&goes_on("A"), &words("one"))), Some("req-1"));
    play.send(&asks, &thought("B"), Outcome::UpstreamFailed, None);
    assert_eq!(parent(&play.say(&goes_on("B"), &words("two"))), Some("req-3"));
}

/// The reply was reasoning alone, and the client took out of the message before it what it had put in.
#[test]
fn reasoning_alone_tells_its_turn() {
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"A"}"#;
    let partial = format!(r#"{{"role":"assistant","content":[{thought}]}}"#);
    let mut play = Play::default();
    let asks = body(&user("hi <context/>"), "You are calm.", "");
    let first = play.send(&asks, thought, Outcome::UpstreamFailed, None);
    let next = play.say(&[user("hi"), partial, user("Resume")].join(","), &words("one"));
    assert_eq!(parent(&next), Some("req-1"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// The client took a message back that it had put in for one request: the reasoning of the short reply behind it says
/// whose it is, although an older reply is certain.
#[test]
fn reasoning_is_nearer_than_older_reply() {
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"A"}"#;
    let short = format!("{thought},{}", words("ok"));
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let history = [user("one"), model("1"), user("two")].join(",");
    let first = play.say(&[history.clone(), user("<context/>")].join(","), &short);
    let answered = format!(r#"{{"role":"assistant","content":[{short}]}}"#);
    let next = play.say(&[history, answered, user("three")].join(","), &words("3"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// The reply before the changed message has reasoning, which tells its own turn alone.
#[test]
fn whole_reply_is_found_behind_reasoning_and_changed_message() {
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"A"}"#;
    let said = format!("{thought},{}", words("1"));
    let mut play = Play::default();
    play.say(&user("one"), &said);
    let history = [user("one"), format!(r#"{{"role":"assistant","content":[{said}]}}"#)].join(",");
    let first = play.say(&[history.clone(), user("two <context/>")].join(","), &words("2"));
    let next = [history, user("two"), model("2"), user("three")].join(",");
    let next = play.say(&next, &words("3"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// The message was also sent as it is, and that request got no reply.
#[test]
fn turn_that_said_nothing_has_no_edited_reply() {
    let reply = "The keel is deep in the water.\\nThe line is above it on both sides.";
    let mut play = Play::default();
    play.say(&user("one"), &call("toolu_1"));
    let called = format!(r#"{{"role":"assistant","content":[{}]}}"#, call("toolu_1"));
    let history = [user("one"), called, result("toolu_1")].join(",");
    let plain = [history.clone(), user("two")].join(",");
    play.send(&body(&plain, "You are calm.", ""), "", Outcome::UpstreamFailed, None);
    let first = play.say(&[history, user("two <context/>")].join(","), &words(reply));
    let footed = model(&format!("{reply}\\n\\n---\\nanswered by a model"));
    let next = play.say(&[plain, footed, user("three")].join(","), &words("3"));
    assert_eq!(parent(&next), Some("req-3"));
    assert_eq!(next.position.thread, first.position.thread);
}

#[test]
fn short_edited_reply_is_found_behind_changed_message() {
    let mut play = Play::default();
    play.say(&user("one"), &call("toolu_1"));
    let called = format!(r#"{{"role":"assistant","content":[{}]}}"#, call("toolu_1"));
    let history = [user("one"), called, result("toolu_1")].join(",");
    let first = play.say(&[history.clone(), user("two <context/>")].join(","), &words("Aye."));
    let footed = model("Aye.\\n\\n---\\nanswered by a model");
    let next = play.say(&[history, user("two"), footed, user("three")].join(","), &words("3"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// A replica whose clock is behind gets the next request, and it fails: asked again, it is on the same thread.
#[test]
fn clock_that_is_behind_makes_no_fork() {
    let mut play = Play::default();
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"A"}"#;
    let reply = format!("{thought},{}", call("toolu_1"));
    let first = play.say(&user("hi"), &reply);
    let called = format!(r#"{{"role":"assistant","content":[{reply}]}}"#);
    let next = body(&[user("hi"), called, result("toolu_1")].join(","), "You are calm.", "");
    for (growth, outcome) in
        [(Growth::Grows, Outcome::UpstreamFailed), (Growth::Grows, Outcome::Complete)]
    {
        play.behind = 15;
        let placed = play.send(&next, &words("done"), outcome, None);
        assert_eq!(placed.growth, growth);
        assert_eq!(placed.position.thread, first.position.thread);
    }
}

/// A request was answered, and later asked again, and that reply broke off. What follows has neither reply: it goes on
/// from the newer one, which its provider has read. One that was refused is in nobody's cache.
#[test]
fn of_equal_requests_without_reply_newest_is_parent() {
    let asks = body(&user("hi"), "You are calm.", "");
    for (outcome, turn) in [
        (Outcome::UpstreamFailed, "req-2"),
        (Outcome::ClientLeft, "req-2"),
        (Outcome::Interrupted, "req-2"),
        (Outcome::Complete, "req-2"),
        (Outcome::Refused, "req-1"),
        (Outcome::EndedByProxy, "req-1"),
    ] {
        let mut play = Play::default();
        play.send(&asks, &words("A"), Outcome::Complete, None);
        play.send(&asks, "", outcome, None);
        let goes_on = play.say(&[user("hi"), user("Go on.")].join(","), &words("B"));
        assert_eq!(parent(&goes_on), Some(turn), "{outcome:?}");
    }
    let mut play = Play::default();
    play.send(&asks, &words("A"), Outcome::Complete, None);
    let again = play.send(&asks, "", Outcome::UpstreamFailed, None);
    let retried = play.send(&asks, "", Outcome::UpstreamFailed, None);
    assert_eq!(retried.growth, Growth::Repeats);
    assert_eq!(parent(&retried), Some("req-2"));
    assert_eq!(retried.position.thread, again.position.thread);
}

/// A call beside the conversation, with a system prompt of its own, goes on from a request whose reply it lacks. The reply
/// before proves what it continues, and it gets a thread of its own: the conversation goes on. Without any reply, another
/// system prompt makes another conversation.
#[test]
fn side_call_without_newest_reply_continues_its_request() {
    let asks = [user("one"), model("1"), user("two")].join(",");
    let retried = asks.clone();
    let goes_on = [asks.clone(), model("2"), user("three")].join(",");
    for (reply, outcome, next) in [
        (String::new(), Outcome::UpstreamFailed, retried),
        (words("2"), Outcome::Complete, goes_on),
    ] {
        let mut play = Play::default();
        play.say(&user("one"), &words("1"));
        let newest = play.send(&body(&asks, "You are calm.", ""), &reply, outcome, None);
        let side = body(&[asks.clone(), user("suggest")].join(","), "You suggest.", "");
        let side = play.send(&side, &words("x"), Outcome::Complete, None);
        assert_eq!(side.growth, Growth::Forks, "{outcome:?}");
        assert_eq!(parent(&side), Some("req-2"), "{outcome:?}");
        let next = play.say(&next, &words("3"));
        assert_eq!(next.position.thread, newest.position.thread, "{outcome:?}");
        assert_eq!(parent(&next), Some("req-2"));
    }
    let mut play = Play::default();
    play.send(&body(&user("one"), "You are calm.", ""), "", Outcome::UpstreamFailed, None);
    let side = body(&[user("one"), user("suggest")].join(","), "You suggest.", "");
    assert_eq!(parent(&play.send(&side, &words("x"), Outcome::Complete, None)), None);
    // The turn before had no reply either, so nothing proves it.
    let mut play = Play::default();
    let asks = [user("one"), user("two")].join(",");
    for messages in [user("one"), asks.clone()] {
        play.send(&body(&messages, "You are calm.", ""), "", Outcome::UpstreamFailed, None);
    }
    let side = body(&[asks, user("suggest")].join(","), "You suggest.", "");
    assert_eq!(parent(&play.send(&side, &words("x"), Outcome::Complete, None)), None);
}

/// The same question is asked beside the conversation first, under other instructions (a router, a count): that call is
/// not the parent of the question in the conversation, nor of what follows.
#[test]
fn equal_side_call_is_no_parent() {
    for outcome in [Outcome::Complete, Outcome::UpstreamFailed] {
        let mut play = Play::default();
        play.say(&user("one"), &words("1"));
        let asks = [user("one"), model("1"), user("two")].join(",");
        play.send(&body(&asks, "You choose a model.", ""), &words("x"), outcome, None);
        assert_eq!(parent(&play.say(&asks, &words("2"))), Some("req-1"), "{outcome:?}");
    }
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let asks = [user("one"), model("1"), user("two")].join(",");
    play.send(&body(&asks, "You choose a model.", ""), &words("x"), Outcome::Complete, None);
    assert_eq!(parent(&play.say(&[asks, user("three")].join(","), &words("2"))), Some("req-1"));
}

/// Twice the model gave the same reply after different thoughts, and the second broke off: the thought tells which reply
/// it is.
#[test]
fn of_equal_replies_one_whose_reasoning_came_back_is_parent() {
    let reply = |sign: &str| {
        let thought = format!(r#"{{"type":"thinking","thinking":"Hm.","signature":"{sign}"}}"#);
        format!("{thought},{}", words("Aye."))
    };
    let asks = body(&user("hi"), "You are calm.", "");
    for (sign, turn) in [("A", "req-1"), ("B", "req-2")] {
        let mut play = Play::default();
        play.send(&asks, &reply("A"), Outcome::Complete, None);
        play.send(&asks, &reply("B"), Outcome::UpstreamFailed, None);
        let partial = format!(r#"{{"role":"assistant","content":[{}]}}"#, reply(sign));
        let goes_on = [user("hi"), partial, user("Resume directly")].join(",");
        assert_eq!(parent(&play.say(&goes_on, &words("So."))), Some(turn));
    }
}

#[test]
fn client_that_changes_its_first_message_stays_on_its_thread() {
    const ANSWER: &str = "The draught of this ship is three metres and a half, fully loaded.";
    let mut play = Play::default();
    let first = play.say(&user("It is Monday. hi"), &words(ANSWER));
    let altered = [user("It is Tuesday. hi"), model(ANSWER), user("go")].join(",");
    let second = play.say(&altered, &call("toolu_1"));
    assert_eq!(second.growth, Growth::Grows);
    assert_eq!(parent(&second), Some("req-1"));
    let called = format!(r#"{{"role":"assistant","content":[{}]}}"#, call("toolu_1"));
    let third = [user("Today. hi"), model(ANSWER), user("go"), called, result("toolu_1")];
    let third = play.say(&third.join(","), &words("done"));
    assert_eq!(third.growth, Growth::Grows);
    assert_eq!(parent(&third), Some("req-2"));
    assert_eq!(third.position.thread, first.position.thread);
}

/// Short words are said twice: two parts in a row prove nothing, three do with the same instructions and tools,
/// five with any.
#[test]
fn short_texts_prove_parent_only_after_enough_equal_parts() {
    let grown_from = |said: &[&str], altered: &[&str], system: &str| {
        let history = |said: &[&str]| {
            let one =
                |(at, text): (usize, &&str)| if at % 2 == 0 { user(text) } else { model(text) };
            said.iter().enumerate().map(one).collect::<Vec<_>>().join(",")
        };
        let mut play = Play::default();
        play.send(&body(&history(said), "Be kind.", ""), &words("Done."), Outcome::Complete, None);
        let grown = [altered, &["Done.", "Go on."]].concat();
        let placed =
            play.send(&body(&history(&grown), system, ""), &words("ok"), Outcome::Complete, None);
        placed.parent.is_some()
    };
    let (three, five) = (["a", "b", "c"], ["a", "b", "c", "d", "e"]);
    assert!(!grown_from(&three, &["x", "y", "c"], "Be kind."), "two parts");
    assert!(grown_from(&three, &["x", "b", "c"], "Be kind."), "three parts");
    assert!(!grown_from(&three, &["x", "b", "c"], "Be brief."), "three under another head");
    assert!(!grown_from(&five, &["x", "y", "c", "d", "e"], "Be brief."), "four under another head");
    assert!(grown_from(&five, &["x", "b", "c", "d", "e"], "Be brief."), "five under another head");
}

/// Of several turns that met alike, the one with which most stands in a row; of equals the newest.
#[test]
fn longest_run_of_parts_tells_parent() {
    let history = |said: &[&str]| {
        let one = |(at, text): (usize, &&str)| if at % 2 == 0 { user(text) } else { model(text) };
        said.iter().enumerate().map(one).collect::<Vec<_>>().join(",")
    };
    let mut play = Play::default();
    for said in [["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"], ["x", "y", "c", "d", "e"]] {
        play.say(&history(&said), &words("Done."));
    }
    let grown = play.say(&history(&["z", "b", "c", "d", "e", "Done.", "Go on."]), &words("ok"));
    assert_eq!(parent(&grown), Some("req-2"));
    let other = play.say(&history(&["z", "y", "c", "d", "e", "Done.", "Go on."]), &words("ok"));
    assert_eq!(parent(&other), Some("req-3"));
}

/// A boundary nearer to the end counts before one that proves as much further up, and the user's words are none.
#[test]
fn last_boundary_decides_parent() {
    const FIRST: &str = "The draught of this ship is three metres and a half, fully loaded.";
    const SECOND: &str = "Its beam is eleven metres, and its length is forty-five, over all.";
    let mut play = Play::default();
    play.say(&user("one"), &words(FIRST));
    play.say(&[user("one"), model(FIRST), user("two")].join(","), &words(SECOND));
    let altered = [user("1"), model(FIRST), user("2"), model(SECOND), user("three")].join(",");
    assert_eq!(parent(&play.say(&altered, &words("ok"))), Some("req-2"));
    let quoted = play.say(&[user("1"), model("Hm."), user(SECOND)].join(","), &words("ok"));
    assert_eq!(parent(&quoted), None, "the person only quotes it");
}

/// The client edits the reply, and its instructions hold the time: what the turn sent is there, and a reply follows it.
/// The first request of a conversation has no reply, so others may begin like it.
#[test]
fn edited_reply_stays_on_its_thread_under_other_instructions() {
    let mut play = Play::default();
    let mut ask = |messages: &[String], time: &str, answer: &str| {
        let asks = body(&messages.join(","), time, "");
        play.send(&asks, &words(answer), Outcome::Complete, None)
    };
    let first = [user("one")];
    ask(&first, "It is one.", "1");
    let second = [user("one"), model("1, edited"), user("two")];
    let second_turn = ask(&second, "It is two.", "2");
    assert_eq!(second_turn.growth, Growth::Begins);
    assert_eq!(parent(&second_turn), None);
    let third = [second.as_slice(), &[model("2, edited"), user("three")]].concat();
    let third_turn = ask(&third, "It is three.", "3");
    assert_eq!(third_turn.growth, Growth::Grows);
    assert_eq!(parent(&third_turn), Some("req-2"));
    assert_eq!(third_turn.position.thread, second_turn.position.thread);
    let beside = [second.as_slice(), &[user("suggest")]].concat();
    assert_eq!(parent(&ask(&beside, "You suggest.", "x")), None, "no reply follows");
}

/// What was retrieved for the newest message does not come again, the older reply stands as it was, the newer one was edited:
/// its sentence says that it follows.
#[test]
fn sentence_is_nearer_than_older_reply() {
    let older =
        "The keel was laid before the winter, and the hull was painted in the spring of that year.";
    let newer = "The water line is drawn at half the height. The mark is painted white.";
    let edited = format!("{newer} (edited)");
    let mut play = Play::default();
    play.say(&user("one <context>Page 33.</context>"), &words(older));
    let asked = [user("one"), model(older), user("two <context>Page 44.</context>")].join(",");
    play.say(&asked, &words(newer));
    let next = [user("one"), model(older), user("two"), model(&edited), user("three")].join(",");
    let next = play.say(&next, &words("ok"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.growth, Growth::Grows);
}

/// A reply in two texts: its client adds a line to each, or sends one text of both.
#[test]
fn edited_texts_of_one_reply_are_found() {
    let texts = ["The keel is laid.\\nSo the hull of this", " ship is next."];
    let history = [user("one"), model("1")].join(",");
    for kept in [
        texts.map(|text| words(&format!("{text}\\n\\n(edited)"))).join(","),
        words(&format!("{}\\n\\n(edited)", texts.concat())),
    ] {
        let mut play = Play::default();
        play.say(&user("one"), &words("1"));
        let asked = [history.clone(), user("two <context/>")].join(",");
        play.say(&asked, &texts.map(words).join(","));
        let kept = format!(r#"{{"role":"assistant","content":[{kept}]}}"#);
        let next = [history.clone(), user("two"), kept, user("three")].join(",");
        assert_eq!(parent(&play.say(&next, &words("3"))), Some("req-2"));
    }
}

/// A message after a result, because the reply between them was reasoning alone and is gone: what the client put into that
/// message is gone in the next request, too, and a short reply is found.
#[test]
fn reply_is_found_after_result_and_changed_message() {
    let said = "The hull is painted white now.";
    let called = format!(r#"{{"role":"assistant","content":[{}]}}"#, call("toolu_1"));
    let history = [user("one"), called, result("toolu_1")].join(",");
    let mut play = Play::default();
    play.say(&user("one"), &call("toolu_1"));
    let first = play.say(&[history.clone(), user("two <context/>")].join(","), &words(said));
    let next = [history, user("two"), model(said), user("three")].join(",");
    let next = play.say(&next, &words("ok"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// A short reply behind a message that its client changed: the turn continues the one that is certain, and all of its reply
/// is there.
#[test]
fn whole_reply_tells_its_turn_behind_changed_message() {
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let history = [user("one"), model("1")].join(",");
    let first = play.say(&[history.clone(), user("two <context/>")].join(","), &words("2"));
    for (reply, expected) in [("2", "req-2"), ("3", "req-1")] {
        let next = [history.clone(), user("two"), model(reply), user("three")].join(",");
        let next = play.say(&next, &words("4"));
        assert_eq!(parent(&next), Some(expected));
        assert_eq!(next.position.thread == first.position.thread, reply == "2");
    }
}

/// A reply of reasoning alone before the first one that says something: the conversation still has one reply, which is found
/// although the client edited it and changed the message before it.
#[test]
fn reasoning_alone_is_no_reply_of_its_own() {
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"A"}"#;
    let partial = format!(r#"{{"role":"assistant","content":[{thought}]}}"#);
    let said = "The mark is painted white every year.";
    let history = [user("The keel is laid. Tell me more of it."), partial].join(",");
    let mut play = Play::default();
    let asks = body(&user("The keel is laid. Tell me more of it. <context/>"), "", "");
    play.send(&asks, thought, Outcome::UpstreamFailed, None);
    let first = play.say(&[history.clone(), user("go on <context/>")].join(","), &words(said));
    let edited = model(&format!("{said}\n\n(edited)"));
    let next = [history, user("go on"), edited, user("three")].join(",");
    let next = play.say(&next, &words("3"));
    assert_eq!(parent(&next), Some("req-2"));
    assert_eq!(next.position.thread, first.position.thread);
}

/// The same request twice, the replies differ, and the client edits them: what is left of a reply says which one it is.
#[test]
fn sentence_decides_between_equal_turns() {
    let asked = [user("one"), model("1"), user("two")].join(",");
    let replies =
        ["The keel was laid before winter came.", "The mark is painted white every year."];
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let turns = replies.map(|reply| play.say(&asked, &words(reply)).position.thread);
    for (reply, thread) in replies.into_iter().zip(turns) {
        let edited = format!("{reply}\n\n(edited)");
        let next = [asked.clone(), model(&edited), user("three")].join(",");
        assert_eq!(play.say(&next, &words("3")).position.thread, thread);
    }
}

/// Two replies to one request begin with the same word, and only the other one is known: the word alone proves nothing.
#[test]
fn short_sentence_proves_nothing() {
    let said = "The keel was laid before winter came.";
    for (edited, continues) in
        [("The mark is painted white every year.", None), (said, Some("req-1"))]
    {
        let mut play = Play::default();
        let asks = body(&user("one"), "It is one.", "");
        play.send(&asks, &words(&format!("Sure. {said}")), Outcome::Complete, None);
        let edited = model(&format!("Sure. {edited} (edited)"));
        let next = body(&[user("one"), edited, user("two")].join(","), "It is two.", "");
        let next = play.send(&next, &words("2"), Outcome::Complete, None);
        assert_eq!(parent(&next), continues);
    }
}

/// Two conversations say the same from a point on, and the client puts text into each newest message: the one whose
/// beginning it is goes on, although the other one is newer.
#[test]
fn equal_reply_continues_its_own_beginning() {
    let long =
        "The keel was laid before the winter, and the hull was painted in the spring of that year.";
    let mut play = Play::default();
    let begin = |name: &str| [user(name), model(name), user("two")].join(",");
    let asked = |name: &str| [user(name), model(name), user("<context/> two")].join(",");
    for name in ["1", "2"] {
        play.say(&user(name), &words(name));
    }
    let threads = ["1", "2"].map(|name| play.say(&asked(name), &words(long)).position.thread);
    for (name, thread) in ["1", "2"].into_iter().zip(threads) {
        let next = [begin(name), model(long), user("three")].join(",");
        assert_eq!(play.say(&next, &words("3")).position.thread, thread);
    }
}

/// Two runs of one program in one session, as after a restart: the turn of the other one that nothing has continued waits.
#[test]
fn equal_turn_that_waits_is_continued() {
    let asked = [user("one"), model("1"), user("two")].join(",");
    let next = |answer: &str, text: &str| {
        [&asked, &model(answer), &user(text)].map(String::as_str).join(",")
    };
    // As it came, and edited.
    for answer in ["2", "2, edited"] {
        let mut play = Play::default();
        play.say(&user("one"), &words("1"));
        let own = play.say(&asked, &words("2"));
        let other = play.say(&asked, &words("2"));
        let newest = play.say(&next(answer, "three"), &words("3"));
        assert_eq!(newest.position.thread, other.position.thread);
        let waiting = play.say(&next(answer, "four"), &words("4"));
        assert_eq!(waiting.position.thread, own.position.thread);
    }
}

/// A model declined, another one answered, and the conversation went on: the request is not repeated there once more.
#[test]
fn answered_repeat_is_not_repeated_again() {
    let asks = body(&user("one"), "You are calm.", "");
    let mut play = Play::default();
    let first = play.send(&asks, "", Outcome::UpstreamFailed, None);
    let repeat = play.send(&asks, &words("1"), Outcome::Complete, None);
    assert_eq!(repeat.position.thread, first.position.thread);
    play.say(&[user("one"), model("1"), user("two")].join(","), &words("2"));
    let again = play.send(&asks, &words("1"), Outcome::Complete, None);
    assert_eq!(again.growth, Growth::Forks);
}

#[test]
fn client_that_drops_text_beside_call_stays_on_its_thread() {
    let mut play = Play::default();
    let first = play.say(&user("hi"), &format!("{},{}", words("I look."), call("toolu_1")));
    let dropped = format!(r#"{{"role":"assistant","content":[{}]}}"#, call("toolu_1"));
    let second = play.say(&[user("hi"), dropped, result("toolu_1")].join(","), &words("done"));
    assert_eq!(second.position.thread, first.position.thread);
    assert_eq!(second.growth, Growth::Grows);
}

/// Gemini's calls have no id in their keys. A request was sent again and answered with the same text and call, this time
/// without an id; its client edits the text. The call alone does not tell the two turns apart.
#[test]
fn call_without_id_finds_no_reply() {
    let call = |id: &str| format!(r#"{{"functionCall":{{"name":"ls","args":{{"at":1}}{id}}}}}"#);
    let parts = |text: &str, id: &str| format!(r#"[{{"text":"{text}"}},{}]"#, call(id));
    let contents = |more: &str| {
        format!(r#"{{"contents":[{{"role":"user","parts":[{{"text":"Look."}}]}}{more}]}}"#)
    };
    let api = (Dialect::Gemini, "/v1beta/models/gemini-3-pro:generateContent");
    let own_id = r#","id":"AbCdEfGh12345678""#;
    for (id, turn) in [("", "req-2"), (own_id, "req-1")] {
        let mut play = Play::default();
        let mut ask = |more: &str, parts: &str| {
            let reply = format!(
                r#"{{"candidates":[{{"content":{{"parts":{parts}}},"finishReason":"STOP"}}]}}"#
            );
            play.exchange(api, &contents(more), &reply, Outcome::Complete, None)
        };
        ask("", &parts("Aye.", own_id));
        ask("", &parts("Aye.", ""));
        let edited = parts("Aye. Written by a model.", id);
        let result = r#"{"role":"user","parts":[{"functionResponse":{"name":"ls","response":{"output":"a"}}}]}"#;
        let next = ask(&format!(r#",{{"role":"model","parts":{edited}}},{result}"#), "[]");
        assert_eq!(parent(&next), Some(turn));
    }
}

/// Behind an edited reply and a message that the client changed stands a call without an id: its signature tells its turn,
/// in whichever alphabet the client writes it.
#[test]
fn signature_is_nearer_than_sentence() {
    let api = (Dialect::Gemini, "/v1beta/models/gemini-3-pro:generateContent");
    let content = |role: &str, part: &str| format!(r#"{{"role":"{role}","parts":[{part}]}}"#);
    let text = |role: &str, text: &str| content(role, &format!(r#"{{"text":"{text}"}}"#));
    let said = "The mark is painted white every year.";
    let [call, other] = ["b2+l/w==", "b2-l_w=="].map(|signature| {
        format!(
            r#"{{"functionCall":{{"name":"ls","args":{{}}}},"thoughtSignature":"{signature}"}}"#
        )
    });
    let result = r#"{"functionResponse":{"name":"ls","response":{"output":"a"}}}"#;
    let mut play = Play::default();
    let mut ask = |contents: &[String], reply: &str| {
        let reply = format!(r#"{{"candidates":[{{"content":{reply},"finishReason":"STOP"}}]}}"#);
        let body = format!(r#"{{"contents":[{}]}}"#, contents.join(","));
        play.exchange(api, &body, &reply, Outcome::Complete, None)
    };
    let begin = [text("user", "Look."), text("model", &format!("{said} By a model."))];
    ask(&begin[..1], &text("model", said));
    let retrieved = [text("user", "Go on. <context>1</context>")];
    ask(&[&begin[..], &retrieved].concat(), &content("model", &call));
    let later = [text("user", "Go on."), content("model", &other), content("user", result)];
    let next = ask(&[&begin[..], &later].concat(), &text("model", "Done."));
    assert_eq!(parent(&next), Some("req-2"));
}

/// Two runs with equal prompts got the same call, each with a signature of its own.
#[test]
fn signature_of_call_tells_its_turn() {
    let asked = r#"{"role":"user","parts":[{"text":"Look."}]}"#;
    let parts = |signature: &str| {
        format!(
            r#"[{{"functionCall":{{"name":"ls","args":{{}}}},"thoughtSignature":"{signature}"}}]"#
        )
    };
    let api = (Dialect::Gemini, "/v1beta/models/gemini-3-pro:generateContent");
    let mut play = Play::default();
    let mut ask = |contents: &str, parts: &str| {
        let reply = format!(
            r#"{{"candidates":[{{"content":{{"parts":{parts}}},"finishReason":"STOP"}}]}}"#
        );
        let body = format!(r#"{{"contents":[{contents}]}}"#);
        play.exchange(api, &body, &reply, Outcome::Complete, None)
    };
    ask(asked, &parts("b25l"));
    ask(asked, &parts("dHdv"));
    for (signature, turn) in [("b25l", "req-1"), ("dHdv", "req-2")] {
        let called = format!(r#"{{"role":"model","parts":{}}}"#, parts(signature));
        let result = format!(
            r#"{{"role":"user","parts":[{{"functionResponse":{{"name":"ls","response":{{"output":"{turn}"}}}}}}]}}"#
        );
        let next = ask(&format!("{asked},{called},{result}"), "[]");
        assert_eq!(parent(&next), Some(turn));
    }
}

#[test]
fn held_history_is_continued_by_its_response_id() {
    let mut play = Play::default();
    let first = play.say(&user("hi"), &words("A"));
    let more = r#","thread":{"type":"continue","previous_message_id":"msg_1"}"#;
    let mut go_on =
        || play.send(&body(&user("go"), "", more), &words("B"), Outcome::Complete, None);
    let held = go_on();
    assert_eq!(held.growth, Growth::Grows);
    assert_eq!(held.position.thread, first.position.thread);
    assert_eq!(held.position.system, first.position.system, "what is not sent again is held");
    let another = go_on();
    assert_eq!(another.growth, Growth::Forks);
    assert_eq!(parent(&another), Some("req-1"));
    assert_ne!(another.position.thread, first.position.thread);
    // A response that is not known, and words that are: which turn came before is a guess.
    let stray = more.replace("msg_1", "msg_lost");
    let again = body(&[user("hi"), model("A"), user("and?")].join(","), "", &stray);
    let guessed = play.send(&again, &words("C"), Outcome::Complete, None);
    assert_eq!(guessed.growth, Growth::Held);
    assert_eq!(parent(&guessed), Some("req-1"));
}

#[test]
fn aborted_call_is_anchor_where_it_told_its_input() {
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let messages = [user("one"), model("1"), user("two")].join(",");
    let aborted = play.send(&body(&messages, "You are calm.", ""), "", Outcome::ClientLeft, None);
    assert_eq!(aborted.growth, Growth::Grows);
    let turn = Turn::clone(play.ledger.turn(&"req-2".into()).unwrap());
    let anchor = |play: &mut Play, name: &str, input| {
        let mut turn = Turn { exchange: name.into(), ..turn.clone() };
        (turn.usage.input, turn.usage.lower_bound) = (input, true);
        play.ledger.add(Fact::Turn(Arc::new(turn)));
        let at = play.ledger.turn(&name.into()).unwrap();
        play.ledger.anchor_at(at).unwrap().exchange.clone()
    };
    assert_eq!(anchor(&mut play, "req-2b", None), "req-1");
    // One that told its input at the start measured it.
    assert_eq!(anchor(&mut play, "req-2c", Some(900)), "req-2c");
}

#[test]
fn sketches_are_put_together_from_their_differences() {
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let part = |n: u128| SketchPart {
        key: PartKey(n),
        tokens: 1,
        place: PromptSection::History,
        by_length: false,
    };
    let mut turn = Turn::clone(play.ledger.turn(&"req-1".into()).unwrap());
    for (id, base, kept, added) in [
        ("a", None, 0, vec![part(1), part(2), part(3)]),
        ("b", Some("a"), 2, vec![part(4)]),
        ("c", Some("b"), 3, vec![part(5)]),
        ("lost", Some("nowhere"), 1, vec![]),
        ("round", Some("round"), 1, vec![]),
    ] {
        turn.exchange = id.into();
        turn.sketch = Sketch { base: base.map(Into::into), kept, added };
        play.ledger.add(Fact::Turn(Arc::new(turn.clone())));
    }
    let sketch = |id: &str| play.ledger.sketch(play.ledger.turn(&id.into()).unwrap());
    assert_eq!(sketch("c").unwrap(), [part(1), part(2), part(4), part(5)]);
    assert_eq!(sketch("lost"), None);
    assert_eq!(sketch("round"), None);
    // And which turn's request it begins like, and for how many tokens.
    let repeated = |id: &str| {
        let of = play.ledger.repeated_prefix(play.ledger.turn(&id.into()).unwrap());
        of.map(|prefix| (prefix.of.exchange.to_string(), prefix.tokens))
    };
    assert_eq!(repeated("c"), Some(("b".into(), 3)));
    assert_eq!(repeated("b"), Some(("a".into(), 2)));
    assert_eq!([repeated("a"), repeated("lost"), repeated("round")], [None, None, None]);
}

/// Of several turns at one chain: one of the conversation before one beside it, then the client's own thread, then the
/// same instructions and tools, then one that was answered; of equals the newest.
#[test]
fn of_turns_with_same_chain_best_match_is_parent() {
    let mut play = Play::default();
    play.say(&user("one"), &words("1"));
    let base = Turn::clone(play.ledger.turn(&"req-1".into()).unwrap());
    let conversation = body(&user("one"), "You are calm.", "");
    let conversation = dialect::read(Dialect::Anthropic, "/v1/messages", conversation.as_bytes());
    let here = position(&conversation, Some("main"));
    let turn = |exchange: &str, change: fn(&mut Turn)| {
        let mut turn = Turn { exchange: exchange.into(), ..base.clone() };
        turn.position.client_thread = Some("main".into());
        change(&mut turn);
        Arc::new(turn)
    };
    let best = turn("best", |_| {});
    let others = [
        turn("beside", |turn| turn.purpose = Purpose::Side),
        turn("lane", |turn| turn.position.client_thread = None),
        turn("head", |turn| turn.position.system = PartKey(7)),
        turn("broken", |turn| turn.outcome = Outcome::UpstreamFailed),
    ];
    let of = |turns: &[&Arc<Turn>]| {
        let is_complete = |turn: &Turn| turn.outcome == Outcome::Complete;
        let found = prefer(turns.iter().copied(), &here, is_complete).unwrap();
        found.exchange.to_string()
    };
    for (at, other) in others.iter().enumerate() {
        assert_eq!(of(&[other, &best]), "best");
        assert_eq!(of(&[&best, other]), "best");
        // The earlier a rule stands, the more it says.
        for worse in &others[..at] {
            assert_eq!(of(&[worse, other]), other.exchange.as_str(), "against {}", worse.exchange);
            assert_eq!(of(&[other, worse]), other.exchange.as_str(), "against {}", worse.exchange);
        }
    }
    assert_eq!(of(&[&turn("newest", |_| {}), &best]), "newest");
}

/// Nothing was said before a warm-up that brought instructions and tools alone: what follows it begins, though it names it.
#[test]
fn request_after_bare_warm_up_is_placed_by_its_messages() {
    let mut play = Play::default();
    let warm = r#"{"model":"m","max_tokens":0,"system":"You are calm.","messages":[]}"#;
    play.send(warm, "", Outcome::Complete, None);
    assert!(is_bare(play.ledger.turn(&"req-1".into()).unwrap()));
    let after = r#","thread":{"type":"continue","previous_message_id":"msg_1"}"#;
    let mut go_on = |messages: &[String], answer| {
        let body = body(&messages.join(","), "You are calm.", after);
        let placed = play.send(&body, &words(answer), Outcome::Complete, None);
        parent(&placed).map(ToString::to_string)
    };
    assert_eq!(go_on(&[user("one")], "1").as_deref(), Some("req-1"));
    let grown = [user("one"), model("1"), user("two")];
    assert_eq!(go_on(&grown, "2").as_deref(), Some("req-2"), "its words say more");
    // After a turn that had words, the id says more than they do.
    let mut play = Play::default();
    play.say(&user("hi"), &words("A"));
    let again = body(&user("hi"), "", after);
    let again = play.send(&again, &words("B"), Outcome::Complete, None);
    assert_eq!(again.growth, Growth::Grows);
    assert_eq!(parent(&again), Some("req-1"));
    let base = || Turn::clone(play.ledger.turn(&"req-1".into()).unwrap());
    let of = |change: fn(&mut Turn)| {
        let mut turn = base();
        (turn.purpose, turn.position.chain) = (Purpose::WarmUp, Chain::START);
        change(&mut turn);
        is_bare(&turn)
    };
    assert!(of(|_| {}));
    assert!(!of(|turn| turn.purpose = Purpose::Turn));
    assert!(!of(|turn| turn.position.parent = Some("r".into())));
    assert!(!of(|turn| turn.position.chain = Chain(7)), "it brought words");
}
