//! The client's request without its body: what its path and headers say of protocol, tenant, model and mode.
//!
//! Looked up where it is needed, and only there. Changes nothing.

use std::sync::{Arc, OnceLock};

use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderValue};
use http::{HeaderMap, Uri, request};

use crate::config::{Mode, Tenants, Upstream};
use crate::context::policy::ReasoningRule;
use crate::context::{TenantId, Turn, reasoning};
use crate::dialect::credentials::{Tenant, gives_away};
use crate::dialect::door::Door;
use crate::dialect::identity::ANONYMOUS;
use crate::dialect::lesson::Lesson;
use crate::dialect::model_list;
use crate::dialect::models::Model;
use crate::dialect::paths::{self, Transport};
use crate::dialect::request_id::provider_request_id;
use crate::dialect::{Dialect, Purpose};
use crate::proxy::http::headers;
use crate::proxy::plan::added_option::AddedOption;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::model_list::{LearnList, ModelListTap};
use crate::proxy::response::tap::SettleLate;
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::late;
use crate::telemetry::FailOpen;

/// A request as the client sent it, without its body.
pub(super) struct ClientRequest {
    target: Uri,
    /// Kept only if the path is one with a conversation.
    pub(super) headers: HeaderMap,
    /// The protocol, as the path shows it.
    pub(crate) dialect: Option<Dialect>,
    /// The purpose, as the path shows it.
    pub(crate) purpose: Option<Purpose>,
    pub(super) transport: Transport,
    /// The id of the reply that it reads, which was made for an earlier request.
    stored: Option<Box<str>>,
    /// The response may be a list of models.
    lists_models: bool,
    /// Its tenant, once it was looked for.
    tenant: OnceLock<Result<TenantId, FailOpen>>,
}

impl ClientRequest {
    pub(super) fn new(head: &request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let endpoint = paths::endpoint(&head.method, target);
        let lists_models = model_list::is_list(&head.method, target);
        let is_read = endpoint.is_some() || lists_models;
        Self {
            target: head.uri.clone(),
            headers: if is_read { head.headers.clone() } else { HeaderMap::new() },
            dialect: endpoint.as_ref().map(|endpoint| endpoint.dialect),
            purpose: match &endpoint {
                Some(endpoint) if endpoint.stored.is_none() => Some(endpoint.purpose),
                _ => None,
            },
            transport: endpoint.as_ref().map_or(Transport::Http, |endpoint| endpoint.transport),
            stored: endpoint.and_then(|endpoint| endpoint.stored).map(Into::into),
            lists_models,
            tenant: OnceLock::new(),
        }
    }

    pub(super) fn body_dialect(&self) -> Option<Dialect> {
        // A request that reads a stored reply has no body, and frames have their own.
        if self.transport == Transport::WebSocket || self.stored.is_some() {
            return None;
        }
        self.dialect
    }

    pub(super) fn is_over_websocket(&self) -> bool {
        self.transport == Transport::WebSocket
    }

    pub(super) fn response_dialect(&self) -> Option<Dialect> {
        if self.transport == Transport::Http { self.dialect } else { None }
    }

    /// Completes the turn of the reply that it reads, if that was made for an earlier request of the same tenant.
    pub(super) fn settle_late(
        &self,
        upstream: &Arc<Upstream>,
        proxy: &Arc<Proxy>,
    ) -> Option<SettleLate> {
        // First, because few requests read a stored reply, and to find a tenant takes long.
        let response = self.stored.clone()?;
        let tenant = self.tenant(proxy).ok()?;
        Some(late::settle(proxy.clone(), tenant, self.dialect?, upstream.clone(), response))
    }

