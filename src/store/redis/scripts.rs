//! The scripts that the server runs: each is one step that nothing comes in between.
//!
//! One that a server does not have, or lost, is sent again as a whole, to that server alone.

use std::sync::LazyLock;
use std::time::Duration;

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

impl Script {
    fn new(code: &'static str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    fn command(name: &str, script: &str, keys: &[String], arguments: &[Vec<u8>]) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
        command
    }

    /// Runs it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<T, RedisError> {
        let command = Self::command("EVALSHA", &self.hash, keys, arguments);
        match command.query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                Self::command("EVAL", self.code, keys, arguments).query_async(connection).await
            }
            answer => answer,
        }
    }

    /// Runs it, and waits for replicas: also returns how many of them have what it wrote.
    pub(super) async fn run_with_acks<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        keys: &[String],
        arguments: &[Vec<u8>],
        acks: Acks,
    ) -> Result<(T, u32), RedisError> {
        let within = acks.within.as_millis() as u64;
        let waiting = |command: Cmd| {
            let mut pipeline = redis::pipe();
            pipeline.add_command(command).cmd("WAIT").arg(acks.replicas).arg(within);
            pipeline
        };
        let pipeline = waiting(Self::command("EVALSHA", &self.hash, keys, arguments));
        match pipeline.query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                let pipeline = waiting(Self::command("EVAL", self.code, keys, arguments));
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
    INDEX: "index.lua",
    EXPIRED: "expired.lua",
    UNLIST: "unlist.lua",
    CLAIM: "claim.lua",
    DELETE_IF: "delete_if.lua",
    SUMS: "sums.lua",
}
