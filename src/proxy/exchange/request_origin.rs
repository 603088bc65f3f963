//! Where a request comes from: its connection, the agent that sends it, and the folder that the agent works in.
//!
//! Names that stand in the text of a request are hashed, unless `content.names` is on. Nothing is decided by them.

use http::HeaderMap;
use http::header::{HeaderValue, USER_AGENT};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::presets::Preset;
use crate::context::compact;
use crate::context::lineage::Growth;
use crate::dialect::Purpose;
use crate::dialect::agent::{self, Agent};
use crate::proxy::http::connection::ClientConnection;
use crate::proxy::http::headers;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::RequestSource;

pub(super) fn source(headers: &HeaderMap, connection: &ClientConnection) -> RequestSource {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    RequestSource { connection: connection.number, agent: xxh3_64(agent) }
}

pub(super) fn compacts(headers: &HeaderMap, proxy: &Proxy) -> Option<bool> {
    // A preset compacts where its document says, whoever sends.
    compacts_under(proxy.config.preset, headers)
}

fn compacts_under(preset: Option<Preset>, headers: &HeaderMap) -> Option<bool> {
    match preset {
        Some(_) => Some(false),
        None if compact::compacts_by_itself(headers) => Some(true),
        // The session will show it.
        None => None,
    }
}

pub(super) fn set(request: &mut PlacedRequest, request_headers: &HeaderMap) {
    let PlacedRequest { proxy, planned, opened, .. } = request;
    let PreparedRequest { conversation, body, .. } = &*planned.prepared;
    opened.origin.tags = headers::tags(request_headers);
    let keeps_names = proxy.config.content.names;
    opened.keeps_title = keeps_names
        && conversation.purpose == Purpose::Side
        && agent::asks_for_title(conversation, body);
    // Only where a thread begins: the turns after it say the same. A warm-up may come before the folder is stated.
    if matches!(opened.placed.growth, Growth::Grows | Growth::Repeats)
        && let Some(parent_turn) = &opened.placed.parent
        && parent_turn.purpose != Purpose::WarmUp
        && let Some(origin) = parent_turn.origin.as_deref()
    {
        opened.origin.agent.clone_from(&origin.agent);
        opened.origin.project.clone_from(&origin.project);
        return;
    }
    opened.origin.agent = Agent::from_request(request_headers, conversation, body);
    let path = agent::project_path(conversation, body);
    opened.origin.project = path.and_then(|path| match keeps_names {
        true => agent::folder(&path),
        false => Some(hashed_name(&proxy.tenant_key, &path)),
    });
}

fn hashed_name(key: &[u8; 32], path: &str) -> Box<str> {
    // The name says nothing of the folder, and is the same for the same path.
    let key = blake3::derive_key("plimsoll names of project folders", key);
    format!("#{}", &blake3::keyed_hash(&key, path.as_bytes()).to_hex()[..8]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_compact_for_every_client() {
        let agent = HeaderValue::from_static("opencode/1.18.33");
        let headers = HeaderMap::from_iter([(USER_AGENT, agent)]);
        assert_eq!(compacts_under(None, &headers), Some(true));
        assert_eq!(compacts_under(Some(Preset::Opencode), &headers), Some(false));
        assert_eq!(compacts_under(None, &HeaderMap::new()), None);
    }
}