    pub(super) fn provider_request_id(
        &self,
        answered: &HeaderMap,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Box<str>> {
        // For other paths the headers are not kept, so a credential in the id could not be recognised.
        let id = self.dialect.and_then(|_| provider_request_id(answered))?;
        // A gateway may make its id of the credential.
        if let Some((_, secret)) = &upstream.credential
            && gives_away(id, secret.0.as_bytes())
        {
            return None;
        }
        if proxy.credentials.appear_in(id, &self.headers, self.target()) {
            return None;
        }
        Some(id.into())
    }

    /// Whether the client signed the body (AWS), so that no byte of it may change (`docs/protocols.md` 1.1).
    pub(super) fn is_signed(&self) -> bool {
        let scheme = self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        scheme.is_some_and(|scheme| scheme.starts_with(b"AWS4-"))
    }

    pub(super) fn added_options(
        &self,
        prepared: &PreparedRequest,
        parent: Option<&Turn>,
        proxy: &Proxy,
    ) -> Vec<AddedOption> {
        // Into a compressed body nothing can be inserted.
        match self.headers.contains_key(CONTENT_ENCODING) {
            true => Vec::new(),
            false => AddedOption::choose(prepared, proxy, parent),
        }
    }

    pub(super) fn mode(&self, upstream: &Upstream, proxy: &Proxy) -> Mode {
        // Such a path is only metered, whatever is configured.
        if paths::is_metered_only(self.path()) {
            return Mode::Observe;
        }
        let limit = upstream.mode.unwrap_or(proxy.config.mode);
        proxy.config.client_mode.mode(limit, headers::mode(&self.headers))
    }

    pub(super) fn tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        // An error: nothing of it is stored, and nothing stored is used for it.
        self.tenant.get_or_init(|| self.find_tenant(proxy)).clone()
    }

    fn find_tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        if proxy.config.tenants == Tenants::One {
            return Ok(ANONYMOUS.into());
        }
        match proxy.credentials.tenant(&proxy.tenant_key, &self.headers, self.target()) {
            Tenant::Known(tenant) => Ok(tenant),
            Tenant::Unknown => Err(FailOpen::UnknownCredential),
            Tenant::Everyone if proxy.client_access.is_open() => Err(FailOpen::NoCredential),
            Tenant::Everyone => Ok(ANONYMOUS.into()),
        }
    }

    pub(super) fn reasoning_rule(
        &self,
        upstream: &Upstream,
        model: &str,
        holds: impl Fn(Lesson) -> bool,
    ) -> ReasoningRule {
        // What is configured counts most, then what was learned, then what is known of the host.
        if let Some(rule) = upstream.reasoning_echo {
            return rule;
        }
        if holds(Lesson::ReasoningRefused) {
            ReasoningRule::Unwanted
        } else if holds(Lesson::ReasoningDemanded) {
            ReasoningRule::Demanded
        } else {
            let dialect = self.dialect.unwrap_or(Dialect::OpenaiChat);
            reasoning::rule(dialect, upstream.base.host().unwrap_or_default(), model)
        }
    }

    pub(super) fn model(&self, name: &str, upstream: &Upstream, proxy: &Proxy) -> Model {
        let betas = self.headers.get_all(headers::BETA).iter();
        let betas: Vec<&str> = betas.filter_map(|line| line.to_str().ok()).collect();
        let model = proxy.catalogue.model(name, &betas.join(","));
        let is_regional = Door::is_regional(self.target.path(), name);
        model
            .through(self.door(upstream), name)
            .in_region(is_regional)
            .behind(upstream.window, upstream.price)
    }

    fn door(&self, upstream: &Upstream) -> Door {
        let host = upstream.base.host().unwrap_or_default();
        Door::from_request(host, self.path(), &self.headers)
    }

    /// What learns from the response, if that may be a list of models and the tenant is known.
    pub(super) fn model_list_tap(
        &self,
        upstream: &Arc<Upstream>,
        answered: &HeaderMap,
        recorder: &ExchangeRecorder,
    ) -> Option<Box<ModelListTap>> {
        let proxy = recorder.proxy.clone();
        if !self.lists_models {
            return None;
        }
        let tenant = self.tenant(&proxy).ok()?;
        let upstream = upstream.clone();
        let door = self.door(&upstream);
        let target = self.target().into();
        let learn: LearnList =
            Box::new(move |body| Box::pin(proxy.learn_list(tenant, upstream, door, target, body)));
        ModelListTap::new(answered, &recorder.proxy.memory, learn).map(Box::new)
    }

    pub(super) fn path(&self) -> &str {
        self.target.path()
    }

    pub(super) fn target(&self) -> &str {
        self.target.path_and_query().map_or("/", |target| target.as_str())
    }
}
