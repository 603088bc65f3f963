//! The views for whoever reads the file with a tool of their own.
//!
//! Nothing of ours reads them.

/// The columns of `turns` that `facts` holds.
pub(super) const TURNS: &str = "
SELECT
    datetime(facts.at / 1000, 'unixepoch') AS time,
    scopes.session AS session, thread, request, upstream, model, purpose, outcome, method,
    estimated, facts.input AS input,
    estimated - facts.input AS error,
    facts.output AS output, reasoning, facts.cache_read AS cache_read, cache_write, window,
    ended - facts.at AS milliseconds, tenants.name AS tenant, facts.at AS at
FROM facts JOIN scopes ON scopes.id = facts.scope JOIN tenants ON tenants.id = scopes.tenant
WHERE facts.kind = 1";

/// A view as it always was, over these turns.
pub(super) fn turns_view(turns: &str) -> String {
    format!(
        "CREATE VIEW turns AS SELECT
            time, session, thread, request, upstream, model, purpose, outcome, method, estimated,
            input, error, output, reasoning, cache_read, cache_write, window, milliseconds, tenant
        FROM ({turns}) ORDER BY at;"
    )
}
