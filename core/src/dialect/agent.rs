//! Which agent sends a request, and the folder that it works in (`config/agents.toml`).
//!
//! A client can send anything, so both are only shown, and nothing is decided by them. Values are bounded, and without
//! control characters. Pure.

use std::sync::LazyLock;

use http::HeaderMap;
use http::header::USER_AGENT;
use memchr::memmem::{self, Finder};
use serde::{Deserialize, Serialize};

use super::{Conversation, Role};

/// An agent, and its version if it states one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Agent {
    /// Its name: of the table, or as its user agent begins. Letters, digits, space and `._-/`.
    pub name: Box<str>,
    /// Its version. Letters, digits and `._+-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
}

/// Most bytes of a name, of an agent, a folder or a title.
const NAME_BYTES: usize = 80;
/// How many bytes of a user agent are read.
const USER_AGENT_BYTES: usize = 512;
/// Most bytes of a version.
const VERSION_BYTES: usize = 32;
/// How many bytes of a text are searched for what an agent calls itself.
const NEAR: usize = 4096;
/// How many bytes of a text are searched for the folder.
const FAR: usize = 64 << 10;
/// How many messages, and how many texts, are searched.
const MESSAGES: usize = 4;
const TEXTS: usize = 12;
/// Most bytes of a path, as it is written in JSON.
const PATH_BYTES: usize = 1024;

#[derive(Deserialize)]
struct AgentFile {
    agent: Vec<AgentRow>,
    project: Vec<ProjectRow>,
}

#[derive(Deserialize)]
struct AgentRow {
    name: Box<str>,
    #[serde(default)]
    user_agent: Vec<Box<str>>,
    #[serde(default)]
    prompt: Vec<Phrase>,
    /// User agents of another agent, which prove nothing by themselves.
    #[serde(default)]
    only_by_prompt: Vec<Box<str>>,
}

#[derive(Deserialize)]
struct ProjectRow {
    before: Phrase,
}

/// What an agent writes, as it stands in JSON; the search for it is prepared once.
#[derive(Deserialize)]
#[serde(from = "String")]
struct Phrase(Finder<'static>);

impl From<String> for Phrase {
    fn from(text: String) -> Self {
        Self(Finder::new(&text.replace('\n', "\\n")).into_owned())
    }
}

impl Phrase {
    /// The bytes after it in `text`.
    fn rest<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        let start = self.0.find(text)?;
        Some(&text[start + self.0.needle().len()..])
    }
}

static FILE: LazyLock<AgentFile> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../config/agents.toml"))
        .unwrap_or_else(|_| AgentFile { agent: Vec::new(), project: Vec::new() })
});

impl Agent {
    /// The agent that sends a request with these headers. `body`: what `conversation` was read from.
    pub fn from_request(
        headers: &HeaderMap,
        conversation: &Conversation,
        body: &[u8],
    ) -> Option<Self> {
        let user_agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok());
        let user_agent = user_agent.unwrap_or_default().trim();
        // It is ASCII, so it can be cut anywhere.
        let user_agent = &user_agent[..user_agent.len().min(USER_AGENT_BYTES)];
        let products = products(user_agent);
        let texts: Vec<&[u8]> = instructions(conversation, body, NEAR).collect();
        if let Some(row) = FILE.agent.iter().find(|row| row.has_prompt(&texts)) {
            return Some(Self { name: row.name.clone(), version: row.version(&products) });
        }
        // The prompt is more certain than the user agent, which SDKs write.
        let stated = FILE.agent.iter().find(|row| row.is_stated_by(&products));
        match stated {
            Some(row) => Some(Self { name: row.name.clone(), version: row.version(&products) }),
            None => Self::unlisted(user_agent),
        }
    }

    fn unlisted(user_agent: &str) -> Option<Self> {
        // The first product, written `name/version` or `name version`.
        let end = user_agent.find([' ', ';', '(']).unwrap_or(user_agent.len());
        let (product, rest) = user_agent.split_at(end);
        let mut slashes = product.match_indices('/').map(|(slash, _)| slash);
        let version_slash =
            slashes.find(|slash| product[slash + 1..].starts_with(|c: char| c.is_ascii_digit()));
        let (name, version) = match version_slash {
            Some(slash) => (&product[..slash], &product[slash + 1..]),
            // `OpenAI/Python 2.20.0`
            None => (product, rest.trim_start()),
        };
        let has_name_characters =
            name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        if name.is_empty() || name.len() > NAME_BYTES || !has_name_characters {
            return None;
        }
        Some(Self { name: name.into(), version: leading_version(version) })
    }

    /// Its memory, bytes.
    pub fn bytes(&self) -> usize {
        self.name.len() + self.version.as_deref().map_or(0, str::len)
    }
}

