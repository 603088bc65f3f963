//! `plimsoll caps`: shows spending caps, sets one while Plimsoll runs, takes it back, or lifts one for a while.
//!
//! What makes a cap is checked by the admin API, as the configuration's are.

use http::Method;

use super::admin_client::AdminClient;
use super::print::CliError;
use super::sessions::show;
use crate::dialect::percent::encoded;

/// What changes about a cap before all are shown.
#[derive(Debug, clap::Args)]
pub(super) struct CapChange {
    /// Set this cap, or change it, until it is taken back, also after a restart; what is not given stays as it is.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["unset", "lift"])]
    set: Option<String>,
    /// Take back what was set; a cap of this name in the configuration holds again.
    #[arg(long, value_name = "NAME", conflicts_with = "lift")]
    unset: Option<String>,
    /// Let this cap stop nothing until its period ends.
    #[arg(long, value_name = "NAME")]
    lift: Option<String>,
    /// Whose spending it limits, as in the configuration: all, session, tag:team=core. With --lift: only this one, as the
    /// list names it.
    #[arg(long, value_name = "WHO", conflicts_with = "unset")]
    of: Option<String>,
    /// In which time: session, hour, day or month.
    #[arg(long, value_name = "PERIOD", requires = "set")]
    per: Option<String>,
    /// At most so many US dollars.
    #[arg(long, value_name = "N", requires = "set")]
    dollars: Option<f64>,
    /// At most so many tokens.
    #[arg(long, value_name = "N", requires = "set")]
    tokens: Option<u64>,
}

impl CapChange {
    /// Changes what is wanted, then prints all caps.
    pub(super) async fn show(&self, client: &AdminClient, as_json: bool) -> Result<(), CliError> {
        if let Some((method, path)) = self.request()? {
            client.request_text(&method, &path).await?;
        }
        show(client, "/api/v1/caps?", as_json).await
    }

    fn request(&self) -> Result<Option<(Method, String)>, CliError> {
        if let Some(name) = &self.lift {
            let subject = self.of.as_deref().map(|of| format!("?subject={}", encoded(of)));
            let path = format!("/api/v1/caps/{}/lift", encoded(name));
            return Ok(Some((Method::POST, path + &subject.unwrap_or_default())));
        }
        if let Some(name) = &self.unset {
            return Ok(Some((Method::DELETE, format!("/api/v1/caps/{}", encoded(name)))));
        }
        let Some(name) = &self.set else {
            return match &self.of {
                Some(_) => Err(CliError("--of needs --set or --lift".to_owned())),
                None => Ok(None),
            };
        };
        let mut path = format!("/api/v1/caps/{}?", encoded(name));
        for (key, value) in [
            ("of", self.of.clone()),
            ("per", self.per.clone()),
            ("dollars", self.dollars.map(|dollars| dollars.to_string())),
            ("tokens", self.tokens.map(|tokens| tokens.to_string())),
        ] {
            if let Some(value) = value {
                path += &format!("{key}={}&", encoded(&value));
            }
        }
        Ok(Some((Method::POST, path)))
    }
}
