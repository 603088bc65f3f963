//! Checks spending caps, of the configuration and of `plimsoll caps --set`.
//!
//! A cap that could never be reached, or that would refuse everything, is a fault.

use strum::VariantNames as _;

use super::{LONGEST_NAME, Resolver};
use crate::config::raw::{RawCap, RawConfig};
use crate::context::caps::{Cap, CapOrigin, CapPeriod, CapSubject};

/// What is wrong with a cap.
pub(crate) struct CapFault {
    /// The key that is wrong; `None`: the whole of it.
    key: Option<&'static str>,
    what: String,
    todo: String,
}

impl CapFault {
    fn new(key: Option<&'static str>, what: &str, todo: String) -> Self {
        Self { key, what: what.to_owned(), todo }
    }

    /// As a sentence and what to do.
    pub(crate) fn text(&self) -> String {
        let Self { key, what, todo } = self;
        format!("{} {what}. {todo}", key.unwrap_or("The cap"))
    }
}

impl Resolver<'_> {
    pub(super) fn caps(&mut self, raw: &RawConfig) -> Vec<Cap> {
        let mut caps = Vec::new();
        for name in self.entry.keys(&["cap"]) {
            let Some(cap) = raw.cap.get(&name) else { continue };
            match check(&name, cap, CapOrigin::Configuration) {
                Ok(cap) => caps.push(cap),
                Err(faults) => {
                    for CapFault { key, what, todo } in faults {
                        let path: Vec<&str> = ["cap", &name].into_iter().chain(key).collect();
                        self.wrong(&path, what, todo);
                    }
                }
            }
        }
        caps
    }
}

/// The cap that was written.
///
/// # Errors
/// All that is wrong with it.
pub(crate) fn check(name: &str, raw: &RawCap, origin: CapOrigin) -> Result<Cap, Vec<CapFault>> {
    let mut faults = Vec::new();
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_name_byte) {
        let todo = format!("Use at most {LONGEST_NAME} letters, digits, `-` and `_`.");
        faults.push(CapFault::new(None, &format!("{name:?} is no name for a cap"), todo));
    }
    if raw.dollars.is_none() && raw.tokens.is_none() {
        faults.push(CapFault::new(None, "has no limit", "Add dollars, tokens, or both.".into()));
    }
    if raw.dollars.is_some_and(|most| !most.is_finite() || most <= 0.0) {
        let todo = "Write US dollars, such as 5 or 0.5.".into();
        faults.push(CapFault::new(Some("dollars"), "is not more than 0", todo));
    }
    if raw.tokens == Some(0) {
        faults.push(CapFault::new(Some("tokens"), "0 is too small", "Write 1 or more.".into()));
    }
    let Some(of) = raw.of.as_deref() else {
        let todo = format!("Add of: one of {}.", CapSubject::VARIANTS.join(", "));
        faults.push(CapFault::new(None, "does not say whose spending it limits", todo));
        return Err(faults);
    };
    let (kind, only) = match of.split_once(':') {
        Some((kind, only)) => (kind, Some(only)),
        None => (of, None),
    };
    let Ok(subject) = kind.parse::<CapSubject>() else {
        let todo = format!("Write one of {}.", CapSubject::VARIANTS.join(", "));
        let what = format!("{of:?} is nobody whose spending is known");
        faults.push(CapFault::new(Some("of"), &what, todo));
        return Err(faults);
    };
    if only.is_some_and(str::is_empty) || only.is_some() && subject == CapSubject::All {
        let todo = "Write a name after the colon.".into();
        faults.push(CapFault::new(Some("of"), &format!("{of:?} names nobody"), todo));
    }
    if raw.per == CapPeriod::Session && subject != CapSubject::Session {
        let todo = "Write hour, day or month.".into();
        faults.push(CapFault::new(Some("per"), "only sessions have sums without an end", todo));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Cap {
        name: name.into(),
        origin,
        of: subject,
        only: only.map(Into::into),
        per: raw.per,
        dollars: raw.dollars,
        tokens: raw.tokens,
    })
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}
