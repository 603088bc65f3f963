//! Where the facts about a model come from, and how old the table is that has them.
//!
//! Must not know what the facts are.

use jiff::civil::Date;
use serde::Serialize;

/// Where a fact comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum FactSource {
    /// The table that is built in.
    BuiltIn {
        /// When it was made.
        date: Option<Date>,
    },
    /// The configured table.
    Table {
        /// Its file or URL.
        place: Box<str>,
        /// The date that it names, else that of its file.
        date: Option<Date>,
    },
    /// The configuration.
    Configuration,
    /// Nowhere: it is a guess.
    Guess,
    /// Nowhere, and nothing is assumed.
    Unknown,
}

/// Where each fact about a model comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FactSources {
    /// Its window.
    pub window: FactSource,
    /// Its largest output.
    pub max_output: FactSource,
    /// Its tokenizer.
    pub family: FactSource,
    /// Its price.
    pub price: FactSource,
}

/// The date that the comment at the beginning of a table names: `# … Date: 2026-11-29.`
pub(super) fn date_in(text: &str) -> Option<Date> {
    let comment = text.lines().take_while(|line| line.starts_with('#') || line.trim().is_empty());
    let mut dates = comment.filter_map(|line| line.split_once("Date:"));
    dates.find_map(|(_, rest)| rest.trim_start().get(..10)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_stands_in_the_first_comment() {
        let date = Some(Date::constant(2023, 1, 5));
        assert_eq!(date_in("# Date: 2023-01-05\n[models]"), date);
        assert_eq!(date_in("# Of mine.\n\n# By hand. Date: 2023-01-05.\n"), date);
        assert_eq!(date_in("[models]\n# Date: 2023-01-05"), None);
        assert_eq!(date_in("# Date: é2023-01-05"), None);
        assert_eq!(date_in("# Date: soon"), None);
    }
}