impl std::fmt::Display for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.version.as_deref().map_or(Ok(()), |version| write!(f, " {version}"))
    }
}

impl AgentRow {
    fn has_prompt(&self, texts: &[&[u8]]) -> bool {
        self.prompt.iter().any(|phrase| texts.iter().any(|text| phrase.rest(text).is_some()))
    }

    fn is_stated_by(&self, products: &[&str]) -> bool {
        let mut starts = self.user_agent.iter();
        starts.any(|start| after(products, start).is_some() && !self.only_by_prompt.contains(start))
    }

    fn version(&self, products: &[&str]) -> Option<Box<str>> {
        leading_version(self.user_agent.iter().find_map(|start| after(products, start))?)
    }
}

/// A user agent, and what is left of it from each later product on.
fn products(user_agent: &str) -> Vec<&str> {
    if user_agent.is_empty() {
        return Vec::new();
    }
    let later = user_agent.match_indices(' ').map(|(at, _)| &user_agent[at + 1..]);
    std::iter::once(user_agent).chain(later).collect()
}

fn after<'t>(products: &[&'t str], start: &str) -> Option<&'t str> {
    // Without regard to case, and not only in the first product: SDKs put their own name before it.
    products.iter().find_map(|product| {
        let (head, rest) = product.split_at_checked(start.len())?;
        head.eq_ignore_ascii_case(start).then_some(rest)
    })
}

fn leading_version(text: &str) -> Option<Box<str>> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "._+-".contains(c)));
    Some(text[..end.unwrap_or(text.len()).min(VERSION_BYTES)].into())
}

/// The texts that may have instructions: the system prompt, and the first messages of its user. Of each, at most `most` bytes,
/// as they are written in JSON.
fn instructions<'b>(
    conversation: &'b Conversation,
    body: &'b [u8],
    most: usize,
) -> impl Iterator<Item = &'b [u8]> {
    // The system prompt, and what its user says first: agents put their instructions into either.
    let users = conversation.messages.iter().filter(|message| message.role != Role::Assistant);
    let parts = users.take(MESSAGES).flat_map(|message| &message.parts);
    let parts = conversation.system.iter().chain(parts).take(TEXTS);
    let texts = parts.flat_map(|part| &part.texts).take(TEXTS).map(|span| span.slice(body));
    texts.map(move |text| &text[..text.len().min(most)])
}

/// The path of the folder that the agent works in, if its prompt states one.
pub fn project_path(conversation: &Conversation, body: &[u8]) -> Option<String> {
    let texts: Vec<&[u8]> = instructions(conversation, body, FAR).collect();
    FILE.project.iter().find_map(|row| texts.iter().find_map(|text| path(row.before.rest(text)?)))
}

fn path(text: &[u8]) -> Option<String> {
    let text = &text[..text.len().min(PATH_BYTES)];
    let mut end = 0;
    // As it is written in JSON: an escaped newline or a quote ends the path, an escaped slash does
    // not.
    loop {
        match text.get(end)? {
            b'\\' if matches!(text.get(end + 1), Some(b'\\' | b'/' | b'u')) => end += 2,
            b'\\' | b'"' | b'<' | b'`' | b')' => break,
            _ => end += 1,
        }
    }
    let written = std::str::from_utf8(&text[..end]).ok()?.trim();
    let path: String = serde_json::from_str(&format!("\"{written}\"")).ok()?;
    let path = path.trim_end_matches(['/', '\\', '.']);
    let mut chars = path.chars();
    // Absolute, in a home, or on a drive of Windows. The root alone names no project.
    let has_drive =
        chars.next().is_some_and(|c| c.is_ascii_alphabetic()) && chars.next() == Some(':');
    let is_absolute = path.starts_with(['/', '~']) || has_drive;
    if is_absolute && path.len() > 1 { Some(path.to_owned()) } else { None }
}

/// The last folder of a path, as a name.
pub fn folder(path: &str) -> Option<Box<str>> {
    display_name(path.rsplit(['/', '\\']).next()?)
}

/// A name that others chose, in one line and cut to a bounded length; `None` if nothing is left.
pub fn display_name(text: &str) -> Option<Box<str>> {
    let visible: String =
        text.trim().chars().map(|c| if is_hidden(c) { ' ' } else { c }).take(NAME_BYTES).collect();
    let name = visible[..visible.floor_char_boundary(NAME_BYTES)].trim();
    if name.is_empty() { None } else { Some(name.into()) }
}

