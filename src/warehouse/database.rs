//! The database: connected to, looked at, its tables made, and written.
//!
//! Every statement has a time limit, and a connection on which one failed is dropped. Statements have no names, so that a
//! pooler between us and the server is no obstacle. No message has a password in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config as Address, Error};

use super::queue::Batch;
use super::rows::rows;
use super::tls::HostTls;
use crate::config::Config;
use crate::tls;

/// How long a connection may take to be made, and a statement to be answered.
const CONNECTING: Duration = Duration::from_secs(5);
const STATEMENT: Duration = Duration::from_secs(10);
/// The layout of tables and views that this version reads and writes.
const LAYOUT: i32 = 1;
/// Held while tables are made, so that replicas which start together do not make them at the same time.
const LOCK: i64 = 0x706c_696d_736f_6c6c;

/// Numbers are as in SQLite (`store/sqlite/schema.rs`), the columns of the views, too. There the sums end at the largest
/// integer, as they do here.
const TABLES: &str = r#"
CREATE TABLE plimsoll_turns (
    session     text NOT NULL,
    tenant      text NOT NULL,
    id          text NOT NULL,
    at          bigint NOT NULL,
    ended       bigint,
    thread      text,
    request     text,
    upstream    text,
    model       text,
    purpose     text,
    outcome     text,
    method      text,
    estimated   bigint,
    input       bigint,
    lower_bound boolean,
    output      bigint,
    reasoning   bigint,
    cache_read  bigint,
    cache_write bigint,
    "window"    bigint,
    dollars     double precision,
    PRIMARY KEY (session, tenant, id)
);
CREATE INDEX plimsoll_turns_by_time ON plimsoll_turns (at);
CREATE TABLE plimsoll_layout (layout integer NOT NULL);

CREATE VIEW turns AS SELECT
    to_timestamp(at / 1000) AT TIME ZONE 'UTC' AS time,
    session, thread, request, upstream, model, purpose, outcome, method,
    estimated, input, estimated - input AS error,
    output, reasoning, cache_read, cache_write, "window",
    ended - at AS milliseconds, dollars, tenant
FROM plimsoll_turns;

CREATE VIEW threads AS SELECT
    session, thread, min(time) AS began, max(time) AS latest, count(*) AS turns,
    CASE WHEN count(input) > 0 THEN least(sum(input), 9223372036854775807)::bigint END AS input,
    CASE WHEN count(output) > 0 THEN least(sum(output), 9223372036854775807)::bigint END AS output,
    CASE WHEN count(cache_read) > 0 THEN least(sum(cache_read), 9223372036854775807)::bigint END AS cache_read,
    sum(dollars) AS dollars, tenant
FROM turns GROUP BY tenant, session, thread;

CREATE VIEW sessions AS SELECT
    session, min(began) AS began, max(latest) AS latest, count(*) AS threads,
    sum(turns)::bigint AS turns,
    CASE WHEN count(input) > 0 THEN least(sum(input), 9223372036854775807)::bigint END AS input,
    CASE WHEN count(output) > 0 THEN least(sum(output), 9223372036854775807)::bigint END AS output,
    CASE WHEN count(cache_read) > 0 THEN least(sum(cache_read), 9223372036854775807)::bigint END AS cache_read,
    sum(dollars) AS dollars, tenant
FROM threads GROUP BY tenant, session;
"#;

/// Turns of one statement. One that is there stays, unless its whole reply or its usage came later: the rule of
/// `Turn::is_completed_by`.
const WRITE: &str = r#"
INSERT INTO plimsoll_turns AS kept
SELECT * FROM json_to_recordset($1::text::json) AS turn (
    session text, tenant text, id text, at bigint, ended bigint, thread text, request text,
    upstream text, model text, purpose text, outcome text, method text, estimated bigint,
    input bigint, lower_bound boolean, output bigint, reasoning bigint, cache_read bigint,
    cache_write bigint, "window" bigint, dollars double precision
)
ON CONFLICT (session, tenant, id) DO UPDATE SET
    ended = EXCLUDED.ended, outcome = EXCLUDED.outcome, method = EXCLUDED.method,
    estimated = EXCLUDED.estimated, input = EXCLUDED.input, lower_bound = EXCLUDED.lower_bound,
    output = EXCLUDED.output, reasoning = EXCLUDED.reasoning, cache_read = EXCLUDED.cache_read,
    cache_write = EXCLUDED.cache_write, dollars = EXCLUDED.dollars
