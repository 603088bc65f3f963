//! `plimsoll lessons`: what upstreams taught by refusals, to whom it applies, and until when.
//!
//! Lists, shares and deletes through the admin API; decides nothing.

use http::Method;

use super::admin_client::AdminClient;
use super::print::{self, CliError};
use super::sessions::table::age;
use super::table::columns;
use crate::admin::lessons::{LessonDecision, LessonList, LessonView};
use crate::context::Millis;
use crate::context::budget::grouped;
use crate::dialect::percent::encoded;
use crate::store::lessons::LessonScope;

const PATH: &str = "/api/v1/lessons";

/// Deletes or shares a lesson; without either, lists all lessons.
pub(super) async fn run(
    client: &AdminClient,
    forget: Option<&str>,
    share: Option<&str>,
    now: Millis,
    as_json: bool,
) -> Result<(), CliError> {
    let decided: LessonDecision = match (forget, share) {
        (Some(id), _) => {
            client.request_value(&Method::DELETE, &format!("{PATH}/{}", encoded(id)), "").await?
        }
        (None, Some(id)) => {
            client
                .request_value(&Method::POST, &format!("{PATH}/{}/share", encoded(id)), "")
                .await?
        }
        (None, None) => return list(client, now, as_json).await,
    };
    let id = &decided.id;
    match (as_json, decided.shared) {
        (true, _) => print::json(&decided),
        (false, true) => print::line(&format!("{id} applies to all until it is deleted.")),
        (false, false) => print::line(&format!("{id} is deleted.")),
    }
    Ok(())
}

async fn list(client: &AdminClient, now: Millis, as_json: bool) -> Result<(), CliError> {
    let list: LessonList = client.value(PATH).await?;
    match as_json {
        true => print::json(&list),
        false if list.lessons.is_empty() => print::line("There are no lessons."),
        false => print::out(&table(&list.lessons, now)),
    }
    Ok(())
}

fn table(lessons: &[LessonView], now: Millis) -> String {
    let head = ["ID", "UPSTREAM", "MODEL", "WHAT", "TENANTS", "SINCE", "EXPIRES", "APPLIES TO"];
    let mut rows = vec![head.map(String::from)];
    for view in lessons {
        let what = match (view.window, view.believed) {
            (Some(window), Some(believed)) => {
                format!("{} {}, not {}", view.lesson, grouped(window), grouped(believed))
            }
            (Some(window), None) => format!("{} {}", view.lesson, grouped(window)),
            (None, _) => view.lesson.clone(),
        };
        let expires = view.expires.map_or("never".to_owned(), |at| {
            format!("in {} h", at.saturating_sub(now).div_ceil(3_600_000))
        });
        let holds = match view.reach {
            LessonScope::Tenants => "those who got it",
            LessonScope::Shared => "all: shared",
        };
        let model = if view.model.is_empty() { "all" } else { &view.model };
        rows.push([
            view.id.clone(),
            view.upstream.clone(),
            model.to_owned(),
            what,
            view.tenants.to_string(),
            age(now, view.since),
            expires,
            holds.to_owned(),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_scope_and_expiry() {
        let of = |lesson: &str, window: Option<u64>, reach, expires| LessonView {
            id: "0123".into(),
            upstream: "up".into(),
            model: window.map_or_else(String::new, |_| "m".to_owned()),
            lesson: lesson.into(),
            window,
            believed: window.map(|_| 200_000),
            tenants: 2,
            since: 0,
            expires,
            reach,
        };
        let lessons = [
            of("window", Some(9_000), LessonScope::Tenants, Some(7_200_000)),
            of("include_usage refused", None, LessonScope::Shared, None),
        ];
        let table = table(&lessons, 3_600_000);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert!(lines[0].ends_with("APPLIES TO"), "{table}");
        for part in ["  2  ", "window 9,000, not 200,000", "in 1 h"] {
            assert!(lines[1].contains(part), "{part}: {table}");
        }
        assert!(lines[2].contains("  all  "), "{table}");
        assert!(lines[2].ends_with("all: shared"), "{table}");
    }
}
