//! A member that a model does not know: it is removed at every place with that path.
//!
//! Never one that a message needs, or that says what is asked.

use crate::dialect::rewrite::without_member;
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// Members that a request needs, wherever they are; with what a reply has to be.
const NEEDED: &str = "* role content type text id tool_use_id tool_call_id call_id name input parts tool_calls \
    function description parameters input_schema format schema json_schema responseSchema responseJsonSchema \
    responseMimeType";
/// Members of the request itself that say what is asked.
const ASKED: &str = "model messages contents prompt system systemInstruction system_instruction instructions tools \
    functions function_call tool_choice toolConfig tool_config stream max_tokens max_completion_tokens max_output_tokens generationConfig \
    generation_config response_format output_format output_config thinking reasoning conversation \
    previous_response_id thread mcp_servers container cachedContent cached_content anthropic_version";

/// Whether a member at a path may be removed.
pub(crate) fn may_go(place: &str) -> bool {
    let name = place.rsplit('.').next().unwrap_or_default();
    // Without it, the client would get something else than it asked for.
    let is_asked = !place.contains('.') && is_in(ASKED, name);
    !name.is_empty() && !is_in(NEEDED, name) && !is_asked
}

fn is_in(list: &str, name: &str) -> bool {
    list.split(' ').any(|word| word == name)
}

/// The edits after which the member is at no place with that path.
pub(super) fn edits(root: Value<'_>, body: &[u8], place: &str) -> Vec<Edit> {
    if !may_go(place) {
        return Vec::new();
    }
    let mut values = vec![root];
    for name in place.split('.') {
        values = values
            .into_iter()
            .flat_map(|value| match (name, value.kind()) {
                ("*", Kind::Array) => value.items().collect::<Vec<_>>(),
                (name, Kind::Object) => value.get(name).into_iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    values.into_iter().filter_map(|value| without_member(body, value.span())).collect()
}
