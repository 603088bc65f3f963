//! The views for people who read the file with their own tools.
//!
//! Plimsoll itself does not use them.

/// The columns of `turns`, from `facts`.
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

/// The view with its documented columns, over these turns.
pub(super) fn turns_view(turns: &str) -> String {
    format!(
        "CREATE VIEW turns AS SELECT
            time, session, thread, request, upstream, model, purpose, outcome, method, estimated,
            input, error, output, reasoning, cache_read, cache_write, window, milliseconds, tenant
        FROM ({turns}) ORDER BY at;"
    )
}