fn is_hidden(c: char) -> bool {
    // Also the characters that change the direction of what follows, and those without a width.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// How far before the word the verb may be.
const TITLE_BYTES: usize = 40;

/// Whether a call beside a conversation asks for its title: its instructions say so.
pub fn asks_for_title(conversation: &Conversation, body: &[u8]) -> bool {
    let mut texts = instructions(conversation, body, NEAR);
    if texts.any(requests_title) {
        return true;
    }
    let Some(message) = conversation.messages.last() else { return false };
    let mut texts = message.parts.iter().flat_map(|part| &part.texts).map(|span| span.slice(body));
    texts.any(|text| requests_title(&text[..text.len().min(NEAR)]))
}

fn requests_title(text: &[u8]) -> bool {
    // Other calls only mention a title.
    let verbs = [&b"enerate"[..], b"rite", b"reate"];
    memmem::find_iter(text, b"itle").any(|at| {
        let introduction = &text[at.saturating_sub(TITLE_BYTES)..at];
        let has_verb = verbs.iter().any(|verb| memmem::find(introduction, verb).is_some());
        has_verb || text[at..].starts_with(b"itle generator")
    })
}

/// The title in the reply to such a call: the whole text, or the member `title` of a JSON object.
pub fn title(reply: &str) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct Titled {
        title: String,
    }
    let text = reply.trim();
    if text.starts_with('{') {
        return display_name(&serde_json::from_str::<Titled>(text).ok()?.title);
    }
    display_name(text.lines().next()?.trim_matches(['"', '#', '*', ' ']))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::{self, Dialect};

    fn read(system: &str, user: &str) -> (Conversation, Vec<u8>) {
        let body = serde_json::json!({"model": "m", "max_tokens": 9, "system": system,
            "messages": [{"role": "user", "content": user}]});
        let body = body.to_string().into_bytes();
        (dialect::read(Dialect::Anthropic, "/v1/messages", &body), body)
    }

    fn agent(user_agent: &[u8], system: &str) -> Option<String> {
        let (conversation, body) = read(system, "hi");
        let value = HeaderValue::from_bytes(user_agent).unwrap();
        let headers = HeaderMap::from_iter([(USER_AGENT, value)]);
        Agent::from_request(&headers, &conversation, &body).map(|agent| agent.to_string())
    }

    fn project(system: &str, user: &str) -> Option<String> {
        let (conversation, body) = read(system, user);
        project_path(&conversation, &body)
    }

    /// The prompts of opencode 1.18, Hermes 0.19 and of others that only mention titles.
    #[test]
    fn title_is_asked_for_with_verb() {
        let asks = |system, user| {
            let (conversation, body) = read(system, user);
            asks_for_title(&conversation, &body)
        };
        assert!(asks("You are a title generator. You output ONLY a thread title.", "hi"));
        assert!(asks("", "Generate a title for this conversation:"));
        assert!(asks("Generate a short, descriptive title (3-7 words) for a conversation.", "hi"));
        assert!(!asks("Choose the model for the next request.", "What is the title of this book?"));
        assert!(!asks("Cite sources as `[descriptive source title](https://example.com)`.", "hi"));
    }

    #[test]
    fn table_can_be_read() {
        assert!(FILE.agent.len() > 20);
        assert!(FILE.project.len() > 5);
        let only =
            FILE.agent.iter().flat_map(|row| row.only_by_prompt.iter().map(move |it| (row, it)));
        only.for_each(|(row, it)| assert!(row.user_agent.contains(it), "{}", row.name));
    }

    #[test]
    fn agents_known_by_prompt_and_header() {
        for (user_agent, system, name) in [
            (
                "claude-cli/2.1.332 (external, sdk-cli)",
                "You are Claude Code, a CLI.",
                "Claude Code 2.1.332",
            ),
            ("claude-cli/2.1.332 (external, sdk-cli)", "Make a title.", "Claude Code 2.1.332"),
            ("claude-cli/0.24.4 (external, cli)", "You are Qwen Code, a CLI.", "Qwen Code 0.24.4"),
            ("QwenCode/0.24.4 (linux; x64)", "", "Qwen Code 0.24.4"),
            ("codex_exec/0.169.0 (Debian 12.0.0; x86_64)", "", "Codex 0.169.0"),
            ("GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux)", "", "Gemini CLI 0.61.0"),
            ("OpenAI/JS 6.26.0", "You are an assistant operating inside pi, a harness.", "pi"),
            ("Anthropic/JS 0.91.0", "You are Cline, a skilled engineer.", "Cline"),
            ("OpenAI/Python 2.20.0", "", "OpenAI/Python 2.20.0"),
            ("some-agent/1.2-beta+x (y)", "", "some-agent 1.2-beta+x"),
            ("curl", "", "curl"),
            (
                "google-genai-sdk/1.75.0+vertex-genai-modules/1.165.1 gl-python/3.11.7 google-adk/1.14.1",
                "",
                "google-adk 1.14.1",
            ),
            (
                "google-genai-sdk/1.75.0+more/1.1 gl-python/3.11.7",
                "",
                "google-genai-sdk 1.75.0+more",
            ),
            ("OpenAI/Python 2.54.0", "You are Looker.\nYour personal goal is: look", "CrewAI"),
        ] {
            assert_eq!(agent(user_agent.as_bytes(), system).as_deref(), Some(name), "{user_agent}");
        }
        assert_eq!(agent(b"", ""), None);
    }

    #[test]
    fn hostile_user_agents_are_cut() {
        let long = format!("claude-cli/{}", "9".repeat(10_000));
        let name = agent(long.as_bytes(), "").unwrap();
        assert_eq!(name, format!("Claude Code {}", "9".repeat(VERSION_BYTES)));
        assert_eq!(agent("x".repeat(10_000).as_bytes(), ""), None);
        assert_eq!(agent(b"<b>x</b>/1.0", ""), None);
        assert_eq!(agent(b"a\xff/1.0", ""), None);
        assert_eq!(agent(b"agent/1.0\t<script>", "").as_deref(), Some("agent 1.0"));
    }

    #[test]
    fn folder_is_read_from_prompt() {
        for (system, user, path) in [
            ("<env>\nWorking directory: /home/jane/shop\nIs git", "", Some("/home/jane/shop")),
            (" - Primary working directory: /srv/a b\n", "", Some("/srv/a b")),
            ("", "<environment_context>\n  <cwd>/home/jane/shop/</cwd>", Some("/home/jane/shop")),
            ("The current working directory is `/w/kimi`.", "", Some("/w/kimi")),
            ("", "I'm currently working in the directory: /w/g\n", Some("/w/g")),
            ("", "**Workspace Directories:**\n  - /w/acp\n- **Dir", Some("/w/acp")),
            ("Working directory: C:\\Users\\jane\\shop\n", "", Some("C:\\Users\\jane\\shop")),
            ("Working directory: /w/\u{e9}t\u{e9} \"q\"\n", "", Some("/w/\u{e9}t\u{e9}")),
            ("Working directory: somewhere\n", "", None),
            ("Working directory: /\n", "", None),
            ("Working directory: ", "", None),
            ("No folder here.", "", None),
        ] {
            assert_eq!(project(system, user).as_deref(), path, "{system}{user}");
        }
        assert_eq!(project(&format!("Working directory: /{}\n", "x".repeat(2000)), ""), None);
    }

    #[test]
    fn names_are_one_short_line() {
        assert_eq!(folder("/home/jane/shop").as_deref(), Some("shop"));
        assert_eq!(folder("C:\\work\\shop").as_deref(), Some("shop"));
        assert_eq!(folder("/a/x\u{1b}[31m\u{202e}y").as_deref(), Some("x [31m y"));
        let long = "\u{e9}".repeat(300);
        assert_eq!(display_name(&long).unwrap().len(), NAME_BYTES);
        assert_eq!(display_name(" \u{7}\n "), None);
    }

    #[test]
    fn title_is_text_or_member() {
        assert_eq!(title("Fix the tide table\n").as_deref(), Some("Fix the tide table"));
        assert_eq!(title(r#"{"title": "Fix it"}"#).as_deref(), Some("Fix it"));
        assert_eq!(title("\"Quoted\"\nmore").as_deref(), Some("Quoted"));
        assert_eq!(title(r#"{"model_choice": "pro"}"#), None);
        assert_eq!(title(" "), None);
    }

    proptest! {
        #[test]
        fn invariant_8_never_panics(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (path(text.as_bytes()), path(&bytes), title(&text), folder(&text));
            let _ = (Agent::unlisted(&text), leading_version(&text), project(&text, &text));
            prop_assert!(display_name(&text).is_none_or(|name| name.len() <= NAME_BYTES));
        }
    }
}
