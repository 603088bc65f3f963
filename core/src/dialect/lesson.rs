//! What a refusal teaches about its provider, for later requests.
//!
//! A provider quotes what it refuses, so a client can make it say anything. A lesson is only taken if the
//! whole message is a known message of the provider (`config/lessons.toml`), and its decisive sentences are not
//! in the request. Pure; must not know who uses the lesson.

use std::sync::OnceLock;

use super::percent::decoded;
use serde::{Deserialize, Serialize};

use super::ProviderError;
use super::error_message::ErrorMessage;
use super::numbers::WINDOWS;
use crate::wire::json::{Document, Kind, Value};

/// Something that a refusal shows about an upstream, or about one of its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lesson {
    /// The upstream refuses `stream_options.include_usage`.
    UsageRefused,
    /// It responds with 400 if a model's reasoning is not sent back.
    ReasoningDemanded,
    /// It refuses a model's reasoning if it is sent back.
    ReasoningRefused,
    /// It binds a model's reasoning to its prefix.
    ReasoningBound,
    /// It refuses context editing for a model.
    EditingRefused,
    /// It refuses to return a model's reasoning encrypted.
    IncludeRefused,
    /// It refuses to show a model's thinking.
    DisplayRefused,
    /// It refuses to say why a model's cache was missed.
    DiagnosisRefused,
    /// It has no count endpoint.
    CountMissing,
    /// It does not compact a model's context.
    CompactionRefused,
    /// A model's window, tokens, as a refusal names it.
    Window(u64),
    /// A model's window, tokens, as the provider's list of models names it.
    ListedWindow(u64),
    /// A model's maximum output, tokens.
    MaxOutput(u64),
}

impl Lesson {
    /// Whether it applies to all models of an upstream.
    pub fn is_about_all_models(self) -> bool {
        self == Self::UsageRefused
    }

    /// The window that it names.
    pub fn window(self) -> Option<u64> {
        match self {
            Self::Window(window) | Self::ListedWindow(window) => Some(window),
            _ => None,
        }
    }
}

/// A response that may teach a lesson.
#[derive(Clone, Copy, Debug)]
pub struct RefusalBody<'a> {
    /// Its HTTP status; 200 for an error in a stream, or in a response that looks like a success.
    pub status: u16,
    /// Its body, decompressed.
    pub body: &'a [u8],
}

/// The text of a request, which a provider may quote.
#[derive(Clone, Debug, Default)]
pub struct QuotableText<'a> {
    /// The JSON body, decompressed.
    pub body: &'a [u8],
    /// Other texts that the provider was sent: path and query, values of headers, the model.
    pub texts: Vec<&'a str>,
}

/// The lessons of a refusal, or those that were rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LessonMatch {
    /// What it teaches. A message teaches one thing, or what the caller looked for (a missing endpoint).
    pub lessons: Vec<Lesson>,
    /// Lessons that were rejected, because the request contains their message.
    pub quoted: Vec<Lesson>,
}

impl LessonMatch {
    /// Whether it teaches this lesson.
    pub fn holds(&self, lesson: Lesson) -> bool {
        self.lessons.contains(&lesson)
    }

    /// The context window that the message states, tokens.
    pub fn window(&self) -> Option<u64> {
        self.lessons.iter().find_map(|lesson| match lesson {
            Lesson::Window(window) => Some(*window),
            _ => None,
        })
    }

    /// The maximum output that it states.
    pub fn max_output(&self) -> Option<u64> {
        self.lessons.iter().find_map(|lesson| match lesson {
            Lesson::MaxOutput(most) => Some(*most),
            _ => None,
        })
    }
}

/// The lessons of a refusal's body, compared with the text of its request.
pub fn taught(refusal: &RefusalBody<'_>, request: &QuotableText<'_>) -> LessonMatch {
    judged(&ErrorMessage::all(refusal.body), refusal.status, request)
}

/// The lessons of an error in a reply, compared with the text of its request. `status`: 200 if the error came
/// instead of a reply, or inside one.
pub fn taught_in_reply(
    error: &ProviderError,
    status: u16,
    request: &QuotableText<'_>,
) -> LessonMatch {
    judged(&[ErrorMessage::from_error(error)], status, request)
}

fn judged(messages: &[ErrorMessage], status: u16, request: &QuotableText<'_>) -> LessonMatch {
    let mut taught = LessonMatch::default();
    let mut quotable = None;
    for (form, message) in messages.iter().filter_map(|message| form(message, status)) {
        // A request is read at most once, and only if something would be learned.
        let quotable = quotable.get_or_insert_with(|| request_text(request));
        let is_quoted = message.decisive.iter().any(|piece| quotable.contains(&**piece));
        let to = if is_quoted { &mut taught.quoted } else { &mut taught.lessons };
        to.extend(form.teaches.iter().filter_map(|kind| kind.lesson(message.limit)));
    }
    taught
}

/// The content of `config/lessons.toml`.
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

/// The lessons of a pattern, by their names in the file.
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
    DiagnosisRefused,
    CountMissing,
    CompactionRefused,
    MaxOutput,
    /// The stated limit is one too large.
    MaxOutputExclusive,
}

impl LessonRule {
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
            Self::DiagnosisRefused => Lesson::DiagnosisRefused,
            Self::CountMissing => Lesson::CountMissing,
            Self::CompactionRefused => Lesson::CompactionRefused,
        })
    }
}

fn refusals() -> Vec<u16> {
    vec![400, 413, 422]
}

fn built_in() -> &'static LessonFile {
    // A test checks that the file is valid.
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

