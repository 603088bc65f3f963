//! Checks spending caps.
//!
//! A cap that could never be reached, or that would refuse everything, is a fault.

use strum::VariantNames as _;

use super::{LONGEST_NAME, Resolver};
use crate::config::raw::{RawCap, RawConfig};
use crate::context::caps::{Cap, CapPeriod, CapSubject};

impl Resolver<'_> {
    pub(super) fn caps(&mut self, raw: &RawConfig) -> Vec<Cap> {
        let mut caps = Vec::new();
        for name in self.entry.keys(&["cap"]) {
            if let Some(cap) = raw.cap.get(&name) {
                caps.extend(self.cap(&name, cap));
            }
        }
        caps
    }

    fn cap(&mut self, name: &str, raw: &RawCap) -> Option<Cap> {
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_name_byte) {
            let todo = format!("Use at most {LONGEST_NAME} letters, digits, `-` and `_`.");
            self.wrong(&["cap", name], format!("{name:?} is no name for a cap"), todo);
        }
        if raw.dollars.is_none() && raw.tokens.is_none() {
            self.wrong(&["cap", name], "has no limit", "Add dollars, tokens, or both.");
        }
        if raw.dollars.is_some_and(|most| !most.is_finite() || most <= 0.0) {
            let path = ["cap", name, "dollars"];
            self.wrong(&path, "is not more than 0", "Write US dollars, such as 5 or 0.5.");
        }
        if raw.tokens == Some(0) {
            self.wrong(&["cap", name, "tokens"], "0 is too small", "Write 1 or more.");
        }
        let Some(of) = raw.of.as_deref() else {
            let todo = format!("Add of: one of {}.", CapSubject::VARIANTS.join(", "));
            self.wrong(&["cap", name], "does not say whose spending it limits", todo);
            return None;
        };
        let (kind, only) = match of.split_once(':') {
            Some((kind, only)) => (kind, Some(only)),
            None => (of, None),
        };
        let path = ["cap", name, "of"];
        let Ok(subject) = kind.parse::<CapSubject>() else {
            let todo = format!("Write one of {}.", CapSubject::VARIANTS.join(", "));
            self.wrong(&path, format!("{of:?} is nobody whose spending is known"), todo);
            return None;
        };
        if only.is_some_and(str::is_empty) || only.is_some() && subject == CapSubject::All {
            self.wrong(&path, format!("{of:?} names nobody"), "Write a name after the colon.");
        }
        if raw.per == CapPeriod::Session && subject != CapSubject::Session {
            let todo = "Write hour, day or month.";
            self.wrong(&["cap", name, "per"], "only sessions have sums without an end", todo);
        }
        Some(Cap {
            name: name.into(),
            of: subject,
            only: only.map(Into::into),
            per: raw.per,
            dollars: raw.dollars,
            tokens: raw.tokens,
        })
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}
