//! `plimsoll export --format`: a session as a document for people, in Markdown or HTML.
//!
//! Both are made of the same blocks. HTML is one file without scripts; Markdown is read as it is.

use std::fmt::Write as _;

use serde::Deserialize;

use super::times;
use crate::context::budget::grouped;

/// What is exported of a session.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct ExportOptions {
    /// Include the text, if it was stored (`content.keep = true`), with secrets masked.
    #[arg(long)]
    pub(super) content: bool,
    /// In what form.
    #[arg(long, value_enum, default_value = "jsonl")]
    pub(super) format: ExportFormat,
    /// Leave what looks like a secret in the text.
    #[arg(long, requires = "content")]
    pub(super) unmasked: bool,
}

/// In what form a session is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ExportFormat {
    /// One line of JSON per call; `plimsoll replay` reads it.
    Jsonl,
    /// A document in Markdown.
    Markdown,
    /// A document in HTML, one file without scripts.
    Html,
}

/// One call, as the admin listener exports it.
#[derive(Deserialize)]
struct ExportedCall {
    /// The hash of its thread's names.
    session: String,
    model: String,
    ts: u64,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    new_parts: Vec<ExportedPart>,
    #[serde(default)]
    reply: Vec<ExportedPart>,
    usage: ExportedUsage,
    #[serde(default)]
    dollars: Option<f64>,
}

#[derive(Deserialize)]
struct ExportedUsage {
    input_total: u64,
    #[serde(default)]
    output: Option<u64>,
}

#[derive(Deserialize)]
struct ExportedPart {
    role: String,
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    name: Option<String>,
    /// Bytes of its text.
    #[serde(default)]
    chars: u64,
    /// Its estimated tokens, if there is no text.
    #[serde(default)]
    tokens: u64,
    /// It is the reply to the call before.
    #[serde(default)]
    reply: bool,
    /// 1 if its text was left out.
    #[serde(default)]
    redacted: u64,
}

/// A piece of a document.
enum DocumentPart<'c> {
    /// A thread begins.
    Thread(&'c str),
    /// A call: its title, and what it cost.
    Call(String, String),
    /// Text of somebody.
    Said(&'static str, &'c str),
    /// Something for machines: what it is, and its text.
    Code(String, &'c str),
    /// A part whose text is not there.
    Missing(String),
}

/// What content an export lacks, and why; `None` if it is complete.
pub(super) fn unkept(lines: &str) -> Option<String> {
    let calls = calls(lines);
    let mut without = 0;
    let mut cut = 0;
    let mut gaps = 0;
    for call in &calls {
        without += usize::from(call.flags.iter().any(|flag| flag == "no_content"));
        gaps += usize::from(call.flags.iter().any(|flag| flag == "content_gap"));
        let mut parts = call.new_parts.iter().chain(&call.reply);
        cut += usize::from(parts.any(|part| part.redacted > 0));
    }
    if without + cut + gaps == 0 {
        return None;
    }
    Some(format!(
        "Of {} calls, {without} are without their text, {cut} have a part of it, {gaps} lack some text \
         from before; usage and sizes of all are complete. Text is stored only for calls that are made \
         while content.keep = true, up to 4 MiB of an exchange and 64 MiB of a session.",
        calls.len()
    ))
}

fn calls(lines: &str) -> Vec<ExportedCall> {
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The document of exported lines.
pub(super) fn document(lines: &str, format: ExportFormat) -> String {
    let calls = calls(lines);
    let blocks = blocks(&calls);
    match format {
        ExportFormat::Jsonl => lines.to_owned(),
        ExportFormat::Markdown => markdown(&blocks),
        ExportFormat::Html => html(&blocks),
    }
}

fn blocks(calls: &[ExportedCall]) -> Vec<DocumentPart<'_>> {
    let mut blocks = Vec::new();
    let mut thread = "";
    let mut number = 0;
    for call in calls {
        if call.session != thread {
            thread = &call.session;
            number = 0;
            blocks.push(DocumentPart::Thread(thread));
        }
        number += 1;
        blocks.push(DocumentPart::Call(format!("Call {number}"), facts(call)));
        let has_reply = number > 1;
        // The reply to the call before was shown with that.
        let added = call.new_parts.iter().filter(|part| !(part.reply && has_reply));
        blocks.extend(added.chain(&call.reply).map(block));
    }
    blocks
}

fn facts(call: &ExportedCall) -> String {
    let mut facts = format!("{}, {}", times::full(call.ts), call.model);
    let _ = write!(facts, ", {} tokens in", grouped(call.usage.input_total));
    if let Some(output) = call.usage.output {
        let _ = write!(facts, ", {} out", grouped(output));
    }
    if let Some(dollars) = call.dollars {
        let _ = write!(facts, ", ${dollars:.4}");
    }
    facts
}

fn block(part: &ExportedPart) -> DocumentPart<'_> {
    let title = match (part.kind.as_str(), part.role.as_str()) {
        ("tool_use", _) => "Calls",
        ("tool_result", _) => "Result",
        ("tools", _) => "Tool",
        ("thinking", _) => "Thinks",
        ("image", _) => "Picture",
        (_, "system") => "System",
        (_, "assistant") => "Assistant",
        _ => "User",
    };
    if part.text.is_empty() {
        let size = match part.tokens {
            0 => format!("{} bytes", grouped(part.chars)),
            tokens => format!("{} tokens", grouped(tokens)),
        };
        return DocumentPart::Missing(format!("{title}: {size}"));
    }
    match part.kind.as_str() {
        "text" | "thinking" => DocumentPart::Said(title, &part.text),
        _ => {
            let name = part.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            DocumentPart::Code(format!("{title}{name}"), &part.text)
        }
    }
}

