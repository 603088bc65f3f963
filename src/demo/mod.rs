//! The demo: a scripted provider and a client in front of and behind the real proxy, over real
//! sockets, with no key and no network.
//!
//! Above all floors; nothing in the product imports it but the command line.

pub mod provider;
mod script;
mod socket;
mod speak;
#[cfg(test)]
mod tests;

pub use provider::Provider;

use std::io::{self, Write};
use std::net::SocketAddr;

/// What the demo should do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only the scripted provider, listening here, until the process is told to stop.
    pub provider: Option<SocketAddr>,
    /// Stay up at the end, so that metrics can be scraped and pages looked at.
    pub keep: bool,
}

/// Runs the demo and tells on `out` what it does.
///
/// # Errors
/// Where a port cannot be bound, the temporary folder cannot be made, or `out` is gone.
pub async fn run(options: Options, out: &mut (dyn Write + Send)) -> io::Result<()> {
    if let Some(address) = options.provider {
        let provider = Provider::start(address).await?;
        writeln!(out, "provider http://{}", provider.address())?;
        out.flush()?;
        return tokio::signal::ctrl_c().await;
    }
    Ok(())
}
