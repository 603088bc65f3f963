//! `/api/v1/caps`: how much of each spending cap is spent, by whom; lifting one until its period ends, and setting one.
//!
//! The sums are those that decide.

use std::fmt;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::VariantNames as _;

use super::responses::{AdminError, AdminResponse, json, negotiated, number, text_parameter};
use super::state::Admin;
use crate::clock::now;
use crate::config::raw::RawCap;
use crate::config::{CapFault, check_cap};
use crate::context::Millis;
use crate::context::caps::{Cap, CapOrigin, CapPeriod, CapState, UnknownCap};
use crate::store::StoreError;
use crate::store::ledgers::CapChangeError;
use crate::telemetry::log::clean;

/// The caps, the fullest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct CapsPage {
    /// When this was made, ms since 1970.
    pub now: Millis,
    /// What is spent of each, by each whom it limits.
    pub caps: Vec<CapState>,
}

pub(super) async fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    admin.ledgers.refresh_all_caps(now()).await;
    Ok(negotiated(&page(admin), request))
}

pub(super) async fn lift(admin: &Admin, name: &str, query: Option<&str>) -> AdminResponse {
    let subject = text_parameter(query, "subject");
    match admin.ledgers.lift_cap(name, subject.as_deref(), now()).await {
        Ok(()) => Ok(json(&page(admin))),
        Err(CapChangeError::Store(error)) => Err(not_kept(&error)),
        Err(CapChangeError::Unknown(unknown)) => {
            let what = match unknown {
                UnknownCap::Name => format!("There is no cap {name:?}; /api/v1/caps lists them."),
                UnknownCap::Subject => format!(
                    "{:?} has spent nothing of the cap {name:?}; /api/v1/caps lists who has.",
                    subject.as_deref().unwrap_or_default()
                ),
            };
            Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what))
        }
    }
}

/// What is not given stays as it is in the cap of this name.
pub(super) async fn set(admin: &Admin, name: &str, query: Option<&str>) -> AdminResponse {
    let current = admin.ledgers.caps().named(name);
    let current = current.as_ref();
    let subject = text_parameter(query, "of").or_else(|| current.map(Cap::subject));
    let per = match text_parameter(query, "per") {
        Some(per) => per.parse().map_err(|_| {
            bad_query(format!("per should be one of {}.", CapPeriod::VARIANTS.join(", ")))
        })?,
        None => current.map_or_else(CapPeriod::default, |cap| cap.per),
    };
    let dollars = match text_parameter(query, "dollars") {
        Some(dollars) => {
            Some(dollars.parse().map_err(|_| bad_query("dollars should be a number.".into()))?)
        }
        None => current.and_then(|cap| cap.dollars),
    };
    let tokens = number(query, "tokens")?.map(|tokens| tokens as u64);
    let tokens = tokens.or_else(|| current.and_then(|cap| cap.tokens));
    let raw = RawCap { of: subject, per, dollars, tokens };
    let cap = check_cap(name, &raw, CapOrigin::Command).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(CapFault::text).collect();
        bad_query(faults.join(" "))
    })?;
    keep(admin, name, Some(cap)).await
}

pub(super) async fn take_back(admin: &Admin, name: &str) -> AdminResponse {
    let set = admin.ledgers.caps().named(name);
    if set.is_none_or(|cap| cap.origin != CapOrigin::Command) {
        let what = format!("No cap {name:?} was set here; /api/v1/caps lists them.");
        return Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what));
    }
    keep(admin, name, None).await
}

async fn keep(admin: &Admin, name: &str, cap: Option<Cap>) -> AdminResponse {
    admin.ledgers.set_cap(name, cap, now()).await.map_err(|error| not_kept(&error))?;
    Ok(json(&page(admin)))
}

fn not_kept(error: &StoreError) -> AdminError {
    let what = format!("The change of the cap cannot be kept: {error}.");
    AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "store_failed", what)
}

fn bad_query(what: String) -> AdminError {
    AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what)
}

fn page(admin: &Admin) -> CapsPage {
    let now = now();
    CapsPage { now, caps: admin.ledgers.caps().list(now) }
}

impl fmt::Display for CapsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.caps.is_empty() {
            return write!(
                f,
                "There are no caps. [cap.NAME] in the configuration sets one, or `plimsoll caps --set`."
            );
        }
        // Whole, because a cap is lifted for one by its name.
        let subjects: Vec<_> = self.caps.iter().map(|state| clean(&state.subject)).collect();
        let width = subjects.iter().map(|subject| subject.chars().count()).max();
        let width = width.unwrap_or(0).max(2);
        write!(f, "{:<16} {:<width$} {:<8} {:>5}  SPENT", "CAP", "OF", "PER", "USED")?;
        for (state, subject) in self.caps.iter().zip(&subjects) {
            write!(
                f,
                "\n{:<16} {subject:<width$} {:<8} {:>4.0}%  {state}",
                state.cap,
                state.per.as_ref(),
                state.used * 100.0
            )?;
            let end = state.ends.and_then(|ends| i64::try_from(ends).ok());
            let end = end.and_then(|end| Timestamp::from_millisecond(end).ok());
            let end = end.map(|end| end.strftime("%Y-%m-%d %H:%M UTC").to_string());
            match (state.lifted, end) {
                (true, Some(end)) => write!(f, ", lifted until {end}")?,
                (true, None) => write!(f, ", lifted")?,
                (false, Some(end)) => write!(f, ", until {end}")?,
                (false, None) => {}
            }
            if state.origin == CapOrigin::Command {
                write!(f, ", set by caps --set")?;
            }
        }
        Ok(())
    }
}
