//! What a refusal teaches about its provider, for more than the request that was refused.
//!
//! A provider quotes what it refuses, so a client can have any words said to it. A lesson is taken only
//! from an error whose whole message is one of the provider's own (`config/lessons.toml`), and from none
//! whose decisive words stand in the request. Pure; must not know who else hears of it.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::ProviderError;
use super::error_message::ErrorMessage;
use super::overflow::WINDOWS;
use crate::wire::json::{Document, Kind, Value};

/// Something that a refusal says of an upstream, or of one of its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lesson {
    /// It refuses `stream_options.include_usage`.
    UsageRefused,
    /// It answers 400 where a model's reasoning is not sent back.
    ReasoningDemanded,
    /// It refuses a model's reasoning when it is sent back.
    ReasoningRefused,
    /// It binds a model's reasoning to what stands before it.
    ReasoningBound,
    /// It refuses to edit a model's context.
    EditingRefused,
    /// It refuses to give out a model's reasoning encrypted.
    IncludeRefused,
    /// It refuses to show a model's thinking.
    DisplayRefused,
    /// It has no endpoint that counts tokens.
    CountMissing,
    /// It does not compact a model's context itself.
    CompactionRefused,
    /// A model's window is so many tokens.
    Window(u64),
    /// A model writes so many tokens at most.
    MaxOutput(u64),
}

impl Lesson {
    /// Whether it is about all models of an upstream.
    pub fn is_about_all_models(self) -> bool {
        self == Self::UsageRefused
    }
}

/// Where a refusal comes from.
#[derive(Clone, Copy, Debug)]
pub struct RefusalBody<'a> {
    /// Its HTTP status; 200 for an error in a stream or in an answer that looks like a success.
    pub status: u16,
    /// Its body, without its encoding.
    pub body: &'a [u8],
}

/// What a provider may quote: the words of a request.
#[derive(Clone, Debug, Default)]
pub struct QuotableText<'a> {
    /// The JSON body, without its encoding.
    pub body: &'a [u8],
    /// Other words that the provider was sent: path and query, values of headers, the model.
    pub words: Vec<&'a str>,
}

/// What a refusal teaches, or why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LessonMatch {
    /// What it teaches; a message teaches one thing, or what the caller asked for (a missing endpoint).
    pub lessons: Vec<Lesson>,
    /// It would teach these, but its words stand in the request.
    pub quoted: Vec<Lesson>,
}

impl LessonMatch {
    /// Whether it teaches this.
    pub fn holds(&self, lesson: Lesson) -> bool {
        self.lessons.contains(&lesson)
    }

    /// The window that it names.
    pub fn window(&self) -> Option<u64> {
        self.lessons.iter().find_map(|lesson| match lesson {
            Lesson::Window(window) => Some(*window),
            _ => None,
        })
    }

    /// The most output that it names.
    pub fn max_output(&self) -> Option<u64> {
        self.lessons.iter().find_map(|lesson| match lesson {
            Lesson::MaxOutput(most) => Some(*most),
            _ => None,
        })
    }
}

/// What a refusal's body teaches, told from the request that it answers.
pub fn taught(refusal: &RefusalBody<'_>, request: &QuotableText<'_>) -> LessonMatch {
    judged(&ErrorMessage::all(refusal.body), refusal.status, request)
}

/// What an error in a reply teaches, told from the request that it answers. `status`: 200 where it came
/// in place of a reply, or in the middle of one.
pub fn taught_in_reply(
    error: &ProviderError,
    status: u16,
    request: &QuotableText<'_>,
) -> LessonMatch {
    judged(&[ErrorMessage::of(error)], status, request)
}

fn judged(messages: &[ErrorMessage], status: u16, request: &QuotableText<'_>) -> LessonMatch {
    let mut taught = LessonMatch::default();
    let mut words = None;
    for (form, message) in messages.iter().filter_map(|message| form(message, status)) {
        // A request is read at most once, and only where something would be learned.
        let words = words.get_or_insert_with(|| request_words(request));
        let is_quoted = message.decisive.iter().any(|said| words.contains(&**said));
        let to = if is_quoted { &mut taught.quoted } else { &mut taught.lessons };
        to.extend(form.teaches.iter().filter_map(|kind| kind.lesson(message.limit)));
    }
    taught
}

