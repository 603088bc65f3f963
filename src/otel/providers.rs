//! Which provider an upstream is, by its host, in the words of OpenTelemetry's conventions.
//!
//! A gateway of unknown name counts as the maker of the protocol that was spoken to it.

use std::collections::HashMap;

use crate::config::Config;
use crate::dialect::Dialect;

/// Ends of hosts, and `gen_ai.provider.name`.
pub(super) const HOSTS: &[(&str, &str)] = &[
    ("anthropic.com", "anthropic"),
    ("openai.azure.com", "azure.ai.openai"),
    ("azure.com", "azure.ai.inference"),
    ("openai.com", "openai"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("googleapis.com", "gcp.gen_ai"),
    ("amazonaws.com", "aws.bedrock"),
    ("cohere.com", "cohere"),
    ("deepseek.com", "deepseek"),
    ("groq.com", "groq"),
    ("mistral.ai", "mistral_ai"),
    ("moonshot.ai", "moonshot_ai"),
    ("moonshot.cn", "moonshot_ai"),
    ("perplexity.ai", "perplexity"),
    ("x.ai", "x_ai"),
];

/// An upstream, as spans and metrics name it.
pub(super) struct UpstreamProvider {
    /// Its host.
    pub(super) host: Box<str>,
    /// Its port.
    pub(super) port: u16,
    known: Option<&'static str>,
}

/// The configured upstreams, by name.
pub(super) struct Providers(HashMap<Box<str>, UpstreamProvider>);

impl Providers {
    pub(super) fn new(config: &Config) -> Self {
        let upstreams = config.upstreams.iter().map(|upstream| {
            let host = upstream.host();
            let default = if upstream.base.scheme_str() == Some("http") { 80 } else { 443 };
            let port = upstream.base.port_u16().unwrap_or(default);
            let row = HOSTS.iter().find(|(end, _)| is_under(host, end));
            let known_name = row.map(|(_, name)| *name);
            (upstream.name.clone(), UpstreamProvider { host: host.into(), port, known: known_name })
        });
        Self(upstreams.collect())
    }

    pub(super) fn get(&self, upstream: Option<&str>) -> Option<&UpstreamProvider> {
        self.0.get(upstream?)
    }
}

impl UpstreamProvider {
    /// `gen_ai.provider.name`.
    pub(super) fn name(&self, dialect: Option<Dialect>) -> &'static str {
        self.known.unwrap_or(match dialect {
            Some(Dialect::Anthropic) => "anthropic",
            Some(Dialect::Gemini) => "gcp.gen_ai",
            _ => "openai",
        })
    }
}

fn is_under(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_name_providers() {
        let name = |base: &str, dialect: Dialect| {
            let providers = Providers::new(&Config::for_tests(base));
            providers.get(Some("up")).unwrap().name(Some(dialect))
        };
        assert_eq!(name("https://api.anthropic.com", Dialect::Anthropic), "anthropic");
        assert_eq!(name("https://me.openai.azure.com", Dialect::OpenaiChat), "azure.ai.openai");
        assert_eq!(name("https://api.x.ai/v1", Dialect::OpenaiChat), "x_ai");
        assert_eq!(name("https://notx.ai", Dialect::OpenaiChat), "openai");
        assert_eq!(name("http://gateway:4000", Dialect::Anthropic), "anthropic");
    }
}