WHERE EXCLUDED.outcome <> 'interrupted' AND (
    kept.outcome = 'interrupted'
    OR EXCLUDED.outcome = 'complete'
        AND (kept.outcome <> 'complete' OR kept.input IS NULL AND EXCLUDED.input IS NOT NULL)
)"#;

const DELETE: &str = "DELETE FROM plimsoll_turns WHERE session = $1 AND tenant = $2";

/// Where the database is, and how to get in.
pub(super) struct WarehouseDatabase {
    address: Address,
    tls: HostTls,
}

/// A connection to it, as far as there is one.
pub(super) struct WarehouseLink {
    database: WarehouseDatabase,
    client: Option<Client>,
}

/// Why a batch was not written.
pub(super) enum WriteError {
    /// It never will be: the database does not take such values.
    Refused(String),
    /// It may be later.
    Unavailable(String),
}

impl WarehouseDatabase {
    /// The configured one, if there is one.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub(super) fn configured(config: &Config) -> Option<Result<Self, String>> {
        let url = config.warehouse.as_ref()?;
        Some(Self::parse(&url.0).and_then(|address| {
            let tls = tls::client_config(config)?;
            Ok(Self { address, tls: HostTls(Arc::new(tls)) })
        }))
    }

    fn parse(url: &str) -> Result<Address, String> {
        // Certificates are always verified.
        let url = url.replace("=verify-full", "=require").replace("=verify-ca", "=require");
        let mut address: Address = url.parse().map_err(|error: Error| {
            format!("warehouse: the URL cannot be read: {}", causes(&error))
        })?;
        if address.get_hosts().is_empty() {
            return Err("warehouse: the URL names no server".to_owned());
        }
        address.application_name("plimsoll").connect_timeout(CONNECTING);
        Ok(address)
    }

    /// Where it is, without credentials.
    pub(super) fn shown(&self) -> String {
        let mut ports = self.address.get_ports().iter();
        let mut hosts = Vec::new();
        let mut port = 5432;
        for host in self.address.get_hosts() {
            // One port may be for all hosts.
            port = ports.next().copied().unwrap_or(port);
            hosts.push(match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                Host::Unix(path) => path.display().to_string(),
            });
        }
        let database = self.address.get_dbname().or(self.address.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}", hosts.join(","))
    }

    /// Looks whether it can be used, and changes nothing.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do.
    pub(super) async fn examine(&self) -> Result<(), String> {
        let client = self.connect().await?;
        let looking = async {
            if let Some(layout) = layout(&client).await? {
                let allowed = "SELECT has_table_privilege('plimsoll_turns', 'INSERT') \
                               AND has_table_privilege('plimsoll_turns', 'UPDATE')";
                let is_allowed: bool = client.query_typed_one(allowed, &[]).await?.get(0);
                return Ok((Some(layout), is_allowed));
            }
            let allowed =
                "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)";
            Ok((None, client.query_typed_one(allowed, &[]).await?.get(0)))
        };
        match self.within(looking).await? {
            (Some(layout), _) if layout != LAYOUT => Err(self.of_other_version(layout)),
            (Some(_), false) => Err(self.unusable("does not let this user write plimsoll_turns")),
            (None, false) => Err(self.unusable("does not let this user make tables")),
            _ => Ok(()),
        }
    }

    async fn connect(&self) -> Result<Client, String> {
        let connecting = timeout(CONNECTING, self.address.connect(self.tls.clone())).await;
        let connected = connecting.map_err(|_| self.unusable("does not answer"))?;
        let (client, connection) = connected.map_err(|error| self.explain(&error))?;
        // Ends with the client.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Connects, and makes the tables if there are none.
    async fn open(&self) -> Result<Client, String> {
        let mut client = self.connect().await?;
        let preparing = async {
            let change = client.transaction().await?;
            change.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
            let layout = layout(change.client()).await?;
            if layout.is_none() {
                change.batch_execute(TABLES).await?;
                let insert = "INSERT INTO plimsoll_layout VALUES ($1)";
                change.execute_typed(insert, &[(&LAYOUT, Type::INT4)]).await?;
            }
            change.commit().await?;
            Ok(layout)
        };
        match self.within(preparing).await? {
            Some(layout) if layout != LAYOUT => Err(self.of_other_version(layout)),
            _ => Ok(client),
        }
    }

    /// Runs statements within the time limit.
    async fn within<T>(
        &self,
        statements: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, String> {
        match timeout(STATEMENT, statements).await {
            Ok(answer) => answer.map_err(|error| self.explain(&error)),
            Err(_) => Err(self.unusable("does not answer")),
        }
    }

    fn of_other_version(&self, layout: i32) -> String {
        let age = if layout > LAYOUT { "a newer" } else { "another" };
        self.unusable(&format!(
            "has tables of {age} version of Plimsoll (layout {layout}, this one knows {LAYOUT}). Use that version, or \
             another database"
        ))
    }

    fn unusable(&self, what: &str) -> String {
        format!("warehouse {} {what}", self.shown())
    }

    fn explain(&self, error: &Error) -> String {
        let Some(reply) = error.as_db_error() else {
            let mut text = self.unusable(&format!("cannot be reached: {}", causes(error)));
            if text.contains("certificate") && self.address.get_ssl_mode() != SslMode::Disable {
                text += ". Set extra_ca to its authority";
            }
            return text;
        };
        match reply.code().code() {
            "28P01" | "28000" => {
                self.unusable("does not accept user and password. Correct the URL of `warehouse`")
            }
            "3D000" => self.unusable("does not exist: make the database"),
            "42501" => self.unusable(&format!("does not let this user in: {}", reply.message())),
            "42P07" => self.unusable(&format!("is in use for something else: {}", reply.message())),
            _ => self.unusable(&format!("refuses: {}", reply.message())),
        }
    }
}

impl WarehouseLink {
    pub(super) fn new(database: WarehouseDatabase) -> Self {
        Self { database, client: None }
    }

    /// Connects, unless there is a connection.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn open(&mut self) -> Result<(), String> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = Some(self.database.open().await?);
        }
        Ok(())
    }

    pub(super) async fn write(&mut self, batch: &Batch) -> Result<(), WriteError> {
        self.open().await.map_err(WriteError::Unavailable)?;
        let Some(client) = &self.client else { return Ok(()) };
        let written = match batch {
            Batch::Turns(turns) => {
                let rows = rows(turns).map_err(|error| WriteError::Refused(error.to_string()))?;
                timeout(STATEMENT, client.execute_typed(WRITE, &[(&rows, Type::TEXT)])).await
            }
            Batch::Deletion(scope) => {
                let session = (scope.session.as_str(), scope.tenant.as_str());
                let names = [(&session.0 as _, Type::TEXT), (&session.1 as _, Type::TEXT)];
                timeout(STATEMENT, client.execute_typed(DELETE, &names)).await
            }
        };
        let error = match written {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => {
                self.client = None;
                return Err(WriteError::Unavailable(self.database.unusable("does not answer")));
            }
        };
        let explanation = self.database.explain(&error);
        // The class of errors in data: it would be refused again.
        if error.code().is_some_and(|code| code.code().starts_with("22")) {
            return Err(WriteError::Refused(explanation));
        }
        self.client = None;
        Err(WriteError::Unavailable(explanation))
    }
}

/// The layout of the tables that there are.
async fn layout(client: &Client) -> Result<Option<i32>, Error> {
    let found =
        client.query_typed("SELECT to_regclass('plimsoll_layout') IS NOT NULL", &[]).await?;
    if !found.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = client.query_typed("SELECT max(layout) FROM plimsoll_layout", &[]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// An error with what it comes from: its own text does not say that.
fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