/// The form of `config/lessons.toml`.
#[derive(Deserialize)]
struct LessonFile {
    form: Vec<LessonPattern>,
}

/// Messages that teach the same.
#[derive(Deserialize)]
struct LessonPattern {
    teaches: Vec<LessonRule>,
    #[serde(default)]
    kind: Vec<Box<str>>,
    #[serde(default = "refusals")]
    status: Vec<u16>,
    message: Vec<Box<str>>,
}

/// What a form teaches, by its name in the file.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LessonRule {
    Window,
    UsageRefused,
    ReasoningDemanded,
    ReasoningRefused,
    ReasoningBound,
    EditingRefused,
    IncludeRefused,
    DisplayRefused,
    CountMissing,
    CompactionRefused,
    MaxOutput,
    /// The limit that is named is one too many.
    MaxOutputExclusive,
}

impl LessonRule {
    /// `limit`: the number that the message names.
    fn lesson(self, limit: Option<u64>) -> Option<Lesson> {
        Some(match self {
            Self::Window => Lesson::Window(limit?),
            Self::MaxOutput => Lesson::MaxOutput(limit?),
            Self::MaxOutputExclusive => Lesson::MaxOutput(limit?.checked_sub(1)?),
            Self::UsageRefused => Lesson::UsageRefused,
            Self::ReasoningDemanded => Lesson::ReasoningDemanded,
            Self::ReasoningRefused => Lesson::ReasoningRefused,
            Self::ReasoningBound => Lesson::ReasoningBound,
            Self::EditingRefused => Lesson::EditingRefused,
            Self::IncludeRefused => Lesson::IncludeRefused,
            Self::DisplayRefused => Lesson::DisplayRefused,
            Self::CountMissing => Lesson::CountMissing,
            Self::CompactionRefused => Lesson::CompactionRefused,
        })
    }
}

fn refusals() -> Vec<u16> {
    vec![400, 413, 422]
}

/// What is built in; parsed on first use. A test holds that it can be.
fn built_in() -> &'static LessonFile {
    static FILE: OnceLock<LessonFile> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut file: LessonFile = toml::from_str(include_str!("../../../config/lessons.toml"))
            .unwrap_or_else(|_| LessonFile { form: Vec::new() });
        for form in &mut file.form {
            form.message.iter_mut().for_each(|message| *message = plain(message).into());
            form.kind.iter_mut().for_each(|kind| *kind = kind.to_lowercase().into());
        }
        file
    })
}

/// The form that a message has from end to end, and what it says.
fn form(message: &ErrorMessage, status: u16) -> Option<(&'static LessonPattern, PatternMatch)> {
    let text = plain(&message.text);
    let forms = built_in().form.iter().filter(|form| {
        let kinds = &form.kind;
        let is_kind = |kind: &str| kinds.iter().any(|known| **known == kind.to_lowercase());
        let fits = kinds.is_empty()
            || message.kinds.is_empty()
            || message.kinds.iter().any(|kind| is_kind(kind));
        fits && form.status.contains(&status)
    });
    forms.filter_map(|form| Some((form, whole(&form.message, &text)?))).next()
}

/// What a message says that has one of the forms.
struct PatternMatch {
    /// A window, or the most output.
    limit: Option<u64>,
    /// The provider's own words in it: each sentence that names the limit, else the longest.
    decisive: Vec<String>,
}

fn whole(forms: &[Box<str>], text: &str) -> Option<PatternMatch> {
    forms.iter().find_map(|form| {
        let (limit, input) = matched(form, text)?;
        // More was counted than fits, or it says something else. Where output is asked for too, a small
        // prompt may not fit.
        let counts_output = form.contains("{}");
        let is_so = limit.is_none_or(|limit| {
            let is_more = input.is_none_or(|input| counts_output || input > limit);
            WINDOWS.contains(&limit) && is_more
        });
        is_so.then(|| PatternMatch { limit, decisive: decisive(text, limit) })
    })
}

