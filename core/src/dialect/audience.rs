//! Who reads a part of a request: the model, a program of the provider, or nobody yet (`docs/protocols.md` 12).
//!
//! The readers of the dialects say who called a tool, which tools are deferred, and what loads them. `assign` derives
//! the audience from that, in one pass for all dialects. What is counted, cut, summarised, added or shown asks the part
//! for its audience, and for nothing else.

pub(super) mod assign;

use crate::wire::json::Value;

/// Who reads a part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// The model: it is in the context.
    #[default]
    Model,
    /// A program that the model wrote, which runs at the provider: calls that it made, and their results. They are
    /// not in the context, and their bytes are data.
    Program,
    /// Nobody: a tool that is not loaded. It is not in the context until something loads it.
    Nobody,
}

impl Audience {
    /// The audience of a call or a result, by its member `caller`: the model calls directly, everything else is a
    /// program.
    pub(super) fn by_caller(item: Value<'_>) -> Self {
        let caller = item.get("caller").and_then(|caller| caller.get("type"));
        match caller.and_then(|kind| kind.text()).as_deref() {
            None | Some("direct") => Self::Model,
            Some(_) => Self::Program,
        }
    }
}

/// What a part is of a step that runs at the provider and may take longer than one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// A call of the provider's own tool, or a program.
    Begins,
    /// Its result, which has the same id.
    Ends,
}
