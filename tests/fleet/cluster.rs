//! A Redis cluster of its own for a test: three primaries with a replica each, on loopback.

use std::time::Duration;

use plimsoll::store::redis::RedisServer;

use crate::server::{Engine, Server, free_port};

/// Nodes of a cluster, and the slots that each third serves.
const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];
/// After so long without a sign of life a node is replaced, ms.
const NODE_TIMEOUT: &str = "1000";

pub struct Cluster {
    /// The first three began as primaries, the others as their replicas.
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub async fn start(engine: Engine) -> Self {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..6 {
            let bus_port = free_port().to_string();
            let options = [
                ["--cluster-enabled", "yes"],
                ["--cluster-node-timeout", NODE_TIMEOUT],
                ["--cluster-port", &bus_port],
                ["--cluster-allow-replica-migration", "no"],
                ["--repl-diskless-sync-delay", "0"],
            ];
            nodes.push(Server::with_options(engine, options.as_flattened()).await);
            bus_ports.push(bus_port);
        }
        let cluster = Self { nodes };
        for (node, (first, last)) in cluster.nodes.iter().zip(SLOTS) {
            let [first, last] = [first, last].map(|slot| slot.to_string());
            let _: String = node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        let first = &cluster.nodes[0];
        for (node, bus_port) in cluster.nodes.iter().zip(&bus_ports).skip(1) {
            let port = node.port.to_string();
            let _: String = first.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]).await;
        }
        for node in &cluster.nodes {
            until("all nodes know each other", async || {
                node.ask::<String>(&["CLUSTER", "NODES"]).await.lines().count() == 6
            })
            .await;
        }
        for (primary, replica) in cluster.nodes.iter().zip(&cluster.nodes[3..]) {
            let id: String = primary.ask(&["CLUSTER", "MYID"]).await;
            until("it becomes a replica", async || {
                replica.try_ask::<String>(&["CLUSTER", "REPLICATE", &id]).await.is_ok()
            })
            .await;
        }
        cluster.is_whole().await;
        cluster
    }

    /// Waits until each node serves, and has what its primary has.
    pub async fn is_whole(&self) {
        for node in &self.nodes {
            until("the cluster is whole", async || {
                let state = node.try_ask::<String>(&["CLUSTER", "INFO"]).await;
                let role = node.try_ask::<String>(&["INFO", "replication"]).await;
                let (Ok(state), Ok(role)) = (state, role) else { return false };
                let is_linked = role.contains("role:master") || role.contains("link_status:up");
                state.contains("cluster_state:ok") && is_linked
            })
            .await;
        }
    }

    /// Waits until a node has become the primary of its slots.
    pub async fn is_promoted(&self, node: usize) {
        until("it takes over", async || {
            let role = self.nodes[node].try_ask::<String>(&["INFO", "replication"]).await;
            role.is_ok_and(|role| role.contains("role:master"))
        })
        .await;
    }

    /// Moves a slot with all its keys from one primary to another; returns how many keys it had.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) -> usize {
        let slot = slot.to_string();
        let from_id: String = self.nodes[from].ask(&["CLUSTER", "MYID"]).await;
        let to_id: String = self.nodes[to].ask(&["CLUSTER", "MYID"]).await;
        let set_slot = async |node: usize, state: &str, id: &str| {
            let _: String = self.nodes[node].ask(&["CLUSTER", "SETSLOT", &slot, state, id]).await;
        };
        set_slot(to, "IMPORTING", &from_id).await;
        set_slot(from, "MIGRATING", &to_id).await;
        let port = self.nodes[to].port.to_string();
        let mut moved = 0;
        loop {
            let get = ["CLUSTER", "GETKEYSINSLOT", &slot, "10"];
            let keys: Vec<String> = self.nodes[from].ask(&get).await;
            if keys.is_empty() {
                break;
            }
            moved += keys.len();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            let _: String = self.nodes[from].ask(&migrate).await;
        }
        set_slot(to, "NODE", &to_id).await;
        set_slot(from, "NODE", &to_id).await;
        moved
    }

    pub fn settings(&self, prefix: &str) -> RedisServer {
        // Two of them: the others are found.
        let hosts = self.nodes[..2].iter().map(|node| ("127.0.0.1".into(), node.port));
        let hosts = hosts.collect();
        RedisServer { hosts, is_cluster: true, ..self.nodes[0].settings(prefix) }
    }
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not in 20 s: {what}");
}