/// The limit and the count that `text` names, where it is `form` from end to end.
fn matched(form: &str, text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (mut form, mut text) = (form, text);
    let (mut limit, mut input) = (None, None);
    while let Some(next) = form.chars().next() {
        if let Some((name, rest)) = placeholder(form) {
            form = rest;
            let is_part = |byte: &u8| match name {
                "name" => byte.is_ascii_alphanumeric() || b"._:/@-[]".contains(byte),
                _ => byte.is_ascii_digit() || matches!(byte, b',' | b'_'),
            };
            let longest = text.bytes().take_while(is_part).take(LONGEST_NAME).count();
            // What follows decides where a name ends: a dot or a bracket may belong to either.
            let literal = form.chars().next().filter(|_| placeholder(form).is_none());
            let ends = |end: &usize| literal.is_none_or(|next| text[*end..].starts_with(next));
            if name == "name" {
                let rests = (1..=longest).rev().filter(|end| ends(end));
                return rests
                    .filter_map(|end| matched(form, text.get(end..)?))
                    .map(|(more, count)| (limit.or(more), input.or(count)))
                    .next();
            }
            let digits: String = text[..longest].chars().filter(char::is_ascii_digit).collect();
            // A comma may end the number's clause.
            let end = text[..longest].trim_end_matches([',', '_']).len();
            let number = digits.parse().ok()?;
            match name {
                "limit" => limit = Some(number),
                "input" => input = Some(number),
                _ => {}
            }
            text = &text[end..];
        } else {
            text = text.strip_prefix(next)?;
            form = &form[next.len_utf8()..];
        }
    }
    text.is_empty().then_some((limit, input))
}

/// The placeholder that `form` begins with, and what follows it.
fn placeholder(form: &str) -> Option<(&'static str, &str)> {
    const NAMES: [(&str, &str); 5] = [
        ("{}", ""),
        ("{window}", "limit"),
        ("{output}", "limit"),
        ("{input}", "input"),
        ("{name}", "name"),
    ];
    NAMES.iter().find_map(|(written, name)| Some((*name, form.strip_prefix(written)?)))
}

/// Most bytes of a name in a message.
const LONGEST_NAME: usize = 200;
/// A message of fewer letters is none that could be told from an ordinary word of a request.
const TELLING: usize = 12;

/// The words that may not stand in the request: each sentence that holds the limit's number, else the
/// whole message. What ends with a full stop may be quoted without it.
fn decisive(text: &str, limit: Option<u64>) -> Vec<String> {
    let sentence = |words: &str| words.trim_end_matches('.').to_owned();
    let Some(limit) = limit else {
        return vec![sentence(text)].into_iter().filter(|words| words.len() >= TELLING).collect();
    };
    let digits = limit.to_string();
    let has_it = |words: &&str| {
        let plain: String = words.chars().filter(|sign| !matches!(sign, ',' | '_')).collect();
        plain.contains(&digits)
    };
    text.split(". ").filter(has_it).map(sentence).collect()
}

/// In lower case, with one blank for any white space.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().flat_map(char::to_lowercase));
    }
    out
}

/// All that a provider could quote, in the form that messages are compared in.
fn request_words(request: &QuotableText<'_>) -> String {
    let mut words = String::with_capacity(request.body.len());
    for said in &request.words {
        words.push_str(said);
        words.push('\n');
        words.push_str(&unescaped(said));
        words.push('\n');
    }
    let document = Document::read(request.body).ok();
    match document.as_ref().and_then(|document| document.root(request.body)) {
        Some(root) => gather(root, &mut words),
        None => words.push_str(&String::from_utf8_lossy(request.body)),
    }
    plain(&words)
}

/// Every name and every string of a value; a string that holds JSON (arguments of a call) as what it is,
/// too. Without recursion: nesting costs no stack.
fn gather(root: Value<'_>, words: &mut String) {
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value.kind() {
            Kind::Object => {
                for (key, value) in value.entries() {
                    words.push_str(&key.text());
                    words.push('\n');
                    waiting.push(value);
                }
            }
            Kind::Array => waiting.extend(value.items()),
            Kind::String => {
                let text = value.text().unwrap_or_default();
                words.push_str(&text);
                words.push('\n');
                if text.contains('\\') {
                    words.push_str(&text.replace("\\\"", "\"").replace("\\n", " "));
                    words.push('\n');
                }
            }
            _ => {}
        }
    }
}

/// A path or query with its `%xx` and `+` undone.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed("");
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (first, _) => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
