//! Ids of what belongs together: the tenant, the session, the thread and the exchange of a request.
//!
//! Each is a type of its own, so that none can be passed as another. Stored and served as plain text. A request's ids are
//! kept in some forty places, so all of them share the text.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, text: &str) -> bool {
                *self.0 == *text
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, text: &&str) -> bool {
                *self.0 == **text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )+};
}

ids! {
    /// A tenant: a keyed hash of the request's credential, 16 hex digits.
    TenantId

    /// A session: the id that the client gave it, or one of ours for a lineage without one.
    SessionId

    /// A thread, one lineage of messages in a session: 16 hex digits of the exchange with which it began.
    ThreadId

    /// An exchange: one request and its response.
    ExchangeId
}

/// Longest name of a client that is accepted, bytes. The longest seen has 90.
pub(super) const MAX_NAME: usize = 128;

pub(super) fn is_name(text: &str) -> bool {
    // Names appear in logs, addresses and terminals, so they must be short and have only safe
    // characters.
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:@+=~".contains(&b))
        && text.bytes().any(|b| b.is_ascii_alphanumeric())
        && !matches!(text, "null" | "undefined" | "none" | "None" | "unknown" | "default")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    /// In stores and responses, ids are written as they were before they had types.
    #[test]
    fn id_is_plain_text() {
        let id = SessionId::from("s-1");
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""s-1""#);
        assert_eq!(serde_json::from_str::<SessionId>(r#""s-1""#).unwrap(), id);
        assert_eq!(format!("{id:>5}"), "  s-1");
        assert_eq!(format!("{id:?}"), r#""s-1""#);
        assert!(id == "s-1");
        assert!(id != *"s-2");
    }

    #[test]
    fn map_of_ids_is_looked_up_by_text() {
        let hashed = HashMap::from([(TenantId::from("t"), 1)]);
        let sorted = BTreeMap::from([(ExchangeId::from(String::from("e")), 2)]);
        assert_eq!(hashed.get("t"), Some(&1));
        assert_eq!(hashed.get("u"), None);
        assert_eq!(sorted.get("e"), Some(&2));
    }
}
