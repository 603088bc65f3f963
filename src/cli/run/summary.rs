//! What a command's calls were: four lines at its end.
//!
//! The calls are known by a tag in the base URL that the command got, so nobody else's are among them.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::failures::FailuresPage;
use crate::admin::spend::{SpendLine, SpendPage};
use crate::admin::view::ServerInfo;
use crate::cli::admin_client::AdminClient;
use crate::cli::print;
use crate::context::budget::grouped;
use crate::dialect::percent::encoded;

/// How long to wait for turns that are still being stored, and how often to check.
const STORED_WITHIN: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The tag of one run; `None` if the running proxy reads no tags in paths.
pub(super) struct RunTag(Option<String>);

impl RunTag {
    pub(super) fn new(about: &ServerInfo) -> Self {
        if !about.path_tags {
            return Self(None);
        }
        let mut number = [0; 4];
        let is_random = getrandom::fill(&mut number).is_ok();
        Self(is_random.then(|| format!("run={:08x}", u32::from_le_bytes(number))))
    }

    /// The base URL with the tag.
    pub(super) fn base(&self, root: &str) -> String {
        match &self.0 {
            Some(tag) => format!("{root}/~{tag}"),
            None => root.to_owned(),
        }
    }

    /// Prints what came through since `began`.
    pub(super) async fn summarise(
        &self,
        client: &AdminClient,
        began: u64,
        has_succeeded: bool,
        as_json: bool,
    ) {
        let by_tag = format!("/api/v1/spend?by=tag&since={began}");
        let Ok(page) = client.value::<SpendPage>(&by_tag).await else { return };
        let line = match &self.0 {
            Some(tag) => page.lines.into_iter().find(|line| line.name == *tag).unwrap_or_default(),
            None => {
                print::note("the running Plimsoll is of another version: others' calls count, too");
                page.total
            }
        };
        let tag = self.0.as_deref().map(|tag| format!("&tag={}", encoded(tag))).unwrap_or_default();
        let failed = format!("/api/v1/failures?since={began}{tag}");
        let failures = client.value::<FailuresPage>(&failed).await.ok();
        if as_json {
            // Standard output belongs to the command.
            let mut line = serde_json::to_value(&line).unwrap_or_default();
            line["failed"] = serde_json::to_value(&failures).unwrap_or_default();
            return print::error_json(&line.to_string());
        }
        print::note(&text(&line, failures.as_ref(), has_succeeded));
    }
}

/// `failures`: the calls that became no turn; `None` if the proxy does not say.
fn text(line: &SpendLine, failures: Option<&FailuresPage>, has_succeeded: bool) -> String {
    let failures = failures.filter(|failures| failures.calls > 0);
    match (line.calls, failures) {
        (0, Some(failures)) => {
            let calls = failures.calls;
            let many = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
            return format!(
                "{many} came through, and all failed: {}. The reply of each says why, and the log \
                 has every one",
                failures.described()
            );
        }
        (0, None) if has_succeeded => {
            return "nothing came through the proxy: does the command read its base URL from the \
                    environment? docs/clients.md says how agents are pointed"
                .to_owned();
        }
        (0, None) => return "the command failed before it made a call".to_owned(),
        _ => {}
    }
    let cached = line.cache_read as f64 * 100.0 / line.input.max(1) as f64;
    let mut text = format!("calls   {}", grouped(line.calls));
    match failures {
        Some(failures) => {
            let calls = grouped(failures.calls);
            let _ = writeln!(text, ", and {calls} failed: {}", failures.described());
        }
        None => text.push('\n'),
    }
    let _ = writeln!(
        text,
        "          tokens  {} in ({cached:.0}% from the cache), {} out",
        grouped(line.input),
        grouped(line.output)
    );
    let unpriced = match line.unpriced {
        0 => String::new(),
        calls => format!(" (without {} calls whose price is not known)", grouped(calls)),
    };
    let _ = writeln!(text, "          cost    ${:.4}{unpriced}", line.dollars);
    let tokens = grouped(line.removed);
    let _ = write!(text, "          saved   {tokens} tokens not sent, ${:.4}", line.saved);
    text
}

pub(super) async fn wait_until_stored(client: &AdminClient) {
    // A turn may be stored after its response was sent.
    let stored = async {
        while client.about().await.is_ok_and(|about| about.in_flight > 0) {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    // A proxy that others use too may never be idle.
    let _ = tokio::time::timeout(STORED_WITHIN, stored).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::failures::FailureKind;
    use crate::context::Outcome;

    #[test]
    fn four_lines_at_the_end() {
        let line = SpendLine {
            calls: 12,
            input: 20_000,
            cache_read: 15_000,
            output: 1_234,
            dollars: 0.1234,
            removed: 4_000,
            saved: 0.01,
            ..SpendLine::default()
        };
        let expected = "calls   12\n          tokens  20,000 in (75% from the cache), 1,234 out\n          \
                        cost    $0.1234\n          saved   4,000 tokens not sent, $0.0100";
        assert_eq!(text(&line, None, true), expected);
        let three = failures(3);
        let shown = text(&line, Some(&three), true);
        assert!(shown.starts_with("calls   12, and 3 failed: 3 × 500\n"), "{shown}");
    }

    #[test]
    fn failed_calls_came_through() {
        let none = SpendLine::default();
        let shown = text(&none, Some(&failures(3)), false);
        assert!(shown.starts_with("3 calls came through, and all failed: 3 × 500."), "{shown}");
    }

    #[test]
    fn failed_command_is_not_pointed_wrongly() {
        let none = SpendLine::default();
        let shown = text(&none, Some(&FailuresPage::default()), false);
        assert_eq!(shown, "the command failed before it made a call");
        assert!(text(&none, None, true).starts_with("nothing came through the proxy"));
    }

    fn failures(calls: u64) -> FailuresPage {
        let kind = FailureKind { status: Some(500), outcome: Outcome::Refused, calls };
        FailuresPage { calls, kinds: vec![kind], ..FailuresPage::default() }
    }
}
