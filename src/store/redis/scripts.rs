//! The scripts that the server runs: each is one step that nothing comes in between.
//!
//! One that a server does not have, or lost, is sent again as a whole, to that server alone.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};

use super::server::Connection;

/// A script with its hash.
pub(super) struct Script {
    code: &'static str,
    hash: String,
}

/// How many replicas must have what was written, and how long is waited for them.
#[derive(Clone, Copy)]
pub(super) struct Acks {
    pub(super) replicas: u32,
    pub(super) within: Duration,
}

/// What a script is told.
#[derive(Clone, Copy)]
pub(super) struct ScriptCall<'a> {
    pub(super) keys: &'a [String],
    /// Since when something is known: the first argument, which is empty, becomes its age. That is taken as it is sent,
    /// because making a connection takes time, and the server's clock may be another.
    pub(super) since: Option<Instant>,
    pub(super) arguments: &'a [Vec<u8>],
}

impl ScriptCall<'_> {
    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(self.keys);
        match self.since {
            Some(since) => {
                command.arg(since.elapsed().as_micros().to_string());
                command.arg(self.arguments.get(1..).unwrap_or_default());
            }
            None => _ = command.arg(self.arguments),
        }
        command
    }
}

impl Script {
    fn new(code: &'static str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    /// Runs it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<T, RedisError> {
        self.run_call(connection, ScriptCall { keys, since: None, arguments }).await
    }

    /// Runs it with what only some scripts are told.
    pub(super) async fn run_call<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        call: ScriptCall<'_>,
    ) -> Result<T, RedisError> {
        match call.command("EVALSHA", &self.hash).query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                call.command("EVAL", self.code).query_async(connection).await
            }
            answer => answer,
        }
    }

    /// Runs it, and waits for replicas: also returns how many of them have what it wrote.
    pub(super) async fn run_with_acks<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        call: ScriptCall<'_>,
        acks: Acks,
    ) -> Result<(T, u32), RedisError> {
        let within = acks.within.as_millis() as u64;
        let waiting = |command: Cmd| {
            let mut pipeline = redis::pipe();
            pipeline.add_command(command).cmd("WAIT").arg(acks.replicas).arg(within);
            pipeline
        };
        let pipeline = waiting(call.command("EVALSHA", &self.hash));
        match pipeline.query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                let pipeline = waiting(call.command("EVAL", self.code));
                pipeline.query_async(connection).await
            }
            answer => answer,
        }
    }
}

/// Whether the server does not have the script.
fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

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
    NOTE: "note.lua",
    INDEX: "index.lua",
    EXPIRED: "expired.lua",
    UNLIST: "unlist.lua",
    CLAIM: "claim.lua",
    DELETE_IF: "delete_if.lua",
    FORGET: "forget.lua",
    SUMS: "sums.lua",
    REPLACE: "replace.lua",
    TELL: "tell.lua",
    TOLD: "told.lua",
}