/// The pattern that matches a whole message, with the match.
fn form(message: &ErrorMessage, status: u16) -> Option<(&'static LessonPattern, PatternMatch)> {
    if message.is_detail {
        return None;
    }
    let text = plain(&message.text);
    let forms = built_in().form.iter().filter(|form| {
        let kinds = &form.kind;
        let names_kind = message.kinds.iter().any(|kind| {
            let kind = kind.to_lowercase();
            kinds.iter().any(|expected| **expected == kind)
        });
        let fits = kinds.is_empty() || message.kinds.is_empty() || names_kind;
        fits && form.status.contains(&status)
    });
    forms.filter_map(|form| Some((form, whole(&form.message, &text)?))).next()
}

struct PatternMatch {
    /// A window, or a maximum output.
    limit: Option<u64>,
    /// The provider's own sentences: those with the limit, else the longest.
    decisive: Vec<String>,
}

fn whole(forms: &[Box<str>], text: &str) -> Option<PatternMatch> {
    forms.iter().find_map(|form| {
        let MatchedNumbers { limit, input } = matched(form, text)?;
        // The counted tokens must exceed the limit, or the message says something else. If output is counted
        // too, a small prompt may not fit.
        let counts_output = form.contains("{}");
        let is_so = limit.is_none_or(|limit| {
            let is_more = input.is_none_or(|input| counts_output || input > limit);
            WINDOWS.contains(&limit) && is_more
        });
        is_so.then(|| PatternMatch { limit, decisive: decisive(text, limit) })
    })
}

/// The numbers in a message.
struct MatchedNumbers {
    /// A window, or a maximum output.
    limit: Option<u64>,
    /// The counted tokens.
    input: Option<u64>,
}

/// The numbers in `text`, if all of it matches `form`.
fn matched(form: &str, text: &str) -> Option<MatchedNumbers> {
    let mut form = form;
    let mut text = text;
    let mut limit = None;
    let mut input = None;
    while let Some(next) = form.chars().next() {
        if let Some((name, rest)) = placeholder(form) {
            form = rest;
            if name == "name" {
                let more = matched_after_name(form, text)?;
                return Some(MatchedNumbers {
                    limit: limit.or(more.limit),
                    input: input.or(more.input),
                });
            }
            let longest = text
                .bytes()
                .take_while(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b'_'))
                .take(LONGEST_NAME)
                .count();
            let digits: String = text[..longest].chars().filter(char::is_ascii_digit).collect();
            // A comma after the number may belong to the sentence.
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
    text.is_empty().then_some(MatchedNumbers { limit, input })
}

/// The numbers in the rest of a text after a name, if that matches `form`.
fn matched_after_name(form: &str, text: &str) -> Option<MatchedNumbers> {
    let longest = text
        .bytes()
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"._:/@-[]".contains(byte))
        .take(LONGEST_NAME)
        .count();
    // The next literal decides where a name ends: a dot or a bracket may belong to either.
    let literal = if placeholder(form).is_some() { None } else { form.chars().next() };
    for end in (1..=longest).rev() {
        let Some(rest) = text.get(end..) else { continue };
        if literal.is_none_or(|literal| rest.starts_with(literal))
            && let Some(numbers) = matched(form, rest)
        {
            return Some(numbers);
        }
    }
    None
}

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
/// A message with fewer letters might be ordinary text of a request.
const MIN_DECISIVE: usize = 12;

fn decisive(text: &str, limit: Option<u64>) -> Vec<String> {
    let Some(limit) = limit else {
        let sentence = text.trim_end_matches('.');
        return if sentence.len() >= MIN_DECISIVE { vec![sentence.to_owned()] } else { vec![] };
    };
    // The sentences with the limit's number: an error may also quote the request.
    let digits = limit.to_string();
    let mut sentences = Vec::new();
    for sentence in text.split(". ") {
        let without_separators: String =
            sentence.chars().filter(|sign| !matches!(sign, ',' | '_')).collect();
        if without_separators.contains(&digits) {
            sentences.push(sentence.trim_end_matches('.').to_owned());
        }
    }
    sentences
}

fn plain(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.extend(word.chars().flat_map(char::to_lowercase));
    }
    words
}

fn request_text(request: &QuotableText<'_>) -> String {
    // Whatever a provider could quote, in the form used for comparison.
    let mut quotable = String::with_capacity(request.body.len());
    for text in &request.texts {
        quotable.push_str(text);
        quotable.push('\n');
        quotable.push_str(&url_decoded(text));
        quotable.push('\n');
    }
    let document = Document::read(request.body).ok();
    match document.as_ref().and_then(|document| document.root(request.body)) {
        Some(root) => gather(root, &mut quotable),
        None => quotable.push_str(&String::from_utf8_lossy(request.body)),
    }
    plain(&quotable)
}

fn gather(root: Value<'_>, out: &mut String) {
    // Without recursion, so that nesting needs no stack.
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value.kind() {
            Kind::Object => {
                for (key, value) in value.entries() {
                    out.push_str(&key.text());
                    out.push('\n');
                    waiting.push(value);
                }
            }
            Kind::Array => waiting.extend(value.items()),
            Kind::String => {
                let text = value.text().unwrap_or_default();
                out.push_str(&text);
                out.push('\n');
                // A string may contain JSON, as the arguments of a call.
                if text.contains('\\') {
                    out.push_str(&text.replace("\\\"", "\"").replace("\\n", " "));
                    out.push('\n');
                }
            }
            _ => {}
        }
    }
}

fn url_decoded(text: &str) -> String {
    // A path or query with `%xx` and `+` decoded; empty if it has neither.
    if !text.contains(['%', '+']) {
        return String::new();
    }
    decoded(&text.replace('+', " ")).into_owned()
}

#[cfg(test)]
mod tests;