fn markdown(blocks: &[DocumentPart<'_>]) -> String {
    let mut text = "# Session\n".to_owned();
    for block in blocks {
        let _ = match block {
            DocumentPart::Thread(name) => write!(text, "\n## Thread {name}\n"),
            DocumentPart::Call(title, facts) => write!(text, "\n### {title}\n\n{facts}\n"),
            DocumentPart::Said(who, said) => write!(text, "\n**{who}:**\n\n{said}\n"),
            DocumentPart::Code(title, code) => {
                let fence = fence(code);
                write!(text, "\n**{title}:**\n\n{fence}\n{code}\n{fence}\n")
            }
            DocumentPart::Missing(what) => write!(text, "\n*{what}*\n"),
        };
    }
    text
}

/// A fence that is longer than any in the text.
fn fence(code: &str) -> String {
    let longest = code.split(|other| other != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.6rem;border-radius:.3rem}\
    h2,h3{border-top:1px solid #8885;padding-top:.6rem}p.facts,p.missing{opacity:.7}\
    :root{color-scheme:light dark}";

fn html(blocks: &[DocumentPart<'_>]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Session</title><style>{STYLE}</style>\n<h1>Session</h1>\n"
    );
    for block in blocks {
        let _ = match block {
            DocumentPart::Thread(name) => writeln!(text, "<h2>Thread {}</h2>", escaped(name)),
            DocumentPart::Call(title, facts) => {
                writeln!(
                    text,
                    "<h3>{}</h3><p class=\"facts\">{}</p>",
                    escaped(title),
                    escaped(facts)
                )
            }
            DocumentPart::Said(who, said) => {
                writeln!(text, "<h4>{}</h4><pre>{}</pre>", escaped(who), escaped(said))
            }
            DocumentPart::Code(title, code) => {
                let (title, code) = (escaped(title), escaped(code));
                writeln!(
                    text,
                    "<details><summary>{title}</summary><pre><code>{code}</code></pre></details>"
                )
            }
            DocumentPart::Missing(what) => {
                writeln!(text, "<p class=\"missing\">{}</p>", escaped(what))
            }
        };
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> String {
        let first = r#"{"session":"a1","model":"m","ts":0,"new_parts":[{"role":"system","kind":"text","text":"Be calm."},{"role":"user","kind":"text","text":"Is 1 < 2?"}],"reply":[{"role":"assistant","kind":"tool_use","name":"Read","text":"{\"path\":\"```\"}"}],"usage":{"input_total":1204,"output":5},"dollars":0.5}"#;
        let second = r#"{"session":"a1","model":"m","ts":0,"new_parts":[{"role":"assistant","kind":"tool_use","name":"Read","text":"again","reply":true},{"role":"user","kind":"tool_result","chars":9}],"usage":{"input_total":9}}"#;
        format!("{first}\n{second}\n")
    }

    #[test]
    fn markdown_has_each_part_once() {
        let text = document(&lines(), ExportFormat::Markdown);
        assert!(text.contains("### Call 1\n\n"), "{text}");
        assert!(text.contains(", m, 1,204 tokens in, 5 out, $0.5000\n"), "{text}");
        assert!(text.contains("\n**User:**\n\nIs 1 < 2?\n"), "{text}");
        assert!(text.contains("\n**Calls Read:**\n\n````\n{\"path\":\"```\"}\n````\n"), "{text}");
        assert!(!text.contains("again"), "{text}");
        assert!(text.contains("\n*Result: 9 bytes*\n"), "{text}");
    }

    #[test]
    fn html_escapes_what_was_said() {
        let text = document(&lines(), ExportFormat::Html);
        assert!(text.starts_with("<!doctype html>"), "{text}");
        assert!(text.contains("<h4>User</h4><pre>Is 1 &lt; 2?</pre>"), "{text}");
        assert!(!text.contains("<script"), "{text}");
    }
}
