//! The scripts that the server runs: each is one step that nothing comes in between.
//!
//! They are loaded when the server does not have them, also after it lost them.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident: $file:literal),+ $(,)?) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!($file)));)+
    };
}

scripts! {
    PUT: "put.lua",
    SCAN: "scan.lua",
    SIZE: "size.lua",
    DROP: "drop.lua",
    DRAFT: "draft.lua",
    INDEX: "index.lua",
    EXPIRED: "expired.lua",
    UNLIST: "unlist.lua",
    CLAIM: "claim.lua",
    DELETE_IF: "delete_if.lua",
}
