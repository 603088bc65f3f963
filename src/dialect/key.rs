//! Identity by meaning: keys of parts and chains of prefixes, the same however a client spells it.
//!
//! What a client changes without changing the meaning must not change a key (`clients.md` §0.9,
//! §0.10): cache markers, string or block form, order and spacing of tool arguments, white space
//! around text, the base64 alphabet. Reasoning has no key: clients drop it.

use serde::{Deserialize, Serialize};

/// 128-bit identity of a part's stable content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey(pub u128);

/// Identity of a prefix of a conversation: a running hash of part keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain(pub u128);

impl Chain {
    /// The empty prefix.
    pub const START: Chain = Chain(0);

    /// The prefix with one more part.
    #[must_use]
    pub fn then(self, key: PartKey) -> Chain {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&key.0.to_le_bytes());
        Chain(xxhash_rust::xxh3::xxh3_128(&bytes))
    }
}

macro_rules! as_hex {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(text, 16).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_hex!(PartKey);
as_hex!(Chain);
